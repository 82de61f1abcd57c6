package tracking_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

func at(n int) time.Duration { return time.Millisecond }

// poisoned is inOrder, but fails on the events that bad names.
func poisoned(name string, bad func(eventstore.Recorded) error) tracking.Processor {
	p := tracking.Processor{Name: name, Backoff: at, MaxAttempts: 3}
	p.Handler = tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		if err := recordInOrder(ctx, p); err != nil {
			return err
		}
		for _, e := range p.Events {
			if err := bad(e); err != nil {
				return err
			}
		}
		return nil
	})
	return p
}

func TestFailedPageLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE tries (n int)`)
	tries := 0
	h.run(tracking.Options{}, tracking.Processor{Name: "flaky", Backoff: at, Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		tries++
		if _, err := p.Tx.Exec(ctx, `INSERT INTO tries VALUES ($1)`, tries); err != nil {
			return err
		}
		if tries < 3 {
			return errors.New("not yet")
		}
		return recordSeen(ctx, p)
	})})
	h.append("a", eventstore.Head{}, registered("a"))
	h.caughtUp("flaky")
	h.exactlyOnce("flaky")
	if n := value[int](h, `SELECT sum(n) FROM tries`); n != 3 {
		t.Errorf("rows of tries that failed were kept: sum %d, want 3", n)
	}
}

// After an SQL error a transaction is of no use: the next try has a new one,
// also if the handler does not say that anything went wrong.
func TestBrokenTransactionIsNotKept(t *testing.T) {
	t.Parallel()
	for _, swallowed := range []bool{false, true} {
		t.Run(fmt.Sprintf("swallowed=%v", swallowed), func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			var tries atomic.Int64
			h.run(tracking.Options{}, tracking.Processor{Name: "broken", Backoff: at, Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
				if tries.Add(1) == 1 {
					_, err := p.Tx.Exec(ctx, `SELECT 1/0`)
					if swallowed {
						return nil
					}
					return err
				}
				return recordSeen(ctx, p)
			})})
			h.append("a", eventstore.Head{}, registered("a"))
			h.caughtUp("broken")
			h.exactlyOnce("broken")
			if n := tries.Load(); n != 2 {
				t.Errorf("%d tries, want 2", n)
			}
		})
	}
}

func TestHandlerCannotEndTheTransaction(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var kept *tracking.Page
	h.run(tracking.Options{}, tracking.Processor{Name: "greedy", Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		if err := p.Tx.Commit(ctx); err == nil {
			return errors.New("a handler has committed")
		}
		if err := p.Tx.Rollback(ctx); err == nil {
			return errors.New("a handler has rolled back")
		}
		inner, err := p.Tx.Begin(ctx) // a savepoint
		if err != nil {
			return err
		}
		if err := recordSeen(ctx, &tracking.Page{Processor: p.Processor, Tx: inner, Events: p.Events}); err != nil {
			return err
		}
		if err := inner.Rollback(ctx); err != nil {
			return err
		}
		kept = p
		return recordSeen(ctx, p)
	})})
	h.append("a", eventstore.Head{}, registered("a"))
	h.caughtUp("greedy")
	h.exactlyOnce("greedy")
	if _, err := kept.Tx.Exec(t.Context(), `DELETE FROM seen`); err == nil {
		t.Error("a page's transaction works after its end")
	}
	h.exactlyOnce("greedy")
}

func TestPoisonParksItsCustomerAndNobodyElse(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var repaired atomic.Bool
	p := poisoned("careful", func(e eventstore.Recorded) error {
		if e.SequenceKey == "c7" && e.Version == 3 && !repaired.Load() {
			return errors.New("cannot stomach this")
		}
		return nil
	})
	h.fill(200, 4)
	replicas := []*running{h.run(tracking.Options{}, p), h.run(tracking.Options{}, p)}
	h.caughtUp("careful")
	if n := value[int](h, `SELECT count(*) FROM seen`); n != 200*4-2 {
		t.Errorf("%d events handled, want all but 2", n)
	}
	c7 := value[int](h, `SELECT max(version) FROM seen WHERE customer = 'c7'`)
	if c7 != 2 {
		t.Errorf("c7 was handled up to version %d, want 2", c7)
	}
	letters, err := tracking.Letters(t.Context(), h.pool, tracking.LetterFilter{Processor: "careful"})
	if err != nil {
		t.Fatal(err)
	}
	if len(letters) != 2 || letters[0].Status != tracking.Parked || letters[1].Status != tracking.Behind || letters[0].Attempts < 3 {
		t.Fatalf("letters: %+v", letters)
	}
	contains(t, letters[0].Error, "cannot stomach this")
	if s := h.status("careful"); s.Parked != 1 || s.Letters != 2 {
		t.Errorf("status: %d parked, %d letters", s.Parked, s.Letters)
	}

	// What comes later queues up behind.
	var head eventstore.Head
	head.Version = 4
	h.append("c7", head, changed("c7", 5))
	h.eventually(func() string {
		if n := value[int](h, `SELECT count(*) FROM dead_letters WHERE status = 'behind'`); n != 2 {
			return fmt.Sprintf("%d letters behind", n)
		}
		return ""
	})

	// A retry that fails again changes nothing but the count.
	done, err := replicas[0].Retry(t.Context(), "careful", "c7", "ann")
	if err == nil || done != (tracking.Redelivery{Waiting: 3}) {
		t.Errorf("retry of what still fails: %+v, %v", done, err)
	}
	if n := value[int](h, `SELECT attempts FROM dead_letters WHERE status = 'parked'`); n != letters[0].Attempts+1 {
		t.Errorf("%d attempts, want %d", n, letters[0].Attempts+1)
	}

	// Two operators at once: in order, once each.
	repaired.Store(true)
	var both sync.WaitGroup
	var handled atomic.Int64
	for _, r := range replicas {
		both.Go(func() {
			done, err := r.Retry(t.Context(), "careful", "c7", "bob")
			if err != nil && !errors.Is(err, tracking.ErrNothingParked) && !errors.Is(err, tracking.ErrLetterEnded) {
				t.Errorf("retry: %v", err)
			}
			handled.Add(int64(done.Handled))
		})
	}
	both.Wait()
	if handled.Load() != 3 {
		t.Errorf("%d letters handled, want 3", handled.Load())
	}
	h.append("c7", eventstore.Head{Version: 5}, changed("c7", 6)) // free again
	h.caughtUp("careful")
	h.exactlyOnce("careful")
}

// A page that fails for one event goes through event by event, and the rest of
// the backlog page by page again.
func TestCulpritIsFound(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(50, 10)
	var panicked atomic.Int64
	p := poisoned("isolating", func(e eventstore.Recorded) error {
		switch {
		case e.SequenceKey == "c3" && e.Version == 5:
			return errors.New("bad")
		case e.SequenceKey == "c4" && e.Version == 2:
			panicked.Add(1)
			panic("worse")
		}
		return nil
	})
	p.PageSize, p.Partitions = 100, 64
	r := h.run(tracking.Options{}, p)
	h.caughtUp("isolating")
	if n := value[int](h, `SELECT count(*) FROM seen`); n != 500-6-9 {
		t.Errorf("%d events handled, want %d", n, 500-6-9)
	}
	contains(t, value[string](h, `SELECT error FROM dead_letters WHERE sequence_key = 'c4' AND status = 'parked'`), "panic: worse")
	if n := panicked.Load(); n < 3 {
		t.Errorf("panicked %d times, want at least its 3 attempts", n)
	}
	if _, err := r.Retry(t.Context(), "isolating", "c4", "ann"); err == nil {
		t.Error("the retry of a panic succeeds")
	}
	if s := h.status("isolating"); s.Partitions[eventstore.PartitionOf("c3")].Attempts != 0 {
		t.Error("attempts are kept after the event was parked")
	}
}

func TestUndecodableEventIsParkedAtOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
		VALUES (3, 'customer/x', 1, 'customer.payment_method_changed.v1', 'x', '{"customer_id": 17}'),
			(3, 'customer/y', 1, 'customer.payment_method_changed.v1', 'y', '{"customer_id": "y"}'),
			(3, 'customer/x', 2, 'customer.payment_method_changed.v1', 'x', '{"customer_id": "x"}')`)
	h.run(tracking.Options{}, inOrder("strict"))
	h.caughtUp("strict")
	if got := value[string](h, `SELECT string_agg(customer, ' ') FROM seen`); got != "y" {
		t.Errorf("handled: %q, want y alone", got)
	}
	if got := value[string](h, `SELECT string_agg(status, ' ' ORDER BY position) FROM dead_letters`); got != "parked behind" {
		t.Errorf("letters: %s", got)
	}
}

func TestSkip(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	p := poisoned("skipping", func(e eventstore.Recorded) error {
		if e.Version == 1 {
			return errors.New("never")
		}
		return nil
	})
	p.Handler = tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		if p.Events[0].Version == 1 {
			return errors.New("never")
		}
		return recordSeen(ctx, p)
	})
	first := h.append("a", eventstore.Head{}, registered("a"))
	second := h.append("a", first.Head(), changed("a", 2))
	r := h.run(tracking.Options{}, p)
	h.caughtUp("skipping")
	skip := func(position int64, why string) error {
		return tracking.Skip(t.Context(), h.pool, "skipping", "a", position, "ann", why)
	}
	if err := skip(first.Position, ""); !errors.Is(err, domain.ErrInvalidInput) {
		t.Errorf("skip without a reason: %v", err)
	}
	if err := skip(second.Position, "wrong one"); !errors.Is(err, tracking.ErrNotFirst) {
		t.Errorf("skip of the second letter: %v", err)
	}
	if err := skip(first.Position, "never will"); err != nil {
		t.Errorf("skip: %v", err)
	}
	// The operator who comes second is told who was quicker.
	told := func(when string, err error, want string) {
		t.Helper()
		if !errors.Is(err, tracking.ErrLetterEnded) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", when, err, want)
		}
	}
	told("skip of what was skipped", skip(first.Position, "again"), first.Place.String()+" was skipped by ann at 20")
	if done, err := r.Retry(t.Context(), "skipping", "a", "ann"); err != nil || done.Handled != 1 {
		t.Errorf("retry of what was behind: %+v, %v", done, err)
	}
	_, err := r.Retry(t.Context(), "skipping", "a", "bob")
	told("retry of what was retried", err, second.Place.String()+" was retried by ann at 20")
	told("skip after all", skip(first.Position, "again"), "Z: never will; nothing of a waits at skipping")
	if _, err := r.Retry(t.Context(), "skipping", "c", "ann"); !errors.Is(err, tracking.ErrNothingParked) {
		t.Errorf("retry of nothing: %v", err)
	}
	if _, err := r.Retry(t.Context(), "nobody", "a", "ann"); !errors.Is(err, tracking.ErrUnknownProcessor) {
		t.Errorf("retry for nobody: %v", err)
	}
	if got := value[string](h, `SELECT string_agg(status || ' ' || coalesce(reason, '-'), ', ' ORDER BY position) FROM dead_letters`); got != "skipped never will, retried -" {
		t.Errorf("letters: %s", got)
	}
	if got := value[string](h, `SELECT string_agg(action || ' by ' || actor, ', ' ORDER BY id) FROM processor_runs WHERE actor = 'ann'`); got != "skip letter by ann, retry letters by ann" {
		t.Errorf("record: %s", got)
	}
}

// A reset voids what waits, since it reads the events again: the letter's history
// says so, and so is told who wants to retry it then.
func TestVoidLetterSaysSo(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var mended atomic.Bool
	p := resettable("mended")
	p.MaxAttempts, p.Backoff = 1, func(int) time.Duration { return time.Millisecond }
	p.Handler = tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		if !mended.Load() {
			return errors.New("a fold that is wrong")
		}
		return recordSeen(ctx, p)
	})
	e := h.append("a", eventstore.Head{}, registered("a"))
	r := h.run(tracking.Options{}, p)
	h.eventually(func() string {
		if n := value[int](h, `SELECT count(*) FROM dead_letters`); n != 1 {
			return fmt.Sprintf("%d letters", n)
		}
		return ""
	})
	mended.Store(true)
	if err := tracking.Reset(t.Context(), h.pool, p, 1, "ann", "the fold is mended"); err != nil {
		t.Fatal(err)
	}
	h.caughtUp("mended")
	h.exactlyOnce("mended")
	const void = "void by a reset: the fold is mended"
	story, err := tracking.StoryOf(t.Context(), h.pool, "mended", e.Position)
	if err != nil {
		t.Fatal(err)
	}
	if last := story.History[len(story.History)-1]; len(story.History) != 2 || last.Outcome != "retried" || last.Actor != "ann" || last.Detail != void {
		t.Errorf("the letter's history: %+v", story.History)
	}
	if _, err := r.Retry(t.Context(), "mended", "a", "bob"); !errors.Is(err, tracking.ErrLetterEnded) || !strings.Contains(err.Error(), void) {
		t.Errorf("retry of what a reset has voided: %v", err)
	}
}

// What may pass by itself is tried for as long as it takes, and parks nobody.
func TestTransientFailureNeverParks(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var tries atomic.Int64
	h.run(tracking.Options{}, tracking.Processor{Name: "deadlocked", Backoff: at, MaxAttempts: 2, Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		if tries.Add(1) < 20 {
			return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: "40P01", Message: "deadlock detected"})
		}
		return recordSeen(ctx, p)
	})})
	h.append("a", eventstore.Head{}, registered("a"))
	h.eventually(func() string {
		if s := h.status("deadlocked").Partitions[eventstore.PartitionOf("a")]; tries.Load() < 20 && !strings.Contains(s.LastError, "deadlock detected") {
			return "the token does not say why: " + s.LastError
		}
		return ""
	})
	h.caughtUp("deadlocked")
	h.exactlyOnce("deadlocked")
	if n := value[int](h, `SELECT count(*) FROM dead_letters`); n != 0 {
		t.Errorf("%d letters", n)
	}
	if s := h.status("deadlocked"); s.LastError != "" {
		t.Errorf("last error after success: %s", s.LastError)
	}
}

// A page that takes too long is taken in smaller steps, and parks nobody.
func TestTimeout(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(10, 3)
	var pages, alone atomic.Int64
	h.run(tracking.Options{Workers: 1}, tracking.Processor{Name: "slow", Backoff: at, Timeout: 100 * time.Millisecond, MaxAttempts: 1, Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		pages.Add(1)
		if len(p.Events) > 1 {
			_, err := p.Tx.Exec(ctx, `SELECT pg_sleep(60)`)
			return err
		}
		alone.Add(1)
		return recordSeen(ctx, p)
	})})
	h.caughtUp("slow")
	h.exactlyOnce("slow")
	if n := value[int](h, `SELECT count(*) FROM dead_letters`); n != 0 {
		t.Errorf("%d letters", n)
	}
	if alone.Load() < 30 { // on a busy machine one of them may exceed the time too, and come again
		t.Errorf("%d events went alone, want 30", alone.Load())
	}
}

func TestUnknownEventStopsBeforeIt(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	effectful := inOrder("effectful")
	effectful.Kind, effectful.Start = tracking.Effectful, tracking.Beginning
	effectful.Events = []string{"customer.registered.v1", "customer.payment_method_changed.v1"}
	tolerant := tracking.Processor{Name: "tolerant", Tolerant: true, Handler: tracking.HandlerFunc(recordSeen)}
	const p = `(9, 'customer/x', %d, '%s', %d, 'x', '{"customer_id": "x"}')`
	h.exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, schema_version, sequence_key, payload) VALUES ` +
		fmt.Sprintf(p, 1, "customer.payment_method_changed.v1", 1) + `,` +
		fmt.Sprintf(p, 2, "subscription.paused.v1", 1) + `,` + // known, not wanted
		fmt.Sprintf(p, 3, "customer.moved.v1", 1) + `,` + // not known
		fmt.Sprintf(p, 4, "customer.payment_method_changed.v1", 1))
	h.exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, schema_version, sequence_key, payload) VALUES
		(10, 'customer/z', 1, 'customer.registered.v1', 2, 'z', '{"customer_id": "z"}')`) // newer
	r := h.run(tracking.Options{}, effectful, tolerant)
	h.caughtUp("tolerant")
	if n := value[int](h, `SELECT count(*) FROM seen WHERE processor = 'tolerant'`); n != 3 {
		t.Errorf("tolerant has seen %d, want 3", n)
	}
	for _, again := range []bool{false, true} { // read again, it is not counted again
		if again {
			h.exec(`DELETE FROM seen WHERE processor = 'tolerant'`)
			h.exec(`UPDATE processor_tokens SET position = 0 WHERE processor = 'tolerant'`)
			h.caughtUp("tolerant")
		}
		passed := h.status("tolerant").PassedOver
		if len(passed) != 2 || passed[0].Type != "customer.moved.v1" || passed[0].SchemaVersion != 1 || passed[0].Events != 1 || passed[0].Last.Partition != 9 ||
			passed[1].Type != "customer.registered.v1" || passed[1].SchemaVersion != 2 || passed[1].Events != 1 || passed[1].First != passed[1].Last {
			t.Errorf("again %v: passed over: %+v", again, passed)
		}
	}
	if passed := h.status("effectful").PassedOver; passed != nil {
		t.Errorf("an effectful processor passed over %+v", passed)
	}
	h.eventually(func() string {
		if s := h.status("effectful"); s.Partitions[9].LastError == "" || s.Partitions[10].LastError == "" {
			return "no reason in the status"
		}
		return ""
	})
	s := h.status("effectful")
	contains(t, s.Partitions[9].LastError, "customer.moved.v1, schema version 1, is not known to this build")
	contains(t, s.Partitions[10].LastError, "customer.registered.v1, schema version 2, is not known to this build")
	if s.CaughtUp || s.Partitions[9].BehindEvents != 3 || s.Partitions[10].BehindEvents != 1 {
		t.Errorf("caught up %v, behind %d and %d", s.CaughtUp, s.Partitions[9].BehindEvents, s.Partitions[10].BehindEvents)
	}
	if n := value[int](h, `SELECT count(*) FROM dead_letters`); n != 0 {
		t.Errorf("%d letters", n)
	}
	h.append("somebody", eventstore.Head{}, registered("somebody")) // other partitions go on
	h.eventually(func() string {
		if value[int](h, `SELECT count(*) FROM seen WHERE processor = 'effectful' AND customer = 'somebody'`) == 0 {
			return "the others wait too"
		}
		return ""
	})

	// A build that knows it goes on from there.
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	h.exec(`ALTER TABLE events DISABLE TRIGGER ALL; UPDATE events SET event_type = 'subscription.paused.v1', stream_version = stream_version WHERE event_type = 'customer.moved.v1'`)
	h.exec(`UPDATE events SET schema_version = 1`)
	h.exec(`UPDATE events SET stream_version = 99 WHERE stream_id = 'customer/x' AND stream_version = 2`)
	h.exec(`UPDATE events SET stream_version = 2 WHERE stream_id = 'customer/x' AND stream_version = 4`)
	h.run(tracking.Options{}, effectful)
	h.caughtUp("effectful")
	if n := value[int](h, `SELECT count(*) FROM seen WHERE processor = 'effectful'`); n != 4 {
		t.Errorf("effectful has seen %d, want 4", n)
	}
}
