package sagas_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// BenchmarkLook bills a run, and then starts a service that has never looked:
// it reads everything that Stripe holds, two objects a bill, and compares it
// with the log, as the look does that goes on during a run. objects/s is the
// speed of that sweep; %-of-run is the processor time of a bill's two objects
// as a part of the processor time of the bill. Both count the service and the
// stand-in, which share a process here.
func BenchmarkLook(b *testing.B) {
	const bills = 2000
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
	began, before := time.Now(), processorTime(b)
	s = r.start(options{concurrency: 32})
	r.within(5*time.Minute, "all are charged", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == bills
	})
	run, ofRun := time.Since(began), processorTime(b)-before
	s.stop()
	var looked, ofLook time.Duration
	for b.Loop() {
		if _, err := r.pool.Exec(context.WithoutCancel(b.Context()), `DELETE FROM looks`); err != nil {
			b.Fatal(err)
		}
		before := processorTime(b)
		s := r.start(options{})
		r.within(5*time.Minute, "the look is complete", s.collector.Look().Completed)
		ofLook += processorTime(b) - before
		looked += s.collector.Look().Spent()
		s.stop()
		if n := s.collector.Look().Adopted(); n != 0 {
			b.Fatalf("%d objects were adopted: the log knew them all", n)
		}
	}
	looked /= time.Duration(b.N)
	ofLook /= time.Duration(b.N)
	b.ReportMetric(2*bills/looked.Seconds(), "objects/s")
	b.ReportMetric(bills/run.Seconds(), "bills/s")
	b.ReportMetric(100*ofLook.Seconds()/ofRun.Seconds(), "%-of-run")
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
