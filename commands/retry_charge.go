package commands

import (
	"strconv"

	"github.com/billonce/billonce/domain"
)

// RetryCharge asks for another attempt at a bill whose last one provably
// failed. It names its attempt, so that a late or repeated request cannot
// start one more.
type RetryCharge struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	Attempt       int               `json:"attempt"`
}

// The steps of retries: a person asks for it, or it was scheduled after a
// decline.
const (
	StepManual  = "manual"
	StepDunning = "dunning"
)

// NewRetryCharge builds the command. Step says who asks: StepManual or
// StepDunning.
func NewRetryCharge(c domain.CustomerID, p domain.Period, attempt int, step string) RetryCharge {
	return RetryCharge{domain.KeyOf("retry-charge", string(c), p.String(), strconv.Itoa(attempt), step), c, p, attempt}
}

func (RetryCharge) Name() string              { return "retry-charge" }
func (c RetryCharge) Key() domain.Key         { return c.key }
func (c RetryCharge) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c RetryCharge) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	bill, ok := s.Bill(c.BillingPeriod)
	switch {
	case !ok || bill.Attempt == 0:
		return nil, domain.ErrUnknownBill
	case bill.Status == domain.BillPaid:
		return nil, domain.ErrAlreadyBilled
	case bill.Status.Ended() || bill.Status == domain.BillClosingStatus:
		return nil, domain.ErrBillClosed.With("the bill for %s is %s", c.BillingPeriod, bill.Status)
	case bill.Cancelled:
		return nil, domain.ErrCancelled
	case c.Attempt <= bill.Attempt:
		return nil, domain.ErrAttemptOrder.With("attempt %d exists; the next one is %d", c.Attempt, bill.Attempt+1)
	case c.Attempt > bill.Attempt+1:
		return nil, domain.ErrAttemptOrder.With("the next attempt is %d", bill.Attempt+1)
	case bill.InFlight():
		return nil, domain.ErrChargeInFlight
	case bill.Status != domain.BillDeclined && bill.Status != domain.BillRejected && bill.Status != domain.BillUncollectibleStatus:
		return nil, domain.ErrNotDeclined.With("the bill for %s is %s", c.BillingPeriod, bill.Status)
	}
	return []domain.Event{domain.ChargeRequested{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: c.Attempt,
		Key: domain.ChargeKey(c.CustomerID, c.BillingPeriod, c.Attempt), Money: bill.Amount,
		StripeCustomerID: s.StripeCustomerID(), PaymentMethodID: s.PaymentMethodID(),
	}}, nil
}

type retryChargeBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	Attempt       int    `json:"attempt" doc:"The attempt to make: one more than the last." minimum:"2" example:"2"`
}

func (b retryChargeBody) build(Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	if b.Attempt < 2 || b.Attempt > 1000 {
		v.add("attempt", "must be 2 or more")
	}
	return v.request(Of(NewRetryCharge(id, period, b.Attempt, StepManual)))
}
