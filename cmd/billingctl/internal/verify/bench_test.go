package verify_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingctl/internal/verify"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/archive"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/sagas"
)

var benchEvents = flag.Int("verify.events", 50_000, "how long the log of BenchmarkIntegrity is")

// eventsOfCustomer is how many facts a customer of the benchmark has: a
// registration, a subscription, and two paid months.
const eventsOfCustomer = 10

// BenchmarkIntegrity verifies and exports a log with all that follows from it,
// and checks the file, each beside a raw keyset read of the same
// table, in turns: pages of 2,000, positions, types and payloads scanned and
// nothing done with them. It also tells the heap at its largest.
func BenchmarkIntegrity(b *testing.B) {
	pool := pgtest.Connect(b, pgtest.DSN(b), 12)
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), slog.New(slog.DiscardHandler))
	b.Cleanup(store.Close)
	events := months(b, pool, store)
	var file bytes.Buffer
	if _, err := archive.Export(b.Context(), store, &file, archive.Selection{}); err != nil {
		b.Fatal(err)
	}
	raw := func() error { return rawRead(b.Context(), pool, events) }
	whole := func(r verify.Report, err error) error {
		if err == nil && (int(r.Events) != events || r.Differences != 0) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	}
	found := func(d verify.Difference) { b.Errorf("%+v", d) }
	for _, rival := range []struct {
		name string
		work func() error
	}{
		{"verify", func() error { return whole(verify.Database(b.Context(), pool, verify.Options{Found: found})) }},
		{"export", func() error {
			_, err := archive.Export(b.Context(), store, io.Discard, archive.Selection{})
			return err
		}},
		{"verify-file", func() error { return whole(verify.File(bytes.NewReader(file.Bytes()), verify.Options{Found: found})) }},
	} {
		b.Run(rival.name, func(b *testing.B) {
			var rates, ratios []float64
			rate := func(work func() error) float64 {
				start := time.Now()
				if err := work(); err != nil {
					b.Fatal(err)
				}
				return float64(events) / time.Since(start).Seconds()
			}
			rate(raw)
			heap := watchHeap()
			for b.Loop() {
				for range 3 {
					floor, own := rate(raw), rate(rival.work)
					rates, ratios = append(rates, own), append(ratios, own/floor)
				}
			}
			most := heap()
			slices.Sort(rates)
			slices.Sort(ratios)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(rates[len(rates)/2], "events/s")
			b.ReportMetric(ratios[len(ratios)/2], "ratio")
			b.ReportMetric(most, "heap_MB")
			fmt.Printf("bench: %s-%dk %.0f events/s ratio=%.2f\n", rival.name, events/1000, rates[len(rates)/2], ratios[len(ratios)/2])
		})
	}
}

// watchHeap samples the heap until what it returns is called, which tells the
// most there was beyond what there is now, in MB.
func watchHeap() (most func() float64) {
	runtime.GC()
	var at runtime.MemStats
	runtime.ReadMemStats(&at)
	stop, peak := make(chan struct{}), make(chan uint64)
	go func() {
		var m runtime.MemStats
		most := uint64(0)
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-tick.C:
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapInuse)
			case <-stop:
				tick.Stop()
				peak <- most
				return
			}
		}
	}()
	return func() float64 {
		close(stop)
		return max(0, float64(<-peak)-float64(at.HeapInuse)) / (1 << 20)
	}
}

func rawRead(ctx context.Context, pool *pgxpool.Pool, events int) error {
	const page = 2000
	var after int64
	for total := 0; ; {
		rows, err := pool.Query(ctx, `SELECT position, event_type, payload FROM events WHERE position > $1 ORDER BY position LIMIT $2`, after, page)
		if err != nil {
			return err
		}
		n := 0
		for rows.Next() {
			var name string
			var payload []byte
			if err := rows.Scan(&after, &name, &payload); err != nil {
				return err
			}
			n++
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if total += n; n < page {
			if total != events {
				return fmt.Errorf("read %d events of %d", total, events)
			}
			return nil
		}
	}
}

// months writes the log, and lets everything follow from it.
func months(b *testing.B, pool *pgxpool.Pool, store *eventstore.Store) (events int) {
	b.Helper()
	const page = 200
	ctx := b.Context()
	customers := *benchEvents / eventsOfCustomer
	for from := 0; from < customers; from += page {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			batches := make([]eventstore.Batch, 0, page)
			for i := from; i < min(from+page, customers); i++ {
				id := domain.CustomerID(fmt.Sprintf("customer_%d", i))
				batches = append(batches, eventstore.Batch{Stream: id.Stream(), Key: domain.Key("months/" + id), Command: "test", Fingerprint: make([]byte, 32),
					Meta: eventstore.Meta{Actor: "saga/billing", Correlation: "0192c0de-3c2f-7d1a-9c55-0b8f6f1e2a77", Causation: "17-40213"}, Events: twoMonths(id)})
			}
			_, err := store.AppendTx(ctx, tx, batches...)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	d := commands.NewDispatcher(store)
	idle := func() {}
	processors := []tracking.Processor{sagas.Billing.Processor(d), sagas.Preflight(idle), sagas.Schedule(d), sagas.RefundPreflight(idle)}
	for _, p := range projections.All() {
		processors = append(processors, p.Processor())
	}
	for _, p := range processors { // without a runtime: a page is as large as it likes
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return handled(ctx, tx, store, p) })
		if err != nil {
			b.Fatal(err)
		}
	}
	if _, err := pool.Exec(ctx, `VACUUM ANALYZE`); err != nil {
		b.Fatal(err)
	}
	return customers * eventsOfCustomer
}

// handled hands the log to a processor and moves its tokens.
func handled(ctx context.Context, tx pgx.Tx, store *eventstore.Store, p tracking.Processor) error {
	var page []eventstore.Recorded
	flush := func() error {
		err := p.Handler.Handle(ctx, &tracking.Page{Tx: tx, Events: page})
		page = page[:0]
		return err
	}
	for r, err := range store.ReadAll(ctx, 0) {
		if err != nil {
			return err
		}
		if !slices.Contains(p.Events, r.Type) {
			continue
		}
		if page = append(page, r); len(page) == 5000 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO processor_tokens (processor, partition, position) SELECT $1, p, coalesce((SELECT max(position) FROM events WHERE partition = p), 0) FROM generate_series(0, 63) p`, p.Name)
	return err
}

func twoMonths(id domain.CustomerID) []domain.Event {
	facts := []domain.Event{
		domain.CustomerRegistered{CustomerID: id, StripeCustomerID: "cus_9s6XKzkNRiz8i3", PaymentMethodID: "pm_1MqLiJLkdIwHu7ixUEgbFdYF"},
		domain.SubscriptionActivated{CustomerID: id, Money: fifty, Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC", StartsOn: domain.Date{Year: 2026, Month: 11, Day: 1}},
	}
	for _, p := range []domain.Period{november, december} {
		intent := "pi_" + string(id) + p.String()
		facts = append(facts,
			domain.ChargeRequested{CustomerID: id, BillingPeriod: p, Attempt: 1, Key: domain.ChargeKey(id, p, 1), Money: fifty, StripeCustomerID: "cus_9s6XKzkNRiz8i3", PaymentMethodID: "pm_1MqLiJLkdIwHu7ixUEgbFdYF"},
			domain.ChargeAttemptStarted{CustomerID: id, BillingPeriod: p, Attempt: 1, Start: 1},
			domain.ChargeIntentCommitted{CustomerID: id, BillingPeriod: p, IntentID: intent, IntentNo: 1},
			domain.CustomerBilled{CustomerID: id, BillingPeriod: p, Attempt: 1, ChargeID: "ch_" + intent, IntentID: intent, Money: fifty, Source: domain.SourceAnswer})
	}
	return facts
}
