package projections_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// The rows that tracking processors write while a month is billed, those of a
// rebuild while they run, and those of a plain fold are the same.
func TestLiveRebuiltAndFolded(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	var processors []tracking.Processor
	for _, p := range projections.All() {
		processors = append(processors, p.Processor())
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		stopped <- tracking.New(log.Pool, log.Store, tracking.Options{Poll: 50 * time.Millisecond}).Run(ctx, processors...)
	}()

	newest := map[int16]eventstore.Place{}
	given := func(id domain.CustomerID, facts ...domain.Event) {
		for _, e := range log.Given(id, facts...) {
			newest[e.Partition] = e.Place
		}
	}
	const customers = 60
	for i := range customers {
		id := domain.CustomerID(fmt.Sprintf("customer-%d", i))
		given(id, registered(id), activated(id))
		given(id, due(id, november))
		given(id, requested(id, november, 1))
		given(id, started(id, november, 1, 1), committed(id, november, "pi_1"))
	}
	for i := range customers {
		id := domain.CustomerID(fmt.Sprintf("customer-%d", i))
		switch i % 4 {
		case 0:
			given(id, unknown(id, november, 1, 1))
		case 1:
			given(id, declined(id, november, 1, "ch_0"), requested(id, november, 2), started(id, november, 2, 1), billed(id, november, 2, "ch_1"))
		default:
			given(id, billed(id, november, 1, "ch_1"))
			given(id, refundAsked(id, november, "r-1", 2000), proposedFor(id, november, "ch_2"))
			given(id, refundAt(id, november, "r-1", 2000, domain.RefundStateSucceeded))
		}
	}
	caughtUp := func(p projections.Projection) string {
		t.Helper()
		for _, place := range newest {
			if !must(log.Reads().Await(ctx, p, place, time.Minute))(t) {
				t.Fatalf("%s has not reached %s in a minute", p.Name, place)
			}
		}
		return log.Rows(p)
	}
	live := map[string]string{}
	for _, p := range projections.All() {
		live[p.Name] = caughtUp(p)
		if err := tracking.Reset(ctx, log.Pool, p.Processor(), 0, "test", "rebuild"); err != nil {
			t.Fatalf("reset %s: %v", p.Name, err)
		}
	}
	for _, p := range projections.All() {
		if rebuilt := caughtUp(p); rebuilt != live[p.Name] {
			t.Errorf("%s: rebuilt\n%s\nlive\n%s", p.Name, rebuilt, live[p.Name])
		}
	}
	run := must(log.Reads().Run(ctx, "2026-11"))(t)
	want(t, "the run", fmt.Sprint(run.Bills, run.Paid, run.Open), "60 45 15")
	stop()
	if err := <-stopped; err != nil {
		t.Fatalf("processors: %v", err)
	}
	for _, p := range projections.All() {
		if folded := log.Check(p); folded != live[p.Name] {
			t.Errorf("%s: folded\n%s\nlive\n%s", p.Name, folded, live[p.Name])
		}
	}
}
