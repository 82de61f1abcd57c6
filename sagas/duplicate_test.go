package sagas_test

import (
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// TestC121_DueWrittenTwice puts a second due of the same bill into the log, which
// no command would: at once, and more than a day after the bill was paid, when
// Stripe has forgotten its keys. The bill is charged once, and its saga knows of
// the duplicate.
func TestC121_DueWrittenTwice(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	ids := customers(2)
	atOnce, later := ids[0], ids[1]
	s.register("pm_card_visa", ids...)
	write := func(id domain.CustomerID, dues int) {
		t.Helper()
		events, err := s.store.Load(t.Context(), s.store.Pool(), id.Stream(), 0)
		if err != nil || len(events) == 0 {
			t.Fatalf("load %s: %d events, %v", id, len(events), err)
		}
		batch := eventstore.Batch{Stream: id.Stream(), Head: events[len(events)-1].Head(), Command: "by-hand"}
		for range dues {
			batch.Events = append(batch.Events, domain.MonthlyBillingDue{CustomerID: id, BillingPeriod: november, DueAt: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), Money: usd(5000)})
		}
		if _, err := s.store.Append(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	write(atOnce, 2)
	write(later, 1)
	for _, id := range ids {
		r.awaitState(id, november, "succeeded")
	}
	r.eventually("the first due's saga has ended", func() bool {
		return r.count(`SELECT count(*) FROM sagas WHERE step = 'paid'`) == len(ids)
	})
	r.stripe.Advance(25 * time.Hour)
	write(later, 1)
	r.eventually("both sagas know of two dues, and have ended", func() bool {
		return r.count(`SELECT count(*) FROM sagas WHERE (state->>'dues')::int = 2 AND step = 'paid' AND refusal IS NULL`) == len(ids)
	})
	r.eventually("everything is read", s.caughtUp)
	r.once(november, ids...)
	if n := len(r.stripe.Ledger()); n != len(ids) {
		t.Errorf("%d movements of %d bills", n, len(ids))
	}
}
