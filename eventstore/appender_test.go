package eventstore_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// occupied is a log whose committers are all busy: their appends wait for the
// lock of one partition until release is called.
func occupied(t *testing.T) (s *eventstore.Store, release func()) {
	t.Helper()
	s = newStore(t)
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	blocked := blockedCustomers(eventstore.Committers)
	if err := eventstore.LockPartitions(t.Context(), tx, blocked[0].Stream()); err != nil {
		t.Fatal(err)
	}
	var busy sync.WaitGroup
	for _, c := range blocked {
		busy.Go(func() {
			if _, err := s.Append(context.WithoutCancel(t.Context()), batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1))); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "all committers are busy", func() bool { return waitingForLocks(t, s) == eventstore.Committers })
	return s, func() {
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		busy.Wait()
	}
}

// blockedCustomers are n customers of one partition.
func blockedCustomers(n int) (cs []domain.CustomerID) {
	for i := 0; len(cs) < n; i++ {
		if c := domain.CustomerID(fmt.Sprintf("blocked%d", i)); eventstore.PartitionOf(string(c)) == 7 {
			cs = append(cs, c)
		}
	}
	return cs
}

// Appends that wait at the same time share a commit, and each gets its answer.
func TestWaitingAppendsShareACommit(t *testing.T) {
	t.Parallel()
	s, release := occupied(t)
	const n = 40
	results, errs := make([]eventstore.Result, n), make([]error, n)
	var waiting sync.WaitGroup
	for i := range n {
		c := domain.CustomerID(fmt.Sprintf("c%d", i))
		b := batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1), moved(c, 2))
		if i%10 == 9 {
			b.Head.Version = 5 // a conflict among them
		}
		waiting.Go(func() { results[i], errs[i] = s.Append(context.WithoutCancel(t.Context()), b) })
	}
	waitFor(t, "all appends are queued", func() bool { return s.Queued() == n })
	before := s.Commits()
	release()
	waiting.Wait()
	for i := range n {
		c := domain.CustomerID(fmt.Sprintf("c%d", i))
		if i%10 == 9 {
			if !isConflict(errs[i]) {
				t.Errorf("%s: %v", c, errs[i])
			}
			continue
		}
		if errs[i] != nil || results[i].Receipt.Version != 2 || !reflect.DeepEqual(results[i].Recorded, load(t, s, c)) {
			t.Errorf("%s: %+v, %v", c, results[i], errs[i])
		}
	}
	if commits := s.Commits() - before; commits > eventstore.Committers+2 {
		t.Errorf("%d appends took %d commits", n, commits)
	}
}

// However many equal appends wait, one is written and all others are answered
// with its receipt. Which one is not said: two committers may have two of them.
func TestQueueWritesEqualAppendsOnce(t *testing.T) {
	t.Parallel()
	s, release := occupied(t)
	const n = 3 * eventstore.GroupMost
	var order []int
	var mu sync.Mutex
	var waiting sync.WaitGroup
	for i := range n {
		waiting.Go(func() {
			r, err := s.Append(context.WithoutCancel(t.Context()), batch("ada", eventstore.Head{}, "same", moved("ada", i)))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			} else if !r.Receipt.Replayed {
				order = append(order, i)
			}
		})
		waitFor(t, "it is queued", func() bool { return s.Queued() == i+1 })
	}
	release()
	waiting.Wait()
	if len(order) != 1 {
		t.Fatalf("of %d equal appends %v were the first", n, order)
	}
	if got := methods(load(t, s, "ada")); !slices.Equal(got, []string{fmt.Sprint("pm_", order[0])}) {
		t.Errorf("ada has %q, the first was append %d", got, order[0])
	}
}

// Who gives up while waiting is not written; who gives up while being written
// gets the truth.
func TestGivingUpInTheQueue(t *testing.T) {
	t.Parallel()
	s, release := occupied(t)
	ctx, cancel := context.WithCancel(t.Context())
	gone, stays := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Append(ctx, batch("gone", eventstore.Head{}, "k1", moved("gone", 1)))
		gone <- err
	}()
	waitFor(t, "it is queued", func() bool { return s.Queued() == 1 })
	go func() {
		_, err := s.Append(context.WithoutCancel(t.Context()), batch("stays", eventstore.Head{}, "k2", moved("stays", 1)))
		stays <- err
	}()
	waitFor(t, "both are queued", func() bool { return s.Queued() == 2 })
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) || errors.Is(err, eventstore.ErrCommitUnknown) {
		t.Errorf("who gave up: %v", err)
	}
	if s.Queued() != 1 {
		t.Errorf("%d are queued, want 1", s.Queued())
	}
	release()
	if err := <-stays; err != nil {
		t.Errorf("who stayed: %v", err)
	}
	if n := len(load(t, s, "gone")); n != 0 {
		t.Errorf("who gave up has %d events", n)
	}
	if n := len(load(t, s, "stays")); n != 1 {
		t.Errorf("who stayed has %d events", n)
	}
}

// One batch that the database refuses harms none of those that wait with it.
func TestOneBadBatchHarmsNoOther(t *testing.T) {
	t.Parallel()
	s, release := occupied(t)
	var waiting sync.WaitGroup
	errs := make([]error, 5)
	for i := range errs {
		c := domain.CustomerID(fmt.Sprintf("c%d", i))
		b := batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1))
		if i == 2 {
			b.Command = "a zero byte: \x00" // PostgreSQL stores none in a text
		}
		waiting.Go(func() { _, errs[i] = s.Append(context.WithoutCancel(t.Context()), b) })
	}
	waitFor(t, "all are queued", func() bool { return s.Queued() == len(errs) })
	release()
	waiting.Wait()
	for i, err := range errs {
		c := domain.CustomerID(fmt.Sprintf("c%d", i))
		if n := len(load(t, s, c)); (err == nil) != (i != 2) || (n == 1) != (i != 2) {
			t.Errorf("%s: %d events, %v", c, n, err)
		}
	}
}

// Under load, with callers that give up and streams that several write to:
// what was answered with success is there, what was answered otherwise is not,
// and every stream is gapless and chained.
func TestAppendsUnderLoad(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const writers, each, streams = 16, 20, 12
	var succeeded, unknown atomic.Int64
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				c := domain.CustomerID(fmt.Sprintf("c%d", (w*7+i)%streams))
				key := domain.Key(fmt.Sprintf("k/%d/%d", w, i))
				ctx, cancel := context.WithCancel(t.Context())
				if i%5 == 4 {
					go cancel() // some time, perhaps before, perhaps after
				}
				for { // decide anew as long as others are faster
					events, err := s.Load(ctx, s.Pool(), c.Stream(), 0)
					if err != nil {
						break
					}
					var head eventstore.Head
					if len(events) > 0 {
						head = events[len(events)-1].Head()
					}
					_, err = s.Append(ctx, batch(c, head, key, moved(c, w*each+i)))
					switch {
					case err == nil:
						succeeded.Add(1)
					case isConflict(err):
						continue
					case errors.Is(err, eventstore.ErrCommitUnknown):
						unknown.Add(1)
					case !errors.Is(err, context.Canceled):
						t.Error(err)
					}
					break
				}
				cancel()
			}
		})
	}
	writing.Wait()
	var total int64
	for i := range streams {
		events := load(t, s, domain.CustomerID(fmt.Sprintf("c%d", i)))
		checkChain(t, events)
		total += int64(len(events))
	}
	if total < succeeded.Load() || total > succeeded.Load()+unknown.Load() {
		t.Errorf("%d events, %d appends succeeded, of %d nobody knows", total, succeeded.Load(), unknown.Load())
	}
	// In one statement: an append that was given up may still be committed now.
	if more := count(t, s.Pool(), `SELECT (SELECT count(*) FROM command_keys) - (SELECT count(*) FROM events)`); more != 0 {
		t.Errorf("%d more keys than events", more)
	}
}

// The same command fifty times at once, over three processes: one event, and
// the same receipt for all.
func TestEqualAppendsAtOnce(t *testing.T) {
	t.Parallel()
	first := newStore(t)
	stores := []*eventstore.Store{first, storeOn(t, pgtest.Connect(t, pgtest.DSN(t), 8)), storeOn(t, pgtest.Connect(t, pgtest.DSN(t), 8))}
	for round := range 5 {
		c := domain.CustomerID(fmt.Sprintf("c%d", round))
		receipts := make(chan eventstore.Receipt, 50)
		var dispatching sync.WaitGroup
		start := make(chan struct{})
		for i := range 50 {
			dispatching.Go(func() {
				<-start
				r, err := stores[i%3].Append(context.WithoutCancel(t.Context()), batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1)))
				if err != nil {
					t.Error(err)
				}
				receipts <- r.Receipt
			})
		}
		close(start)
		dispatching.Wait()
		close(receipts)
		fresh := 0
		var same eventstore.Receipt
		for r := range receipts {
			if !r.Replayed {
				fresh++
			}
			r.Replayed = false
			if same.Key == "" {
				same = r
			}
			if !reflect.DeepEqual(r, same) {
				t.Errorf("receipts differ: %+v and %+v", r, same)
			}
		}
		if n := len(load(t, first, c)); n != 1 || fresh != 1 {
			t.Errorf("%d events, %d receipts that are no replay", n, fresh)
		}
	}
}

// Plans are kept: an append that is planned anew each time takes twice as long.
func TestPlansAreKept(t *testing.T) {
	t.Parallel()
	s := storeOn(t, pgtest.Connect(t, pgtest.DSN(t), 1))
	for i := range 12 {
		a, b := domain.CustomerID(fmt.Sprintf("a%d", i)), domain.CustomerID(fmt.Sprintf("b%d", i))
		mustAppend(t, s, batch(a, eventstore.Head{}, "k/"+domain.Key(a), moved(a, 1)))
		mustAppend(t, s, batch(a, version(1), "l/"+domain.Key(a), moved(a, 2), moved(a, 3)))
		inTx(t, s, func(tx pgx.Tx) {
			results, err := s.AppendTx(t.Context(), tx, batch(a, version(3), "", moved(a, 4)), batch(b, eventstore.Head{}, "k/"+domain.Key(b), moved(b, 1)))
			if err != nil || results[0].Err != nil || results[1].Err != nil {
				t.Fatal(results, err)
			}
		})
		if _, err := s.LoadMany(t.Context(), s.Pool(), []eventstore.Since{{Stream: a.Stream()}, {Stream: b.Stream()}}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Receipt(t.Context(), s.Pool(), "k/"+domain.Key(a), "test", []byte("meant so")); err != nil {
			t.Fatal(err)
		}
		load(t, s, a)
	}
	rows, err := s.Pool().Query(t.Context(), `SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements WHERE statement ~ 'events|lock|command_keys'`)
	if err != nil {
		t.Fatal(err)
	}
	statements := 0
	for rows.Next() {
		var sql string
		var kept, custom int
		if err := rows.Scan(&sql, &kept, &custom); err != nil {
			t.Fatal(err)
		}
		if kept+custom < 10 {
			continue // this one's own
		}
		statements++
		if custom > 5 {
			t.Errorf("planned %d times: %.80s", custom, sql)
		}
	}
	if err := rows.Err(); err != nil || statements < 6 {
		t.Errorf("%d statements were prepared, %v", statements, err)
	}
}
