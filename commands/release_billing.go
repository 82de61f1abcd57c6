package commands

import "github.com/billonce/billonce/domain"

// ReleaseBilling lets a bill go on that waits for an operator: one that may have
// been settled before a restore, and was not; or one that needs review, once what
// stood against it is repaired. Of the latter Stripe is read again, and if it
// shows the same, the bill needs review as before: nothing is sent on this
// command's word.
type ReleaseBilling struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	Reason        string            `json:"reason"`
}

// NewReleaseBilling builds the command; id is the caller's key.
func NewReleaseBilling(c domain.CustomerID, p domain.Period, reason string, id domain.Key) ReleaseBilling {
	return ReleaseBilling{domain.KeyOf("release-billing", string(c), p.String(), string(id)), c, p, reason}
}

func (ReleaseBilling) Name() string              { return "release-billing" }
func (c ReleaseBilling) Key() domain.Key         { return c.key }
func (c ReleaseBilling) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ReleaseBilling) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, ok := s.Bill(c.BillingPeriod)
	switch {
	case !ok:
		return nil, domain.ErrUnknownBill
	case bill.Status == domain.BillNeedsReview:
	case !bill.PerhapsSettled || bill.Status.Final():
		return nil, domain.ErrNotWaiting
	}
	return []domain.Event{domain.ChargeReleased{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Reason: c.Reason}}, nil
}

type releaseBillingBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	Reason        string `json:"reason" doc:"Why; no personal data." maxLength:"500" example:"the settlement was a mistake"`
}

func (b releaseBillingBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	reason := checkText(&v, "reason", b.Reason, true)
	return v.request(Of(NewReleaseBilling(id, period, reason, in.Key)))
}
