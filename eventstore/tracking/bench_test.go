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
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
)

const backlog = 12_000

// rounds is how often each of two rivals is measured, in turns, after a turn to
// warm up.
const rounds = 5

// inTurns measures a rate in events a second beside its floor, in turns on the
// same server, and reports the medians of the rate and of its ratio to the floor.
func inTurns(b *testing.B, name string, floor, rate func() float64) {
	b.Helper()
	var rates, ratios []float64
	for b.Loop() {
		for range rounds {
			raw, own := floor(), rate()
			rates, ratios = append(rates, own), append(ratios, own/raw)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(rates), "events/s")
	b.ReportMetric(median(ratios), "ratio")
	fmt.Printf("bench: %s %.0f events/s ratio=%.2f\n", name, median(rates), median(ratios))
}

// BenchmarkBacklog handles 12,000 waiting events, a read-model row each, beside
// the least that has to be done for it: pages read by position, one insert and
// the place in one pipelined transaction. Both in turns, on the same server.
func BenchmarkBacklog(b *testing.B) {
	for _, shape := range []struct{ page, partitions, workers int }{{200, 16, 2}, {500, 16, 2}, {500, 64, 1}, {500, 32, 2}, {1000, 64, 2}} {
		name := fmt.Sprintf("page=%d,partitions=%d,workers=%d", shape.page, shape.partitions, shape.workers)
		b.Run(name, func(b *testing.B) {
			h := newHouse(b)
			h.fill(300, backlog/300)
			h.exec(`ANALYZE`)
			h.exec(`CREATE TABLE place (position bigint); INSERT INTO place VALUES (0)`)
			turn, commits := 0, 0
			drain := func() float64 {
				turn++
				start := time.Now()
				commits = processorDrain(b, h, fmt.Sprint("backlog", turn), shape.page, shape.partitions, shape.workers)
				return backlog / time.Since(start).Seconds()
			}
			floor := func() float64 {
				turn++
				start := time.Now()
				rawDrain(b, h, fmt.Sprint("raw", turn), 500)
				return backlog / time.Since(start).Seconds()
			}
			drain()
			floor()
			inTurns(b, "backlog-12k/"+name, floor, drain)
			b.ReportMetric(float64(commits), "commits")
		})
	}
}

func median(xs []float64) float64 {
	sorted := slices.Sorted(slices.Values(xs))
	return sorted[len(sorted)/2]
}

// processorDrain lets a new processor come to the end of the log, and tells the
// commits that it took.
func processorDrain(b *testing.B, h *house, name string, page, partitions, workers int) (commits int) {
	p := reader(name)
	p.PageSize, p.Partitions = page, partitions
	var handled atomic.Int64
	done := make(chan struct{})
	p.AfterCommit = func(p *tracking.Page) {
		if handled.Add(int64(len(p.Events))) == backlog {
			close(done)
		}
	}
	r := h.run(tracking.Options{Workers: workers, Poll: time.Second}, p)
	<-done
	commits = int(r.Commits())
	if err := r.stop(); err != nil {
		b.Fatal(err)
	}
	return commits
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

// BenchmarkLatency appends 100 events a second and measures the time until the
// handler has them, from the commit and from before the append, beside the least
// that can be done: a reader that is told by the appender and asks with one
// query. Both in turns, on the same server.
func BenchmarkLatency(b *testing.B) {
	const appends = 200                               // a turn
	type reading struct{ committed, whole []float64 } // ms
	readers := map[string]func(*house, chan<- time.Time){"processor": latencyProcessor, "raw": latencyFloor}
	houses, handled, took := map[string]*house{}, map[string]chan time.Time{}, map[string]*reading{}
	for who, read := range readers {
		houses[who], handled[who], took[who] = newHouse(rival{b, who}), make(chan time.Time, appends), &reading{}
		read(houses[who], handled[who])
	}
	turn := 0
	measure := func(who string) {
		turn++
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := range appends {
			<-tick.C
			c := fmt.Sprintf("l%d-%d", turn, i)
			start := time.Now()
			houses[who].append(c, eventstore.Head{}, registered(c))
			done := time.Now()
			at := <-handled[who]
			r := took[who]
			r.committed, r.whole = append(r.committed, at.Sub(done).Seconds()*1000), append(r.whole, at.Sub(start).Seconds()*1000)
		}
	}
	for b.Loop() {
		for range rounds {
			measure("raw")
			measure("processor")
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, q := range []int{50, 99} {
		for what, of := range map[string]func(*reading) []float64{
			"append-handled":        func(r *reading) []float64 { return r.committed },
			"before-append-handled": func(r *reading) []float64 { return r.whole },
		} {
			at := func(who string) float64 {
				sorted := slices.Sorted(slices.Values(of(took[who])))
				return sorted[len(sorted)*q/100]
			}
			fmt.Printf("bench: %s-p%d %.2f ms ratio=%.2f\n", what, q, at("processor"), at("processor")/at("raw"))
			b.ReportMetric(at("processor"), fmt.Sprintf("%s-p%d-ms", what, q))
			b.ReportMetric(at("raw"), fmt.Sprintf("raw-%s-p%d-ms", what, q))
		}
	}
}

// rival has a database of its own beside the benchmark's.
type rival struct {
	testing.TB
	name string
}

func latencyProcessor(h *house, handled chan<- time.Time) {
	h.run(tracking.Options{Poll: time.Second}, tracking.Processor{Name: "latency", Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		for range p.Events {
			handled <- time.Now()
		}
		return nil
	})})
}

func latencyFloor(h *house, handled chan<- time.Time) {
	woken := make(chan struct{}, 1)
	h.Cleanup(h.store.OnAppend(func(eventstore.Growth) {
		select {
		case woken <- struct{}{}:
		default:
		}
	}))
	go func() {
		after := int64(0)
		for {
			select {
			case <-woken:
			case <-h.Context().Done():
				return
			}
			rows, err := h.pool.Query(h.Context(), `SELECT position, payload FROM events WHERE position > $1 ORDER BY position`, after)
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
}

// BenchmarkLongLine handles 12,000 waiting events, and then single ones, over a
// line to the database whose round trip takes some milliseconds more.
func BenchmarkLongLine(b *testing.B) {
	for _, trip := range []time.Duration{0, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond} {
		b.Run("trip="+trip.String(), func(b *testing.B) {
			h := newHouse(b)
			h.fill(300, backlog/300)
			h.exec(`ANALYZE`)
			proxy := pgtest.NewProxy(b, h.dsn)
			proxy.Delay(trip / 2)
			pool := pgtest.Connect(b, proxy.DSN(), 8)
			var rates, waits []float64
			for n := 0; b.Loop(); n++ {
				p := reader(fmt.Sprint("far", n))
				p.PageSize, p.Partitions = 500, 16
				handled := make(chan int, backlog)
				p.AfterCommit = func(page *tracking.Page) { handled <- len(page.Events) }
				begun := time.Now()
				r := h.runOn(pool, h.store, tracking.Options{Poll: time.Second, Workers: 2}, p)
				for left := value[int](h, `SELECT count(*) FROM events`); left > 0; {
					left -= <-handled
				}
				rates = append(rates, backlog/time.Since(begun).Seconds())
				for w := range 15 {
					c := fmt.Sprintf("woken%d-%d", n, w)
					h.append(c, eventstore.Head{}, registered(c))
					begun := time.Now() // the append itself is on a short line
					<-handled
					waits = append(waits, time.Since(begun).Seconds()*1000)
				}
				if err := r.stop(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(rates), "events/s")
			b.ReportMetric(median(waits), "ms/event")
			fmt.Printf("bench: long-line/trip=%s %.0f events/s %.0f ms from append to handled\n", trip, median(rates), median(waits))
		})
	}
}
