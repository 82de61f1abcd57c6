package tracking_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// ordered is a processor that writes down what it is told, in the order in
// which it is told.
func (h *house) ordered(name string) tracking.Processor {
	h.exec(`CREATE TABLE told (n bigserial PRIMARY KEY, position bigint UNIQUE, customer text, replay boolean)`)
	return tracking.Processor{
		Name: name, Ordered: true,
		Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
			for _, e := range p.Events {
				if _, err := p.Tx.Exec(ctx, `INSERT INTO told (position, customer, replay) VALUES ($1, $2, $3)`, e.Position, e.SequenceKey, p.Replay(e)); err != nil {
					return err
				}
			}
			return nil
		}),
		Reset: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `DELETE FROM told`)
			return err
		},
	}
}

// inOneOrder checks that every event up to a position was told, once, in order
// of position; 0: to the end of the log.
func (h *house) inOneOrder(to int64) {
	h.Helper()
	if n := value[int](h, `SELECT count(*) FROM (SELECT position, lag(position) OVER (ORDER BY n) AS before FROM told) AS t WHERE position <= before`); n != 0 {
		h.Errorf("%d events came after a later one", n)
	}
	if n := value[int](h, `SELECT count(*) FROM told FULL JOIN (SELECT position FROM events WHERE $1 = 0 OR position <= $1) e USING (position) WHERE n IS NULL OR e.position IS NULL`, to); n != 0 {
		h.Errorf("%d events are missing, or too many", n)
	}
}

// Eight writers whose appends commit in any order, three replicas, connections
// that are killed: the whole log comes in one order, live as in a replay.
func TestOrderedProcessor(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE elsewhere (n int)`)
	p := h.ordered("ordered")
	p.PageSize, p.Backoff = 20, func(int) time.Duration { return 5 * time.Millisecond }
	h.victims(3, tracking.Options{Poll: quick, Workers: 3, Log: h.log}, p)
	h.eventually(func() string {
		if len(h.status("ordered").Partitions) == 0 {
			return "it does not start"
		}
		return ""
	})
	stop := h.writers(8)
	for kills := 0; kills < 10; {
		kills += value[int](h, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name = 'victim' AND datname = current_database() AND random() < 0.3`)
		h.untilAppended(40 * (kills + 1))
	}
	end := value[int64](h, `SELECT max(position) FROM events`)
	if err := tracking.RunTo(t.Context(), h.pool, "ordered", end, "ann", "a look"); err != nil && !errors.Is(err, tracking.ErrPast) {
		t.Fatal(err)
	} else if err == nil {
		h.eventually(func() string {
			if s := h.status("ordered"); !s.Stopped {
				return "it does not stop: " + s.LastError
			}
			return ""
		})
		h.inOneOrder(end)
		if err := tracking.Resume(t.Context(), h.pool, "ordered", "ann", "seen"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	h.caughtUp("ordered")
	h.inOneOrder(0)
	if err := tracking.Reset(t.Context(), h.pool, p, 1, "ann", "again"); err != nil {
		t.Fatal(err)
	}
	h.caughtUp("ordered")
	h.inOneOrder(0)
	if n := value[int](h, `SELECT count(*) FROM dead_letters`) + value[int](h, `SELECT count(*) FROM told WHERE NOT replay`); n != 0 {
		t.Errorf("%d letters, or events that are no replay", n)
	}
}

// An append with an early position that commits late is waited for, in whichever
// partition it is.
func TestOrderedProcessorWaitsForLateCommits(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.run(tracking.Options{}, h.ordered("ordered"), inOrder("unordered"))
	h.caughtUp("ordered", "unordered")
	tx, err := h.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	late, err := h.store.AppendTx(t.Context(), tx, eventstore.Batch{Stream: domain.CustomerID("late").Stream(), Command: "test", Events: []domain.Event{registered("late")}})
	if err != nil || late[0].Err != nil {
		t.Fatal(err, late)
	}
	for n := range 5 {
		c := fmt.Sprintf("early%d", n)
		h.append(c, eventstore.Head{}, registered(c))
	}
	h.eventually(func() string { // others do not wait
		if n := value[int](h, `SELECT count(*) FROM seen`); n != 5 {
			return fmt.Sprintf("%d of 5 seen", n)
		}
		return ""
	})
	if n := value[int](h, `SELECT count(*) FROM told`); n != 0 {
		t.Errorf("%d events have overtaken the one at %s", n, late[0].Recorded[0].Place)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.caughtUp("ordered")
	h.inOneOrder(0)
	if first := value[string](h, `SELECT customer FROM told ORDER BY n LIMIT 1`); first != "late" {
		t.Errorf("first came %s", first)
	}
}

// What this build does not know stops all of it; what fails parks its customer.
func TestOrderedProcessorStopsAndParks(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	p := h.ordered("ordered")
	tell := p.Handler
	p.MaxAttempts, p.Backoff = 2, func(int) time.Duration { return time.Millisecond }
	p.Handler = tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error {
		for _, e := range page.Events {
			if e.SequenceKey == "c3" && e.Version == 2 {
				return errors.New("bad")
			}
		}
		return tell.Handle(ctx, page)
	})
	h.fill(6, 3) // 18 events, of which c3 has one before the bad one
	h.run(tracking.Options{}, p)
	h.caughtUp("ordered")
	if s := h.status("ordered"); s.Letters != 2 || s.Parked != 1 {
		t.Errorf("%d letters of %d customers", s.Letters, s.Parked)
	}
	if got := value[string](h, `SELECT count(*) || ' ' || count(*) FILTER (WHERE customer = 'c3') FROM told`); got != "16 1" {
		t.Errorf("told, and of c3: %s", got)
	}
	h.exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload) VALUES (9, 'customer/x', 1, 'customer.moved.v1', 'x', '{"customer_id": "x"}')`)
	unknown := value[int64](h, `SELECT max(position) FROM events`)
	h.append("behind", eventstore.Head{}, registered("behind"))
	h.eventually(func() string {
		if h.status("ordered").LastError == "" {
			return "it does not say why it stopped"
		}
		return ""
	})
	s := h.status("ordered")
	contains(t, s.LastError, fmt.Sprintf("stopped before 9-%d", unknown))
	if n := value[int](h, `SELECT count(*) FROM told WHERE position >= $1`, unknown); n != 0 || s.BehindEvents != 2 {
		t.Errorf("%d events behind the unknown one were told, %d are behind", n, s.BehindEvents)
	}
}
