package eventstore_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// AppendTx answers each batch by itself, and nothing of it is there without
// the caller's commit.
func TestAppendTxAnswersEachBatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := mustAppend(t, s, batch("ada", eventstore.Head{}, "k1", moved("ada", 1)))
	otherwise := batch("eve", eventstore.Head{}, "k1", moved("eve", 1))
	otherwise.Fingerprint = []byte("otherwise")
	batches := []eventstore.Batch{
		0:  batch("bob", eventstore.Head{}, "k2", moved("bob", 1), moved("bob", 2)), // ok
		1:  batch("ada", eventstore.Head{}, "k1", moved("ada", 1)),                  // replayed
		2:  batch("cyd", version(4), "k3", moved("cyd", 1)),                         // conflict
		3:  otherwise,                                                               // key reused
		4:  batch("bob", version(2), "k4", moved("bob", 3)),                         // on top of the first
		5:  batch("bob", version(2), "k5", moved("bob", 9)),                         // beside it: conflict
		6:  batch("bob", version(3), "k2", moved("bob", 9)),                         // the first one's key: replayed
		7:  batch("dot", eventstore.Head{}, "", moved("dot", 1)),                    // without a key
		8:  batch("dot", eventstore.Head{}, "", moved("dot", 9)),                    // conflict
		9:  batch("ada", eventstore.HeadOf(first), "k6"),                            // nothing to do
		10: batch("ada", eventstore.HeadOf(first), "k7", moved("ada", 2)),           // and then something
	}
	rollback := func(tx pgx.Tx) error { return tx.Rollback(t.Context()) }
	commit := func(tx pgx.Tx) error { return tx.Commit(t.Context()) }
	for _, end := range []func(pgx.Tx) error{rollback, commit} {
		tx, err := s.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		results, err := s.AppendTx(t.Context(), tx, batches...)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range map[int]struct {
			version  int
			replayed bool
			recorded int
		}{0: {2, false, 2}, 1: {1, true, 0}, 4: {3, false, 1}, 6: {2, true, 0}, 7: {1, false, 1}, 9: {1, false, 0}, 10: {2, false, 1}} {
			r := results[i]
			if r.Err != nil || r.Receipt.Version != want.version || r.Receipt.Replayed != want.replayed || len(r.Recorded) != want.recorded || r.Receipt.Key != batches[i].Key {
				t.Errorf("batch %d: %+v, want %+v", i, r, want)
			}
			for k, e := range r.Recorded {
				if e.Position == 0 || e.RecordedAt.IsZero() || r.Receipt.Events[k].Position != e.Place {
					t.Errorf("batch %d: event %+v of receipt %+v", i, e, r.Receipt)
				}
			}
		}
		for i, want := range map[int]bool{2: true, 5: true, 8: true} {
			if got := isConflict(results[i].Err); got != want {
				t.Errorf("batch %d: %v", i, results[i].Err)
			}
		}
		if !errors.Is(results[3].Err, domain.ErrKeyReused) {
			t.Errorf("batch 3: %v", results[3].Err)
		}
		grown := uint64(0)
		for _, c := range []string{"ada", "bob", "dot"} {
			grown |= 1 << eventstore.PartitionOf(c)
		}
		if mask := eventstore.Grown(results).Partitions(); mask != grown {
			t.Errorf("grown %x, want %x", mask, grown)
		}
		if err := end(tx); err != nil {
			t.Fatal(err)
		}
		if reflect.ValueOf(end).Pointer() == reflect.ValueOf(rollback).Pointer() {
			if n := count(t, s.Pool(), `SELECT count(*) FROM events`) + count(t, s.Pool(), `SELECT count(*) FROM command_keys`); n != 2 {
				t.Errorf("rolled back, and there are %d rows more", n-2)
			}
		}
	}
	if got := methods(load(t, s, "bob")); !slices.Equal(got, []string{"pm_1", "pm_2", "pm_3"}) {
		t.Errorf("bob has %q", got)
	}
	if got := methods(load(t, s, "ada")); !slices.Equal(got, []string{"pm_1", "pm_2"}) {
		t.Errorf("ada has %q", got)
	}
	if got := methods(load(t, s, "dot")); !slices.Equal(got, []string{"pm_1"}) {
		t.Errorf("dot has %q", got)
	}
	if n := count(t, s.Pool(), `SELECT count(*) FROM command_keys`); n != 5 {
		t.Errorf("%d keys, want 5", n)
	}
}

// A header that was used for something else is told to its batch alone.
func TestAppendTxWithHeaders(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	under := func(c domain.CustomerID, header domain.Key) eventstore.Batch {
		b := batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1))
		b.Request = &eventstore.RequestKey{Actor: "ops", Key: header, BodyDigest: []byte(c)}
		return b
	}
	mustAppend(t, s, under("ada", "h1"))
	inTx(t, s, func(tx pgx.Tx) {
		results, err := s.AppendTx(t.Context(), tx, under("bob", "h1"), under("cyd", "h2"), under("dot", "h2"), under("ada", "h1"), batch("eve", eventstore.Head{}, "k/eve", moved("eve", 1)))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []error{domain.ErrKeyReused, nil, domain.ErrKeyReused, nil, nil} {
			if !errors.Is(results[i].Err, want) {
				t.Errorf("batch %d: %v, want %v", i, results[i].Err, want)
			}
		}
		if !results[3].Receipt.Replayed {
			t.Errorf("the same again: %+v", results[3].Receipt)
		}
	})
	if events, headers := count(t, s.Pool(), `SELECT count(*) FROM events`), count(t, s.Pool(), `SELECT count(*) FROM request_keys`); events != 3 || headers != 2 {
		t.Errorf("%d events and %d headers, want 3 and 2", events, headers)
	}
}

func TestAppendTxOfNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	results, err := s.AppendTx(t.Context(), s.Pool())
	if err != nil || len(results) != 0 || len(eventstore.Grown(results)) != 0 {
		t.Errorf("%+v, %v", results, err)
	}
	if err := eventstore.LockPartitions(t.Context(), s.Pool()); err != nil {
		t.Error(err)
	}
}

// Many streams of many partitions in one call: each event lies where its
// customer's partition is, in the order of the call.
func TestAppendTxOfManyBatches(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var batches []eventstore.Batch
	for i := range 500 {
		c := domain.CustomerID(fmt.Sprintf("c%d", i))
		b := batch(c, eventstore.Head{}, domain.Key("k/"+c))
		for n := range i%4 + 1 {
			b.Events = append(b.Events, moved(c, n))
		}
		batches = append(batches, b)
	}
	results := make([]eventstore.Result, 0)
	inTx(t, s, func(tx pgx.Tx) {
		var err error
		if results, err = s.AppendTx(t.Context(), tx, batches...); err != nil {
			t.Fatal(err)
		}
	})
	for i, r := range results {
		if r.Err != nil || r.Receipt.Version != i%4+1 {
			t.Fatalf("batch %d: %+v", i, r)
		}
		events := load(t, s, domain.CustomerID(fmt.Sprintf("c%d", i)))
		if !reflect.DeepEqual(r.Recorded, events) {
			t.Fatalf("batch %d: appended\n%+v, loaded\n%+v", i, r.Recorded, events)
		}
		checkChain(t, events)
	}
	streams := make([]eventstore.Since, 0, 500)
	for i := range 500 {
		streams = append(streams, eventstore.Since{Stream: batches[i].Stream, After: 1})
	}
	many, err := s.LoadMany(t.Context(), s.Pool(), streams)
	if err != nil {
		t.Fatal(err)
	}
	at := map[domain.StreamID]int{}
	for _, e := range many {
		if want := max(at[e.Stream], 1) + 1; e.Version != want {
			t.Fatalf("%s: version %d, want %d", e.Stream, e.Version, want)
		}
		at[e.Stream] = e.Version
	}
	if want := 125 * (0 + 1 + 2 + 3); len(many) != want {
		t.Errorf("%d events after the first of each, want %d", len(many), want)
	}
}

// inTx runs f in a transaction that is committed.
func inTx(t testing.TB, s *eventstore.Store, f func(pgx.Tx)) {
	t.Helper()
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	f(tx)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A decision made after LockPartitions, in the same transaction, meets no
// conflict, whatever others do meanwhile.
func TestLockedStreamsDoNotMove(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustAppend(t, s, batch("ada", eventstore.Head{}, "k1", moved("ada", 1)))
	racing := make(chan error, 1)
	inTx(t, s, func(tx pgx.Tx) {
		if err := eventstore.LockPartitions(t.Context(), tx, "customer/bob", "customer/ada"); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := s.Append(context.WithoutCancel(t.Context()), batch("ada", version(1), "k2", moved("ada", 9)))
			racing <- err
		}()
		waitFor(t, "the other append waits for the lock", func() bool { return waitingForLocks(t, s) == 1 })
		events, err := s.Load(t.Context(), tx, "customer/ada", 0)
		if err != nil {
			t.Fatal(err)
		}
		results, err := s.AppendTx(t.Context(), tx, batch("ada", events[len(events)-1].Head(), "k3", moved("ada", 2)))
		if err != nil || results[0].Err != nil {
			t.Fatalf("%+v, %v", results, err)
		}
	})
	if err := <-racing; !isConflict(err) {
		t.Errorf("the other one: %v", err)
	}
	checkChain(t, load(t, s, "ada"))
}

// waitingForLocks is how many sessions of this database wait for a partition.
func waitingForLocks(t testing.TB, s *eventstore.Store) int {
	t.Helper()
	return count(t, s.Pool(), `SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND classid = $1 AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, eventstore.LockClass)
}

// No stream, key or header occurs twice in a round, every batch is in one, and
// those that share something keep their order.
func TestRounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var batches []eventstore.Batch
		for range rapid.IntRange(0, 40).Draw(t, "batches") {
			b := eventstore.Batch{Stream: domain.StreamID(rapid.SampledFrom([]string{"a", "b", "c", "d", "k"}).Draw(t, "stream"))}
			b.Key = domain.Key(rapid.SampledFrom([]string{"", "", "a", "b", "k1", "k2"}).Draw(t, "key"))
			if header := rapid.SampledFrom([]string{"", "", "a", "h1", "h2"}).Draw(t, "header"); header != "" {
				b.Request = &eventstore.RequestKey{Actor: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "actor"), Key: domain.Key(header)}
			}
			batches = append(batches, b)
		}
		round := map[int]int{}
		for n, members := range eventstore.Rounds(batches) {
			if len(members) == 0 {
				t.Fatal("an empty round")
			}
			for _, i := range members {
				if _, twice := round[i]; twice {
					t.Fatalf("batch %d is in two rounds", i)
				}
				round[i] = n
			}
		}
		if len(round) != len(batches) {
			t.Fatalf("%d of %d batches are in a round", len(round), len(batches))
		}
		for j, b := range batches {
			for i, a := range batches[:j] {
				share := a.Stream == b.Stream || a.Key != "" && a.Key == b.Key ||
					a.Request != nil && b.Request != nil && a.Request.Actor == b.Request.Actor && a.Request.Key == b.Request.Key
				if share && round[i] >= round[j] {
					t.Fatalf("%+v in round %d, and after it %+v in round %d", a, round[i], b, round[j])
				}
			}
		}
	})
}
