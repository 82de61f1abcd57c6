package tracking_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// illness makes the handler fail on the events of some customers.
type illness struct {
	mu   sync.Mutex
	left map[string]int    // failures still to come
	kind map[string]string // error, panic, transient, swallow
}

func (i *illness) strike(customer string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.left[customer] == 0 {
		return nil
	}
	i.left[customer]--
	switch i.kind[customer] {
	case "panic":
		panic("ill")
	case "transient":
		return &pgconn.PgError{Code: "40001"}
	}
	return errors.New("ill")
}

func (i *illness) of(customer, kind string, times int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.left[customer], i.kind[customer] = times, kind
}

func (i *illness) heal() {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.left)
}

// Whatever happens in whatever order (failures of every class, killed
// connections, resets, lost tokens, pauses, retries, restarts): once it is over
// and what was parked has been retried, every event has been handled once, and
// those of a customer in order.
func TestInterleavings(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	pool := h.victim()

	ill := &illness{left: map[string]int{}, kind: map[string]string{}}
	p := resettable("tested")
	p.PageSize, p.Partitions, p.MaxAttempts = 6, 2, 2
	p.Backoff = func(int) time.Duration { return time.Millisecond }
	p.Handler = tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error {
		if err := recordInOrder(ctx, page); err != nil {
			return err
		}
		for _, e := range page.Events {
			if err := ill.strike(e.SequenceKey); err != nil {
				return err
			}
		}
		return nil
	})
	start := func() *running {
		r := h.runOn(pool, h.store, tracking.Options{Poll: 5 * time.Millisecond, Log: h.log}, p)
		h.eventually(func() string {
			if len(h.status("tested").Partitions) == 0 {
				return "it does not start"
			}
			return ""
		})
		return r
	}
	r := start()
	heads := map[string]eventstore.Head{}
	customer := rapid.SampledFrom([]string{"ann", "bob", "cem", "dia", "eve"})

	rapid.Check(t, func(rt *rapid.T) {
		ops := map[string]func(){
			"append": func() {
				c := customer.Draw(rt, "customer")
				for range rapid.IntRange(1, 5).Draw(rt, "events") {
					heads[c] = h.append(c, heads[c], changed(c, heads[c].Version)).Head()
				}
			},
			"illness": func() {
				ill.of(customer.Draw(rt, "customer"), rapid.SampledFrom([]string{"error", "panic", "transient"}).Draw(rt, "kind"), rapid.IntRange(1, 6).Draw(rt, "times"))
			},
			"kill": func() {
				h.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim' AND datname = current_database()`)
			},
			"reset": func() {
				if err := tracking.Reset(t.Context(), h.pool, p, 1, "ann", "a try"); err != nil {
					t.Fatal(err)
				}
			},
			"lose": func() {
				h.exec(`DELETE FROM processor_tokens WHERE partition = $1`, eventstore.PartitionOf(customer.Draw(rt, "customer")))
			},
			"pause": func() {
				if err := tracking.Pause(t.Context(), h.pool, "tested", "ann", "a try"); err != nil {
					t.Fatal(err)
				}
			},
			"resume": func() {
				if err := tracking.Resume(t.Context(), h.pool, "tested", "ann", "a try"); err != nil {
					t.Fatal(err)
				}
			},
			"retry": func() { _, _ = r.Retry(t.Context(), "tested", customer.Draw(rt, "customer"), "ann") },
			"restart": func() {
				if err := r.stop(); err != nil {
					t.Fatal(err)
				}
				r = start()
			},
		}
		names := []string{"append", "append", "append", "append", "illness", "illness", "kill", "reset", "lose", "pause", "resume", "retry", "restart"}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			ops[rapid.SampledFrom(names).Draw(rt, "step")]()
		}

		ill.heal()
		ops["resume"]()
		h.eventually(func() string {
			letters, err := tracking.Letters(t.Context(), h.pool, tracking.LetterFilter{Processor: "tested"})
			if err != nil {
				return err.Error()
			}
			for _, l := range letters {
				if _, err := r.Retry(t.Context(), "tested", l.SequenceKey, "ann"); err != nil && !errors.Is(err, tracking.ErrNothingParked) && !errors.Is(err, tracking.ErrLetterEnded) {
					return err.Error()
				}
			}
			if s := h.status("tested"); !s.CaughtUp || s.Letters > 0 {
				return fmt.Sprintf("%d events behind, %d letters, %s", s.BehindEvents, s.Letters, s.LastError)
			}
			return ""
		})
		h.exactlyOnce("tested")
		if h.Failed() {
			rt.FailNow()
		}
	})
}
