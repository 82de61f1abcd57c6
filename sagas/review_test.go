package sagas_test

import (
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// TestReviewIsReleased: Stripe did not know the intent because the key was of
// another account. As long as that is so, a release changes nothing and sends
// nothing; once it is repaired, the bill is collected, once.
func TestReviewIsReleased(t *testing.T) {
	r := newRig(t)
	r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: sim.DropBeforeCommit})
	wrong := r.fault(sim.Fault{Match: sim.Match{Method: "GET", Path: "/v1/payment_intents/*"}, Kind: sim.Error404, Times: -1})
	s := r.start(options{})
	s.owe("acme")
	r.awaitState("acme", november, "needs_review")
	confirms := len(r.confirms())
	s.must(commands.Of(commands.NewReleaseBilling("acme", november, "the key is right", "op-1")))
	r.eventually("it needs review again", func() bool {
		return r.facts("acme", "charge.needs_review.v1") == 2 && r.state("acme", november) == "needs_review"
	})
	if n := len(r.confirms()); n != confirms {
		t.Errorf("%d confirms were sent on an operator's word", n-confirms)
	}
	r.stripe.ClearFaults(wrong)
	s.must(commands.Of(commands.NewReleaseBilling("acme", november, "now it is", "op-2")))
	r.once(november, "acme")
}

// TestReviewIsEnded: settling and writing off end a bill that needs review. If
// its intent is there it is cancelled at Stripe first; one that Stripe does not
// know can take nothing. A success that Stripe shows then is recorded instead.
func TestReviewIsEnded(t *testing.T) {
	for name, known := range map[string]bool{"the intent is there": true, "the intent is not known": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: sim.DropBeforeCommit})
			wrong := r.fault(sim.Fault{Match: sim.Match{Path: "/v1/payment_intents/*"}, Kind: sim.Error404, Times: -1})
			cancels := r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/cancel"}, Kind: sim.Error404, Times: -1})
			s := r.start(options{})
			s.owe("acme")
			r.awaitState("acme", november, "needs_review")
			if known {
				r.stripe.ClearFaults(wrong)
				r.stripe.ClearFaults(cancels)
			}
			s.must(commands.Of(commands.NewSettleBilling("acme", november, "wire 77", "op-1")))
			r.awaitState("acme", november, "void")
			if n := r.facts("acme", "bill.settled.v1"); n != 1 {
				t.Errorf("%d settled facts", n)
			}
			if n := r.stripe.Counters().Cancels; known && n != 1 || r.charged("acme", november) != 0 {
				t.Errorf("%d cancels, %d charges", n, r.charged("acme", november))
			}
		})
	}
	t.Run("a success is recorded", func(t *testing.T) {
		r := newRig(t)
		r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: sim.CommitThenDrop})
		wrong := r.fault(sim.Fault{Match: sim.Match{Method: "GET", Path: "/v1/payment_intents/*"}, Kind: sim.Error404, Times: -1})
		s := r.start(options{})
		s.owe("acme")
		r.awaitState("acme", november, "needs_review")
		r.stripe.ClearFaults(wrong)
		s.must(commands.Of(commands.NewWriteOffBilling("acme", november, "uncollectible", "op-1")))
		r.once(november, "acme")
		if n := r.facts("acme", "bill.written_off.v1"); n != 0 {
			t.Errorf("%d facts write off what is paid", n)
		}
	})
}

// TestClosingMeetsAMissingIntent: a decline is settled, and Stripe does not know
// the intent that is to be cancelled. That needs review, without a storm of
// calls; settled again in view of it, the bill ends.
func TestClosingMeetsAMissingIntent(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.register("pm_sim_declines_insufficient_funds", "acme")
	s.charge("acme", november)
	r.awaitState("acme", november, "declined")
	r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/cancel"}, Kind: sim.Error404, Times: -1})
	s.must(commands.Of(commands.NewSettleBilling("acme", november, "wire 77", "op-1")))
	r.awaitState("acme", november, "needs_review")
	s.must(commands.Of(commands.NewSettleBilling("acme", november, "wire 77", "op-2")))
	r.awaitState("acme", november, "void")
	if n := r.facts("acme", "bill.settled.v1"); n != 1 {
		t.Errorf("%d settled facts", n)
	}
}

// TestChargesReview: a legacy charge past its window is never sent again on an
// operator's word. It can be ended; and one that is found after all, by its
// markers, is recorded by the comparison of the books.
func TestChargesReview(t *testing.T) {
	review := func(t *testing.T) (*rig, *service) {
		r := newRig(t)
		r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/charges"}, Kind: sim.DropBeforeCommit, Times: -1})
		wrap, frozen, thaw := freezeOnce(t, "after", "confirm")
		first := r.start(options{gateway: func(g sagas.Gateway) sagas.Gateway { return wrap(r.byCharges(g)) }})
		first.owe("acme")
		<-frozen
		r.stripe.Advance(25 * time.Hour)
		s := r.start(options{gateway: r.byCharges})
		r.awaitState("acme", november, "needs_review")
		thaw()
		return r, s
	}
	t.Run("released, then written off", func(t *testing.T) {
		r, s := review(t)
		posts := r.chargePosts()
		s.must(commands.Of(commands.NewReleaseBilling("acme", november, "look again", "op-1")))
		r.eventually("it needs review again", func() bool {
			return r.facts("acme", "charge.needs_review.v1") == 2 && r.state("acme", november) == "needs_review"
		})
		s.must(commands.Of(commands.NewWriteOffBilling("acme", november, "uncollectible", "op-2")))
		r.awaitState("acme", november, "void")
		if n := r.chargePosts(); n != posts || r.charged("acme", november) != 0 {
			t.Errorf("%d charges were sent, %d taken", n-posts, r.charged("acme", november))
		}
	})
	t.Run("found after all", func(t *testing.T) {
		r, s := review(t)
		m := r.plant(sim.Plant{Customer: "cus_acme", Metadata: markers("acme", november)})
		if v := s.desk(nil).books(t, sagas.Scope{Period: november}); v.Unrecorded != 1 || v.Repaired != 1 || v.Unrepaired != 0 {
			t.Errorf("the comparison found %+v", v)
		}
		r.awaitState("acme", november, "succeeded")
		if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND payload->>'charge_id' = $1 AND payload->>'recovered' = 'true'`, m.Charge); n != 1 {
			t.Errorf("%d facts say that %s paid it", n, m.Charge)
		}
	})
}

// TestRefundThatDiffers: a restored log asks anew, with another amount, for a
// refund that Stripe holds under this name. Nothing is sent, the books show it
// until an operator lets it stand, and then it is a refund as any other.
func TestRefundThatDiffers(t *testing.T) {
	r := newRig(t)
	s := r.paidBill("acme")
	gateway := r.gateway()
	lost := sagas.RefundOrder{CustomerID: "acme", Period: november, RefundID: "r1", ChargeID: r.stripe.Ledger()[0].Charge, Amount: usd(3000)}
	if o := gateway.Refund(t.Context(), lost); o.State != domain.RefundStateSucceeded {
		t.Fatalf("the refund of the lost days: %+v", o)
	}
	s.giveBack("acme", "r1", 2000)
	s.refundingBy(gateway)
	s.awaitRefund("acme", "r1", domain.RefundStateReview)
	d := s.desk(nil)
	v := d.books(t, sagas.Scope{Period: november})
	if v.Mismatches != 1 || v.Unrepaired != 1 {
		t.Errorf("the books show %+v", v)
	}
	for _, f := range d.findings(t, v.ID) {
		if f.Kind != sagas.DifferenceRefund || f.Amount != usd(3000) || f.Detail != "refund r1 of $20.00 is another one at Stripe: Stripe gives back $30.00 of "+lost.ChargeID+"; asked for was $20.00 of "+lost.ChargeID {
			t.Errorf("found is %+v", f)
		}
		if _, err := d.reconcile.Dismiss(t.Context(), f.Kind, f.Subject, "it is fine", "op"); !is(err, sagas.ErrNotDismissible) {
			t.Errorf("it is dismissed: %v", err)
		}
	}
	s.must(commands.Of(commands.NewAcceptRefund("acme", november, "r1", "agreed", "op-1")))
	s.awaitRefund("acme", "r1", domain.RefundStateSucceeded)
	if v := d.books(t, sagas.Scope{Period: november}); v.Unrepaired != 0 {
		t.Errorf("afterwards the books show %+v", v)
	}
	if back := r.back("acme"); back != 3000 || r.refundPosts() != 1 {
		t.Errorf("%d went back in %d requests", back, r.refundPosts())
	}
	if _, err := s.send(commands.Of(commands.NewRefundCharge("acme", november, "r2", 2001, ""))); !is(err, domain.ErrRefundExceeds) {
		t.Errorf("more than what is left: %v", err)
	}
}
