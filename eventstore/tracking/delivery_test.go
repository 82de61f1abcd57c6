package tracking_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
)

// recordInOrder is recordSeen, and fails for good on an event that does not
// follow the last one of its customer.
func recordInOrder(ctx context.Context, p *tracking.Page) error {
	last := map[string]int{}
	var customers []string
	for _, e := range p.Events {
		customers = append(customers, e.SequenceKey)
	}
	rows, err := p.Tx.Query(ctx, `SELECT customer, max(version) FROM seen WHERE processor = $1 AND customer = ANY($2) GROUP BY 1`, p.Processor, customers)
	if err != nil {
		return err
	}
	var customer string
	var version int
	if _, err := pgx.ForEachRow(rows, []any{&customer, &version}, func() error {
		last[customer] = version
		return nil
	}); err != nil {
		return err
	}
	for _, e := range p.Events {
		if e.Version != last[e.SequenceKey]+1 {
			return fmt.Errorf("out of order: %s has version %d after %d", e.SequenceKey, e.Version, last[e.SequenceKey])
		}
		last[e.SequenceKey] = e.Version
	}
	return recordSeen(ctx, p)
}

func inOrder(name string) tracking.Processor {
	return tracking.Processor{Name: name, Handler: tracking.HandlerFunc(recordInOrder)}
}

// writers append to their own customers until told to stop: some at once, some
// in a transaction that has written before, some that commit slowly.
func (h *house) writers(n int) (stop func() (appended int)) {
	var appended atomic.Int64
	var writing sync.WaitGroup
	done := make(chan struct{})
	for w := range n {
		random := rand.New(rand.NewPCG(7, uint64(w)))
		writing.Go(func() {
			heads := map[string]eventstore.Head{}
			for i := 1; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				customer := fmt.Sprintf("w%d-%d", w, random.IntN(5))
				batch := eventstore.Batch{Stream: domain.CustomerID(customer).Stream(), Head: heads[customer], Command: "test", Events: []domain.Event{changed(customer, i)}}
				r, err := h.write(batch, random)
				if err != nil {
					h.Errorf("append: %v", err)
					return
				}
				heads[customer] = r.Recorded[0].Head()
				appended.Add(1)
			}
		})
	}
	return func() int {
		close(done)
		writing.Wait()
		return int(appended.Load())
	}
}

func (h *house) write(b eventstore.Batch, random *rand.Rand) (r eventstore.Result, err error) {
	ctx := h.Context()
	if random.IntN(3) > 0 {
		return h.store.Append(ctx, b)
	}
	err = pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO elsewhere VALUES (1)`); err != nil { // takes a transaction id early
			return err
		}
		results, err := h.store.AppendTx(ctx, tx, b)
		if err != nil {
			return err
		}
		if random.IntN(2) == 0 {
			if _, err := tx.Exec(ctx, `SELECT pg_sleep(random() * 0.02)`); err != nil {
				return err
			}
		}
		r = results[0]
		return r.Err
	})
	h.store.Committed(eventstore.Grown([]eventstore.Result{r}))
	return r, err
}

// untilAppended waits until the log has n events.
func (h *house) untilAppended(n int) {
	h.Helper()
	h.eventually(func() string {
		if got := value[int](h, `SELECT count(*) FROM events`); got < n {
			return fmt.Sprintf("%d events of %d", got, n)
		}
		return ""
	})
}

func TestTwelveWritersNoEventUnseen(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE elsewhere (n int)`)
	small := inOrder("small")
	small.PageSize, small.Partitions = 7, 3
	for range 2 { // two replicas
		h.run(tracking.Options{}, inOrder("large"), small)
	}
	stop := h.writers(12)
	h.untilAppended(3000)
	stop()
	h.caughtUp("large", "small")
	h.exactlyOnce("large")
	h.exactlyOnce("small")
	h.nothingAside()
}

func TestKilledConnectionsLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE elsewhere (n int)`)
	p := inOrder("killed")
	p.PageSize, p.Backoff = 20, func(int) time.Duration { return 5 * time.Millisecond }
	h.victims(2, tracking.Options{Poll: quick, Log: h.log}, p)
	stop := h.writers(4)
	for kills := 0; kills < 40; {
		kills += value[int](h, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name = 'victim' AND datname = current_database() AND random() < 0.5`)
		h.untilAppended(20 * (kills + 1))
	}
	stop()
	h.caughtUp("killed")
	h.exactlyOnce("killed")
	h.nothingAside()
}

// childDSN is set in a child process, which then is a replica until it is killed.
const childDSN = "TRACKING_CHILD_DSN"

// childTimeout is a child's for a page. The server ends the transaction of one
// that says nothing for 5 s longer.
const childTimeout = 500 * time.Millisecond

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		if err := child(dsn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Each check of TestInterleavings is a life of its own; rapid's hundred take
	// a minute. -rapid.checks overrides it.
	if err := flag.Set("rapid.checks", "30"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func child(dsn string) error {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return err
	}
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), discard)
	p := inOrder("child")
	p.PageSize, p.Timeout = 10, childTimeout
	handle := p.Handler
	p.Handler = tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error {
		for _, e := range page.Events {
			if e.SequenceKey == "deadly" && e.Version == 2 {
				os.Exit(deadly)
			}
		}
		return handle.Handle(ctx, page)
	})
	return tracking.New(pool, store, tracking.Options{Poll: quick}).Run(context.Background(), p)
}

// child starts a process that is a replica, whose sessions have a name. It is
// killed at the end of the test.
func (h *house) child(name string) *exec.Cmd {
	h.Helper()
	c := exec.Command(os.Args[0], "-test.run=^$")
	c.Env = append(os.Environ(), childDSN+"="+h.dsn, "PGAPPNAME="+name)
	c.Stderr = h.Output()
	if err := c.Start(); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	})
	return c
}

func TestKilledProcessesLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE elsewhere (n int)`)
	stop := h.writers(3)
	replica := func() *exec.Cmd { return h.child("child") }
	replicas := []*exec.Cmd{replica(), replica()}
	for kill := range 5 {
		before := value[int](h, `SELECT count(*) FROM seen`)
		h.eventually(func() string {
			if n := value[int](h, `SELECT count(*) FROM seen`); n < before+30 {
				return fmt.Sprintf("%d events seen, %d before", n, before)
			}
			return ""
		})
		victim := replicas[kill%2]
		if err := victim.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = victim.Wait() // it was killed, and says so
		replicas[kill%2] = replica()
	}
	stop()
	h.caughtUp("child")
	for _, r := range replicas {
		_ = r.Process.Kill()
		_ = r.Wait()
	}
	h.exactlyOnce("child")
	h.nothingAside()
}

// A commit whose answer is lost may have happened: the token knows.
func TestLostAnswerToACommit(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	proxy := pgtest.NewProxy(t, h.dsn)
	pool, err := pgxpool.New(t.Context(), proxy.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p := inOrder("ambiguous")
	var told atomic.Int64
	p.AfterCommit = func(p *tracking.Page) { told.Add(int64(len(p.Events))) }
	h.runOn(pool, h.store, tracking.Options{Poll: quick}, p)
	first := h.append("a", eventstore.Head{}, registered("a"))
	h.caughtUp("ambiguous")

	lost := proxy.DropServerToClientOnCommit("INSERT INTO seen")
	second := h.append("a", first.Head(), changed("a", 2))
	<-lost
	h.append("a", second.Head(), changed("a", 3))
	h.caughtUp("ambiguous")
	h.exactlyOnce("ambiguous")
	h.eventually(func() string {
		if n := told.Load(); n != 2 {
			return fmt.Sprintf("told of %d events; the page with the lost answer must not be among them", n)
		}
		return ""
	})
}

func TestForeignTransactionDelaysNobody(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE elsewhere (n int)`)
	foreign, err := h.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Rollback(context.Background()) }()
	if _, err := foreign.Exec(t.Context(), `INSERT INTO elsewhere VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	asleep, wake := make(chan struct{}), make(chan struct{})
	slow := tracking.Processor{Name: "slow", Handler: tracking.HandlerFunc(func(context.Context, *tracking.Page) error {
		close(asleep)
		<-wake
		return nil
	})}
	h.run(tracking.Options{}, inOrder("brisk"), slow)
	h.append("a", eventstore.Head{}, registered("a"))
	<-asleep
	h.append("b", eventstore.Head{}, registered("b"))
	h.caughtUp("brisk")
	h.exactlyOnce("brisk")
	close(wake)
}

// A lower position that commits late is neither skipped nor said to be behind us.
func TestLateCommitIsNotSkipped(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.run(tracking.Options{}, inOrder("patient"))
	late, err := h.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.Background()) }()
	results, err := h.store.AppendTx(t.Context(), late, eventstore.Batch{Stream: domain.CustomerID("late").Stream(), Command: "test", Events: []domain.Event{registered("late")}})
	if err != nil {
		t.Fatal(err)
	}
	place := results[0].Recorded[0].Place
	others := 0
	for i := range 30 {
		c := fmt.Sprintf("other%d", i)
		if eventstore.PartitionOf(c) == place.Partition {
			continue // would wait for the late one
		}
		if e := h.append(c, eventstore.Head{}, registered(c)); e.Position <= place.Position {
			t.Fatalf("%s was drawn before %s", e.Place, place)
		}
		others++
	}
	h.eventually(func() string {
		if n := value[int](h, `SELECT count(*) FROM seen`); n != others {
			return fmt.Sprintf("%d of %d seen", n, others)
		}
		return ""
	})
	s := h.status("patient")
	if at := s.Partitions[place.Partition]; s.CaughtUp || at.Token >= place.Position || !at.Appending {
		t.Errorf("with %s not committed: caught up %v, token %d, appending %v", place, s.CaughtUp, at.Token, at.Appending)
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.caughtUp("patient")
	h.exactlyOnce("patient")
}

func TestWakeUpAcrossProcesses(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	other := eventstore.New(h.pool, eventstore.NewCodec(domain.Events()), h.log) // as another process: its appends are heard of by NOTIFY alone
	t.Cleanup(other.Close)
	p := inOrder("listener")
	h.run(tracking.Options{Poll: time.Hour}, p)
	appendElsewhere := func(customer string) {
		t.Helper()
		if _, err := other.Append(t.Context(), eventstore.Batch{Stream: domain.CustomerID(customer).Stream(), Command: "test", Events: []domain.Event{registered(customer)}}); err != nil {
			t.Fatal(err)
		}
	}
	seen := func(n int) {
		t.Helper()
		h.eventually(func() string {
			if got := value[int](h, `SELECT count(*) FROM seen`); got != n {
				return fmt.Sprintf("%d of %d seen", got, n)
			}
			return ""
		})
	}
	h.listening()
	appendElsewhere("a")
	seen(1)

	// What is appended while nobody listens is found once somebody does again.
	h.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`)
	appendElsewhere("b")
	seen(2)
	appendElsewhere("c")
	seen(3)
}

func TestScanIsTheTruth(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.run(tracking.Options{}, inOrder("scanning"))
	h.caughtUp("scanning")
	h.exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
		VALUES (3, 'customer/x', 1, 'customer.payment_method_changed.v1', 'x', '{}')`) // tells nobody
	h.eventually(func() string {
		if value[int](h, `SELECT count(*) FROM seen`) == 0 {
			return "not found by the scan"
		}
		return ""
	})
}

func TestIdleCostsNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(10, 2)
	h.run(tracking.Options{Poll: 5 * time.Millisecond}, inOrder("idle"), inOrder("idler"))
	h.caughtUp("idle", "idler")
	// Transactions of this database alone: others run on the same server.
	const written = `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`
	before := value[int64](h, `SELECT sum(xmin::text::bigint)::bigint FROM processor_tokens`)
	scans := value[int64](h, written)
	h.eventually(func() string {
		if n := value[int64](h, written) - scans; n < 50 {
			return fmt.Sprintf("%d scans", n)
		}
		return ""
	})
	if after := value[int64](h, `SELECT sum(xmin::text::bigint)::bigint FROM processor_tokens`); after != before {
		t.Error("an idle processor writes its tokens")
	}
	if locked := value[int64](h, `SELECT count(*) FROM processor_tokens WHERE xmax::text::bigint > (SELECT max(xmin::text::bigint) FROM processor_tokens)`); locked != 0 {
		t.Errorf("an idle processor has locked %d tokens", locked)
	}
	if n := h.pool.Stat().AcquiredConns(); n > 1 { // a scan may be at it
		t.Errorf("idle processors hold %d connections", n)
	}
}

// A bounded run handles everything up to a position and nothing behind it, while
// twelve writers append, over restarts, and goes on when it is resumed.
func TestBoundedRun(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE elsewhere (n int)`)
	p := inOrder("bounded")
	p.PageSize = 7
	first := h.run(tracking.Options{}, p)
	if err := tracking.Pause(t.Context(), h.pool, "bounded", "ann", "a look"); err != nil {
		t.Fatal(err)
	}
	stop := h.writers(12)
	h.untilAppended(300)
	end := value[int64](h, `SELECT position FROM events ORDER BY position OFFSET 200 LIMIT 1`)
	stopped := func(at int64) {
		t.Helper()
		h.eventually(func() string {
			if s := h.status("bounded"); !s.Stopped || s.StopAt != at {
				return fmt.Sprintf("stopped %t at %d, last error %s", s.Stopped, s.StopAt, s.LastError)
			}
			return ""
		})
		if n := value[int](h, `SELECT count(*) FROM seen s FULL JOIN (SELECT position FROM events WHERE position <= $1) e USING (position) WHERE s.position IS NULL OR e.position IS NULL`, at); n != 0 {
			t.Errorf("%d events are on the wrong side of %d", n, at)
		}
	}
	run := func(to int64) error { return tracking.RunTo(t.Context(), h.pool, "bounded", to, "ann", "a look") }
	if err := run(end); err != nil {
		t.Fatal(err)
	}
	stopped(end)
	if s := h.status("bounded"); s.CaughtUp || s.BehindEvents == 0 {
		t.Errorf("behind its end: caught up %t, %d events behind", s.CaughtUp, s.BehindEvents)
	}
	if err := run(end / 2); !errors.Is(err, tracking.ErrPast) {
		t.Errorf("a run to a place that is passed: %v", err)
	}
	if err := run(0); !errors.Is(err, tracking.ErrNoPosition) {
		t.Errorf("a run to nowhere: %v", err)
	}

	// An end that the log has yet to come to; the replica is another one by then.
	further := value[int64](h, `SELECT max(position) FROM events`) + 50
	if err := run(further); err != nil {
		t.Fatal(err)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	h.run(tracking.Options{}, p)
	stopped(further)
	h.exec(`DELETE FROM processor_tokens WHERE partition = 5 AND position = 0`) // a lost token does not lose the end
	stopped(further)

	stop()
	if err := tracking.Resume(t.Context(), h.pool, "bounded", "ann", "seen"); err != nil {
		t.Fatal(err)
	}
	h.caughtUp("bounded")
	h.exactlyOnce("bounded")
	if s := h.status("bounded"); s.Stopped || s.StopAt != 0 {
		t.Errorf("after it was resumed: stopped %t at %d", s.Stopped, s.StopAt)
	}
}

// An append under way may yet come in before the end: until it has, nobody says
// that the run is over.
func TestBoundedRunWaitsForAppendsUnderWay(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.run(tracking.Options{}, inOrder("bounded"))
	h.caughtUp("bounded")
	tx, err := h.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	late, err := h.store.AppendTx(t.Context(), tx, eventstore.Batch{Stream: domain.CustomerID("late").Stream(), Command: "test", Events: []domain.Event{registered("late")}})
	if err != nil || late[0].Err != nil {
		t.Fatal(err, late)
	}
	early := h.append("early", eventstore.Head{}, registered("early"))
	if err := tracking.RunTo(t.Context(), h.pool, "bounded", early.Position, "ann", "a look"); err != nil {
		t.Fatal(err)
	}
	h.eventually(func() string {
		if value[int](h, `SELECT count(*) FROM seen`) == 0 {
			return "the early one is not handled"
		}
		return ""
	})
	if h.status("bounded").Stopped {
		t.Error("it has stopped, with an append before its end under way")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.eventually(func() string {
		if !h.status("bounded").Stopped {
			return "it does not stop"
		}
		return ""
	})
	h.exactlyOnce("bounded")
}
