package eventstore_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

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
