package eventstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// The answer to a commit is lost, thirty times. The append says that it does
// not know; asking again with the same key tells, and nothing is there twice.
func TestAnswerToTheCommitIsLost(t *testing.T) {
	t.Parallel()
	direct := newStore(t)
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	s := storeOn(t, pgtest.Connect(t, proxy.DSN(), 4))
	for run := range 30 {
		c := domain.CustomerID(fmt.Sprintf("c%d", run))
		b := batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1))
		if run%3 == 1 {
			b.Events = append(b.Events, moved(c, 2))
		}
		if run%3 == 2 {
			b.Key = ""
		}
		lost := proxy.DropServerToClientOnCommit("INSERT INTO events")
		_, err := s.Append(t.Context(), b)
		<-lost
		if !errors.Is(err, eventstore.ErrCommitUnknown) || !eventstore.Transient(err) {
			t.Fatalf("run %d: %v", run, err)
		}
		again, err := s.Append(t.Context(), b)
		if b.Key == "" {
			if !isConflict(err) {
				t.Errorf("run %d, without a key, again: %+v, %v", run, again, err)
			}
		} else if err != nil || !again.Receipt.Replayed || again.Receipt.Version != len(b.Events) {
			t.Errorf("run %d, again: %+v, %v", run, again, err)
		}
		events := load(t, direct, c)
		if len(events) != len(b.Events) {
			t.Errorf("run %d: %d events, want %d", run, len(events), len(b.Events))
		}
		checkChain(t, events)
	}
}

// The commit itself is lost: nothing is there, and the same append again
// succeeds.
func TestCommitIsLost(t *testing.T) {
	t.Parallel()
	direct := newStore(t)
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	pool := pgtest.Connect(t, proxy.DSN(), 4)
	s := storeOn(t, pool)
	b := batch("ada", eventstore.Head{}, "k1", moved("ada", 1))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.AppendTx(t.Context(), tx, b); err != nil {
		t.Fatal(err)
	}
	lost := proxy.DropClientToServerOnCommit()
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a commit that never arrived succeeded")
	}
	<-lost
	r, err := s.Append(t.Context(), b)
	if err != nil || r.Receipt.Replayed {
		t.Errorf("again: %+v, %v", r, err)
	}
	if n := len(load(t, direct, "ada")); n != 1 {
		t.Errorf("%d events", n)
	}
}

// A whole group loses its answer: each of its appends says that it does not
// know, and each finds out.
func TestAnswerToASharedCommitIsLost(t *testing.T) {
	t.Parallel()
	direct := newStore(t)
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	s := storeOn(t, pgtest.Connect(t, proxy.DSN(), 6))

	tx, err := direct.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	blocked := blockedCustomers(eventstore.Committers)
	if err := eventstore.LockPartitions(t.Context(), tx, blocked[0].Stream()); err != nil {
		t.Fatal(err)
	}
	var busy, waiting sync.WaitGroup
	for _, c := range blocked {
		busy.Go(func() {
			_, _ = s.Append(context.WithoutCancel(t.Context()), batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1)))
		})
	}
	waitFor(t, "all committers are busy", func() bool { return waitingForLocks(t, direct) == eventstore.Committers })
	const n = 10
	errs := make([]error, n)
	of := func(i int) eventstore.Batch {
		c := domain.CustomerID(fmt.Sprintf("c%d", i))
		return batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1))
	}
	for i := range n {
		waiting.Go(func() { _, errs[i] = s.Append(context.WithoutCancel(t.Context()), of(i)) })
	}
	waitFor(t, "all are queued", func() bool { return s.Queued() == n })
	lost := proxy.DropServerToClientOnCommit("unnest", "INSERT INTO events")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-lost
	waiting.Wait()
	busy.Wait()
	for i, err := range errs {
		if !errors.Is(err, eventstore.ErrCommitUnknown) {
			t.Errorf("append %d: %v", i, err)
		}
		r, err := s.Append(t.Context(), of(i))
		if err != nil || !r.Receipt.Replayed {
			t.Errorf("append %d, again: %+v, %v", i, r.Receipt, err)
		}
		if events := load(t, direct, domain.CustomerID(fmt.Sprintf("c%d", i))); len(events) != 1 {
			t.Errorf("append %d: %d events", i, len(events))
		}
	}
}

// The server ends sessions in the middle of everything; whoever asks again
// until there is an answer has written once.
func TestServerEndsSessions(t *testing.T) {
	t.Parallel()
	const writers, enough = 6, 5
	admin := newStore(t)
	s := storeOn(t, pgtest.Connect(t, pgtest.DSN(t), 8))
	var ended atomic.Int64
	stop := make(chan struct{})
	var ending, writing sync.WaitGroup
	ending.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				tag, err := admin.Pool().Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND query LIKE '%command_keys%' AND random() < 0.1`)
				if err != nil {
					t.Error(err)
					return
				}
				ended.Add(tag.RowsAffected())
			}
		}
	})
	var mu sync.Mutex
	receipts := map[domain.CustomerID]eventstore.Receipt{}
	for w := range writers {
		writing.Go(func() {
			for i := 0; i < 20 || ended.Load() < enough; i++ {
				c := domain.CustomerID(fmt.Sprintf("c%d-%d", w, i))
				r, err := s.Append(t.Context(), batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1)))
				for eventstore.Transient(err) {
					r, err = s.Append(t.Context(), batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1)))
				}
				if err != nil {
					t.Errorf("%s: %v", c, err)
					return
				}
				mu.Lock()
				receipts[c] = r.Receipt
				mu.Unlock()
			}
		})
	}
	writing.Wait()
	close(stop)
	ending.Wait()
	for c, r := range receipts {
		events := load(t, admin, c)
		if len(events) != 1 || r.Position != events[0].Place {
			t.Errorf("%s: receipt %+v, %d events", c, r, len(events))
		}
	}
}
