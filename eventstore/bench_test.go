package eventstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// The benchmarks measure the log beside the least that PostgreSQL can be asked
// to do for the same: raw pgx on a table of its own, on the same durable server,
// in turns. What counts is the ratio; figures of a busy machine vary.

const benchConnections = 34

// rivals are two ways to do the same work, measured in turns.
type rivals struct {
	name, unit string
	units      int // per turn
	raw, log   func(turn int) error
}

// turns is how often each of the two is measured, after a turn to warm up.
const turns = 7

// race measures the two in turns and reports the medians and their ratio.
func (r rivals) race(b *testing.B) {
	b.Run(r.name, func(b *testing.B) {
		var raw, log, ratio []float64
		turn := 0
		rate := func(work func(int) error) float64 {
			turn++
			start := time.Now()
			if err := work(turn); err != nil {
				b.Fatal(err)
			}
			return float64(r.units) / time.Since(start).Seconds()
		}
		rate(r.raw)
		rate(r.log)
		for b.Loop() {
			for range turns {
				raw, log = append(raw, rate(r.raw)), append(log, rate(r.log))
				ratio = append(ratio, log[len(log)-1]/raw[len(raw)-1])
			}
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(median(raw), "raw_"+r.unit+"/s")
		b.ReportMetric(median(log), r.unit+"/s")
		b.ReportMetric(median(ratio), "ratio")
		fmt.Printf("bench: %s %.0f %s/s ratio=%.2f\n", r.name, median(log), r.unit, median(ratio))
	})
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	return xs[len(xs)/2]
}

// benchLog is a log with connections enough for 32 writers and room beside it
// for the rival's table.
func benchLog(b *testing.B) (*eventstore.Store, *pgxpool.Pool) {
	b.Helper()
	before := debug.SetGCPercent(300) // as the service runs
	b.Cleanup(func() { debug.SetGCPercent(before) })
	pool := pgtest.Connect(b, pgtest.DSN(b), benchConnections)
	_, err := pool.Exec(b.Context(), `CREATE TABLE raw_events (
		position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, stream text NOT NULL, version integer NOT NULL, type text NOT NULL,
		data json NOT NULL, metadata json NOT NULL, recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(), UNIQUE (stream, version))`)
	if err != nil {
		b.Fatal(err)
	}
	return storeOn(b, pool), pool
}

// request is a fact as charges write it: about 220 bytes, with 110 of metadata.
func request(c domain.CustomerID) domain.ChargeRequested {
	return domain.ChargeRequested{
		CustomerID: c, BillingPeriod: domain.PeriodOf(domain.Monthly, 2026, 11), Attempt: 1, Key: "78add715f5445db3d7f8c24b1df859b6",
		Money: domain.Money{Minor: 5000, Currency: "usd"}, StripeCustomerID: "cus_9s6XKzkNRiz8i3", PaymentMethodID: "pm_1MqLiJLkdIwHu7ixUEgbFdYF",
	}
}

var requestMeta = eventstore.Meta{Actor: "saga billing", Correlation: "0192c0de-3c2f-7d1a-9c55-0b8f6f1e2a77", Causation: "17-40213"}

func requestBatch(c domain.CustomerID, events int) eventstore.Batch {
	b := eventstore.Batch{
		Stream: c.Stream(), Key: domain.Key("charge-billing/" + c), Command: "charge-billing", Fingerprint: make([]byte, 32), Meta: requestMeta,
	}
	for range events {
		b.Events = append(b.Events, request(c))
	}
	return b
}

// written spreads n pieces of work over writers and waits for all of them.
func written(writers, n int, work func(i int) error) error {
	todo := make(chan int, n)
	for i := range n {
		todo <- i
	}
	close(todo)
	errs := make(chan error, writers)
	var writing sync.WaitGroup
	for range writers {
		writing.Go(func() {
			for i := range todo {
				if err := work(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	writing.Wait()
	close(errs)
	return <-errs
}

func mustJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// BenchmarkAppend appends to fresh streams: one event, or ten, with the command
// key, beside an INSERT whose only check is a unique (stream, version).
func BenchmarkAppend(b *testing.B) {
	s, pool := benchLog(b)
	ctx := context.Background()
	meta := mustJSON(requestMeta)
	for _, w := range []struct{ writers, events, n int }{{1, 1, 400}, {8, 1, 2000}, {32, 1, 4000}, {8, 10, 400}} {
		name := fmt.Sprintf("append-%d-writers", w.writers)
		if w.events > 1 {
			name = fmt.Sprintf("append-%d-events-%d-writers", w.events, w.writers)
		}
		raw := func(c domain.CustomerID) error {
			_, err := pool.Exec(ctx, `INSERT INTO raw_events (stream, version, type, data, metadata) VALUES ($1, 1, 'charge.requested.v1', $2, $3)`,
				string(c.Stream()), mustJSON(request(c)), meta)
			return err
		}
		if w.events > 1 {
			raw = func(c domain.CustomerID) error {
				versions, data := make([]int32, w.events), make([]string, w.events)
				for i := range versions {
					versions[i], data[i] = int32(i+1), mustJSON(request(c))
				}
				_, err := pool.Exec(ctx, `INSERT INTO raw_events (stream, version, type, data, metadata)
					SELECT $1, v, 'charge.requested.v1', d::json, $4 FROM unnest($2::int[], $3::text[]) AS e(v, d)`, string(c.Stream()), versions, data, meta)
				return err
			}
		}
		rivals{
			name: name, unit: "events", units: w.n * w.events,
			raw: func(turn int) error {
				return written(w.writers, w.n, func(i int) error { return raw(domain.CustomerID(fmt.Sprintf("%s-%d-%d", name, turn, i))) })
			},
			log: func(turn int) error {
				return written(w.writers, w.n, func(i int) error {
					_, err := s.Append(ctx, requestBatch(domain.CustomerID(fmt.Sprintf("%s-%d-%d", name, turn, i)), w.events))
					return err
				})
			},
		}.race(b)
	}
}

// BenchmarkImport writes many batches in one transaction, beside COPY into a
// table of the same columns and indexes.
func BenchmarkImport(b *testing.B) {
	const n, page = 10_000, 1000
	s, pool := benchLog(b)
	ctx := context.Background()
	if _, err := pool.Exec(ctx, `CREATE TABLE copied (LIKE events INCLUDING ALL)`); err != nil {
		b.Fatal(err)
	}
	customer := func(turn, i int) domain.CustomerID { return domain.CustomerID(fmt.Sprintf("import-%d-%d", turn, i)) }
	columns := []string{"partition", "position", "stream_id", "stream_version", "event_type", "sequence_key", "payload", "metadata", "command_key", "digest"}
	meta := mustJSON(requestMeta)
	rivals{
		name: "import-vs-copy", unit: "events", units: n,
		raw: func(turn int) error {
			_, err := pool.CopyFrom(ctx, pgx.Identifier{"copied"}, columns, pgx.CopyFromSlice(n, func(i int) ([]any, error) {
				c := customer(turn, i)
				return []any{
					eventstore.PartitionOf(string(c)), int64(turn*n + i + 1), string(c.Stream()), 1, "charge.requested.v1", string(c),
					mustJSON(request(c)), meta, "charge-billing/" + string(c), make([]byte, 32),
				}, nil
			}))
			return err
		},
		log: func(turn int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				for from := 0; from < n; from += page {
					batches := make([]eventstore.Batch, page)
					for i := range batches {
						batches[i] = requestBatch(customer(turn, from+i), 1)
					}
					if _, err := s.AppendTx(ctx, tx, batches...); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}.race(b)
}

// BenchmarkLoad reads a stream of twelve events and folds it, beside one
// prepared SELECT of the same JSON, decoded and folded.
func BenchmarkLoad(b *testing.B) {
	const streams = 500
	s, pool := benchLog(b)
	ctx := context.Background()
	for i := range streams {
		c := domain.CustomerID(fmt.Sprintf("c%d", i))
		batch := requestBatch(c, 12)
		if _, err := s.Append(ctx, batch); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := pool.Exec(ctx, `INSERT INTO raw_events (stream, version, type, data, metadata)
		SELECT stream_id, stream_version, event_type, payload, metadata FROM events ORDER BY position`); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `ANALYZE`); err != nil {
		b.Fatal(err)
	}
	rivals{
		name: "load-12", unit: "streams", units: streams,
		raw: func(int) error {
			for i := range streams {
				rows, err := pool.Query(ctx, `SELECT version, type, data FROM raw_events WHERE stream = $1 ORDER BY version`, fmt.Sprintf("customer/c%d", i))
				if err != nil {
					return err
				}
				if _, n, err := rawFold(rows); err != nil || n != 12 {
					return fmt.Errorf("%d events, %w", n, err)
				}
			}
			return nil
		},
		log: func(int) error {
			for i := range streams {
				events, err := s.Load(ctx, pool, domain.CustomerID(fmt.Sprintf("c%d", i)).Stream(), 0)
				if err != nil || len(events) != 12 {
					return fmt.Errorf("%d events, %w", len(events), err)
				}
				var c domain.Customer
				for _, e := range events {
					c = c.Evolve(e.Event)
				}
			}
			return nil
		},
	}.race(b)
}

// rawFold reads, decodes and folds rows of (position or version, type, data).
func rawFold(rows pgx.Rows) (last int64, n int, err error) {
	defer rows.Close()
	var c domain.Customer
	for rows.Next() {
		var name string
		var data []byte
		if err := rows.Scan(&last, &name, &data); err != nil {
			return last, n, err
		}
		var e domain.ChargeRequested
		if err := json.Unmarshal(data, &e); err != nil {
			return last, n, err
		}
		c = c.Evolve(e)
		n++
	}
	return last, n, rows.Err()
}

// BenchmarkReadAll reads and folds a log of 100,000 events, beside raw keyset
// pages of 2,000.
func BenchmarkReadAll(b *testing.B) {
	const n, page = 100_000, 2000
	s, pool := benchLog(b)
	ctx := context.Background()
	for from := 0; from < n; from += page {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			batches := make([]eventstore.Batch, page/10)
			for i := range batches {
				batches[i] = requestBatch(domain.CustomerID(fmt.Sprintf("c%d", from+i)), 10)
			}
			_, err := s.AppendTx(ctx, tx, batches...)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	if _, err := pool.Exec(ctx, `INSERT INTO raw_events (stream, version, type, data, metadata)
		SELECT stream_id, stream_version, event_type, payload, metadata FROM events ORDER BY position`); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `VACUUM ANALYZE`); err != nil {
		b.Fatal(err)
	}
	rivals{
		name: "read-100k", unit: "events", units: n,
		raw: func(int) error {
			var after int64
			for total := 0; ; {
				rows, err := pool.Query(ctx, `SELECT position, type, data FROM raw_events WHERE position > $1 ORDER BY position LIMIT $2`, after, page)
				if err != nil {
					return err
				}
				last, k, err := rawFold(rows)
				if err != nil {
					return err
				}
				after, total = last, total+k
				if k < page {
					if total != n {
						return fmt.Errorf("read %d events", total)
					}
					return nil
				}
			}
		},
		log: func(int) error {
			var c domain.Customer
			total := 0
			for e, err := range s.ReadAll(ctx, 0) {
				if err != nil {
					return err
				}
				c = c.Evolve(e.Event)
				total++
			}
			if total != n {
				return fmt.Errorf("read %d events", total)
			}
			return nil
		},
	}.race(b)
}
