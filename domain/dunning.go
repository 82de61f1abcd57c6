package domain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DunningDays are the days after the due day on which a bill whose decline was
// soft is tried again, ascending. None: nothing is tried again by itself.
type DunningDays []int

// MethodBudget is how often one payment method is tried for a bill, by hand or
// by itself, before another one is needed. Visa allows as many attempts at one
// card in 30 days, and fines what exceeds them; other networks allow more.
const MethodBudget = 15

// Limits of a schedule. With the first attempt it stays within MethodBudget.
const (
	maxDunningDay  = 90
	maxDunningDays = MethodBudget - 1
)

// ParseDunningDays accepts days such as 1,3,5,7, ascending, or none.
func ParseDunningDays(s string) (DunningDays, error) {
	if s == "none" {
		return nil, nil
	}
	bad := fmt.Errorf("must be none, or 1 to %d days from 1 to %d in ascending order, such as 1,3,5,7", maxDunningDays, maxDunningDay)
	var days DunningDays
	for part := range strings.SplitSeq(s, ",") {
		day, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || day < 1 || day > maxDunningDay || len(days) > 0 && day <= days[len(days)-1] {
			return nil, bad
		}
		days = append(days, day)
	}
	if len(days) > maxDunningDays {
		return nil, bad
	}
	return days, nil
}

// rateRest is how long a card rests that was tried too often.
const rateRest = 24 * time.Hour

// Dunning is what has been decided to follow a bill's declines. The zero Dunning
// is that nothing has been decided.
type Dunning struct {
	From    Date      `json:"from,omitzero"`     // the local day from which the schedule counts
	Again   int       `json:"again,omitempty"`   // attempts requested with the method of the attempt before
	Attempt int       `json:"attempt,omitempty"` // the attempt that is to come, 0: none
	At      time.Time `json:"at,omitzero"`       // from when on, business time
	Awaits  Awaited   `json:"awaits,omitempty"`  // what the bill waits for instead
	Reason  string    `json:"reason,omitempty"`
}

// requested is the dunning once another attempt has been asked for.
func (d Dunning) requested(sameMethod bool) Dunning {
	next := Dunning{From: d.From}
	if sameMethod {
		next.Again = d.Again + 1
	}
	return next
}

// Dun decides what follows the decline of a bill's last attempt, at now in
// business time: another attempt by days, waiting, or giving the bill up. No
// facts: nothing is to be decided, since the bill was not declined, is being
// closed or may be settled, or this decline has been decided about.
//
// A bill whose collection began late has its first decline on a later day than
// its due day; the days count from there, so that an outage takes no attempt
// from anybody. They are days of the calendar: what is tried by hand between
// them, or after them, leaves the others as they are.
func (c Customer) Dun(p Period, days DunningDays, now time.Time) []Event {
	b, ok := c.bills.get(p)
	if !ok || b.Status != BillDeclined || b.Unresolved || b.Cancelled || b.PerhapsSettled || len(days) == 0 {
		return nil
	}
	if b.Dunning.Attempt > b.Attempt || b.Dunning.Awaits != "" {
		return nil
	}
	zone := time.UTC
	if b.HasDue {
		zone = c.subscription.ScheduleFor(p).zone()
	}
	from := b.Dunning.From
	if from == (Date{}) {
		from = dateOf(now.In(zone))
	}
	retry := func(at time.Time, day int, reason string) []Event {
		return []Event{DunningScheduled{CustomerID: c.id, BillingPeriod: p, Attempt: b.Attempt + 1, At: at.UTC(), Day: day, From: from, Reason: reason}}
	}
	wait := func(awaits Awaited, reason string) []Event {
		return []Event{DunningWaiting{CustomerID: c.id, BillingPeriod: p, Attempt: b.Attempt, Awaits: awaits, From: from, Reason: reason}}
	}
	changed := c.paymentMethod != b.PaymentMethodID
	switch {
	case b.DeclineClass == Soft || b.DeclineClass == RateLimited:
		if !changed && b.Dunning.Again+1 >= MethodBudget {
			return wait(AwaitsMethod, fmt.Sprintf("the payment method was tried %d times, which is what card networks allow: another one is needed", MethodBudget))
		}
	case changed:
		return retry(now, 0, "there is another payment method than the one that was declined")
	case b.DeclineClass == Hard:
		return wait(AwaitsMethod, "the decline is final for this payment method: another one is needed")
	case b.DeclineClass == MethodMissing:
		return wait(AwaitsMethod, "there is no usable payment method")
	case b.DeclineClass == Authentication:
		return wait(AwaitsCustomer, "the customer must authenticate the payment with their bank")
	}
	earliest := now
	if b.DeclineClass == RateLimited {
		earliest = now.Add(rateRest)
	}
	i := slices.IndexFunc(days, func(day int) bool { return from.plus(day).start(zone).After(earliest) })
	if i >= 0 {
		return retry(from.plus(days[i]).start(zone), days[i], fmt.Sprintf("the decline was %s: tried again on day %d", b.DeclineClass, days[i]))
	}
	reason := fmt.Sprintf("attempt %d was declined, and no day of the schedule is left", b.Attempt)
	events := []Event{BillUncollectible{CustomerID: c.id, BillingPeriod: p, Attempt: b.Attempt, From: from, Reason: reason}}
	if b.HasDue {
		events = append(events, SubscriptionDelinquent{CustomerID: c.id, BillingPeriod: p, Money: b.Amount, Reason: reason})
	}
	return events
}

// DunWithMethod decides which bills another payment method brings back: those
// that wait for one, or for the customer. Each is tried once, from now on.
func (c Customer) DunWithMethod(now time.Time) (events []Event) {
	for _, b := range c.bills {
		if b.Status != BillDeclined || b.Cancelled || b.Dunning.Awaits != AwaitsMethod && b.Dunning.Awaits != AwaitsCustomer {
			continue
		}
		events = append(events, DunningScheduled{CustomerID: c.id, BillingPeriod: b.Period, Attempt: b.Attempt + 1, At: now.UTC(), From: b.Dunning.From,
			Reason: "the payment method was changed"})
	}
	return events
}
