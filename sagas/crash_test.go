package sagas_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// hooked lets a test stand between the collector and Stripe: before and after
// each call. A hook that blocks is a process that was frozen, or killed, there.
type hooked struct {
	sagas.Gateway
	before, after func(call string, o sagas.Order)
}

func (h hooked) at(hook func(string, sagas.Order), call string, o sagas.Order) {
	if hook != nil {
		hook(call, o)
	}
}

func (h hooked) Prepare(ctx context.Context, o sagas.Order) sagas.Prepared {
	h.at(h.before, "create", o)
	defer h.at(h.after, "create", o)
	return h.Gateway.Prepare(ctx, o)
}

func (h hooked) Take(ctx context.Context, o sagas.Order) domain.Outcome {
	h.at(h.before, "confirm", o)
	defer h.at(h.after, "confirm", o)
	return h.Gateway.Take(ctx, o)
}

func (h hooked) Find(ctx context.Context, o sagas.Order) sagas.Finding {
	h.at(h.before, "find", o)
	defer h.at(h.after, "find", o)
	return h.Gateway.Find(ctx, o)
}

// freezeOnce blocks the first time a call reaches a point, until the returned
// function is called.
func freezeOnce(t *testing.T, when, call string) (wrap func(sagas.Gateway) sagas.Gateway, frozen <-chan struct{}, thaw func()) {
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	hook := func(at string) func(string, sagas.Order) {
		return func(c string, _ sagas.Order) {
			if at == when && c == call {
				once.Do(func() {
					close(reached)
					select {
					case <-release:
					case <-t.Context().Done(): // the test has failed; nothing may hang on it
					}
				})
			}
		}
	}
	thaw = sync.OnceFunc(func() { close(release) })
	t.Cleanup(thaw)
	return func(g sagas.Gateway) sagas.Gateway { return hooked{g, hook("before"), hook("after")} }, reached, thaw
}

// TestLightsOut freezes a replica at each point around the calls to Stripe,
// for longer than its lease. Another one takes the bill over; then the frozen
// one wakes up and goes on where it was. Whatever the order, the bill is
// charged once.
func TestLightsOut(t *testing.T) {
	for _, point := range []struct{ when, call string }{
		{"before", "create"}, // claimed, nothing sent
		{"after", "create"},  // created, id not committed
		{"before", "confirm"},
		{"after", "confirm"}, // taken, not recorded
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %s, keys forgotten %t", point.when, point.call, late), func(t *testing.T) {
				r := newRig(t)
				wrap, frozen, thaw := freezeOnce(t, point.when, point.call)
				first := r.start(options{gateway: wrap})
				first.owe("acme")
				<-frozen
				if late {
					r.stripe.Advance(25 * time.Hour)
				}
				r.start(options{})
				r.once(november, "acme")
				thaw()
				first.stop() // it finishes what it was doing first
				r.once(november, "acme")
			})
		}
	}
}

// TestLostAnswers loses answers of Stripe in every way there is, at both
// calls. Each bill is charged once, and found.
func TestLostAnswers(t *testing.T) {
	paths := map[string]string{"create": "/v1/payment_intents", "confirm": "/v1/payment_intents/*/confirm"}
	for _, kind := range []sim.Kind{
		sim.CommitThenDrop, sim.DropBeforeCommit, sim.DropBeforeRead, sim.TruncateBody, sim.TruncateHeaders,
		sim.DelayBeforeCommit, sim.DelayAfterCommit, sim.Hang, sim.CommitThenHang,
		sim.Gateway502, sim.Gateway503, sim.Gateway504, sim.Gateway502AfterCommit, sim.Gateway504AfterCommit,
		sim.Empty200, sim.Empty200AfterCommit, sim.HTML200, sim.HTML200AfterCommit, sim.Redirect307,
		sim.Error500NotStored, sim.RateLimit429, sim.LockTimeout429, sim.KeyInUse409, sim.Error500AfterCommit,
	} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			for call, path := range paths {
				f := sim.Fault{Match: sim.Match{Method: "POST", Path: path, Customer: "cus_" + call}, Kind: kind, Times: 3}
				switch kind {
				case sim.DropBeforeRead:
					f.Match.Customer = ""
				case sim.Redirect307:
					f.Location = r.stripe.APIURL + "/v1/elsewhere"
				case sim.DelayBeforeCommit, sim.DelayAfterCommit:
					f.Delay = testTimeout + testTimeout/2
				case sim.Error500AfterCommit, sim.Error500NotStored:
					f.Times = 1
				}
				if _, err := r.stripe.AddFault(f); err != nil {
					t.Fatal(err)
				}
			}
			s := r.start(options{})
			s.owe("create", "confirm")
			if kind == sim.Error500NotStored {
				// Nobody can tell it from one that is stored and rolled forward later.
				r.awaitState("confirm", november, "unknown")
				r.stripe.Advance(25 * time.Hour)
			}
			r.within(2*time.Minute, "both are charged", func() bool {
				return r.state("create", november) == "succeeded" && r.state("confirm", november) == "succeeded"
			})
			r.once(november, "create", "confirm")
			if n := r.stripe.Counters().Mismatches; n != 0 {
				t.Errorf("%d requests came with other parameters under a used key", n)
			}
			if n := r.count(`SELECT count(*) FROM events WHERE event_type IN ('charge.declined.v1', 'charge.rejected.v1')`); n != 0 {
				t.Errorf("%d bills count as declined or rejected", n)
			}
		})
	}
}

// TestStored500 meets a 500 that Stripe keeps under the key for a day: before
// anything happened, after the charge, and one that is rolled forward hours
// later.
func TestStored500(t *testing.T) {
	for _, kind := range []sim.Kind{sim.Error500BeforeCommit, sim.Error500RolledForward} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			f := sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/confirm"}, Kind: kind}
			if kind == sim.Error500RolledForward {
				f.Delay = 5 * time.Hour
			}
			if _, err := r.stripe.AddFault(f); err != nil {
				t.Fatal(err)
			}
			s := r.start(options{})
			s.owe("acme")
			r.awaitState("acme", november, "unknown")
			confirms := r.stripe.Counters().Confirms
			r.stripe.Advance(2 * time.Hour) // past the ordinary quiet period
			r.eventually("the intent was read again", func() bool {
				return r.count(`SELECT tries FROM billing_records WHERE customer_id = 'acme'`) >= 3
			})
			if now := r.stripe.Counters().Confirms; now != confirms {
				t.Errorf("%d confirms were sent while the 500 may still be rolled forward", now-confirms)
			}
			r.stripe.Advance(23 * time.Hour)
			r.once(november, "acme")
		})
	}
	t.Run("at the create", func(t *testing.T) {
		r := newRig(t)
		if _, err := r.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents"}, Kind: sim.Error500BeforeCommit}); err != nil {
			t.Fatal(err)
		}
		s := r.start(options{})
		s.owe("acme")
		r.once(november, "acme") // the next create has a key of its own; no day is lost
	})
}

// TestC004_KeyOlderThanItsLife is a charge whose answer was lost, found after
// Stripe has forgotten the key: by a read, without a single POST.
func TestC004_KeyOlderThanItsLife(t *testing.T) {
	r := newRig(t)
	if _, err := r.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/confirm"}, Kind: sim.CommitThenDrop, Times: -1}); err != nil {
		t.Fatal(err)
	}
	wrap, frozen, thaw := freezeOnce(t, "after", "confirm")
	s := r.start(options{gateway: wrap})
	s.owe("acme")
	<-frozen
	r.stripe.Advance(25 * time.Hour)
	posts := len(r.stripe.Requests())
	r.start(options{})
	r.once(november, "acme")
	for _, q := range r.stripe.Requests()[posts:] {
		if q.Method == "POST" {
			t.Errorf("a POST after the key was forgotten: %s", q.Path)
		}
	}
	thaw()
}

// TestConfigurationIsNotADecline: 401, 403 and 404 from Stripe hold a bill
// under its key; after the repair it is charged.
func TestConfigurationIsNotADecline(t *testing.T) {
	for _, kind := range []sim.Kind{sim.Error401, sim.Error403} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			id, err := r.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/confirm"}, Kind: kind, Times: -1})
			if err != nil {
				t.Fatal(err)
			}
			s := r.start(options{})
			s.owe("acme")
			r.awaitState("acme", november, "held")
			r.stripe.ClearFaults(id)
			r.release("acme")
			r.once(november, "acme")
		})
	}
}

// release lets rows be tried now instead of after their back-off.
func (r *rig) release(id domain.CustomerID) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), `UPDATE billing_records SET next_try_at = NULL WHERE customer_id = $1`, string(id)); err != nil {
		r.t.Fatal(err)
	}
}

// TestDeclineThenRetry: a decline rests; the next attempt has a new key on the
// same intent, and the same retry again does nothing.
func TestDeclineThenRetry(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.register("pm_sim_declines_n_2_insufficient_funds", "acme")
	s.charge("acme", november)
	r.awaitState("acme", november, "declined")
	retry := commands.Of(commands.NewRetryCharge("acme", november, 2, commands.StepManual))
	s.must(retry)
	if again := s.must(retry); !again.Replayed {
		t.Errorf("the same retry was not answered from its key: %+v", again)
	}
	r.once(november, "acme")
	keys, intents := map[string]bool{}, map[string]bool{}
	for _, m := range r.stripe.Ledger() {
		keys[m.Key], intents[m.Intent] = true, true
	}
	if len(keys) != 2 || len(intents) != 1 {
		t.Errorf("%d keys on %d intents; want 2 keys on 1 intent", len(keys), len(intents))
	}
	if _, err := s.send(commands.Of(commands.NewRetryCharge("acme", november, 3, commands.StepManual))); err == nil {
		t.Error("a paid bill took another retry")
	}
}

// TestSettleAndCancelAgainstTheCharge: closing goes through Stripe first.
func TestSettleAndCancelAgainstTheCharge(t *testing.T) {
	t.Run("settled after a decline", func(t *testing.T) {
		r := newRig(t)
		s := r.start(options{})
		s.register("pm_sim_declines_insufficient_funds", "acme")
		s.charge("acme", november)
		r.awaitState("acme", november, "declined")
		s.must(commands.Of(commands.NewSettleBilling("acme", november, "wire 77", "op-1")))
		r.awaitState("acme", november, "void")
		if n := r.stripe.Counters().Cancels; n != 1 {
			t.Errorf("%d cancels at Stripe, want 1", n)
		}
		if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'bill.settled.v1'`); n != 1 {
			t.Errorf("%d settled facts, want 1", n)
		}
	})
	t.Run("settled in flight is refused", func(t *testing.T) {
		r := newRig(t)
		wrap, frozen, thaw := freezeOnce(t, "before", "confirm")
		s := r.start(options{gateway: wrap, lease: time.Minute})
		s.owe("acme")
		<-frozen
		_, err := s.send(commands.Of(commands.NewSettleBilling("acme", november, "wire 77", "op-1")))
		if !is(err, domain.ErrChargeInFlight) {
			t.Errorf("settling a charge in flight: %v", err)
		}
		thaw()
		r.once(november, "acme")
	})
	t.Run("cancelled in flight, executed: recorded", func(t *testing.T) {
		r := newRig(t)
		wrap, frozen, thaw := freezeOnce(t, "after", "confirm")
		s := r.start(options{gateway: wrap, lease: time.Minute})
		s.register("pm_card_visa", "acme")
		s.must(activate("acme"))
		<-frozen
		s.must(commands.Of(commands.NewCancelSubscription("acme", domain.CancelNow, "", time.Now(), "op-1")))
		thaw()
		r.once(november, "acme")
		if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'charge.outcome_surprise.v1'`); n != 1 {
			t.Errorf("%d surprises, want 1", n)
		}
	})
	t.Run("cancelled before the charge starts: void, no call", func(t *testing.T) {
		r := newRig(t)
		s := r.start(options{noCollector: true})
		s.register("pm_card_visa", "acme")
		s.must(activate("acme"))
		r.awaitState("acme", november, "reserved")
		s.must(commands.Of(commands.NewCancelSubscription("acme", domain.CancelNow, "", time.Now(), "op-1")))
		r.start(options{})
		r.awaitState("acme", november, "void")
		if n := r.stripe.Counters().Creates; n != 0 {
			t.Errorf("%d intents were created for a void bill", n)
		}
	})
	t.Run("paused before the charge starts: waits, goes on when resumed", func(t *testing.T) {
		r := newRig(t)
		quiet := r.start(options{noCollector: true})
		quiet.register("pm_card_visa", "acme")
		quiet.must(activate("acme"))
		r.awaitState("acme", november, "reserved")
		quiet.must(commands.Of(commands.NewPauseSubscription("acme", "", time.Now(), "op-1")))
		r.start(options{})
		r.awaitState("acme", november, "waiting")
		quiet.must(commands.Of(commands.NewResumeSubscription("acme", time.Now(), "op-2")))
		r.once(november, "acme")
	})
}

func activate(id domain.CustomerID) commands.Request {
	return commands.Of(commands.NewActivateSubscription(id, usd(5000), domain.Schedule{
		Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "Europe/Berlin", StartsOn: domain.Date{Year: 2026, Month: 11, Day: 1},
	}))
}
