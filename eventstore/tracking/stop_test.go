package tracking_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/billonce/billonce/eventstore/tracking"
)

func TestStopFinishesThePage(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(1, 50)
	started, release := make(chan struct{}), make(chan struct{})
	var pages atomic.Int64
	p := reader("stopping")
	p.PageSize = 10
	p.Handler = tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		if pages.Add(1) == 1 {
			close(started)
			<-release
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the handler's context has ended: %w", err)
		}
		return recordSeen(ctx, p)
	})
	r := tracking.New(h.pool, h.store, tracking.Options{Poll: quick})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, p) }()
	<-started
	cancel()
	select {
	case err := <-ended:
		t.Fatalf("Run returned %v while a page was under way", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := value[int](h, `SELECT count(*) FROM seen`); n != 10 {
		t.Errorf("%d events handled, want the page of 10", n)
	}
	if n := value[int64](h, `SELECT max(position) FROM processor_tokens`); n != value[int64](h, `SELECT max(position) FROM seen`) {
		t.Errorf("the token is at %d", n)
	}
	h.run(tracking.Options{}, p)
	h.caughtUp("stopping")
	h.exactlyOnce("stopping")
}

// A page that does not end is cut off: rolled back, and Run returns in time.
func TestStopByForce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(1, 1)
	started := make(chan struct{}, 1)
	p := tracking.Processor{Name: "stuck", Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		if err := recordSeen(ctx, p); err != nil {
			return err
		}
		started <- struct{}{}
		_, err := p.Tx.Exec(ctx, `SELECT pg_sleep(60)`)
		return err
	})}
	r := tracking.New(h.pool, h.store, tracking.Options{Poll: quick, Drain: 50 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, p) }()
	<-started
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run does not return")
	}
	if n := value[int](h, `SELECT count(*) FROM seen`); n != 0 {
		t.Errorf("%d rows of the page that was cut off were kept", n)
	}
}

// A replica that hangs in a transaction is thrown out by the server; another
// takes over, and what the first wakes up with comes to nothing.
func TestFrozenReplica(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(1, 1)
	frozen, thaw := make(chan struct{}), make(chan struct{})
	p := reader("frozen")
	p.Timeout = 100 * time.Millisecond // the server allows 5 s more
	p.Handler = tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error {
		close(frozen)
		<-thaw
		return recordSeen(context.WithoutCancel(ctx), page)
	})
	r := h.run(tracking.Options{}, p)
	<-frozen
	p.Handler = tracking.HandlerFunc(recordSeen)
	h.run(tracking.Options{}, p)
	h.caughtUp("frozen")
	close(thaw)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	h.exactlyOnce("frozen")
	if n := value[int](h, `SELECT count(*) FROM dead_letters`); n != 0 {
		t.Errorf("%d letters", n)
	}
}

func TestRunRefusesWhatIsNotWellFormed(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	ok := inOrder("ok")
	for what, c := range map[string][]tracking.Processor{
		"there are none":             {},
		"two of this name":           {ok, ok},
		"no handler":                 {{Name: "a"}},
		"begin with a letter":        {{Name: "A", Handler: ok.Handler}},
		`no fact is named "x"`:       {{Name: "a", Handler: ok.Handler, Events: []string{"x"}}},
		"must state where it starts": {{Name: "a", Handler: ok.Handler, Kind: tracking.Effectful}},
		"may not pass over":          {{Name: "a", Handler: ok.Handler, Kind: tracking.Effectful, Start: tracking.Head, Tolerant: true}},
		"is not reset":               {{Name: "a", Handler: ok.Handler, Kind: tracking.Effectful, Start: tracking.Head, Reset: resettable("a").Reset}},
		"is negative":                {{Name: "a", Handler: ok.Handler, PageSize: -1}},
	} {
		err := tracking.New(h.pool, h.store, tracking.Options{}).Run(t.Context(), c...)
		if err == nil {
			t.Errorf("%s: accepted", what)
			continue
		}
		contains(t, err.Error(), what)
	}
	r := h.run(tracking.Options{}, ok)
	h.caughtUp("ok")
	if err := r.Run(t.Context(), ok); err == nil {
		t.Error("two Runs at a time")
	}
	h.exec(`ALTER TABLE processor_runs RENAME COLUMN processor TO former`)
	if err := tracking.New(h.pool, h.store, tracking.Options{}).Run(t.Context(), inOrder("new")); err == nil {
		t.Error("runs without its schema")
	}
	h.exec(`ALTER TABLE processor_runs RENAME COLUMN former TO processor`)
}

func TestRunWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nowhere?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := tracking.New(pool, h.store, tracking.Options{}).Run(ctx, inOrder("waiting")); err != nil {
		t.Errorf("a database that is away: %v, want to wait until told to stop", err)
	}
}

// Not parallel: it counts goroutines.
func TestRunLeavesNothingBehind(t *testing.T) {
	h := newHouse(t)
	h.fill(10, 2)
	before := goleak.IgnoreCurrent()
	r := h.run(tracking.Options{}, inOrder("tidy"), inOrder("neat"))
	h.caughtUp("tidy", "neat")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	h.pool.Reset()
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
	if n := h.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still held", n)
	}
}
