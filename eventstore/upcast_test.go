package eventstore_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// The log of these tests goes back to builds that knew facts by other names, in
// other shapes: history leads from there to the catalogue of today.
func history() []eventstore.Upcaster {
	at := func(name string, version int16) eventstore.Shape {
		return eventstore.Shape{Name: name, Version: version}
	}
	return []eventstore.Upcaster{
		// Renamed twice.
		eventstore.Renamed(at("client.enrolled.v1", 1), at("customer.enrolled.v1", 1)),
		eventstore.Renamed(at("customer.enrolled.v1", 1), at("customer.registered.v1", 1)),
		// A field was renamed, and later one was added.
		eventstore.Reshaped(at("bill.settled.v1", 1), func(payload json.RawMessage) (json.RawMessage, error) {
			var old struct {
				CustomerID    string `json:"customer_id"`
				BillingPeriod string `json:"billing_period"`
				Receipt       string `json:"receipt"`
			}
			if err := json.Unmarshal(payload, &old); err != nil {
				return nil, err
			}
			if old.BillingPeriod == "" {
				return nil, errors.New("no period")
			}
			return json.Marshal(map[string]string{"customer_id": old.CustomerID, "billing_period": old.BillingPeriod, "reference": old.Receipt})
		}),
		eventstore.Added(at("bill.settled.v1", 2), map[string]any{"reference": "not stated", "billing_period": "2020-01"}),
		// One fact was both the subscription and its first due, and the customer.
		eventstore.Split(at("customer.signed.v1", 1), []eventstore.Shape{at("client.enrolled.v1", 1), at("bill.settled.v1", 1)}, signed),
		// Nobody needs to know any more.
		eventstore.Retired(at("customer.greeted.v1", 1)),
		// One part of it is still told.
		eventstore.Split(at("customer.greeted.v1", 2), []eventstore.Shape{at("customer.greeted.v1", 1), at("client.enrolled.v1", 1)}, func(p json.RawMessage) ([]json.RawMessage, error) {
			return []json.RawMessage{p, p}, nil
		}),
	}
}

func signed(payload json.RawMessage) ([]json.RawMessage, error) {
	if !json.Valid(payload) {
		return nil, errors.New("no object")
	}
	return []json.RawMessage{payload, payload}, nil
}

var (
	enrolled = domain.CustomerRegistered{CustomerID: "ada", StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"}
	settled  = domain.BillSettled{CustomerID: "ada", BillingPeriod: domain.PeriodOf(domain.Monthly, 2026, 11), Reference: "wire 7"}
	unstated = domain.BillSettled{CustomerID: "ada", BillingPeriod: domain.PeriodOf(domain.Monthly, 2026, 11), Reference: "not stated"}
)

const (
	enrolledText = `{"customer_id":"ada","stripe_customer_id":"cus_1","payment_method_id":"pm_1"}`
	signedText   = `{"customer_id":"ada","stripe_customer_id":"cus_1","payment_method_id":"pm_1","billing_period":"2026-11","receipt":"wire 7"}`
)

// olderFacts is what older builds have stored, and what it is read as today.
var olderFacts = []struct {
	name    string
	schema  int16
	payload string
	want    []domain.Event
}{
	{"client.enrolled.v1", 1, enrolledText, []domain.Event{enrolled}},
	{"customer.enrolled.v1", 1, enrolledText, []domain.Event{enrolled}},
	{"customer.registered.v1", 1, enrolledText, []domain.Event{enrolled}},
	{"bill.settled.v1", 1, `{"customer_id":"ada","billing_period":"2026-11","receipt":"wire 7"}`, []domain.Event{settled}},
	{"bill.settled.v1", 2, `{"customer_id":"ada","billing_period":"2026-11"}`, []domain.Event{unstated}},
	{"bill.settled.v1", 2, `{"customer_id":"ada","billing_period":"2026-11","reference":"wire 7"}`, []domain.Event{settled}},
	{"bill.settled.v1", 3, `{"customer_id":"ada","billing_period":"2026-11","reference":"wire 7"}`, []domain.Event{settled}},
	{"customer.signed.v1", 1, signedText, []domain.Event{enrolled, settled}},
	{"customer.greeted.v1", 1, `{"customer_id":"ada","words":"hello"}`, []domain.Event{domain.Retired{Name: "customer.greeted.v1"}}},
	{"customer.greeted.v1", 2, enrolledText, []domain.Event{enrolled}},
}

// What older builds stored is read as facts of today: renamed, reshaped, with
// fields added, split, retired, and by several of these steps.
func TestUpcasters(t *testing.T) {
	t.Parallel()
	codec := eventstore.NewCodec(domain.Events(), history()...)
	for _, c := range olderFacts {
		t.Run(fmt.Sprint(c.name, c.schema), func(t *testing.T) {
			t.Parallel()
			before := strings.Clone(c.payload)
			for range 2 { // the same each time
				events, err := codec.Decode(c.name, c.schema, json.RawMessage(c.payload))
				if err != nil || !reflect.DeepEqual(events, c.want) {
					t.Errorf("read as %+v, %v; want %+v", events, err, c.want)
				}
			}
			if c.payload != before {
				t.Error("what is stored was changed")
			}
		})
	}
	_, schema, _, err := codec.Encode(settled)
	if err != nil || schema != 3 {
		t.Errorf("written with schema version %d, %v", schema, err)
	}
	for _, c := range []struct {
		name, payload string
		schema        int16
		says          string
	}{
		{"bill.settled.v1", `{"customer_id":"ada"}`, 1, "upcast bill.settled.v1, schema version 1: no period"},
		{"bill.settled.v1", `null`, 2, "upcast bill.settled.v1, schema version 2: it is no object"},
		{"customer.signed.v1", `{"customer_id":"ada"}`, 1, "upcast bill.settled.v1, schema version 1: no period"}, // the second part of it
		{"client.enrolled.v1", `[]`, 1, "decode customer.registered.v1"},
	} {
		if events, err := codec.Decode(c.name, c.schema, json.RawMessage(c.payload)); events != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v; want an error that says %q", c.name, events, err, c.says)
		}
	}
	for _, newer := range []eventstore.Shape{{Name: "bill.settled.v1", Version: 4}, {Name: "client.enrolled.v1", Version: 2}, {Name: "customer.greeted.v1", Version: 3}} {
		if _, err := codec.Decode(newer.Name, newer.Version, json.RawMessage(`{}`)); !unknown(err, newer) {
			t.Errorf("%s: %v", newer, err)
		}
	}
	if got, want := codec.StoredAs("customer.registered.v1"), []string{"customer.registered.v1", "client.enrolled.v1", "customer.enrolled.v1", "customer.greeted.v1", "customer.signed.v1"}; !slices.Equal(got, want) {
		t.Errorf("a registration may stand in the log as %q, want %q", got, want)
	}
	if got := codec.StoredAs("charge.requested.v1"); len(got) != 1 {
		t.Errorf("a request may stand in the log as %q", got)
	}
}

func unknown(err error, s eventstore.Shape) bool {
	u, ok := errors.AsType[*eventstore.UnknownEvent](err)
	return ok && u.Type == s.Name && u.SchemaVersion == s.Version
}

// What cannot be right is found when the program starts, not when an event is read.
func TestUpcastersThatLeadNowhere(t *testing.T) {
	t.Parallel()
	a, b, c := eventstore.Shape{Name: "a.v1", Version: 1}, eventstore.Shape{Name: "b.v1", Version: 1}, eventstore.Shape{Name: "bill.settled.v1", Version: 2}
	settled := eventstore.Shape{Name: "bill.settled.v1", Version: 1}
	for what, upcasters := range map[string][]eventstore.Upcaster{
		"two of one shape":            {eventstore.Retired(a), eventstore.Renamed(a, settled)},
		"one to no fact":              {eventstore.Renamed(a, b)},
		"one to a newer version":      {eventstore.Renamed(a, c)},
		"a circle":                    {eventstore.Renamed(a, b), eventstore.Renamed(b, a)},
		"one to itself":               {eventstore.Renamed(a, a)},
		"a version that nobody reads": {eventstore.Added(c, nil)},
	} {
		mustPanic(t, what, func() { eventstore.NewCodec(domain.Events(), upcasters...) })
	}
	mustPanic(t, "a field that cannot be stored", func() { eventstore.Added(settled, map[string]any{"x": func() {}}) })
	eventstore.NewCodec(domain.Events(), eventstore.Added(settled, nil), eventstore.Renamed(a, c))
}

// Through the log: an older build's events are read by every way of reading as
// what they are today, count once in versions and chain, and stay to the byte
// what they were, also after a newer build has appended to their stream.
func TestUpcastersLeaveTheLogAsItIs(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	newer := eventstore.New(s.Pool(), eventstore.NewCodec(domain.Events(), history()...), discard)
	t.Cleanup(newer.Close)

	var want []domain.Event
	head, stored := eventstore.Head{}, []string{}
	for _, c := range olderFacts {
		head = storeAs(t, s, "ada", head, c.name, c.schema, c.payload)
		want = append(want, c.want...)
		stored = append(stored, c.payload)
	}
	events := load(t, newer, "ada")
	if got := factsOf(events); !reflect.DeepEqual(got, want) {
		t.Fatalf("loaded %+v, want %+v", got, want)
	}
	r := mustAppend(t, newer, batch("ada", events[len(events)-1].Head(), "", settled))
	if last := r.Recorded[0]; last.SchemaVersion != 3 || last.Version != len(olderFacts)+1 {
		t.Errorf("appended as version %d with schema version %d", last.Version, last.SchemaVersion)
	}
	want, stored = append(want, settled), append(stored, string(r.Recorded[0].Payload))

	p := eventstore.PartitionOf("ada")
	for way, all := range map[string]iter.Seq2[eventstore.Recorded, error]{"ReadAll": newer.ReadAll(ctx, 0), "ReadPartition": newer.ReadPartition(ctx, s.Pool(), p, 0)} {
		read := readAll(t, all)
		if got := factsOf(read); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", way, got, want)
		}
		for i, e := range read {
			if e.Part > 0 && (e.Place != read[i-1].Place || e.Version != read[i-1].Version || e.Part != read[i-1].Part+1 || e.EventID != read[i-1].EventID) {
				t.Errorf("%s: part %d of %s does not follow part %d of %s", way, e.Part, e.Place, read[i-1].Part, read[i-1].Place)
			}
			if e.Name() != e.Event.EventName() {
				t.Errorf("%s: %s is named %s", way, e.Event.EventName(), e.Name())
			}
		}
	}
	var chain eventstore.Chain
	raw := readAll(t, newer.ReadRaw(ctx, s.Pool(), 0))
	for i, e := range raw {
		if faults := chain.Follow(e); len(faults) > 0 {
			t.Errorf("version %d: %v", e.Version, faults)
		}
		if string(e.Payload) != stored[i] {
			t.Errorf("version %d is stored as %s, was %s", e.Version, e.Payload, stored[i])
		}
	}
	if len(raw) != len(stored) {
		t.Errorf("%d events are stored, want %d", len(raw), len(stored))
	}

	// The build before the upcasters reads none of it as something else.
	for _, e := range load(t, s, "ada") {
		current := slices.Contains([]string{"customer.registered.v1", "bill.settled.v1"}, e.Type) && e.SchemaVersion == 1
		if current == (e.Err != nil) {
			t.Errorf("%s, schema version %d: %v", e.Type, e.SchemaVersion, e.Err)
		}
	}
}

// storeAs appends an event as the build that wrote it would have, and gives the
// stream's head.
func storeAs(t *testing.T, s *eventstore.Store, c domain.CustomerID, head eventstore.Head, name string, schema int16, payload string) eventstore.Head {
	t.Helper()
	next := eventstore.Head{
		Version: head.Version + 1,
		Digest:  eventstore.DigestOf(head.Digest, string(c.Stream()), head.Version+1, name, schema, []byte(payload), []byte("{}")),
	}
	_, err := s.Pool().Exec(t.Context(), `INSERT INTO events (partition, stream_id, stream_version, event_type, schema_version, sequence_key, payload, metadata, digest)
		VALUES ($1, $2, $3, $4, $5, $6, $7::text::json, '{}', $8)`, pgx.QueryExecModeExec,
		eventstore.PartitionOf(string(c)), string(c.Stream()), next.Version, name, schema, string(c), payload, next.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func factsOf(events []eventstore.Recorded) (facts []domain.Event) {
	for _, e := range events {
		facts = append(facts, e.Event)
	}
	return facts
}

func readAll(t *testing.T, all iter.Seq2[eventstore.Recorded, error]) (events []eventstore.Recorded) {
	t.Helper()
	for e, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}
