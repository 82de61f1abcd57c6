package commands

import "github.com/billonce/billonce/domain"

// StartAttempt is decided by the collector at every claim of a bill's row, on
// fresh state under the partition's lock, so it has no remembered key.
type StartAttempt struct {
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	Attempt       int               `json:"attempt"`
}

func (StartAttempt) Name() string              { return "start-attempt" }
func (StartAttempt) Key() domain.Key           { return "" }
func (c StartAttempt) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command. What it decides follows domain.Customer.Claim:
// send and resolve start the attempt, wait and void say so, close and none add
// nothing.
func (c StartAttempt) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, _ := s.Bill(c.BillingPeriod)
	switch claim := s.Claim(c.BillingPeriod, c.Attempt); claim {
	case domain.ClaimSend, domain.ClaimResolve:
		return []domain.Event{domain.ChargeAttemptStarted{
			CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: c.Attempt, Start: bill.Start + 1,
			ResolveOnly: claim == domain.ClaimResolve,
		}}, nil
	case domain.ClaimWait:
		if bill.Status == domain.BillWaiting {
			return nil, nil
		}
		waiting := domain.ChargeWaiting{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: c.Attempt, Reason: "the subscription is paused"}
		if bill.PerhapsSettled {
			waiting.Reason = domain.ReasonPerhapsSettled
		}
		return []domain.Event{waiting}, nil
	case domain.ClaimVoid:
		if bill.Status.Final() {
			return nil, nil
		}
		return []domain.Event{domain.ChargeVoided{
			CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: c.Attempt, Reason: "the subscription was cancelled before the charge started",
		}}, nil
	}
	return nil, nil
}
