package tracking_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// former is the catalogue of the release before: it does not know that a bill
// may be written off.
func former() iter.Seq[domain.Event] {
	return func(yield func(domain.Event) bool) {
		for e := range domain.Events() {
			if e.EventName() != (domain.BillWrittenOff{}).EventName() && !yield(e) {
				return
			}
		}
	}
}

// C130: release n and n+1 work side by side on one database, n+1 records facts
// that n does not know, of a new type and of a higher version; n is all that is
// left for a while, and then n+1 comes back. What n does not know n never goes
// past, and says so; in the end each fact has been handled once, in order.
func TestC130_OldAndNewSideBySide(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	oldCodec := eventstore.NewCodec(former())
	newCodec := eventstore.NewCodec(domain.Events(), eventstore.Added(eventstore.Shape{Name: "customer.payment_method_changed.v1", Version: 1},
		map[string]any{"payment_method_id": "pm_unstated"}))
	release := func(codec *eventstore.Codec) *eventstore.Store {
		s := eventstore.New(h.pool, codec, h.log)
		t.Cleanup(s.Close)
		return s
	}
	n, next := release(oldCodec), release(newCodec)
	processor := inOrder("effectful")
	processor.Kind, processor.Start = tracking.Effectful, tracking.Beginning

	// Both record for customers of their own, and so they never conflict: what n+1
	// writes n cannot read.
	const customers, rounds = 12, 25
	traffic := func(s *eventstore.Store, kind string, from int, event func(c string, i int) domain.Event) {
		var writing sync.WaitGroup
		for k := range customers {
			writing.Go(func() {
				c := fmt.Sprintf("%s-%d", kind, k)
				head := eventstore.Head{Version: from}
				if from > 0 {
					before, err := next.Load(t.Context(), h.pool, domain.CustomerID(c).Stream(), from-1)
					if err != nil || len(before) != 1 {
						t.Errorf("%s: %d events, %v", c, len(before), err)
						return
					}
					head = before[0].Head()
				}
				for i := range rounds {
					r, err := s.Append(t.Context(), eventstore.Batch{Stream: domain.CustomerID(c).Stream(), Head: head, Command: "test", Events: []domain.Event{event(c, i)}})
					if err != nil {
						t.Errorf("%s: %v", c, err)
						return
					}
					head = r.Recorded[0].Head()
				}
			})
		}
		writing.Wait()
	}
	random := rand.New(rand.NewPCG(130, 1))
	kinds := make([]int, rounds)
	for i := range kinds {
		kinds[i] = random.IntN(3)
	}
	newer := func(c string, i int) domain.Event {
		switch kinds[i] {
		case 0:
			return domain.BillWrittenOff{CustomerID: domain.CustomerID(c), BillingPeriod: domain.PeriodOf(domain.Monthly, 2026, 11), Reason: "test"} // a new type
		case 1:
			return changed(c, i) // a higher version of a known one
		}
		return registered(c)
	}
	older := func(c string, i int) domain.Event { return changed(c, i) }

	old := h.runOn(h.pool, n, tracking.Options{Poll: quick, Owner: "n"}, processor)
	young := h.runOn(h.pool, next, tracking.Options{Poll: quick, Owner: "n+1"}, processor)
	var both sync.WaitGroup
	both.Go(func() { traffic(n, "old", 0, older) })
	both.Go(func() { traffic(next, "new", 0, newer) })
	both.Wait()
	h.caughtUp("effectful")
	h.exactlyOnce("effectful")

	// Back to n alone, with facts of n+1 that nobody has handled.
	if err := young.stop(); err != nil {
		t.Fatal(err)
	}
	last := value[int64](h, `SELECT max(position) FROM events`)
	traffic(next, "new", rounds, newer)
	traffic(n, "more", 0, older)
	unread := `SELECT count(*) FROM events e WHERE position > $1 AND (event_type = 'bill.written_off.v1' OR schema_version = 2)`
	if value[int](h, unread, last) == 0 {
		t.Fatal("n+1 recorded nothing that n does not know")
	}
	h.eventually(func() string {
		left := value[int](h, `SELECT count(*) FROM (SELECT partition, min(position) AS first FROM events
			WHERE position > $1 AND (event_type = 'bill.written_off.v1' OR schema_version = 2) GROUP BY partition) f
			JOIN processor_tokens t ON t.processor = 'effectful' AND t.partition = f.partition
			WHERE t.position >= f.first OR t.last_error IS NULL OR EXISTS (SELECT FROM events e WHERE e.partition = f.partition AND e.position > t.position AND e.position < f.first)`, last)
		if left > 0 {
			return fmt.Sprintf("%d partitions do not stand in front of what n does not know", left)
		}
		return ""
	})
	if handled := value[int](h, `SELECT count(*) FROM events e JOIN seen s USING (position) WHERE e.position > $1 AND (event_type = 'bill.written_off.v1' OR schema_version = 2)`, last); handled != 0 {
		t.Errorf("n has handled %d events that it does not know", handled)
	}
	s := h.status("effectful")
	contains(t, s.LastError, "is not known to this build")
	if s.CaughtUp || s.PassedOver != nil || value[int](h, `SELECT count(*) FROM dead_letters`) != 0 {
		t.Errorf("caught up %v, passed over %+v, %d letters", s.CaughtUp, s.PassedOver, value[int](h, `SELECT count(*) FROM dead_letters`))
	}

	// A field that n does not know harms nobody: both read it.
	h.exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload) VALUES ($1, 'customer/extra', 1, 'customer.registered.v1', 'extra',
		'{"customer_id":"extra","stripe_customer_id":"cus_1","payment_method_id":"pm_1","loyalty":{"tier":3}}')`, eventstore.PartitionOf("extra"))
	for name, codec := range map[string]*eventstore.Codec{"n": oldCodec, "n+1": newCodec} {
		if events, err := codec.Decode("customer.registered.v1", 1, json.RawMessage(value[string](h, `SELECT payload::text FROM events WHERE stream_id = 'customer/extra'`))); err != nil || len(events) != 1 {
			t.Errorf("%s reads %+v, %v", name, events, err)
		}
	}

	// n+1 comes back: all goes on by itself, with n beside it and without.
	h.runOn(h.pool, next, tracking.Options{Poll: quick, Owner: "n+1 again"}, processor)
	h.caughtUp("effectful")
	h.exactlyOnce("effectful")
	if err := old.stop(); err != nil {
		t.Fatal(err)
	}
	if s := h.status("effectful"); s.LastError != "" {
		t.Errorf("it still says %q", s.LastError)
	}
}
