package sagas_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// BenchmarkLook bills a run, and then starts a service that has never looked:
// it reads everything that Stripe holds, two objects a bill, and compares it
// with the log. objects/s is the speed of that sweep; the look that goes on
// during a run reads the same pages, so %-of-run is what it adds to a run at
// most: reading and comparing a bill's two objects, as a part of what the
// whole bill takes.
func BenchmarkLook(b *testing.B) {
	const bills = 1000
	r := rigOn(b, pgtest.Pool(b))
	s := r.start(options{noCollector: true})
	ids := make([]domain.CustomerID, bills)
	for i := range ids {
		ids[i] = domain.CustomerID(fmt.Sprintf("bench-%05d", i))
	}
	var callers sync.WaitGroup
	for part := range slices.Chunk(ids, bills/10) {
		callers.Go(func() { s.owe(part...) })
	}
	callers.Wait()
	r.within(5*time.Minute, "all are reserved", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'reserved'`) == bills
	})
	s.stop()
	began := time.Now()
	s = r.start(options{concurrency: 32})
	r.within(5*time.Minute, "all are charged", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == bills
	})
	run := time.Since(began)
	s.stop()
	var looked time.Duration
	for b.Loop() {
		if _, err := r.pool.Exec(context.WithoutCancel(b.Context()), `DELETE FROM looks`); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		s := r.start(options{})
		r.within(5*time.Minute, "the look is complete", s.collector.Look().Completed)
		looked += time.Since(began)
		s.stop()
		if n := s.collector.Look().Adopted(); n != 0 {
			b.Fatalf("%d objects were adopted: the log knew them all", n)
		}
	}
	looked /= time.Duration(b.N)
	b.ReportMetric(2*bills/looked.Seconds(), "objects/s")
	b.ReportMetric(bills/run.Seconds(), "bills/s")
	b.ReportMetric(100*looked.Seconds()/run.Seconds(), "%-of-run")
}
