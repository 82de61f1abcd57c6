package tracking_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
)

// apart runs processors as another program does: on connections and a store of
// its own, so that it hears of appends from the database alone.
func (h *house) apart(o tracking.Options, processors ...tracking.Processor) *running {
	h.Helper()
	store := eventstore.New(pgtest.Connect(h, h.dsn, 8), h.store.Codec(), slog.New(slog.DiscardHandler))
	h.Cleanup(store.Close)
	if o.Poll == 0 {
		o.Poll = time.Second
	}
	o.Log = h.log
	return h.runOn(store.Pool(), store, o, processors...)
}

// BenchmarkBeside has 32 writers append single events, alone and beside three
// processors of another program that write a row an event, in turns: what
// delivery takes from those who append.
func BenchmarkBeside(b *testing.B) {
	const writers, each = 32, 150
	h := newHouse(b)
	turn := 0
	appends := func() float64 {
		turn++
		start := time.Now()
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				c, head := fmt.Sprintf("w%d-%d", turn, w), eventstore.Head{}
				for i := range each {
					if i == 0 {
						head = h.append(c, head, registered(c)).Head()
					} else {
						head = h.append(c, head, changed(c, i+1)).Head()
					}
				}
			})
		}
		all.Wait()
		return writers * each / time.Since(start).Seconds()
	}
	var handled atomic.Int64
	var processors []tracking.Processor
	for n := range 3 {
		p := reader(fmt.Sprint("beside", n))
		p.Pace = 200 * time.Millisecond // as read models have it
		p.AfterCommit = func(page *tracking.Page) { handled.Add(int64(len(page.Events))) }
		processors = append(processors, p)
	}
	beside := func() (rate float64) {
		r := h.apart(tracking.Options{Workers: 2}, processors...)
		for _, p := range processors {
			h.caughtUp(p.Name)
		}
		before := handled.Load()
		rate = appends()
		if handled.Load() == before {
			b.Error("nothing was handled meanwhile")
		}
		if err := r.stop(); err != nil {
			b.Fatal(err)
		}
		return rate
	}
	appends()
	inTurns(b, "append-32-beside-processors", appends, beside)
}

// BenchmarkReplicas handles 12,000 waiting events by one program and by three,
// in turns: what they lose by standing in one another's way.
func BenchmarkReplicas(b *testing.B) {
	h := newHouse(b)
	h.fill(300, backlog/300)
	h.exec(`ANALYZE`)
	turn := 0
	drain := func(replicas int) float64 {
		turn++
		p := reader(fmt.Sprint("replicas", turn))
		p.PageSize, p.Partitions = 500, 16
		var handled atomic.Int64
		done := make(chan struct{})
		p.AfterCommit = func(page *tracking.Page) {
			if handled.Add(int64(len(page.Events))) == backlog {
				close(done)
			}
		}
		start := time.Now()
		var all []*running
		for range replicas {
			all = append(all, h.apart(tracking.Options{Workers: 2}, p))
		}
		<-done
		rate := backlog / time.Since(start).Seconds()
		for _, r := range all {
			if err := r.stop(); err != nil {
				b.Fatal(err)
			}
		}
		return rate
	}
	drain(1)
	inTurns(b, "backlog-12k/three-programs", func() float64 { return drain(1) }, func() float64 { return drain(3) })
}

// BenchmarkLatencyApart is BenchmarkLatency's processor in another program than
// the appender: a notification of the database is all that it hears.
func BenchmarkLatencyApart(b *testing.B) {
	const appends = 200 // a turn
	h := newHouse(b)
	handled := make(chan time.Time, appends)
	h.apart(tracking.Options{}, tracking.Processor{Name: "latency", Handler: tracking.HandlerFunc(func(_ context.Context, p *tracking.Page) error {
		for range p.Events {
			handled <- time.Now()
		}
		return nil
	})})
	var took []float64
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for turn := 0; b.Loop(); turn++ {
		for i := range rounds * appends {
			<-tick.C
			c := fmt.Sprintf("l%d-%d", turn, i)
			h.append(c, eventstore.Head{}, registered(c))
			done := time.Now()
			took = append(took, (<-handled).Sub(done).Seconds()*1000)
		}
	}
	sorted := slices.Sorted(slices.Values(took))
	b.ReportMetric(0, "ns/op")
	for _, q := range []int{50, 99} {
		b.ReportMetric(sorted[len(sorted)*q/100], fmt.Sprintf("p%d-ms", q))
		fmt.Printf("bench: append-handled-elsewhere-p%d %.2f ms\n", q, sorted[len(sorted)*q/100])
	}
}
