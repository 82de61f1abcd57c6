package commands

import "github.com/billonce/billonce/domain"

// WriteOffBilling gives a bill up.
type WriteOffBilling struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	Reason        string            `json:"reason"`
}

// NewWriteOffBilling builds the command; id is the caller's key.
func NewWriteOffBilling(c domain.CustomerID, p domain.Period, reason string, id domain.Key) WriteOffBilling {
	return WriteOffBilling{domain.KeyOf("write-off-billing", string(c), p.String(), string(id)), c, p, reason}
}

func (WriteOffBilling) Name() string              { return "write-off-billing" }
func (c WriteOffBilling) Key() domain.Key         { return c.key }
func (c WriteOffBilling) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c WriteOffBilling) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, err := closable(s, c.BillingPeriod)
	if err != nil {
		return nil, err
	}
	if bill.IntentID != "" {
		return []domain.Event{domain.BillClosing{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Mode: domain.ClosingWrittenOff, Reason: c.Reason}}, nil
	}
	return []domain.Event{domain.BillWrittenOff{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Reason: c.Reason}}, nil
}

type writeOffBillingBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	Reason        string `json:"reason" doc:"Why; no personal data." maxLength:"500" example:"uncollectible"`
}

func (b writeOffBillingBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	reason := checkText(&v, "reason", b.Reason, true)
	return v.request(Of(NewWriteOffBilling(id, period, reason, in.Key)))
}
