package commands

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// StopDunning lets a declined bill rest: nothing is tried again before somebody
// asks for it, with reschedule-dunning or retry-charge.
type StopDunning struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	Reason        string            `json:"reason"`
}

// NewStopDunning builds the command; id is the caller's key.
func NewStopDunning(c domain.CustomerID, p domain.Period, reason string, id domain.Key) StopDunning {
	return StopDunning{domain.KeyOf("stop-dunning", string(c), p.String(), string(id)), c, p, reason}
}

func (StopDunning) Name() string              { return "stop-dunning" }
func (c StopDunning) Key() domain.Key         { return c.key }
func (c StopDunning) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c StopDunning) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, err := dunned(s, c.BillingPeriod)
	if err != nil {
		return nil, err
	}
	return one(domain.DunningWaiting{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: bill.Attempt,
		Awaits: domain.AwaitsOperator, From: bill.Dunning.From, Reason: c.Reason}), nil
}

// RescheduleDunning sets when a declined bill is tried again, whatever was
// decided before. A time that has passed is now.
type RescheduleDunning struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	At            time.Time         `json:"at"` // business time, UTC
	Reason        string            `json:"reason"`
}

// NewRescheduleDunning builds the command; id is the caller's key.
func NewRescheduleDunning(c domain.CustomerID, p domain.Period, at time.Time, reason string, id domain.Key) RescheduleDunning {
	return RescheduleDunning{domain.KeyOf("reschedule-dunning", string(c), p.String(), string(id)), c, p, at.UTC(), reason}
}

func (RescheduleDunning) Name() string              { return "reschedule-dunning" }
func (c RescheduleDunning) Key() domain.Key         { return c.key }
func (c RescheduleDunning) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c RescheduleDunning) Decide(s domain.Customer) ([]domain.Event, error) {
	bill, err := dunned(s, c.BillingPeriod)
	if err != nil {
		return nil, err
	}
	return one(domain.DunningScheduled{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: bill.Attempt + 1,
		At: c.At, From: bill.Dunning.From, Reason: c.Reason}), nil
}

// dunned is the bill for p, if it was declined and that was decided about.
func dunned(s domain.Customer, p domain.Period) (domain.Bill, error) {
	bill, ok := s.Bill(p)
	switch {
	case !s.Registered():
		return bill, domain.ErrUnknownCustomer
	case !ok:
		return bill, domain.ErrUnknownBill
	case bill.Cancelled:
		return bill, domain.ErrCancelled
	case bill.Status != domain.BillDeclined || bill.Dunning == (domain.Dunning{}):
		return bill, domain.ErrNotDeclined.With("the bill for %s is %s, and nothing is scheduled for it", p, bill.Status)
	}
	return bill, nil
}

type stopDunningBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	Reason        string `json:"reason" doc:"Why; no personal data." maxLength:"500" example:"the customer pays by wire"`
}

func (b stopDunningBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	reason := checkText(&v, "reason", b.Reason, true)
	return v.request(Of(NewStopDunning(id, period, reason, in.Key)))
}

type rescheduleDunningBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	At            string `json:"at" doc:"When to try again, RFC 3339." example:"2026-11-20T09:00:00Z"`
	Reason        string `json:"reason" doc:"Why; no personal data." maxLength:"500" example:"the customer asked for the 20th"`
}

func (b rescheduleDunningBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	at, err := time.Parse(time.RFC3339, b.At)
	switch {
	case err != nil || at.Year() < 2000:
		v.add("at", "must be a time such as 2026-11-20T09:00:00Z")
	case at.Year() > domain.LastYear:
		v.add("at", tooLate)
	}
	reason := checkText(&v, "reason", b.Reason, true)
	return v.request(Of(NewRescheduleDunning(id, period, at, reason, in.Key)))
}
