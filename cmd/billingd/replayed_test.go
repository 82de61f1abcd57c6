package main

import (
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/rebuild"
	"github.com/billonce/billonce/sagas"
)

// TestC041_TheLastEventOfAReplayIsReplay: the newest fact of the log is a due
// that is billed already. While the whole program runs, every read model is
// replayed to head three times, and so are the processors with effects, by plans
// that are signed off: not one POST, and not one fact.
func TestC041_TheLastEventOfAReplayIsReplay(t *testing.T) {
	h := newHouse(t)
	h.stripe.SetClock(time.Date(2026, 10, 20, 0, 0, 0, 0, time.UTC))
	var app *App
	r := h.startApp(nil, func(a *App) { app = a })
	ids := names(20)
	r.subscribe(ids...)
	h.november()
	awaitFor(t, time.Minute, "the month is charged", func() bool { return h.succeeded() == len(ids) })
	id := domain.CustomerID(ids[0])
	events, err := app.store.Load(t.Context(), app.pool, id.Stream(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var due domain.Event
	for _, e := range events {
		if e.Type == (domain.MonthlyBillingDue{}).EventName() {
			due = e.Event
		}
	}
	batch := eventstore.Batch{Stream: id.Stream(), Head: events[len(events)-1].Head(), Command: "test", Events: []domain.Event{due}}
	if _, err := app.store.Append(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	atEnd := func() bool {
		all, err := tracking.Status(t.Context(), app.pool)
		for _, p := range all {
			if err != nil || !p.CaughtUp || p.Replaying {
				return false
			}
		}
		return err == nil
	}
	await(t, "every processor is at the end", atEnd)
	posts, facts := h.posts(), h.count(`SELECT count(*) FROM events`)
	unread := func(sagas.PlanStep) error { return nil }
	for range 3 {
		for _, p := range projections.All() {
			if _, err := rebuild.Run(t.Context(), app.store, p, rebuild.Options{Actor: "ann", Reason: "to see"}); err != nil {
				t.Fatalf("replay %s: %v", p.Name, err)
			}
		}
		for _, processor := range []string{"billing", "preflight", "schedule", "refund-preflight"} {
			plan, err := sagas.MakePlan(t.Context(), app.store, processor, 1, unread)
			if err == nil {
				_, err = sagas.ApplyPlan(t.Context(), app.store, processor, 1, sagas.SignOff{Actor: "ann", Reason: "to see", Digest: plan.Digest}, unread)
			}
			if err != nil {
				t.Fatalf("replay %s: %v", processor, err)
			}
		}
		await(t, "every processor is at the end again", atEnd)
	}
	if n := h.posts() - posts; n != 0 {
		t.Errorf("%d POSTs in three replays", n)
	}
	if n := h.count(`SELECT count(*) FROM events`) - facts; n != 0 {
		t.Errorf("%d facts in three replays", n)
	}
	if n, doubled := h.charged(); n != len(ids) || doubled {
		t.Errorf("%d entries in Stripe's ledger, doubled: %v", n, doubled)
	}
}
