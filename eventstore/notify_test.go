package eventstore_test

import (
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// Readers of this process hear of an append at once, those of others by NOTIFY
// after the commit; both are told which partitions grew.
func TestNotifications(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	listener, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close(t.Context())
	if _, err := listener.Exec(t.Context(), `LISTEN `+eventstore.Channel); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var heard uint64
	cancel := s.OnAppend(func(added eventstore.Growth) {
		mu.Lock()
		defer mu.Unlock()
		heard |= added.Partitions()
	})
	told := func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return heard
	}

	var want uint64
	for _, c := range []domain.CustomerID{"ada", "bob", "cyd"} {
		mustAppend(t, s, batch(c, eventstore.Head{}, "", moved(c, 1)))
		want |= 1 << eventstore.PartitionOf(string(c))
		if told() != want {
			t.Errorf("after %s, %x was heard, want %x", c, told(), want)
		}
	}
	var results []eventstore.Result
	inTx(t, s, func(tx pgx.Tx) {
		if results, err = s.AppendTx(t.Context(), tx, batch("dot", eventstore.Head{}, "", moved("dot", 1))); err != nil {
			t.Fatal(err)
		}
		if told() != want {
			t.Errorf("before the commit, %x was heard, want %x", told(), want)
		}
	})
	s.Committed(eventstore.Grown(results))
	want |= 1 << eventstore.PartitionOf("dot")
	if told() != want {
		t.Errorf("after the commit, %x was heard, want %x", told(), want)
	}

	if all := s.Heard("nobody knows"); all != math.MaxUint64 {
		t.Errorf("of a payload that is not ours it hears %x", all)
	}
	other := eventstore.New(s.Pool(), s.Codec(), slog.New(slog.DiscardHandler))
	defer other.Close()
	var notified uint64
	for notified != want {
		n, err := listener.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mask := other.Heard(n.Payload)
		if n.Channel != "events" || mask == 0 || mask&^want != 0 {
			t.Fatalf("notified on %s: %q", n.Channel, n.Payload)
		}
		if own := s.Heard(n.Payload); own != 0 {
			t.Fatalf("the sender hears %x of its own %q", own, n.Payload)
		}
		notified |= mask
	}

	// What adds nothing is not told, nor is anything after cancel.
	cancel()
	s.Committed(eventstore.Growth{})
	mustAppend(t, s, batch("eve", eventstore.Head{}, "k", moved("eve", 1)))
	if told() != want {
		t.Errorf("after cancel, %x was heard, want %x", told(), want)
	}
}

// Many appends share a notification, and closing the log sends the last one.
func TestNotificationsAreDebounced(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	listener, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close(t.Context())
	if _, err := listener.Exec(t.Context(), `LISTEN `+eventstore.Channel); err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		s.Committed(eventstore.Growth{"customer.moved.v1": 1 << 17})
	}
	s.Committed(eventstore.Growth{"customer.moved.v1": 1 << 18})
	s.Close()
	if _, err := s.Pool().Exec(t.Context(), `SELECT pg_notify('events', 'end')`); err != nil {
		t.Fatal(err)
	}
	var heard uint64
	n := 0
	for {
		notification, err := listener.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if notification.Payload == "end" {
			break
		}
		text, _, _ := strings.Cut(notification.Payload, " ")
		mask, err := strconv.ParseUint(text, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		heard |= mask
		n++
	}
	if heard != 3<<17 || n > 1000 {
		t.Errorf("%d notifications said %x", n, heard)
	}
	s.Committed(eventstore.Growth{"customer.moved.v1": 1}) // after the end: no harm
	if r, err := s.Append(t.Context(), batch("ada", eventstore.Head{}, "k", moved("ada", 1))); err != nil || r.Receipt.Version != 1 {
		t.Errorf("an append after Close: %+v, %v", r, err)
	}
}
