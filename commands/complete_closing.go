package commands

import "github.com/billonce/billonce/domain"

// CompleteClosing ends a closing bill after Stripe answered that its intent is
// canceled. Decided under the partition's lock, without a remembered key.
type CompleteClosing struct {
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
}

func (CompleteClosing) Name() string              { return "complete-closing" }
func (CompleteClosing) Key() domain.Key           { return "" }
func (c CompleteClosing) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c CompleteClosing) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, ok := s.Bill(c.BillingPeriod)
	if !ok {
		return nil, nil
	}
	void := domain.ChargeVoided{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: bill.Attempt, Reason: bill.Reason}
	switch {
	case bill.Status.Final():
		return nil, nil
	case bill.Status != domain.BillClosingStatus:
		// Resolve-only: the subscription was cancelled while the charge was in
		// flight, and Stripe has now shown that nothing was and will be taken.
		if bill.Cancelled {
			void.Reason = "the subscription was cancelled; the charge in flight was not executed and its intent is cancelled"
			return []domain.Event{void}, nil
		}
		return nil, nil
	}
	switch bill.Closing {
	case domain.ClosingSettled:
		return []domain.Event{domain.BillSettled{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Reference: bill.Reference}}, nil
	case domain.ClosingWrittenOff:
		return []domain.Event{domain.BillWrittenOff{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Reason: bill.Reason}}, nil
	case domain.ClosingVoid:
		return []domain.Event{void}, nil
	}
	return nil, nil
}
