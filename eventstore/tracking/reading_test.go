package tracking_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

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
	question, answer := make(chan struct{}), make(chan struct{})
	following := inOrder("following")
	following.AfterCommit = func(p *tracking.Page) {
		for _, e := range p.Events {
			if e.Version == 1 {
				close(question)
			} else {
				close(answer)
			}
		}
	}
	answering := tracking.Processor{Name: "answering", Events: []string{"customer.registered.v1"}, Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error {
		<-question // has been followed: nothing but the answer can wake the other now
		e := p.Events[0]
		results, err := h.store.AppendTx(ctx, p.Tx, eventstore.Batch{Stream: e.Stream, Head: e.Head(), Command: "answer", Events: []domain.Event{changed(e.SequenceKey, 2)}})
		p.Appended = eventstore.Grown(results)
		return err
	})}
	h.run(tracking.Options{Poll: time.Hour}, answering, following)
	h.listening()
	elsewhere := *h
	elsewhere.store = eventstore.New(h.pool, h.store.Codec(), h.log)
	t.Cleanup(elsewhere.store.Close)
	elsewhere.append("a", eventstore.Head{}, registered("a")) // so that no echo of it comes later
	select {
	case <-answer:
	case <-time.After(30 * time.Second):
		t.Error("the answer is not followed")
	}
	h.caughtUp("following")
	h.exactlyOnce("following")
}
