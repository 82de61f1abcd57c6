package commands_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

var meta = eventstore.Meta{Actor: "tester"}

// unit begins a unit of work on customers; end commits it or rolls it back.
func unit(t *testing.T, d *commands.Dispatcher, customers ...domain.CustomerID) (u *commands.Unit, end func(commit bool)) {
	t.Helper()
	tx, err := d.Log().Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	var streams []domain.StreamID
	for _, c := range customers {
		streams = append(streams, c.Stream())
	}
	u, err = d.Begin(t.Context(), tx, streams, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return u, func(commit bool) {
		t.Helper()
		if !commit {
			_ = tx.Rollback(t.Context())
			return
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		u.Committed()
	}
}

func requests(cs ...commands.Command[domain.Customer]) (reqs []commands.Request) {
	for _, c := range cs {
		reqs = append(reqs, commands.Of(c))
	}
	return reqs
}

func replies(t *testing.T, u *commands.Unit, cs ...commands.Command[domain.Customer]) []commands.Reply {
	t.Helper()
	rs, err := u.Dispatch(t.Context(), meta, requests(cs...)...)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// Commands of one unit are decided in order, each on what the ones before it
// left, and answered one by one.
func TestUnit(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	dispatch(t, d, commands.NewRegisterCustomer(bob, "cus_2", "pm_2"))
	register := commands.NewRegisterCustomer(ada, "cus_1", "pm_1")
	declare := commands.NewDeclareBillingDue(ada, nov)
	all := []commands.Command[domain.Customer]{
		0:  register,
		1:  commands.NewActivateSubscription(ada, usd49, monthly),
		2:  commands.NewRegisterCustomer(bob, "cus_2", "pm_2"), // seen before
		3:  declare,
		4:  commands.NewChangePaymentMethod(ada, "pm_1", time.Time{}, "k1"),        // nothing to do, remembered
		5:  commands.NewRetryCharge(ada, nov, 2, commands.StepManual),              // refused
		6:  commands.NewChargeBilling(ada, nov, usd49),                             //
		7:  commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 1}, // without a key
		8:  commands.StartAttempt{CustomerID: bob, BillingPeriod: nov, Attempt: 1}, // nothing to do, not remembered
		9:  declare,                                                                // the same once more
		10: commands.NewChargeBilling(ada, nov, usd59),                             // another meaning of a key of this unit
		11: commands.NewRegisterCustomer(bob, "cus_3", "pm_2"),                     // another meaning of a key seen before
		12: commands.NewChargeBilling(bob, dec, usd49),                             //
	}
	for _, commit := range []bool{false, true} {
		u, end := unit(t, d, ada, bob)
		rs := replies(t, u, all...)
		for i, want := range map[int]struct {
			version  int
			replayed bool
			events   int
		}{0: {1, false, 1}, 1: {2, false, 1}, 2: {1, true, 0}, 3: {3, false, 1}, 4: {3, false, 0}, 6: {4, false, 1}, 7: {5, false, 1}, 8: {0, false, 0}, 9: {3, true, 0}, 12: {2, false, 1}} {
			r := rs[i]
			if r.Refusal != nil || r.Receipt.Version != want.version || r.Receipt.Replayed != want.replayed || len(r.Events) != want.events || want.version > 0 && r.Receipt.Key != all[i].Key() {
				t.Errorf("%d, %s: %+v, want %+v", i, all[i].Name(), r, want)
			}
		}
		for i, want := range map[int]error{5: domain.ErrUnknownBill, 10: domain.ErrKeyReused, 11: domain.ErrKeyReused} {
			if !errors.Is(rs[i].Refusal, want) || len(rs[i].Events) > 0 {
				t.Errorf("%d, %s: %+v, want %v", i, all[i].Name(), rs[i], want)
			}
		}
		if bill, _ := rs[7].State.(domain.Customer).Bill(nov); bill.Status != domain.BillStarted || bill.Start != 1 {
			t.Errorf("after the start the bill is %+v", bill)
		}
		if bill, _ := rs[3].State.(domain.Customer).Bill(nov); bill.Status != domain.BillDue {
			t.Errorf("after the due the bill is %+v", bill)
		}
		if bill, _ := u.Customer(ada).Bill(nov); bill.Status != domain.BillStarted {
			t.Errorf("the unit has the bill as %s", bill.Status)
		}
		// More in the same unit builds on it.
		more := replies(t, u, commands.CommitIntent{CustomerID: ada, BillingPeriod: nov, IntentID: "pi_1"}, declare)
		if len(more[0].Events) != 1 || !more[1].Receipt.Replayed || more[1].Receipt.Version != 3 {
			t.Errorf("more: %+v", more)
		}
		if want := uint64(1)<<eventstore.PartitionOf("ada") | 1<<eventstore.PartitionOf("bob"); u.Grown().Partitions() != want {
			t.Errorf("grown %v, want %x", u.Grown(), want)
		}
		end(commit)
		c, err := d.Customer(t.Context(), ada)
		if err != nil || c.Registered() != commit {
			t.Errorf("commit %t: ada is registered %t, %v", commit, c.Registered(), err)
		}
	}
	want := []string{"customer.registered.v1", "subscription.activated.v1", "billing.due.v1", "charge.requested.v1", "charge.attempt_started.v1", "charge.intent_committed.v1"}
	if names := stream(t, d, ada); !slices.Equal(names, want) {
		t.Errorf("ada's stream is %q", names)
	}
	if receipt := dispatch(t, d, declare); !receipt.Replayed || receipt.Version != 3 {
		t.Errorf("dispatched again: %+v", receipt)
	}
}

// The unit decides on the end of its streams: what others append meanwhile
// waits for it.
func TestUnitSeesWhatOthersCommitted(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	other := dispatcherOn(t, d.Log().Pool())
	dispatch(t, d, commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	dispatch(t, d, commands.NewChargeBilling(ada, nov, usd49))
	dispatch(t, other, commands.NewSettleBilling(ada, nov, "wire 7", "k1")) // d has not heard of it

	u, end := unit(t, d, ada)
	racing := make(chan error, 1)
	go func() {
		_, err := other.Dispatch(context.WithoutCancel(t.Context()), commands.Of(commands.NewChargeBilling(ada, dec, usd49)), by)
		racing <- err
	}()
	rs := replies(t, u, commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 1}, commands.NewChargeBilling(ada, oct, usd49))
	if len(rs[0].Events) != 0 || rs[0].State.(domain.Customer).Claim(nov, 1) != domain.ClaimVoid || len(rs[1].Events) != 1 {
		t.Errorf("%+v", rs)
	}
	end(true)
	if err := <-racing; err != nil {
		t.Error(err)
	}
	if names := stream(t, d, ada); len(names) != 5 {
		t.Errorf("the stream is %q", names)
	}
}

// What the caller sends along is executed between the locks and the reads.
func TestUnitCarriesStatements(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	dispatch(t, d, commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	tx, err := d.Log().Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	with := &pgx.Batch{}
	with.Queue(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`)
	locks := 0
	u, err := d.Begin(t.Context(), tx, []domain.StreamID{ada.Stream()}, with, func(answers pgx.BatchResults) error { return answers.QueryRow().Scan(&locks) })
	if err != nil || locks != 1 || !u.Customer(ada).Registered() {
		t.Errorf("%d locks, registered %t, %v", locks, u.Customer(ada).Registered(), err)
	}
	oops := errors.New("oops")
	if _, err := d.Begin(t.Context(), tx, []domain.StreamID{ada.Stream()}, with, func(pgx.BatchResults) error { return oops }); !errors.Is(err, oops) {
		t.Errorf("the caller's error became %v", err)
	}
}

func TestUnitDispatchesWhatItHasLocked(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	u, _ := unit(t, d, ada)
	if _, err := u.Dispatch(t.Context(), meta, requests(commands.NewRegisterCustomer(bob, "cus_2", "pm_2"))...); err == nil {
		t.Error("a command was decided on a stream that may move")
	}
}

// A stream with an event that this build cannot read answers its own commands
// with that, and stops no other.
func TestUnitWithABrokenStream(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	dispatch(t, d, commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	_, err := d.Log().Pool().Exec(t.Context(), `INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload) VALUES ($1, 'customer/ada', 2, 'customer.promoted.v1', 'ada', '{}')`,
		eventstore.PartitionOf("ada"))
	if err != nil {
		t.Fatal(err)
	}
	u, end := unit(t, d, ada, bob)
	rs := replies(t, u, commands.NewChargeBilling(ada, nov, usd49), commands.NewRegisterCustomer(bob, "cus_2", "pm_2"))
	if _, ok := errors.AsType[*eventstore.UnknownEvent](rs[0].Refusal); !ok || u.Broken(ada) == nil || u.Broken(bob) != nil {
		t.Errorf("ada: %+v, broken %v; bob broken %v", rs[0], u.Broken(ada), u.Broken(bob))
	}
	if rs[1].Refusal != nil || len(rs[1].Events) != 1 {
		t.Errorf("bob: %+v", rs[1])
	}
	end(true)
	if _, err := d.Dispatch(t.Context(), commands.Of(commands.NewChargeBilling(ada, nov, usd49)), by); err == nil {
		t.Error("after the unit, ada's stream was decided on")
	}
}

// Keys believed to be new that were seen after all make the whole unit begin
// again, whether they were used for the same or for something else.
func TestUnitWithKeysBelievedNew(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	u, end := unit(t, d, ada)
	rs, err := u.DispatchNew(t.Context(), meta, requests(commands.NewRegisterCustomer(ada, "cus_1", "pm_1"), commands.NewChargeBilling(ada, nov, usd49))...)
	if err != nil || rs[0].Receipt.Version != 1 || rs[1].Receipt.Version != 2 {
		t.Fatalf("%+v, %v", rs, err)
	}
	end(true)
	for _, again := range []commands.Command[domain.Customer]{
		commands.NewDeclareBillingDue(ada, nov),
		commands.NewRecordChargeOutcome(ada, nov, 1, 1, news(domain.Paid)),
	} {
		other := dispatcherOn(t, d.Log().Pool())
		if again.Name() == "declare-billing-due" {
			dispatch(t, other, commands.NewActivateSubscription(ada, usd49, monthly))
		}
		dispatch(t, other, again)
		u, end := unit(t, d, ada)
		if _, err := u.DispatchNew(t.Context(), meta, commands.Of(again)); !errors.Is(err, eventstore.ErrRaced) {
			t.Errorf("%s: %v", again.Name(), err)
		}
		end(false)
	}
	if _, err := d.Log().Pool().Exec(t.Context(), `UPDATE command_keys SET fingerprint = 'otherwise' WHERE command = 'record-charge-outcome'`); err != nil {
		t.Fatal(err)
	}
	u, end = unit(t, d, ada)
	if _, err := u.DispatchNew(t.Context(), meta, commands.Of(commands.NewRecordChargeOutcome(ada, nov, 1, 1, news(domain.Paid)))); !errors.Is(err, eventstore.ErrRaced) {
		t.Errorf("used for something else: %v", err)
	}
	end(false)
}

// Each command of a unit has metadata of its own.
func TestUnitMetadata(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	u, end := unit(t, d, ada)
	causes := []string{"17-1", "17-2"}
	_, err := u.DispatchEach(t.Context(), requests(commands.NewRegisterCustomer(ada, "cus_1", "pm_1"), commands.NewChargeBilling(ada, nov, usd49)),
		func(i int) eventstore.Meta { return eventstore.Meta{Actor: "saga", Causation: causes[i]} })
	if err != nil {
		t.Fatal(err)
	}
	end(true)
	events, err := d.Log().Load(t.Context(), d.Log().Pool(), ada.Stream(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, string(e.Metadata))
	}
	if want := []string{`{"actor":"saga","causation":"17-1"}`, `{"actor":"saga","causation":"17-2"}`}; !reflect.DeepEqual(got, want) {
		t.Errorf("metadata %q, want %q", got, want)
	}
}
