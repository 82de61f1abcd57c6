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

func TestAppendAndLoad(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := mustAppend(t, s, batch("ada", eventstore.Head{}, "k1", moved("ada", 1), moved("ada", 2)))
	want := eventstore.Receipt{
		Key: "k1", Command: "test", Stream: "customer/ada", Version: 2, Position: r.Recorded[1].Place,
		Events: []eventstore.EventRef{
			{Type: "customer.payment_method_changed.v1", Version: 1, Position: r.Recorded[0].Place},
			{Type: "customer.payment_method_changed.v1", Version: 2, Position: r.Recorded[1].Place},
		},
	}
	if !reflect.DeepEqual(r.Receipt, want) {
		t.Errorf("the receipt is\n%+v, want\n%+v", r.Receipt, want)
	}
	r = mustAppend(t, s, batch("ada", eventstore.HeadOf(r), "k2", moved("ada", 3)))

	events := load(t, s, "ada")
	if got := methods(events); !slices.Equal(got, []string{"pm_1", "pm_2", "pm_3"}) {
		t.Fatalf("loaded %q", got)
	}
	last := events[2]
	if appended := r.Recorded[0]; !reflect.DeepEqual(appended, last) {
		t.Errorf("appended\n%+v, loaded\n%+v", appended, last)
	}
	if last.Version != 3 || last.Partition != eventstore.PartitionOf("ada") || last.SequenceKey != "ada" || last.CommandKey != "k2" || last.SchemaVersion != 1 ||
		string(last.Payload) != `{"customer_id":"ada","payment_method_id":"pm_3"}` || string(last.Metadata) != `{"actor":"tester","correlation":"c-1"}` || last.RecordedAt.IsZero() {
		t.Errorf("loaded %+v", last)
	}
	for i := range events[1:] {
		if events[i].Position >= events[i+1].Position {
			t.Errorf("positions %d and %d of one stream", events[i].Position, events[i+1].Position)
		}
	}
	since, err := s.Load(t.Context(), s.Pool(), "customer/ada", 2)
	if err != nil || len(since) != 1 || since[0].Version != 3 {
		t.Errorf("after version 2: %+v, %v", since, err)
	}
}

func TestAppendConflicts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, key := range []domain.Key{"", "new"} {
		for _, at := range []int{0, 1, 3, 7} {
			c := domain.CustomerID(fmt.Sprintf("c%s%d", key, at))
			mustAppend(t, s, batch(c, eventstore.Head{}, "k/"+domain.Key(c), moved(c, 1), moved(c, 2)))
			for _, events := range [][]domain.Event{{moved(c, 8)}, {moved(c, 8), moved(c, 9)}} {
				_, err := s.Append(t.Context(), batch(c, version(at), key, events...))
				if conflict, ok := errors.AsType[*eventstore.VersionConflict](err); !ok || conflict.Stream != c.Stream() || conflict.Expected != at {
					t.Errorf("key %q, %d events at %d: %v", key, len(events), at, err)
				}
			}
			if got := methods(load(t, s, c)); !slices.Equal(got, []string{"pm_1", "pm_2"}) {
				t.Errorf("key %q at %d: a conflict left %q", key, at, got)
			}
		}
		_, err := s.Append(t.Context(), batch("nobody", version(5), key, moved("nobody", 9)))
		if !isConflict(err) {
			t.Errorf("key %q on a stream that is not there: %v", key, err)
		}
		if events := load(t, s, "nobody"); len(events) != 0 {
			t.Errorf("the stream now begins with version %d", events[0].Version)
		}
	}
	if n := count(t, s.Pool(), `SELECT count(*) FROM command_keys WHERE key = 'new'`); n != 0 {
		t.Error("a conflict used its key up")
	}
}

func TestKeySeenBefore(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := mustAppend(t, s, batch("ada", eventstore.Head{}, "k1", moved("ada", 1)))
	next := mustAppend(t, s, batch("ada", eventstore.HeadOf(first), "k2", moved("ada", 2), moved("ada", 3)))
	replayed := first.Receipt
	replayed.Replayed = true

	// The same again, decided where the stream was or where it is now.
	for _, at := range []eventstore.Head{{}, eventstore.HeadOf(first), eventstore.HeadOf(next)} {
		r, err := s.Append(t.Context(), batch("ada", at, "k1", moved("ada", 1)))
		if err != nil || !reflect.DeepEqual(r.Receipt, replayed) || len(r.Recorded) != 0 {
			t.Errorf("again at %d: %+v, %v", at.Version, r, err)
		}
	}
	// Something else under the same key.
	for what, b := range map[string]eventstore.Batch{
		"another fingerprint": {Stream: "customer/ada", Head: eventstore.HeadOf(next), Key: "k1", Command: "test", Fingerprint: []byte("otherwise"), Events: []domain.Event{moved("ada", 9)}},
		"another command":     {Stream: "customer/ada", Head: eventstore.HeadOf(next), Key: "k1", Command: "other", Fingerprint: []byte("meant so"), Events: []domain.Event{moved("ada", 9)}},
		"a stale head":        {Stream: "customer/ada", Key: "k1", Command: "test", Fingerprint: []byte("otherwise"), Events: []domain.Event{moved("ada", 9)}},
		"another stream":      {Stream: "customer/bob", Key: "k1", Command: "other", Fingerprint: []byte("meant so"), Events: []domain.Event{moved("bob", 9)}},
		"nothing to do":       {Stream: "customer/ada", Head: eventstore.HeadOf(next), Key: "k1", Command: "test", Fingerprint: []byte("otherwise")},
	} {
		if _, err := s.Append(t.Context(), b); !errors.Is(err, domain.ErrKeyReused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := count(t, s.Pool(), `SELECT count(*) FROM events`); n != 3 {
		t.Errorf("%d events, want 3", n)
	}

	receipt, found, err := s.Receipt(t.Context(), s.Pool(), "k1", "test", []byte("meant so"))
	if err != nil || !found || !reflect.DeepEqual(receipt, replayed) {
		t.Errorf("looked up: %+v, %t, %v", receipt, found, err)
	}
	if _, found, err := s.Receipt(t.Context(), s.Pool(), "k9", "test", []byte("meant so")); found || err != nil {
		t.Errorf("a key never used: %t, %v", found, err)
	}
	many, err := s.Receipts(t.Context(), s.Pool(), []eventstore.KeyQuery{
		{Key: "k1", Command: "test", Fingerprint: []byte("meant so")}, {Key: "k2", Command: "test", Fingerprint: []byte("otherwise")}, {Key: "k9", Command: "test"},
	})
	if err != nil || len(many) != 2 || !reflect.DeepEqual(many["k1"].Receipt, replayed) || !errors.Is(many["k2"].Err, domain.ErrKeyReused) {
		t.Errorf("looked up together: %+v, %v", many, err)
	}
}

// That nothing had to happen is remembered as well: the answer stays what it
// was, whatever happens later.
func TestNothingToDoIsRemembered(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := mustAppend(t, s, batch("ada", eventstore.Head{}, "k1", moved("ada", 1)))
	nothing := mustAppend(t, s, batch("ada", eventstore.HeadOf(first), "k2"))
	want := eventstore.Receipt{Key: "k2", Command: "test", Stream: "customer/ada", Version: 1, Events: []eventstore.EventRef{}}
	if !reflect.DeepEqual(nothing.Receipt, want) {
		t.Errorf("the receipt is %+v, want %+v", nothing.Receipt, want)
	}
	mustAppend(t, s, batch("ada", eventstore.HeadOf(first), "k3", moved("ada", 2)))
	want.Replayed = true
	for _, b := range []eventstore.Batch{batch("ada", version(2), "k2"), batch("ada", version(2), "k2", moved("ada", 9))} {
		if r := mustAppend(t, s, b); !reflect.DeepEqual(r.Receipt, want) {
			t.Errorf("again: %+v, want %+v", r.Receipt, want)
		}
	}
	if n := len(load(t, s, "ada")); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
	if _, err := s.Append(t.Context(), batch("ada", version(7), "k4")); !isConflict(err) {
		t.Errorf("nothing to do, decided elsewhere: %v", err)
	}
	if _, err := s.Append(t.Context(), batch("ada", version(2), "")); err == nil {
		t.Error("neither events nor a key, and it was taken")
	}
}

func isConflict(err error) bool {
	_, ok := errors.AsType[*eventstore.VersionConflict](err)
	return ok
}

// An Idempotency-Key header is remembered with the facts, per actor.
func TestRequestKeys(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	under := func(b eventstore.Batch, actor string, header domain.Key, body string) eventstore.Batch {
		b.Request = &eventstore.RequestKey{Actor: actor, Key: header, BodyDigest: []byte(body)}
		return b
	}
	first := mustAppend(t, s, under(batch("ada", eventstore.Head{}, "k1", moved("ada", 1)), "ops", "h1", "body 1"))
	head := eventstore.HeadOf(first)

	again := mustAppend(t, s, under(batch("ada", eventstore.Head{}, "k1", moved("ada", 1)), "ops", "h1", "body 1"))
	if !again.Receipt.Replayed || again.Receipt.Position != first.Receipt.Position {
		t.Errorf("the same again: %+v", again.Receipt)
	}
	for what, b := range map[string]eventstore.Batch{
		"another command key":         under(batch("ada", head, "k2", moved("ada", 2)), "ops", "h1", "body 2"),
		"another customer":            under(batch("bob", eventstore.Head{}, "k3", moved("bob", 1)), "ops", "h1", "body 3"),
		"no command key":              under(batch("ada", head, "", moved("ada", 2)), "ops", "h1", "body 4"),
		"nothing to do, under a key":  under(batch("ada", head, "k5"), "ops", "h1", "body 5"),
		"another key, the first body": under(batch("ada", head, "k6", moved("ada", 2)), "ops", "h1", "body 1"),
	} {
		if _, err := s.Append(t.Context(), b); !errors.Is(err, domain.ErrKeyReused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if events, keys := count(t, s.Pool(), `SELECT count(*) FROM events`), count(t, s.Pool(), `SELECT count(*) FROM command_keys`); events != 1 || keys != 1 {
		t.Errorf("a reused header left %d events and %d keys", events-1, keys-1)
	}
	second := mustAppend(t, s, under(batch("ada", head, "k2", moved("ada", 2)), "other", "h1", "body 2"))
	mustAppend(t, s, under(batch("ada", eventstore.HeadOf(second), "k5"), "ops", "h2", "body 5"))
	mustAppend(t, s, under(batch("ada", eventstore.HeadOf(second), "", moved("ada", 3)), "ops", "h3", "body 6"))
	if n := count(t, s.Pool(), `SELECT count(*) FROM request_keys`); n != 4 {
		t.Errorf("%d headers are remembered, want 4", n)
	}
}

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
		if mask := eventstore.Grown(results); mask != grown {
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

func TestAppendTxOfNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	results, err := s.AppendTx(t.Context(), s.Pool())
	if err != nil || len(results) != 0 || eventstore.Grown(results) != 0 {
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

// Events that this build does not know come out as such, and the others as
// they are.
func TestEventsOfAnotherBuild(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := mustAppend(t, s, batch("ada", eventstore.Head{}, "k1", moved("ada", 1)))
	foreign := []struct {
		name   string
		schema int
		body   string
	}{{"customer.promoted.v1", 1, `{}`}, {"customer.payment_method_changed.v1", 2, `{"customer_id":"ada","method":{"id":"pm_2"}}`}, {"customer.payment_method_changed.v1", 1, `{"customer_id":7}`}}
	for i, f := range foreign {
		_, err := s.Pool().Exec(t.Context(), `INSERT INTO events (partition, stream_id, stream_version, event_type, schema_version, sequence_key, payload)
			VALUES ($1, 'customer/ada', $2, $3, $4, 'ada', $5::json)`, r.Recorded[0].Partition, 2+i, f.name, f.schema, f.body)
		if err != nil {
			t.Fatal(err)
		}
	}
	events := load(t, s, "ada")
	if len(events) != 4 || events[0].Err != nil {
		t.Fatalf("loaded %+v", events)
	}
	for i, e := range events[1:] {
		unknown, ok := errors.AsType[*eventstore.UnknownEvent](e.Err)
		if e.Event != nil || e.Err == nil || ok != (i < 2) || ok && (unknown.Type != foreign[i].name || int(unknown.SchemaVersion) != foreign[i].schema) {
			t.Errorf("%s %d came out as %+v, %v", e.Type, e.SchemaVersion, e.Event, e.Err)
		}
	}
}
