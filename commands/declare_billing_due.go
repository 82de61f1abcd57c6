package commands

import "github.com/billonce/billonce/domain"

// DeclareBillingDue freezes what a customer owes for a period. The due scanner
// sends it when the period's time has come; a person may send it earlier.
type DeclareBillingDue struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
}

// NewDeclareBillingDue builds the command; its key is the bill.
func NewDeclareBillingDue(c domain.CustomerID, p domain.Period) DeclareBillingDue {
	return DeclareBillingDue{domain.KeyOf("declare-billing-due", string(c), p.String()), c, p}
}

func (DeclareBillingDue) Name() string              { return "declare-billing-due" }
func (c DeclareBillingDue) Key() domain.Key         { return c.key }
func (c DeclareBillingDue) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c DeclareBillingDue) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	sub, ok := s.Subscription()
	switch {
	case !ok:
		return nil, domain.ErrNoSubscription
	case !c.BillingPeriod.Fits(sub.Cadence):
		return nil, domain.ErrPeriodCadence
	case c.BillingPeriod.Before(sub.First()):
		return nil, domain.ErrPeriodOutside.With("the first period of the subscription is %s", sub.First())
	}
	// An intent found at Stripe is not yet a bill.
	if bill, _ := s.Bill(c.BillingPeriod); bill.Status.Known() {
		return nil, nil // due, requested, paid or closed already
	}
	if !sub.Bills(c.BillingPeriod) {
		switch sub.Status {
		case domain.SubscriptionOnHold:
			return nil, domain.ErrSubscriptionState.With("the subscription is paused")
		case domain.SubscriptionEnded:
			return nil, domain.ErrCancelled
		}
		return nil, domain.ErrSubscriptionState.With("the subscription was paused when %s fell due", c.BillingPeriod)
	}
	if q, overlaps := s.Overlapping(c.BillingPeriod); overlaps {
		return nil, domain.ErrPeriodOverlaps.With("%s overlaps %s", c.BillingPeriod, q)
	}
	return []domain.Event{dueOf(s, c.BillingPeriod)}, nil
}

// dueOf is the due of a period by the customer's subscription.
func dueOf(s domain.Customer, p domain.Period) domain.Event {
	sub, _ := s.Subscription()
	return domain.MonthlyBillingDue{CustomerID: s.ID(), BillingPeriod: p, DueAt: sub.DueAt(p), Money: sub.AmountFor(p)}
}

type declareBillingDueBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" doc:"2026-11, 2026-Q3 or 2026, as the cadence is." example:"2026-11"`
}

func (b declareBillingDueBody) build(Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	return v.request(Of(NewDeclareBillingDue(id, period)))
}
