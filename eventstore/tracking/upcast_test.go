package tracking_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// What an older build has stored reaches a processor as the facts of today that
// it wants, all parts of a split one in one page, the retired ones never; and
// what it has passed or set aside is handled as such, too.
func TestOlderFactsAreDelivered(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	at := func(name string) eventstore.Shape { return eventstore.Shape{Name: name, Version: 1} }
	codec := eventstore.NewCodec(domain.Events(),
		eventstore.Renamed(at("client.enrolled.v1"), at("customer.registered.v1")),
		eventstore.Renamed(at("client.left.v1"), at("bill.written_off.v1")),
		eventstore.Retired(at("client.greeted.v1")),
		eventstore.Split(at("client.signed.v1"), []eventstore.Shape{at("customer.registered.v1"), at("bill.settled.v1"), at("customer.payment_method_changed.v1")},
			func(p json.RawMessage) ([]json.RawMessage, error) { return []json.RawMessage{p, p, p}, nil }),
	)
	h.store = eventstore.New(h.pool, codec, h.log)
	t.Cleanup(h.store.Close)
	for i, c := range []string{"ada", "bob"} {
		for v, name := range []string{"client.enrolled.v1", "client.greeted.v1", "client.left.v1", "client.signed.v1", "customer.payment_method_changed.v1"} {
			h.exec(`INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload) VALUES ($1, $2, $3, $4, $5, $6)`,
				eventstore.PartitionOf(c), "customer/"+c, v+1, name, c, fmt.Sprintf(`{"customer_id":%q,"billing_period":"2026-1%d","payment_method_id":"pm_%d"}`, c, i, v))
		}
	}

	var mu sync.Mutex
	told := map[string][]string{} // customer: event and part
	refuse := true                // what ada's signing was
	p := tracking.Processor{
		Name: "reader", Kind: tracking.Effectful, Start: tracking.Beginning, MaxAttempts: 1,
		Events: []string{"customer.registered.v1", "customer.payment_method_changed.v1"},
		Handler: tracking.HandlerFunc(func(_ context.Context, p *tracking.Page) error {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range p.Events {
				if refuse && e.SequenceKey == "ada" && e.Type == "client.signed.v1" {
					return fmt.Errorf("not today")
				}
			}
			for _, e := range p.Events {
				told[e.SequenceKey] = append(told[e.SequenceKey], fmt.Sprintf("%d.%d %s", e.Version, e.Part, e.Name()))
			}
			return nil
		}),
	}
	r := h.run(tracking.Options{}, p)
	h.caughtUp("reader")
	first, all := []string{"1.0 customer.registered.v1"}, []string{
		"1.0 customer.registered.v1", "4.0 customer.registered.v1", "4.2 customer.payment_method_changed.v1", "5.0 customer.payment_method_changed.v1",
	}
	mu.Lock()
	if !slices.Equal(told["ada"], first) || !slices.Equal(told["bob"], all) {
		t.Errorf("ada: %s; bob: %s", strings.Join(told["ada"], ", "), strings.Join(told["bob"], ", "))
	}
	refuse = false
	mu.Unlock()
	if done, err := r.Retry(t.Context(), "reader", "ada", "somebody"); err != nil || done.Handled != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	if !slices.Equal(told["ada"], all) {
		t.Errorf("after the retry ada: %s", strings.Join(told["ada"], ", "))
	}
}
