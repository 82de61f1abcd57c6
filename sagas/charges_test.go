package sagas_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// byCharges puts a gateway of legacy Charges in the place of the usual one.
func (r *rig) byCharges(sagas.Gateway) sagas.Gateway {
	g, err := stripegateway.New(stripegateway.Config{API: stripegateway.Charges, BaseURL: r.stripe.APIURL, Key: "sk_test_rig", Timeout: testTimeout, Log: r.log})
	if err != nil {
		r.t.Fatalf("open the gateway: %v", err)
	}
	r.t.Cleanup(g.Close)
	return g
}

// chargePosts counts the charges that were asked for.
func (r *rig) chargePosts() (n int) {
	for _, q := range r.stripe.Requests() {
		if q.Method == "POST" && q.Path == "/v1/charges" {
			n++
		}
	}
	return n
}

// TestChargesRoad bills by legacy Charges while answers are lost: each
// customer is charged once, without an intent.
func TestChargesRoad(t *testing.T) {
	r := newRig(t)
	r.fault(sim.Fault{Seed: 5, Rate: 0.4, Match: sim.Match{Method: "POST", Path: "/v1/charges"}, Kinds: []sim.Kind{
		sim.CommitThenDrop, sim.DropBeforeCommit, sim.TruncateBody, sim.Gateway502, sim.Gateway502AfterCommit, sim.RateLimit429, sim.KeyInUse409, sim.Error500AfterCommit,
	}})
	s := r.start(options{gateway: r.byCharges})
	ids := customers(20)
	s.owe(ids...)
	r.once(november, ids...)
	if c := r.stripe.Counters(); c.UnkeyedPOSTs != 0 || c.Mismatches != 0 || c.Confirms != 0 {
		t.Errorf("%+v", c)
	}
}

// TestChargesDeclineThenRetry: the second attempt has a key of its own, and its
// outcome is not confused with the first one's charge.
func TestChargesDeclineThenRetry(t *testing.T) {
	r := newRig(t)
	s := r.start(options{gateway: r.byCharges})
	s.register("pm_sim_declines_insufficient_funds", "acme")
	s.charge("acme", november)
	r.awaitState("acme", november, "declined")
	s.must(commands.Of(commands.NewChangePaymentMethod("acme", "pm_card_visa", time.Time{}, "op-1")))
	r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/charges"}, Kind: sim.CommitThenDrop})
	s.must(commands.Of(commands.NewRetryCharge("acme", november, 2, commands.StepManual)))
	r.once(november, "acme")
	if n := len(r.stripe.Ledger()); n != 2 {
		t.Errorf("%d attempts at the stand-in, want 2", n)
	}
}

// TestChargesSettledAfterADecline: there is nothing to cancel at Stripe, and the
// bill is closed all the same.
func TestChargesSettledAfterADecline(t *testing.T) {
	r := newRig(t)
	s := r.start(options{gateway: r.byCharges})
	s.register("pm_sim_declines_insufficient_funds", "acme")
	s.charge("acme", november)
	r.awaitState("acme", november, "declined")
	s.must(commands.Of(commands.NewSettleBilling("acme", november, "wire 77", "op-1")))
	r.awaitState("acme", november, "void")
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'bill.settled.v1'`); n != 1 {
		t.Errorf("%d settled facts, want 1", n)
	}
}

// TestChargesOfACancelledSubscription: the answer is lost and the subscription
// cancelled meanwhile. Nothing is sent again; once the quiet period is over and no
// charge is listed, the bill is void.
func TestChargesOfACancelledSubscription(t *testing.T) {
	r := newRig(t)
	r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/charges"}, Kind: sim.DropBeforeCommit})
	wrap, frozen, thaw := freezeOnce(t, "after", "confirm")
	s := r.start(options{gateway: func(g sagas.Gateway) sagas.Gateway { return wrap(r.byCharges(g)) }, lease: time.Minute})
	s.register("pm_card_visa", "acme")
	s.must(activate("acme"))
	<-frozen
	s.must(commands.Of(commands.NewCancelSubscription("acme", domain.CancelNow, "", time.Now(), "op-1")))
	thaw()
	r.awaitState("acme", november, "unknown")
	r.stripe.Advance(20 * time.Minute)
	r.awaitState("acme", november, "void")
	if n := r.chargePosts(); n != 1 {
		t.Errorf("%d charges were sent, want the lost one alone", n)
	}
}

// TestChargesPastTheirWindow: a charge whose key Stripe may have forgotten is
// never sent again. If it is found it is recorded, else a person decides.
func TestChargesPastTheirWindow(t *testing.T) {
	for _, c := range []struct {
		kind  sim.Kind
		delay time.Duration
		state string
	}{
		{sim.DropBeforeCommit, 0, "needs_review"},
		{sim.CommitThenDrop, 0, "succeeded"},
		{sim.Error500BeforeCommit, 0, "needs_review"},
		{sim.Error500RolledForward, 5 * time.Hour, "succeeded"},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			r := newRig(t)
			r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/charges"}, Kind: c.kind, Times: -1, Delay: c.delay})
			wrap, frozen, thaw := freezeOnce(t, "after", "confirm")
			first := r.start(options{gateway: func(g sagas.Gateway) sagas.Gateway { return wrap(r.byCharges(g)) }})
			first.owe("acme")
			<-frozen
			r.stripe.Advance(25 * time.Hour)
			r.stripe.ClearFaults("")
			r.stripe.ForgetKeys("")
			posts := r.chargePosts()
			r.start(options{gateway: r.byCharges})
			r.awaitState("acme", november, c.state)
			if c.state == "succeeded" {
				r.once(november, "acme")
			} else if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'charge.needs_review.v1' AND payload->>'reason' LIKE '%billing_key%'`); n != 1 || r.charged("acme", november) != 0 {
				t.Errorf("%d facts for a person, %d charges", n, r.charged("acme", november))
			}
			if now := r.chargePosts(); now != posts {
				t.Errorf("%d charges were sent under a key that is forgotten", now-posts)
			}
			thaw()
		})
	}
}

// TestChargesLightsOut freezes a replica around the one call for longer than its
// lease; another takes the bill over, and then the frozen one wakes up. After
// the window nothing is sent again, and what the frozen one brings in the end is
// recorded.
func TestChargesLightsOut(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, keys forgotten %t", when, late), func(t *testing.T) {
				r := newRig(t)
				wrap, frozen, thaw := freezeOnce(t, when, "confirm")
				first := r.start(options{gateway: func(g sagas.Gateway) sagas.Gateway { return wrap(r.byCharges(g)) }})
				first.owe("acme")
				<-frozen
				if late {
					r.stripe.Advance(25 * time.Hour)
				}
				r.start(options{gateway: r.byCharges})
				if late && when == "before" {
					r.awaitState("acme", november, "needs_review")
				} else {
					r.once(november, "acme")
				}
				thaw()
				first.stop()
				r.once(november, "acme")
			})
		}
	}
}

// TestRoadChangedInTheMiddle: a bill whose intent is committed stays with it
// when the service comes back configured for legacy Charges, and the other way
// round.
func TestRoadChangedInTheMiddle(t *testing.T) {
	for _, toCharges := range []bool{true, false} {
		t.Run(fmt.Sprintf("to charges %t", toCharges), func(t *testing.T) {
			r := newRig(t)
			wrap, frozen, thaw := freezeOnce(t, "after", "confirm")
			from, to := func(g sagas.Gateway) sagas.Gateway { return wrap(g) }, r.byCharges
			if !toCharges {
				from, to = func(g sagas.Gateway) sagas.Gateway { return wrap(r.byCharges(g)) }, func(g sagas.Gateway) sagas.Gateway { return g }
			}
			r.fault(sim.Fault{Match: sim.Match{Method: "POST"}, Kind: sim.CommitThenDrop, Times: 2})
			first := r.start(options{gateway: from})
			first.owe("acme")
			<-frozen
			r.start(options{gateway: to})
			r.once(november, "acme")
			thaw()
			first.stop()
			r.once(november, "acme")
		})
	}
}
