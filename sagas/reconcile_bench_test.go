package sagas_test

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// BenchmarkReconcile compares paid bills with the stand-in, which answers in
// this process, and reports how many a second, and how much more heap than
// before was alive after any collection meanwhile (MB-live-more, of which
// most is the stand-in's) and in use (MB-heap-more, with what waits to be
// collected):
//
//	go test ./sagas -run '^$' -bench 'Reconcile/bills=100000' -benchtime 1x -timeout 30m
func BenchmarkReconcile(b *testing.B) {
	for _, bills := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("bills=%d", bills), func(b *testing.B) {
			log := slog.New(slog.NewTextHandler(io.Discard, nil))
			pool := pgtest.Pool(b)
			store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), log)
			b.Cleanup(store.Close)
			stripe, err := sim.Start(sim.Options{Clock: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC), RequestLog: -1})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { stripe.Close() })
			paidBills(b, commands.NewDispatcher(store), stripe, bills)

			gateway, err := stripegateway.New(stripegateway.Config{BaseURL: stripe.APIURL, Key: "sk_test_bench", Timeout: 30 * time.Second, Log: log})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(gateway.Close)
			d := commands.NewDispatcher(store) // one that remembers nothing
			inbox, err := sagas.NewInbox(sagas.InboxConfig{APIVersion: stripegateway.APIVersion, Poll: time.Second, Actor: "inbox", Count: func(string, string) {}, Resolve: func() {}}, d, log)
			if err != nil {
				b.Fatal(err)
			}
			clock := sagas.ControlClock(stripe.ControlURL + "/control/clock")
			reconciler, err := sagas.NewReconciler(sagas.ReconcilerConfig{Poll: time.Second, Actor: "reconciler"}, d, gateway, gateway, inbox, clock, log)
			if err != nil {
				b.Fatal(err)
			}
			runtime.GC()
			before := heapNow()
			most, stop := heapWatch()
			began := time.Now()
			b.ResetTimer()
			for range b.N {
				v, err := reconciler.Reconcile(b.Context(), sagas.Scope{Period: november})
				if err != nil || v.State != "done" || v.Bills != int64(bills) || v.Charges != int64(bills) || v.Repaired+v.Unrepaired != 0 {
					b.Fatalf("reconcile: %+v, %v", v, err)
				}
			}
			b.StopTimer()
			stop()
			b.ReportMetric(float64(bills*b.N)/time.Since(began).Seconds(), "bills/s")
			b.ReportMetric(float64(most().live-before.live)/1e6, "MB-live-more")
			b.ReportMetric(float64(most().inUse-before.inUse)/1e6, "MB-heap-more")
			b.ReportMetric(float64(before.live)/1e6, "MB-live-before")
		})
	}
}

// heap is what of it was alive after the last collection, and what is in use.
type heap struct{ live, inUse int64 }

func heapNow() heap {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap{int64(samples[0].Value.Uint64()), int64(m.HeapInuse)}
}

// heapWatch notes the most heap until it is stopped.
func heapWatch() (most func() heap, stop func()) {
	var peak heap
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			now := heapNow()
			peak = heap{max(peak.live, now.live), max(peak.inUse, now.inUse)}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return func() heap { return peak }, func() { close(done); <-ended }
}

// paidBills makes a month of bills that are paid, in all three books.
func paidBills(b *testing.B, d *commands.Dispatcher, stripe *sim.Server, n int) {
	b.Helper()
	pool := d.Log().Pool()
	for from := 0; from < n; from += 500 {
		var requests []commands.Request
		var streams []domain.StreamID
		for i := from; i < min(from+500, n); i++ {
			id := domain.CustomerID(fmt.Sprintf("cust-%06d", i))
			m, err := stripe.PlantCharge(sim.Plant{Customer: fmt.Sprintf("cus_%06d", i), Amount: 5000, Currency: "usd", Metadata: markers(id, november), WithIntent: true})
			if err != nil {
				b.Fatal(err)
			}
			streams = append(streams, id.Stream())
			requests = append(requests, commands.Of(commands.NewRegisterCustomer(id, fmt.Sprintf("cus_%06d", i), "pm_card_visa")),
				commands.Of(commands.NewChargeBilling(id, november, usd(5000))),
				commands.Of(commands.NewRecordChargeOutcome(id, november, 1, 0, domain.Outcome{Class: domain.Paid, ChargeID: m.Charge, IntentID: m.Intent, Money: usd(5000), Source: domain.SourceAnswer})))
		}
		err := pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
			unit, err := d.Begin(b.Context(), tx, streams, nil, nil)
			if err != nil {
				return err
			}
			_, err = unit.DispatchNew(b.Context(), eventstore.Meta{Actor: "bench"}, requests...)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	if _, err := pool.Exec(b.Context(), `
		INSERT INTO billing_records (customer_id, billing_period, partition, attempt, key, amount, currency, stripe_customer_id, payment_method, params, state, intent_id, last_position)
		SELECT r.payload->>'customer_id', r.payload->>'billing_period', r.partition, 1, r.payload->>'key', 5000, 'usd', r.payload->>'stripe_customer_id', 'pm_card_visa', '{}', 'succeeded',
			p.payload->>'intent_id', r.position
		FROM events r JOIN events p ON p.stream_id = r.stream_id AND p.event_type = 'customer.billed.v1' WHERE r.event_type = 'charge.requested.v1'`); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(b.Context(), `ANALYZE`); err != nil {
		b.Fatal(err)
	}
}
