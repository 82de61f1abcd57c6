package commands_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// decade is a customer's facts of ten years: every month falls due, is asked
// for, begun, given an intent and paid, on time or at the second attempt.
func decade(c domain.CustomerID) []domain.Event {
	facts := []domain.Event{
		domain.CustomerRegistered{CustomerID: c, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
		domain.SubscriptionActivated{CustomerID: c, Money: usd49, Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC", StartsOn: domain.Date{Year: 2020, Month: 1, Day: 1}},
	}
	for month := range 120 {
		p := domain.PeriodOf(domain.Monthly, 2020+month/12, month%12+1)
		facts = append(facts, domain.MonthlyBillingDue{CustomerID: c, BillingPeriod: p, DueAt: monthly.DueAt(p), Money: usd49})
		attempt := 1
		if month%12 == 11 {
			facts = append(facts, tried(c, p, attempt, "pi_no")...)
			facts = append(facts, domain.ChargeDeclined{CustomerID: c, BillingPeriod: p, Attempt: attempt, ChargeID: "ch_no", Code: "card_declined", DeclineCode: "insufficient_funds", Class: domain.Soft})
			attempt++
		}
		facts = append(facts, tried(c, p, attempt, fmt.Sprint("pi_", month))...)
		facts = append(facts, domain.CustomerBilled{
			CustomerID: c, BillingPeriod: p, Attempt: attempt, ChargeID: fmt.Sprint("ch_", month), IntentID: fmt.Sprint("pi_", month), Money: usd49, Source: domain.SourceAnswer,
		})
	}
	return facts
}

func tried(c domain.CustomerID, p domain.Period, attempt int, intent string) []domain.Event {
	return []domain.Event{
		domain.ChargeRequested{CustomerID: c, BillingPeriod: p, Attempt: attempt, Key: domain.ChargeKey(c, p, attempt), Money: usd49, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
		domain.ChargeAttemptStarted{CustomerID: c, BillingPeriod: p, Attempt: attempt, Start: 1},
		domain.ChargeIntentCommitted{CustomerID: c, BillingPeriod: p, IntentID: intent, IntentNo: 1},
	}
}

func given(t testing.TB, d *commands.Dispatcher, c domain.CustomerID, facts []domain.Event) {
	t.Helper()
	if _, err := d.Log().Append(t.Context(), eventstore.Batch{Stream: c.Stream(), Command: "import", Events: facts}); err != nil {
		t.Fatal(err)
	}
}

// What is kept in the process has a bound in bytes, whatever is asked; what was
// let go of is read again, and nobody can tell.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t)
	const most = 100_000
	d.KeepAtMost(most)
	long := decade("any")
	for i := range 12 {
		c := domain.CustomerID(fmt.Sprint("c", i))
		given(t, d, c, decade(c)[:min(2+55*i, len(long))]) // the last of them share the room with few
	}
	given(t, d, "huge", append(decade("huge"), decade("huge")[2:]...))
	random := rand.New(rand.NewPCG(7, 1))
	mostStreams := 0
	for range 300 {
		c := domain.CustomerID(fmt.Sprint("c", random.IntN(12)))
		if random.IntN(10) == 0 {
			c = "huge"
		}
		if got, err := d.Customer(t.Context(), c); err != nil || got.ID() != c {
			t.Fatalf("%s: %v, %v", c, got.ID(), err)
		}
		streams, bytes, counted := d.Kept()
		if bytes > most || bytes != counted {
			t.Fatalf("%d states of %d bytes are kept, counted as %d", streams, bytes, counted)
		}
		mostStreams = max(mostStreams, streams)
	}
	if mostStreams < 2 {
		t.Errorf("at most %d states are kept at once", mostStreams)
	}
	d.Forget()
	if streams, bytes, counted := d.Kept(); streams+bytes+counted != 0 {
		t.Errorf("after forgetting %d states of %d bytes, counted as %d", streams, bytes, counted)
	}
}

// A run of a hundred thousand customers takes no more memory than one of fifty
// thousand: the bytes that are counted are about those that are taken, though
// each state was read out of a far larger event.
func TestMemoryIsFlat(t *testing.T) { // alone: it measures what the process takes
	d := commands.Keeper()
	taken := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := taken()
	decoded := func(text string) string { return string([]byte(text)) } // as JSON gives it: a copy of its own
	for n := range 100_000 {
		c := domain.CustomerID(decoded(fmt.Sprintf("customer-%06d", n)))
		var state domain.Customer
		facts := []domain.Event{
			domain.CustomerRegistered{CustomerID: c, StripeCustomerID: decoded("cus_0123456789abcd"), PaymentMethodID: decoded("pm_0123456789abcdef01234567")},
			domain.SubscriptionActivated{CustomerID: c, Money: usd49, Cadence: domain.Monthly, AnchorDay: 1, TimeZone: decoded("UTC"), StartsOn: domain.Date{Year: 2020, Month: 1, Day: 1}},
		}
		for _, e := range append(facts, tried(c, domain.PeriodOf(domain.Monthly, 2026, 12), 1, decoded("pi_0123456789abcdef01234567"))...) {
			state = state.Evolve(e)
		}
		row := make([]byte, 900)
		d.Keep(state, eventstore.Head{Version: 5, Digest: row[868:]})
		if n == 0 || n%25_000 != 0 {
			continue
		}
		if grown := taken() - before; grown > commands.CacheMost*5/4 {
			t.Errorf("after %d customers %.1f MB are taken, %.1f are allowed", n, float64(grown)/1e6, float64(commands.CacheMost)/1e6)
		}
	}
	streams, bytes, _ := d.Kept()
	if grown := taken() - before; bytes < commands.CacheMost*9/10 || grown < bytes/2 || grown > commands.CacheMost*5/4 {
		t.Errorf("%d states count as %.1f MB and take %.1f", streams, float64(bytes)/1e6, float64(grown)/1e6)
	}
	t.Logf("%d states count as %.1f MB and take %.1f", streams, float64(bytes)/1e6, float64(taken()-before)/1e6)
	runtime.KeepAlive(d)
}

// Two processes decide on one stream at once and know nothing of each other but
// by the log: a state that has grown stale costs another decision. What each
// keeps in the end is what the log says, and the log says nothing that one of
// them alone could not have decided.
func TestTwoProcessesOnOneStream(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	replicas := []*commands.Dispatcher{dispatcherOn(t, pool), dispatcherOn(t, pool)}
	dispatch(t, replicas[0], commands.NewRegisterCustomer(ada, "cus_1", "pm_1"))
	dispatch(t, replicas[1], commands.NewActivateSubscription(ada, usd49, monthly))
	var working sync.WaitGroup
	for who, d := range replicas {
		for worker := range 3 {
			random := rand.New(rand.NewPCG(uint64(who), uint64(worker)))
			working.Go(func() {
				for range 40 {
					p := domain.PeriodOf(domain.Monthly, 2026, 1+random.IntN(12))
					var err error
					switch key := fmt.Sprint(who, worker, random.Int()); random.IntN(4) {
					case 0:
						_, err = d.Dispatch(t.Context(), commands.Of(commands.NewDeclareBillingDue(ada, p)), by)
					case 1:
						_, err = d.Dispatch(t.Context(), commands.Of(commands.NewChargeBilling(ada, p, usd49)), by)
					case 2:
						_, err = d.Dispatch(t.Context(), commands.Of(commands.NewSettleBilling(ada, p, "wire", domain.Key(key))), by)
					case 3:
						_, err = d.Dispatch(t.Context(), commands.Of(commands.NewWriteOffBilling(ada, p, "gone", domain.Key(key))), by)
					}
					if _, refused := errors.AsType[*domain.Error](err); err != nil && !refused && !errors.Is(err, commands.ErrContended) {
						t.Errorf("process %d: %v", who, err)
					}
				}
			})
		}
	}
	working.Wait()
	truth, err := dispatcherOn(t, pool).Customer(t.Context(), ada)
	if err != nil {
		t.Fatal(err)
	}
	for who, d := range replicas {
		if got, err := d.Customer(t.Context(), ada); err != nil || !reflect.DeepEqual(got, truth) {
			t.Errorf("process %d keeps another customer than the log has: %v", who, err)
		}
	}
	events, err := replicas[0].Log().Load(t.Context(), pool, ada.Stream(), 0)
	if err != nil {
		t.Fatal(err)
	}
	ended := map[domain.Period]string{}
	for i, e := range events {
		if e.Version != i+1 {
			t.Errorf("event %d has version %d", i+1, e.Version)
		}
		_, p, about := domain.BillOf(e.Event)
		if !about {
			continue
		}
		if by, over := ended[p]; over {
			t.Errorf("%s follows %s for %s", e.Type, by, p)
		}
		switch e.Event.(type) {
		case domain.BillSettled, domain.BillWrittenOff:
			ended[p] = e.Type
		}
	}
	if len(ended) == 0 {
		t.Error("no bill has ended: nothing was tried")
	}
}

// BenchmarkTenYears reads the state of a customer of ten years, kept in the
// process and not, beside that of a customer of one year.
func BenchmarkTenYears(b *testing.B) {
	d := newDispatcher(b)
	facts := decade("old")
	given(b, d, "old", facts)
	given(b, d, "young", decade("young")[:2+12*5+4])
	if _, err := d.Log().Pool().Exec(b.Context(), `ANALYZE`); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		id   domain.CustomerID
		kept bool
	}{{"one-year", "young", false}, {"ten-years", "old", false}, {"one-year-kept", "young", true}, {"ten-years-kept", "old", true}} {
		b.Run(c.name, func(b *testing.B) {
			n := 0
			start := time.Now()
			for b.Loop() {
				if !c.kept {
					d.Forget()
				}
				if s, err := d.Customer(b.Context(), c.id); err != nil || !s.Registered() {
					b.Fatal(err)
				}
				n++
			}
			fmt.Printf("bench: state-%s %.2f ms\n", c.name, time.Since(start).Seconds()*1000/float64(n))
		})
	}
	var before, after runtime.MemStats
	states := make([]domain.Customer, 100)
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range states {
		for _, e := range facts {
			states[i] = states[i].Evolve(e)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	fmt.Printf("bench: state-of-%d-events %d bytes\n", len(facts), (after.HeapAlloc-before.HeapAlloc)/uint64(len(states)))
	runtime.KeepAlive(states)
}
