package commands

import "github.com/billonce/billonce/domain"

// CommitIntent fixes the PaymentIntent of a bill. It is write-once: if the
// bill has an intent, nothing happens and the caller uses that one. Only with
// Replaces, which the caller sets after Stripe showed the present intent
// cancelled, may the next number follow. Decided under the partition's lock,
// without a remembered key.
type CommitIntent struct {
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	IntentID      string            `json:"intent_id"`
	Replaces      string            `json:"replaces,omitempty"`
	Adopted       bool              `json:"adopted,omitempty"`
}

func (CommitIntent) Name() string              { return "commit-intent" }
func (CommitIntent) Key() domain.Key           { return "" }
func (c CommitIntent) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c CommitIntent) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, _ := s.Bill(c.BillingPeriod)
	number := 1
	switch {
	case bill.IntentID == c.IntentID:
		return nil, nil
	case bill.IntentID != "" && bill.IntentID != c.Replaces:
		return nil, nil
	case bill.IntentID != "":
		number = bill.IntentNo + 1
	}
	return []domain.Event{domain.ChargeIntentCommitted{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, IntentID: c.IntentID, IntentNo: number, Adopted: c.Adopted,
	}}, nil
}
