package commands

import "github.com/billonce/billonce/domain"

// SettleBilling says that a bill was paid outside Stripe.
type SettleBilling struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	Reference     string            `json:"reference"`
}

// NewSettleBilling builds the command; id is the caller's key.
func NewSettleBilling(c domain.CustomerID, p domain.Period, reference string, id domain.Key) SettleBilling {
	return SettleBilling{domain.KeyOf("settle-billing", string(c), p.String(), string(id)), c, p, reference}
}

func (SettleBilling) Name() string              { return "settle-billing" }
func (c SettleBilling) Key() domain.Key         { return c.key }
func (c SettleBilling) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c SettleBilling) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, err := closable(s, c.BillingPeriod)
	if err != nil {
		return nil, err
	}
	if bill.IntentID != "" {
		return []domain.Event{domain.BillClosing{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Mode: domain.ClosingSettled, Reference: c.Reference}}, nil
	}
	return []domain.Event{domain.BillSettled{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Reference: c.Reference}}, nil
}

// closable is the bill for p, if it may be settled or written off: it exists,
// is open, and no call may be under way. A bill that waits for the customer to
// act, or that needs review, may be closed if it has an intent, since Stripe
// decides the race: the intent's cancel either holds or finds the success. One
// that needs review and has none was never sent.
func closable(s domain.Customer, p domain.Period) (domain.Bill, error) {
	if !s.Registered() {
		return domain.Bill{}, domain.ErrUnknownCustomer
	}
	bill, ok := s.Bill(p)
	switch {
	case !ok:
		return bill, domain.ErrUnknownBill
	case bill.Status == domain.BillPaid:
		return bill, domain.ErrAlreadyBilled
	case bill.Status.Ended() || bill.Status == domain.BillClosingStatus:
		return bill, domain.ErrBillClosed.With("the bill for %s is %s", p, bill.Status)
	case bill.PerhapsSettled && bill.Status == domain.BillWaiting && (bill.IntentID != "" || !bill.Unresolved): // an intent of it was cancelled at Stripe by a closing: what else there is ends there first, too
		return bill, nil
	case bill.Status == domain.BillNeedsReview && (bill.IntentID != "" || !bill.Unresolved):
		return bill, nil
	case bill.InFlight() && !(bill.Status == domain.BillActionRequired && bill.IntentID != "") || bill.Unresolved:
		return bill, domain.ErrChargeInFlight
	}
	return bill, nil
}

type settleBillingBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	Reference     string `json:"reference" doc:"Where the money is: a bank reference, an invoice number; no personal data." maxLength:"500" example:"wire 2026-11-14/77"`
}

func (b settleBillingBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	reference := checkText(&v, "reference", b.Reference, true)
	return v.request(Of(NewSettleBilling(id, period, reference, in.Key)))
}
