package tracking_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

const backlog = 12_000

// BenchmarkBacklog handles 12,000 waiting events, a read-model row each, beside
// the least that has to be done for it: pages read by position, one insert and
// the place in one pipelined transaction.
func BenchmarkBacklog(b *testing.B) {
	best, raw := 0.0, 0.0
	for _, shape := range []struct{ page, partitions, workers int }{{200, 16, 2}, {500, 16, 2}, {500, 64, 1}, {500, 32, 2}, {1000, 64, 2}} {
		b.Run(fmt.Sprintf("page=%d,partitions=%d,workers=%d", shape.page, shape.partitions, shape.workers), func(b *testing.B) {
			h := newHouse(b)
			h.fill(300, backlog/300)
			h.exec(`ANALYZE`)
			for n := range b.N {
				name := fmt.Sprintf("backlog%d", n)
				p := reader(name)
				p.PageSize, p.Partitions = shape.page, shape.partitions
				var handled atomic.Int64
				done := make(chan struct{})
				p.AfterCommit = func(p *tracking.Page) {
					if handled.Add(int64(len(p.Events))) == backlog {
						close(done)
					}
				}
				start := time.Now()
				r := h.run(tracking.Options{Workers: shape.workers, Poll: time.Second}, p)
				<-done
				rate := backlog / time.Since(start).Seconds()
				best = max(best, rate)
				b.ReportMetric(rate, "events/s")
				b.ReportMetric(float64(r.Commits()), "commits")
				if err := r.stop(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("raw", func(b *testing.B) {
		h := newHouse(b)
		h.fill(300, backlog/300)
		h.exec(`ANALYZE`)
		h.exec(`CREATE TABLE place (position bigint); INSERT INTO place VALUES (0)`)
		for n := range b.N {
			start := time.Now()
			rawDrain(b, h, fmt.Sprintf("raw%d", n), 500)
			rate := backlog / time.Since(start).Seconds()
			raw = max(raw, rate)
			b.ReportMetric(rate, "events/s")
		}
	})
	if raw > 0 {
		fmt.Printf("bench: backlog-12k %.0f events/s ratio=%.2f\n", best, best/raw)
	}
}

func rawDrain(b *testing.B, h *house, name string, size int) {
	ctx := b.Context()
	conn, err := h.pool.Acquire(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	for after, done := int64(0), 0; done < backlog; {
		rows, err := conn.Query(ctx, `SELECT partition, position, sequence_key, stream_version, event_type, schema_version, payload FROM events
			WHERE position > $1 ORDER BY position LIMIT $2`, after, size)
		if err != nil {
			b.Fatal(err)
		}
		var partitions []int16
		var positions []int64
		var versions []int32
		var customers []string
		for rows.Next() {
			var partition, schema int16
			var version int32
			var customer, name string
			var payload []byte
			if err := rows.Scan(&partition, &after, &customer, &version, &name, &schema, &payload); err != nil {
				b.Fatal(err)
			}
			if _, err := h.store.Codec().Decode(name, schema, payload); err != nil {
				b.Fatal(err)
			}
			partitions, positions, versions, customers = append(partitions, partition), append(positions, after), append(versions, version), append(customers, customer)
		}
		if rows.Err() != nil {
			b.Fatal(rows.Err())
		}
		batch := &pgx.Batch{}
		batch.Queue(`INSERT INTO seen SELECT $1, *, false FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::int[])`, name, partitions, positions, customers, versions)
		batch.Queue(`UPDATE place SET position = $1`, after)
		if err := conn.SendBatch(ctx, batch).Close(); err != nil {
			b.Fatal(err)
		}
		done += len(positions)
	}
}

// BenchmarkLatency appends 100 events a second and measures from before the
// append to the handler, beside the least that can be done: a reader that is
// told by the appender and asks with one query.
func BenchmarkLatency(b *testing.B) {
	const appends = 500
	after := map[string][2]float64{} // p50 and p99 after the commit, in ms
	run := func(b *testing.B, who string, h *house, handled <-chan time.Time) {
		for n := range b.N {
			took, committed := make([]time.Duration, 0, appends), make([]time.Duration, 0, appends)
			tick := time.NewTicker(10 * time.Millisecond)
			for i := range appends {
				<-tick.C
				c := fmt.Sprintf("l%d-%d", n, i)
				start := time.Now()
				h.append(c, eventstore.Head{}, registered(c))
				done := time.Now()
				at := <-handled
				took, committed = append(took, at.Sub(start)), append(committed, at.Sub(done))
			}
			tick.Stop()
			slices.Sort(took)
			slices.Sort(committed)
			for q, name := range map[int]string{50: "p50", 99: "p99"} {
				b.ReportMetric(took[appends*q/100].Seconds()*1000, name+"-ms")
				b.ReportMetric(committed[appends*q/100].Seconds()*1000, "after-commit-"+name+"-ms")
			}
			after[who] = [2]float64{committed[appends/2].Seconds() * 1000, committed[appends*99/100].Seconds() * 1000}
		}
	}
	b.Run("processor", func(b *testing.B) {
		h := newHouse(b)
		handled := make(chan time.Time, appends)
		h.run(tracking.Options{Poll: time.Second}, tracking.Processor{Name: "latency", Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
			for range p.Events {
				handled <- time.Now()
			}
			return nil
		})})
		run(b, "processor", h, handled)
	})
	b.Run("raw", func(b *testing.B) {
		h := newHouse(b)
		handled, woken := make(chan time.Time, appends), make(chan struct{}, 1)
		defer h.store.OnAppend(func(uint64) {
			select {
			case woken <- struct{}{}:
			default:
			}
		})()
		go func() {
			after := int64(0)
			for {
				select {
				case <-woken:
				case <-b.Context().Done():
					return
				}
				rows, err := h.pool.Query(b.Context(), `SELECT position, payload FROM events WHERE position > $1 ORDER BY position`, after)
				if err != nil {
					return
				}
				var payload []byte
				_, _ = pgx.ForEachRow(rows, []any{&after, &payload}, func() error {
					handled <- time.Now()
					return nil
				})
			}
		}()
		run(b, "raw", h, handled)
	})
	for i, name := range []string{"p50", "p99"} {
		if floor := after["raw"][i]; floor > 0 {
			fmt.Printf("bench: append-handled-%s %.2f ms ratio=%.2f\n", name, after["processor"][i], after["processor"][i]/floor)
		}
	}
}
