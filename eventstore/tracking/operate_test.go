package tracking_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

func resettable(name string) tracking.Processor {
	p := inOrder(name)
	p.Reset = func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM seen WHERE processor = $1`, name)
		return err
	}
	return p
}

func TestResetUnderLoad(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE elsewhere (n int)`)
	p := resettable("rebuilt")
	p.PageSize = 20
	for range 2 {
		h.run(tracking.Options{}, p)
	}
	stop := h.writers(3)
	for n := range 5 {
		h.untilAppended(100 * (n + 1))
		if err := tracking.Reset(t.Context(), h.pool, p, 1, "ann", "to see"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	h.caughtUp("rebuilt")
	h.exactlyOnce("rebuilt")
	if s := h.status("rebuilt"); s.Replaying || s.Letters != 0 {
		t.Errorf("after the rebuild: replaying %v, %d letters", s.Replaying, s.Letters)
	}
	if n := value[int](h, `SELECT count(*) FROM seen WHERE replay`); n < 100 {
		t.Errorf("%d events were flagged as replays, at least 100 were", n)
	}
	if n := value[int](h, `SELECT count(*) FROM processor_runs WHERE action = 'reset' AND actor = 'ann' AND reason = 'to see'`); n != 5 {
		t.Errorf("%d resets on record, want 5", n)
	}
}

func TestReplayFlagEndsWhereTheResetWas(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	p := resettable("flagged")
	h.run(tracking.Options{}, p)
	first := h.append("a", eventstore.Head{}, registered("a"))
	h.caughtUp("flagged")
	if err := tracking.Reset(t.Context(), h.pool, p, 0, "ann", "to see"); err != nil {
		t.Fatal(err)
	}
	h.append("a", first.Head(), changed("a", 2))
	h.caughtUp("flagged")
	if got := value[string](h, `SELECT string_agg(version || ' ' || replay, ', ' ORDER BY position) FROM seen`); got != "1 true, 2 false" {
		t.Errorf("replay flags: %s", got)
	}
}

func TestResetRefused(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	effectful := inOrder("effects")
	effectful.Kind, effectful.Start = tracking.Effectful, tracking.Beginning
	for what, c := range map[string]struct {
		p    tracking.Processor
		why  string
		want error
	}{
		"effectful":      {effectful, "why not", tracking.ErrEffectful},
		"says not how":   {inOrder("plain"), "why not", tracking.ErrNotResettable},
		"no reason":      {resettable("a"), "", tracking.ErrReasonNeeded},
		"never ran here": {resettable("a"), "why not", tracking.ErrUnknownProcessor},
	} {
		if err := tracking.Reset(t.Context(), h.pool, c.p, 1, "ann", c.why); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.run(tracking.Options{}, inOrder("paused"))
	h.append("a", eventstore.Head{}, registered("a"))
	h.caughtUp("paused")
	if err := tracking.Pause(t.Context(), h.pool, "paused", "ann", "repairs"); err != nil {
		t.Fatal(err)
	}
	b := h.append("b", eventstore.Head{}, registered("b"))
	h.run(tracking.Options{}, inOrder("other"))
	h.caughtUp("other")
	if s := h.status("paused"); !s.Paused || s.BehindEvents != 1 || s.CaughtUp || s.Partitions[b.Partition].BehindSeconds <= 0 {
		t.Errorf("status: %+v", s.Partitions[b.Partition])
	}
	if err := tracking.Resume(t.Context(), h.pool, "paused", "ann", "repaired"); err != nil {
		t.Fatal(err)
	}
	h.caughtUp("paused")
	h.exactlyOnce("paused")
	if err := tracking.Pause(t.Context(), h.pool, "nobody", "ann", "why not"); !errors.Is(err, tracking.ErrUnknownProcessor) {
		t.Errorf("pause of nobody: %v", err)
	}
}

func TestLostTokens(t *testing.T) {
	t.Parallel()
	replays := func(h *house, processor string) string {
		return value[string](h, `SELECT string_agg(customer || ' ' || replay, ', ' ORDER BY position) FROM seen WHERE processor = '`+processor+`'`)
	}
	t.Run("of an effectful processor", func(t *testing.T) {
		t.Parallel()
		h := newHouse(t)
		p := tracking.Processor{Name: "effects", Kind: tracking.Effectful, Start: tracking.Head}
		p.Handler = tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error {
			for _, e := range page.Events { // keyed writes, as such a processor's must be
				if _, err := page.Tx.Exec(ctx, `INSERT INTO seen VALUES ('effects', $1, $2, $3, 1, $4)
					ON CONFLICT (processor, position) DO UPDATE SET replay = excluded.replay`, e.Partition, e.Position, e.SequenceKey, page.Replay(e)); err != nil {
					return err
				}
			}
			return nil
		})
		r := h.run(tracking.Options{}, p)
		h.caughtUp("effects")
		h.append("a", eventstore.Head{}, registered("a"))
		h.caughtUp("effects")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		h.exec(`DELETE FROM processor_tokens`)
		if s := h.status("effects"); s.CaughtUp || !s.Partitions[0].Missing {
			t.Errorf("without tokens: caught up %v, missing %v", s.CaughtUp, s.Partitions[0].Missing)
		}
		registry := prometheus.NewRegistry()
		h.run(tracking.Options{Registry: registry}, p)
		h.caughtUp("effects")
		h.append("b", eventstore.Head{}, registered("b"))
		h.caughtUp("effects")
		if got := replays(h, "effects"); got != "a true, b false" {
			t.Errorf("replays: %s", got)
		}
		if n := metric(t, registry, "billonce_processor_lost_tokens_total"); n != eventstore.Partitions {
			t.Errorf("%v tokens lost, want all", n)
		}
	})
	t.Run("of a pure processor while it runs", func(t *testing.T) {
		t.Parallel()
		h := newHouse(t)
		h.fill(30, 2)
		h.run(tracking.Options{}, resettable("pure"))
		h.caughtUp("pure")
		h.exec(`DELETE FROM processor_tokens WHERE partition = $1`, eventstore.PartitionOf("c1"))
		h.caughtUp("pure")
		h.exactlyOnce("pure") // emptied and rebuilt: not one row twice
		if n := value[int](h, `SELECT count(*) FROM seen WHERE replay`); n != 60 {
			t.Errorf("%d replays, want 60", n)
		}
		if n := value[int](h, `SELECT count(*) FROM processor_runs WHERE action = 'tokens lost'`); n != 1 {
			t.Errorf("the loss is %d times on record", n)
		}
	})
}

func TestStart(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(10, 1)
	head := inOrder("head")
	head.Start = tracking.Head
	r := h.run(tracking.Options{}, head)
	h.caughtUp("head")
	h.append("a", eventstore.Head{}, registered("a"))
	h.caughtUp("head")
	if got := value[string](h, `SELECT string_agg(customer, ' ') FROM seen`); got != "a" {
		t.Errorf("from the head: %q, want a", got)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	h.append("b", eventstore.Head{}, registered("b"))
	h.run(tracking.Options{}, head) // it is not new any more
	h.caughtUp("head")
	if got := value[string](h, `SELECT string_agg(customer, ' ' ORDER BY position) FROM seen`); got != "a b" {
		t.Errorf("after a restart: %q, want a b", got)
	}
}

// What a processor does not want is never handed to it, but its tokens pass it.
func TestUnwantedEventsArePassedOver(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(20, 30)
	p := reader("choosy")
	p.Events = []string{"customer.registered.v1"}
	p.PageSize = 4
	r := h.run(tracking.Options{}, p)
	h.caughtUp("choosy")
	if n := value[int](h, `SELECT count(*) FROM seen`); n != 0 {
		t.Errorf("%d unwanted events were handled", n)
	}
	first := h.append("a", eventstore.Head{}, registered("a"))
	last := h.append("a", first.Head(), changed("a", 2))
	if err := r.WaitFor(t.Context(), "choosy", last.Place); err != nil {
		t.Fatal(err)
	}
	if got := value[string](h, `SELECT string_agg(customer, ' ') FROM seen`); got != "a" {
		t.Errorf("handled: %q, want a", got)
	}
	h.caughtUp("choosy")
}

// While unwanted events stream in, tokens move by the scan and not by each.
func TestUnwantedEventsCostNoCommits(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	p := reader("choosy")
	p.Events = []string{"customer.registered.v1"}
	r := h.run(tracking.Options{Poll: time.Hour}, p, reader("all"))
	h.listening()
	if err := r.WaitFor(t.Context(), "choosy", h.append("a", eventstore.Head{}, registered("a")).Place); err != nil {
		t.Fatal(err)
	}
	var last eventstore.Recorded
	for i := range 50 {
		last = h.append("a", eventstore.Head{Version: i + 1}, changed("a", i))
		if err := r.WaitFor(t.Context(), "all", last.Place); err != nil {
			t.Fatal(err)
		}
	}
	// The scan that follows the connection of the listener may have moved it once.
	if at := value[int64](h, `SELECT max(position) FROM processor_tokens WHERE processor = 'choosy'`); at > last.Position-10 {
		t.Errorf("the token is at %d: it follows unwanted events one by one", at)
	}
	if err := r.WaitFor(t.Context(), "choosy", last.Place); err != nil { // but whoever waits need not wait for the scan
		t.Fatal(err)
	}
}

func TestReadYourWrite(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	r := h.run(tracking.Options{Poll: time.Hour}, inOrder("view"))
	for i := range 50 {
		c := fmt.Sprintf("c%d", i)
		place := h.append(c, eventstore.Head{}, registered(c)).Place
		if err := r.WaitFor(t.Context(), "view", place); err != nil {
			t.Fatal(err)
		}
		if value[int](h, `SELECT count(*) FROM seen WHERE customer = $1`, c) != 1 {
			t.Fatalf("%s is not there after the wait for %s", c, place)
		}
		asOf, err := tracking.AsOf(t.Context(), h.pool, "view")
		if err != nil {
			t.Fatal(err)
		}
		if !asOf.Covers(place) || !strings.Contains(asOf.String(), place.String()) {
			t.Errorf("as of %s does not cover %s", asOf, place)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.WaitFor(ctx, "view", eventstore.Place{Partition: 1, Position: 1 << 40}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait for what does not come: %v", err)
	}
	if err := r.WaitFor(t.Context(), "nobody", eventstore.Place{Partition: 1, Position: 1}); !errors.Is(err, tracking.ErrUnknownProcessor) {
		t.Errorf("wait for nobody: %v", err)
	}
}

// A handler's own appends are announced once they have committed.
func TestAppendsOfAHandlerWakeOthers(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	answering := tracking.Processor{Name: "answering", Events: []string{"customer.registered.v1"}, Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		var batches []eventstore.Batch
		for _, e := range p.Events {
			batches = append(batches, eventstore.Batch{Stream: e.Stream, Head: e.Head(), Command: "answer", Events: []domain.Event{changed(e.SequenceKey, 2)}})
		}
		results, err := h.store.AppendTx(ctx, p.Tx, batches...)
		p.Appended |= eventstore.Grown(results)
		return err
	})}
	r := h.run(tracking.Options{Poll: time.Hour}, answering, inOrder("following"))
	place := h.append("a", eventstore.Head{}, registered("a")).Place
	if err := r.WaitFor(t.Context(), "answering", place); err != nil {
		t.Fatal(err)
	}
	answer := eventstore.Place{Partition: place.Partition, Position: value[int64](h, `SELECT max(position) FROM events`)}
	if err := r.WaitFor(t.Context(), "following", answer); err != nil {
		t.Fatal(err)
	}
	h.exactlyOnce("following")
}

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
	h.exec(`ALTER TABLE processor_runs RENAME TO away`)
	if err := tracking.New(h.pool, h.store, tracking.Options{}).Run(t.Context(), inOrder("new")); err == nil {
		t.Error("runs without its schema")
	}
	h.exec(`ALTER TABLE away RENAME TO processor_runs`)
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

func TestMetrics(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(10, 2)
	registry := prometheus.NewRegistry()
	p := poisoned("measured", func(e eventstore.Recorded) error {
		if e.SequenceKey == "c1" {
			return errors.New("bad")
		}
		return nil
	})
	r := h.run(tracking.Options{Registry: registry}, p)
	h.caughtUp("measured")
	h.exec(`UPDATE processor_tokens SET paused = true`)
	h.append("late", eventstore.Head{}, registered("late"))
	for name, want := range map[string]float64{
		"billonce_processor_events_total":          18,
		"billonce_processor_dead_letters_total":    2,
		"billonce_processor_parked_sequences":      1,
		"billonce_processor_lag_events":            1,
		"billonce_processor_replayed_events_total": 0,
	} {
		if got := metric(t, registry, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"billonce_processor_pages_total", "billonce_processor_failures_total", "billonce_commits_total", "billonce_processor_lag_seconds"} {
		if got := metric(t, registry, name); got <= 0 {
			t.Errorf("%s is %v", name, got)
		}
	}
	if got := metric(t, registry, "billonce_commits_total"); got != float64(r.Commits()) {
		t.Errorf("commits: %v and %v", got, r.Commits())
	}
	all, err := r.Status(t.Context())
	if err != nil || len(all) != 1 || all[0].EventsPerSecond <= 0 {
		t.Errorf("status: %+v, %v", all, err)
	}
}

// metric sums a metric over its labels.
func metric(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	t.Fatalf("there is no metric %s", name)
	return 0
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
