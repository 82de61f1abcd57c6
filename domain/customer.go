package domain

import (
	"iter"
	"time"
)

// Customer is what a decision may know of a customer: a value rebuilt from the
// customer's stream. The zero Customer is not registered.
type Customer struct {
	id              CustomerID
	registered      bool
	stripeCustomer  string
	paymentMethod   string
	subscription    Subscription
	hasSubscription bool
	requested       PeriodSet // periods for which a charge was requested
	billedPeriods   PeriodSet // periods that are paid, for ever
	closedPeriods   PeriodSet // periods settled, written off or void
	billedThrough   Period    // the last that another system has billed; zero: none
	bills           bills
	back            moneyBacks // what went back of their money, or may have to
}

var _ State[Customer] = Customer{}

// ID is the customer's id.
func (c Customer) ID() CustomerID { return c.id }

// Registered reports whether the customer exists.
func (c Customer) Registered() bool { return c.registered }

// StripeCustomerID is the customer's id at Stripe.
func (c Customer) StripeCustomerID() string { return c.stripeCustomer }

// PaymentMethodID is the method for attempts yet to be requested.
func (c Customer) PaymentMethodID() string { return c.paymentMethod }

// Subscription is the customer's subscription, if there was ever one.
func (c Customer) Subscription() (Subscription, bool) { return c.subscription, c.hasSubscription }

// Requested is the set of periods for which a charge was requested.
func (c Customer) Requested() PeriodSet { return c.requested }

// BilledPeriods is the set of periods that are paid.
func (c Customer) BilledPeriods() PeriodSet { return c.billedPeriods }

// BilledThrough is the last period that another system has billed; zero if no
// history was imported.
func (c Customer) BilledThrough() Period { return c.billedThrough }

// BilledBefore reports whether p was billed by another system: it begins before
// the end of the history that was imported.
func (c Customer) BilledBefore(p Period) bool { return p.BeginsBy(c.billedThrough) }

// Bill is the bill for p, if anything is known of it.
func (c Customer) Bill(p Period) (Bill, bool) { return c.bills.get(p) }

// Bills lists all bills, oldest period first.
func (c Customer) Bills() iter.Seq[Bill] {
	return func(yield func(Bill) bool) {
		for _, b := range c.bills {
			if !yield(*b) {
				return
			}
		}
	}
}

// Overlapping is a period other than p that is requested, billed, closed or
// due and shares a month with p.
func (c Customer) Overlapping(p Period) (Period, bool) {
	for _, b := range c.bills {
		if b.Period != p && b.Period.Overlaps(p) {
			return b.Period, true
		}
	}
	return Period{}, false
}

// OpenPeriod is the first period that a change decided at t can still touch: it
// is due after t, and neither it nor a later one is declared or asked for. What
// has fallen due stays as it was, declared or not. Without a subscription it is
// none.
func (c Customer) OpenPeriod(t time.Time) Period {
	s := c.subscription
	p := s.First()
	for _, b := range c.bills {
		for !p.IsZero() && (p.Before(b.Period) || p.Overlaps(b.Period)) {
			p = p.Next()
		}
	}
	for !p.IsZero() && !s.DueAt(p).After(t) {
		p = p.Next()
	}
	return p
}

// NextDue is the oldest period from p on that the customer owes and that has
// not been declared, requested or closed, and when it falls due. The zero
// Period is none, as things stand.
func (c Customer) NextDue(p Period) (Period, time.Time) {
	s := c.subscription
	for p = s.Next(p); !p.IsZero(); p = s.Next(p.Next()) {
		b, _ := c.bills.get(p)
		if _, overlaps := c.Overlapping(p); !overlaps && !b.Status.Known() {
			return p, s.DueAt(p)
		}
	}
	return Period{}, time.Time{}
}

// Claim decides what a collector may do for one attempt of a bill, on the
// facts as they are now. An attempt that has started without an outcome is
// never refused: it answers send, or resolve only.
func (c Customer) Claim(p Period, attempt int) Claim {
	b, ok := c.bills.get(p)
	if !ok || b.Attempt != attempt {
		return ClaimNone
	}
	switch b.Status {
	case BillClosingStatus:
		return ClaimClose
	case BillVoid, BillSettledStatus, BillWrittenOffStatus:
		return ClaimVoid
	case BillStarted, BillUnknown, BillRequested, BillHeld, BillWaiting:
		if b.PerhapsSettled {
			return ClaimWait
		}
	}
	switch b.Status {
	case BillStarted, BillUnknown:
		if b.Cancelled {
			return ClaimResolve
		}
		return ClaimSend
	case BillRequested, BillHeld, BillWaiting:
		switch {
		case b.Cancelled && (b.Unresolved || b.IntentID != ""): // an intent ends at Stripe first
			return ClaimResolve
		case b.Cancelled:
			return ClaimVoid
		case b.HasDue && c.subscription.Status == SubscriptionOnHold && !b.Unresolved:
			return ClaimWait
		}
		return ClaimSend
	}
	return ClaimNone
}

// Evolve is the customer after e. It never changes c.
func (c Customer) Evolve(e Event) Customer {
	c.back = c.back.after(e)
	c.subscription = c.subscription.evolve(e)
	switch e := e.(type) {
	case CustomerRegistered:
		c.id, c.registered = e.CustomerID, true
		c.stripeCustomer, c.paymentMethod = e.StripeCustomerID, e.PaymentMethodID
	case PaymentMethodChanged:
		c.paymentMethod = e.PaymentMethodID
	case HistoryImported:
		c.billedThrough = e.BilledThrough
	case SubscriptionActivated:
		c.hasSubscription = true
	case SubscriptionResumed:
		for _, b := range c.bills {
			if b.Status == BillWaiting && !b.PerhapsSettled {
				c = c.bill(b.Period, func(b *Bill) { b.Status = BillRequested })
			}
		}
	case SubscriptionCancelled:
		if e.Mode == CancelNow {
			for _, b := range c.bills {
				if !b.Status.Final() {
					c = c.bill(b.Period, func(b *Bill) { b.Cancelled = true })
				}
			}
		}
	case MonthlyBillingDue:
		c = c.bill(e.BillingPeriod, func(b *Bill) {
			b.HasDue, b.DueAt = true, e.DueAt
			if !b.Status.Known() {
				b.Status, b.Amount = BillDue, e.Money
			}
		})
	default:
		return c.evolveBill(e)
	}
	return c
}

// bill returns the customer with one bill changed; change works on a copy.
func (c Customer) bill(p Period, change func(*Bill)) Customer {
	b, _ := c.bills.get(p)
	change(&b)
	c.bills = c.bills.with(b)
	return c
}
