package projections_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/migrations"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

func TestCustomersAreTheDomainsFold(t *testing.T) {
	t.Parallel()
	db := projectiontest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		log := db.Cleared(rt)
		facts := lawful(rt, "acme")
		log.Given("acme", facts...)
		log.Check(projections.Customers)
		state := domain.Fold[domain.Customer](slices.Values(facts))
		c, err := log.Reads().Customer(rt.Context(), "acme")
		if err != nil {
			rt.Fatalf("%v", err)
		}
		if c.StripeCustomerID != state.StripeCustomerID() || c.PaymentMethodID != state.PaymentMethodID() {
			rt.Fatalf("read %+v", c)
		}
		sub, has := state.Subscription()
		if has != (c.Subscription != nil) {
			rt.Fatalf("a subscription: %t, read %+v", has, c.Subscription)
		}
		if !has {
			return
		}
		got := c.Subscription
		schedule := domain.Schedule{Cadence: got.Cadence, AnchorDay: got.AnchorDay, TimeZone: got.TimeZone, StartsOn: got.StartsOn}
		if got.Status != sub.Status || schedule != sub.Schedule || len(got.Changes) != len(sub.Changes) || got.EndMode != sub.EndMode {
			rt.Fatalf("read %+v of %+v", got, sub)
		}
		for i, change := range got.Changes {
			if change.From != sub.Changes[i].From || change.Amount.Minor != sub.Changes[i].AmountMinor {
				rt.Fatalf("read the changes %+v of %+v", got.Changes, sub.Changes)
			}
		}
		if next := got.Next; next != nil {
			if !sub.Bills(next.BillingPeriod) || next.Amount.Minor != sub.AmountFor(next.BillingPeriod).Minor || !next.DueAt.Equal(sub.DueAt(next.BillingPeriod)) {
				rt.Fatalf("next is %+v of %+v", next, sub)
			}
			if bill, known := state.Bill(next.BillingPeriod); known && bill.HasDue {
				rt.Fatalf("next is %+v, which fell due: %+v", next, bill)
			}
		} else if sub.Status == domain.SubscriptionActive {
			rt.Fatalf("nothing is next of %+v", sub)
		}
	})
}

func TestCustomersOfAnyHistory(t *testing.T) {
	t.Parallel()
	db := projectiontest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		log := db.Cleared(rt)
		log.Given("acme", anyhow(rt, "acme")...)
		log.Check(projections.Customers)
	})
}

func TestACustomersSubscription(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	show := func() string {
		t.Helper()
		log.Check(projections.Customers)
		s := must(log.Reads().Customer(t.Context(), "acme"))(t).Subscription
		if s == nil {
			return "none"
		}
		text := fmt.Sprintf("%s %s %s", s.Status, s.Amount.Display, s.Reason)
		if s.Next != nil {
			text += fmt.Sprintf(" %s at %s for %s", s.Next.BillingPeriod, s.Next.DueAt.Format("2006-01-02T15:04Z07:00"), s.Next.Amount.Display)
		}
		return text
	}
	log.Given("acme", registered("acme"))
	want(t, "registered", show(), "none")
	log.Given("acme", activated("acme"))
	want(t, "activated", show(), "active $50.00  2026-11 at 2026-11-29T23:00Z for $50.00") // anchor 31 in Berlin
	log.Given("acme", due("acme", november), domain.SubscriptionAmountChanged{CustomerID: "acme", AmountMinor: 7000, EffectivePeriod: december})
	want(t, "due, amount changed", show(), "active $70.00  2026-12 at 2026-12-30T23:00Z for $70.00")
	log.Given("acme", domain.SubscriptionPaused{CustomerID: "acme", At: noon, Reason: "asked for"})
	want(t, "paused", show(), "paused $50.00 asked for")
	log.Given("acme", domain.SubscriptionResumed{CustomerID: "acme", At: noon.AddDate(0, 2, 0)})
	want(t, "resumed after December", show(), "active $70.00  2027-01 at 2027-01-30T23:00Z for $70.00")
	log.Given("acme", domain.SubscriptionCancelled{CustomerID: "acme", Mode: domain.CancelNow, At: noon, Reason: "moved away"})
	want(t, "cancelled", show(), "cancelled $50.00 moved away")

	_, err := log.Reads().Customer(t.Context(), "nobody")
	refused(t, err, domain.ErrUnknownCustomer, "")
	_, err = log.Reads().Customer(t.Context(), "no body")
	refused(t, err, domain.ErrInvalidInput, "customer_id")
}

// A database of an earlier version gets the pauses that its log tells of: its rows
// are then as if they had been folded anew.
func TestPausesBeforeTheUpgrade(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	paused := func(id domain.CustomerID, day int) domain.Event {
		return domain.SubscriptionPaused{CustomerID: id, At: noon.AddDate(0, 0, day)}
	}
	resumed := func(id domain.CustomerID, day int) domain.Event {
		return domain.SubscriptionResumed{CustomerID: id, At: noon.AddDate(0, 0, day)}
	}
	ended := func(id domain.CustomerID) domain.Event {
		return domain.SubscriptionCancelled{CustomerID: id, Mode: domain.CancelPeriodEnd, At: noon.AddDate(0, 0, 9)}
	}
	log.Given("never", registered("never"), activated("never"))
	log.Given("once", registered("once"), activated("once"), paused("once", 1))
	log.Given("twice", registered("twice"), activated("twice"), paused("twice", 1), resumed("twice", 2), paused("twice", 3), resumed("twice", 4))
	log.Given("again", registered("again"), activated("again"), paused("again", 1), ended("again"), activated("again"), paused("again", 12), resumed("again", 13))
	log.Check(projections.Customers)
	want := log.Rows(projections.Customers)
	log.Given("twice", paused("twice", 5)) // not read yet

	step, err := migrations.FS.ReadFile("0023_schedules.sql")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(step), "UPDATE customers")
	statement, _, _ := strings.Cut(rest, ";")
	for _, sql := range []string{`UPDATE customers SET pauses = '[]'`, "UPDATE customers" + statement} {
		if _, err := log.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if got := log.Rows(projections.Customers); got != want || strings.Count(got, "until") != 3 {
		t.Errorf("the rows are\n%s, want\n%s", got, want)
	}
}
