package commands_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

var by = commands.Context{Meta: eventstore.Meta{Actor: "tester", Correlation: "c-1"}}

func dispatch(t testing.TB, d *commands.Dispatcher, c commands.Command[domain.Customer]) eventstore.Receipt {
	t.Helper()
	receipt, err := d.Dispatch(t.Context(), commands.Of(c), by)
	if err != nil {
		t.Fatalf("%s: %v", c.Name(), err)
	}
	return receipt
}

// stream is a customer's events as they stand in the log; their chain holds.
func stream(t testing.TB, d *commands.Dispatcher, c domain.CustomerID) (names []string) {
	t.Helper()
	events, err := d.Log().Load(t.Context(), d.Log().Pool(), c.Stream(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var previous []byte
	for i, e := range events {
		if e.Version != i+1 || !e.ChainedTo(previous) {
			t.Errorf("%s: the chain breaks at version %d", c, i+1)
		}
		previous = e.Digest
		names = append(names, e.Type)
	}
	return names
}

func TestDispatch(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	register, charge := commands.NewRegisterCustomer(ada, "cus_1", "pm_1"), commands.NewChargeBilling(ada, nov, usd49)

	// A refusal is not remembered: the same command succeeds once it may.
	if _, err := d.Dispatch(t.Context(), commands.Of(charge), by); !errors.Is(err, domain.ErrUnknownCustomer) {
		t.Errorf("a charge of nobody: %v", err)
	}
	first := dispatch(t, d, register)
	if first.Replayed || first.Version != 1 || first.Key != "register-customer/ada" || first.Command != "register-customer" || first.Stream != "customer/ada" || len(first.Events) != 1 || first.Events[0].Type != "customer.registered.v1" {
		t.Errorf("the receipt is %+v", first)
	}
	asked := dispatch(t, d, charge)
	if asked.Replayed || asked.Version != 2 || asked.Key != domain.ChargeKey(ada, nov, 1) {
		t.Errorf("the receipt is %+v", asked)
	}

	// The same again: the old receipt.
	for what, c := range map[string]struct {
		command commands.Command[domain.Customer]
		want    eventstore.Receipt
	}{"register": {register, first}, "charge": {charge, asked}} {
		c.want.Replayed = true
		if again := dispatch(t, d, c.command); !reflect.DeepEqual(again, c.want) {
			t.Errorf("%s again: %+v, want %+v", what, again, c.want)
		}
	}

	// Something else under the same key.
	for _, other := range []commands.Command[domain.Customer]{
		commands.NewRegisterCustomer(ada, "cus_2", "pm_1"), commands.NewChargeBilling(ada, nov, usd59), commands.NewChargeBilling(ada, nov, eur49),
	} {
		if _, err := d.Dispatch(t.Context(), commands.Of(other), by); !errors.Is(err, domain.ErrKeyReused) {
			t.Errorf("%+v: %v", other, err)
		}
	}
	if names := stream(t, d, ada); len(names) != 2 {
		t.Errorf("ada's stream is %q", names)
	}

	// A command without a key is for transactions only.
	if _, err := d.Dispatch(t.Context(), commands.Of(commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 1}), by); err == nil {
		t.Error("a command without a key was dispatched")
	}
}

// That nothing had to happen is remembered: the answer stays what it was.
func TestNothingToDoIsRemembered(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	dispatch(t, d, commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	same := commands.NewChangePaymentMethod(ada, "pm_1", time.Time{}, "k1")
	nothing := dispatch(t, d, same)
	if nothing.Replayed || nothing.Version != 1 || len(nothing.Events) != 0 || nothing.Events == nil {
		t.Errorf("the receipt is %+v", nothing)
	}
	dispatch(t, d, commands.NewChangePaymentMethod(ada, "pm_2", time.Time{}, "k2"))
	nothing.Replayed = true
	if again := dispatch(t, d, same); !reflect.DeepEqual(again, nothing) {
		t.Errorf("again: %+v, want %+v", again, nothing)
	}
	c, err := d.Customer(t.Context(), ada)
	if err != nil || c.PaymentMethodID() != "pm_2" {
		t.Errorf("the method is %s, %v", c.PaymentMethodID(), err)
	}
}

// The header of a caller is remembered with the command's facts, and not if
// the command is refused.
func TestHeaderIsRememberedWithTheFacts(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	under := func(actor string, header domain.Key, body string) commands.Context {
		return commands.Context{Meta: eventstore.Meta{Actor: actor}, Request: &eventstore.RequestKey{Actor: actor, Key: header, BodyDigest: []byte(body)}}
	}
	register := commands.Of(commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	charge := commands.Of(commands.NewChargeBilling(ada, nov, usd49))
	if _, err := d.Dispatch(t.Context(), charge, under("ops", "h1", "charge")); !errors.Is(err, domain.ErrUnknownCustomer) {
		t.Fatal(err)
	}
	if _, err := d.Dispatch(t.Context(), register, under("ops", "h1", "register")); err != nil {
		t.Errorf("a refused command used its header up: %v", err)
	}
	if _, err := d.Dispatch(t.Context(), charge, under("ops", "h1", "charge")); !errors.Is(err, domain.ErrKeyReused) {
		t.Errorf("another command under a used header: %v", err)
	}
	if receipt, err := d.Dispatch(t.Context(), register, under("ops", "h1", "register")); err != nil || !receipt.Replayed {
		t.Errorf("the same again: %+v, %v", receipt, err)
	}
	if receipt, err := d.Dispatch(t.Context(), charge, under("web", "h1", "charge")); err != nil || receipt.Replayed {
		t.Errorf("the same header of somebody else: %+v, %v", receipt, err)
	}
}

// Three processes, fifty equal commands at once: one event, one answer.
func TestEqualCommandsAtOnce(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	replicas := []*commands.Dispatcher{d, dispatcherOn(t, pgtest.Connect(t, pgtest.DSN(t), 8)), dispatcherOn(t, pgtest.Connect(t, pgtest.DSN(t), 8))}
	dispatch(t, d, commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	charge := commands.Of(commands.NewChargeBilling(ada, nov, usd49))
	receipts := make(chan eventstore.Receipt, 50)
	start := make(chan struct{})
	var dispatching sync.WaitGroup
	for i := range 50 {
		dispatching.Go(func() {
			<-start
			receipt, err := replicas[i%3].Dispatch(t.Context(), charge, by)
			if err != nil {
				t.Error(err)
			}
			receipts <- receipt
		})
	}
	close(start)
	dispatching.Wait()
	close(receipts)
	var first *eventstore.Receipt
	fresh := 0
	for r := range receipts {
		if !r.Replayed {
			fresh++
		}
		r.Replayed = false
		if first == nil {
			first = &r
		}
		if !reflect.DeepEqual(r, *first) {
			t.Errorf("receipts differ: %+v and %+v", r, *first)
		}
	}
	if names := stream(t, d, ada); fresh != 1 || len(names) != 2 {
		t.Errorf("%d answers are no replay; the stream is %q", fresh, names)
	}
}

// Replicas know nothing of each other's appends until they look: what one
// remembers of a customer is never taken for what is.
func TestStaleMemoryDecidesNothing(t *testing.T) {
	t.Parallel()
	a := newDispatcher(t)
	b := dispatcherOn(t, a.Log().Pool())
	dispatch(t, a, commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	dispatch(t, b, commands.NewActivateSubscription(ada, usd49, monthly))
	dispatch(t, a, commands.NewDeclareBillingDue(ada, nov)) // a had not seen the subscription
	dispatch(t, b, commands.NewChargeBilling(ada, nov, usd49))
	dispatch(t, a, commands.NewSettleBilling(ada, nov, "wire 7", "k1"))
	if _, err := b.Dispatch(t.Context(), commands.Of(commands.NewWriteOffBilling(ada, nov, "gone", "k2")), by); !errors.Is(err, domain.ErrBillClosed) {
		t.Errorf("b wrote off what a had settled: %v", err)
	}
	for _, d := range []*commands.Dispatcher{a, b} {
		c, err := d.Customer(t.Context(), ada)
		if bill, _ := c.Bill(nov); err != nil || bill.Status != domain.BillSettledStatus {
			t.Errorf("the bill is %s, %v", bill.Status, err)
		}
	}
	states, broken, err := b.Customers(t.Context(), b.Log().Pool(), []domain.CustomerID{ada, bob, ada})
	if err != nil || len(broken) != 0 || len(states) != 2 || !states[ada].Registered() || states[bob].Registered() {
		t.Errorf("together: %+v, %v, %v", states, broken, err)
	}
	stream(t, a, ada)
}

// A log that was taken back to an earlier state, as by a restore, is the truth
// also for a process that remembers more.
func TestMemoryAfterARestore(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	dispatch(t, d, commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	dispatch(t, d, commands.NewChargeBilling(ada, oct, usd49))
	for _, table := range []string{"events", "command_keys"} {
		column := map[string]string{"events": "stream_version", "command_keys": "last_version"}[table]
		if _, err := d.Log().Pool().Exec(t.Context(), `DELETE FROM `+table+` WHERE `+column+` > 1`); err != nil {
			t.Fatal(err)
		}
	}
	receipt := dispatch(t, d, commands.NewChargeBilling(ada, nov, usd49))
	if receipt.Version != 2 {
		t.Errorf("the charge is version %d", receipt.Version)
	}
	if names := stream(t, d, ada); len(names) != 2 {
		t.Errorf("the stream is %q", names)
	}
}

// An event that this build cannot read stops every decision on its stream, and
// on no other.
func TestUnreadableEventStopsDecisions(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	for _, c := range []struct {
		id     domain.CustomerID
		name   string
		schema int
	}{{"future", "customer.promoted.v1", 1}, {"newer", "customer.payment_method_changed.v1", 2}} {
		dispatch(t, d, commands.NewRegisterCustomer(c.id, "cus_1", "pm_1"))
		_, err := d.Log().Pool().Exec(t.Context(), `INSERT INTO events (partition, stream_id, stream_version, event_type, schema_version, sequence_key, payload)
			VALUES ($1, $2, 2, $3, $4, $5, '{}')`, eventstore.PartitionOf(string(c.id)), string(c.id.Stream()), c.name, c.schema, string(c.id))
		if err != nil {
			t.Fatal(err)
		}
		for _, replica := range []*commands.Dispatcher{d, dispatcherOn(t, d.Log().Pool())} {
			_, err = replica.Dispatch(t.Context(), commands.Of(commands.NewChargeBilling(c.id, nov, usd49)), by)
			unknown, ok := errors.AsType[*eventstore.UnknownEvent](err)
			if !ok || unknown.Type != c.name || eventstore.Transient(err) {
				t.Errorf("%s: %v", c.id, err)
			}
			if _, refused := errors.AsType[*domain.Error](err); refused {
				t.Errorf("%s: told as a refusal: %v", c.id, err)
			}
			if _, err := replica.Customer(t.Context(), c.id); err == nil {
				t.Errorf("%s: half a customer was given out", c.id)
			}
			_, broken, err := replica.Customers(t.Context(), replica.Log().Pool(), []domain.CustomerID{c.id})
			if err != nil || broken[c.id] == nil {
				t.Errorf("%s: among many: %v, %v", c.id, broken, err)
			}
		}
		if receipt := dispatch(t, d, commands.NewRegisterCustomer(c.id, "cus_1", "pm_1")); !receipt.Replayed {
			t.Errorf("%s: a key seen before is answered %+v", c.id, receipt)
		}
	}
	if events, err := d.Log().Load(t.Context(), d.Log().Pool(), domain.CustomerID("future").Stream(), 0); err != nil || len(events) != 2 {
		t.Errorf("%d events, %v", len(events), err)
	}
	dispatch(t, d, commands.NewRegisterCustomer(bob, "cus_2", "pm_2"))
}

// The answer to the commit is lost, thirty times: the dispatch looks what
// became of it and answers the truth, and nothing is there twice.
func TestDispatchFindsOutAboutALostCommit(t *testing.T) {
	t.Parallel()
	direct := newDispatcher(t)
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	d := dispatcherOn(t, pgtest.Connect(t, proxy.DSN(), 4))
	for run := range 30 {
		c := domain.CustomerID(fmt.Sprintf("c%d", run))
		lost := proxy.DropServerToClientOnCommit("INSERT INTO events")
		receipt, err := d.Dispatch(t.Context(), commands.Of(commands.NewRegisterCustomer(c, "cus_1", "pm_1")), by)
		<-lost
		if err != nil || receipt.Version != 1 || len(receipt.Events) != 1 {
			t.Errorf("run %d: %+v, %v", run, receipt, err)
		}
		if names := stream(t, direct, c); len(names) != 1 {
			t.Errorf("run %d: %q", run, names)
		}
	}
}

// Many different commands for one customer at once: each is decided on what
// the others left.
func TestDifferentCommandsAtOnce(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	dispatch(t, d, commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	gateway := commands.Gateway{Dispatcher: d, Retry: commands.Interval{Most: 100}, Wait: func(context.Context, time.Duration) error { return nil }}
	var dispatching sync.WaitGroup
	p := oct
	for range 24 {
		p = p.Next()
		charge := commands.Of(commands.NewChargeBilling(ada, p, usd49))
		dispatching.Go(func() {
			if receipt, err := gateway.Send(t.Context(), charge, by); err != nil || receipt.Replayed {
				t.Errorf("%+v, %v", receipt, err)
			}
		})
	}
	dispatching.Wait()
	c, err := d.Customer(t.Context(), ada)
	if err != nil || c.Requested().Len() != 24 {
		t.Errorf("%d periods are requested, %v", c.Requested().Len(), err)
	}
	if names := stream(t, d, ada); len(names) != 25 {
		t.Errorf("%d events", len(names))
	}
}

// One customer, twelve months, on the log: twelve charges under twelve keys.
func TestTwelveMonths(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	dispatch(t, d, commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	dispatch(t, d, commands.NewActivateSubscription(ada, usd49, monthly))
	p := monthly.First()
	keys := map[domain.Key]bool{}
	for range 12 {
		dispatch(t, d, commands.NewDeclareBillingDue(ada, p))
		keys[dispatch(t, d, commands.NewChargeBilling(ada, p, usd49)).Key] = true
		dispatch(t, d, commands.NewRecordChargeOutcome(ada, p, 1, 1, domain.Outcome{
			Class: domain.Paid, ChargeID: "ch_" + p.String(), IntentID: "pi_" + p.String(), Money: usd49, Source: domain.SourceAnswer,
		}))
		p = p.Next()
	}
	c, err := d.Customer(t.Context(), ada)
	if err != nil || c.BilledPeriods().Len() != 12 || len(keys) != 12 {
		t.Errorf("%d billed under %d keys, %v", c.BilledPeriods().Len(), len(keys), err)
	}
	for p := range c.BilledPeriods().All() {
		if bill, _ := c.Bill(p); bill.ChargeID != "ch_"+p.String() || bill.Amount != usd49 {
			t.Errorf("%s: %+v", p, bill)
		}
	}
}

func TestDispatchGivesUpWithItsCaller(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Dispatch(ctx, commands.Of(commands.NewRegisterCustomer(ada, "cus_1", "pm_1")), by)
	if !errors.Is(err, context.Canceled) || eventstore.Transient(err) {
		t.Errorf("got %v", err)
	}
	if names := stream(t, d, ada); len(names) != 0 {
		t.Errorf("it left %q", names)
	}
}
