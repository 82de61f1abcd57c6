package tracking_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

const backlog = 12_000

// BenchmarkBacklog handles 12,000 waiting events, a read-model row each, beside
// the least that has to be done for it: pages read by position, one insert and
// the place in one pipelined transaction.
func BenchmarkBacklog(b *testing.B) {
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
				b.ReportMetric(backlog/time.Since(start).Seconds(), "events/s")
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
			b.ReportMetric(backlog/time.Since(start).Seconds(), "events/s")
		}
	})
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
// append to the handler.
func BenchmarkLatency(b *testing.B) {
	h := newHouse(b)
	h.fill(300, 10)
	h.exec(`ANALYZE`)
	const appends = 500
	handled := make(chan time.Time, appends)
	p := tracking.Processor{Name: "latency", Start: tracking.Head, Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		for range p.Events {
			handled <- time.Now()
		}
		return nil
	})}
	h.run(tracking.Options{Poll: time.Second}, p)
	h.caughtUp("latency")
	for n := range b.N {
		took := make([]time.Duration, 0, appends)
		committed := make([]time.Duration, 0, appends)
		tick := time.NewTicker(10 * time.Millisecond)
		for i := range appends {
			<-tick.C
			c := fmt.Sprintf("l%d-%d", n, i)
			start := time.Now()
			if _, err := h.store.Append(b.Context(), eventstore.Batch{Stream: domain.CustomerID(c).Stream(), Command: "test", Events: []domain.Event{registered(c)}}); err != nil {
				b.Fatal(err)
			}
			done := time.Now()
			at := <-handled
			took = append(took, at.Sub(start))
			committed = append(committed, at.Sub(done))
		}
		tick.Stop()
		slices.Sort(took)
		slices.Sort(committed)
		b.ReportMetric(float64(took[appends/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(took[appends*99/100].Microseconds())/1000, "p99-ms")
		b.ReportMetric(float64(committed[appends/2].Microseconds())/1000, "after-commit-p50-ms")
		b.ReportMetric(float64(committed[appends*99/100].Microseconds())/1000, "after-commit-p99-ms")
	}
}
