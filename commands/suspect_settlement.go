package commands

import "github.com/billonce/billonce/domain"

// SuspectSettlement says that Stripe shows an intent of the bill which a
// closing had cancelled, while the log knows of no closing. Nothing more is
// collected until an operator settles the bill, writes it off or releases it.
// Decided under the partition's lock, without a remembered key.
type SuspectSettlement struct {
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	IntentID      string            `json:"intent_id"` // the cancelled one
}

func (SuspectSettlement) Name() string              { return "suspect-settlement" }
func (SuspectSettlement) Key() domain.Key           { return "" }
func (c SuspectSettlement) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c SuspectSettlement) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, _ := s.Bill(c.BillingPeriod)
	if !bill.MayBeSettled() {
		return nil, nil
	}
	return []domain.Event{domain.ChargeWaiting{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: bill.Attempt, Reason: domain.ReasonPerhapsSettled,
	}}, nil
}
