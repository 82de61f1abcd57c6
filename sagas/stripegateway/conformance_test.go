package stripegateway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// What every road must do that takes money behind [sagas.Gateway], whatever
// Stripe's objects are called on it. The stand-in's ledger is the judge.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, r := range []road{
		{api: PaymentIntents, take: "/v1/payment_intents/*/confirm"},
		{api: Charges, take: "/v1/charges"},
	} {
		t.Run(string(r.api), func(t *testing.T) {
			t.Parallel()
			for name, test := range map[string]func(*testing.T, road){
				"prepare moves no money": prepareMovesNoMoney, "one charge": oneCharge, "same key again": sameKeyAgain, "at once": atOnce,
				"decline": declineThenNext, "no method": noMethod, "lost after commit": lostAfterCommit, "lost before commit": lostBeforeCommit,
				"not executed": notExecuted, "in progress": inProgress, "stored 500 without a charge": stored500, "stored 500 with a charge": stored500AfterCommit,
				"500 rolled forward": rolledForward, "other parameters": otherParameters, "refused key": refusedKey, "cancel": cancelEnds, "list": listShows,
				"every fault": everyFault, "random faults": randomFaults, "long after": longAfter,
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, r)
				})
			}
		})
	}
}

// road is a way of taking money under test.
type road struct {
	api  API
	take string // where the POST goes that takes money
}

func (r road) standIn(t *testing.T, timeout time.Duration) *standIn {
	t.Helper()
	s := newStandIn(t, timeout)
	s.road = r.api
	return s
}

// lose adds a fault at the next POST that takes money.
func (r road) lose(t *testing.T, s *standIn, kind sim.Kind) {
	t.Helper()
	s.fault(t, sim.Fault{Kind: kind, Times: 1, Match: sim.Match{Method: http.MethodPost, Path: r.take}})
}

func prepareMovesNoMoney(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "prepare", "pm_card_visa")
	if again := s.Prepare(t.Context(), o); again.IntentID != o.IntentID {
		t.Errorf("prepared again: %+v", again)
	}
	f := s.Find(t.Context(), o)
	if f.State != sagas.IntentUnchanged || f.LatestCharge != "" || len(s.stripe.Ledger()) != 0 {
		t.Errorf("%+v, ledger %+v", f, s.stripe.Ledger())
	}
	s.keysAreSound(t)
}

func oneCharge(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "one", "pm_card_visa")
	out := s.Take(t.Context(), o)
	s.charged(t, o, out)
	f := s.Find(t.Context(), o)
	if f.State != sagas.IntentDecided || f.Outcome.ChargeID != out.ChargeID || f.LatestCharge != out.ChargeID || f.Outcome.Source != domain.SourceFind {
		t.Errorf("found %+v", f)
	}
	if m := s.stripe.Ledger()[0]; m.Key != string(o.ConfirmKey()) {
		t.Errorf("taken under %s, want %s", m.Key, o.ConfirmKey())
	}
	s.keysAreSound(t)
}

func sameKeyAgain(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "again", "pm_card_visa")
	first, second := s.Take(t.Context(), o), s.Take(t.Context(), o)
	if second.Class != domain.Paid || second.ChargeID != first.ChargeID || !strings.Contains(second.Evidence, "replayed=true") {
		t.Errorf("again: %+v, first %+v", second, first)
	}
	s.charged(t, o, second)
	s.keysAreSound(t)
}

func atOnce(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "atonce", "pm_card_visa")
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if out := s.Take(t.Context(), o); out.Class != domain.Paid && (out.Class != domain.Unknown || out.Code != "idempotency_key_in_use") {
				t.Errorf("got %+v", out)
			}
		})
	}
	wait.Wait()
	s.charged(t, o, s.Find(t.Context(), o).Outcome)
	s.keysAreSound(t)
}

func declineThenNext(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "decline", "pm_sim_declines_insufficient_funds")
	no := s.Take(t.Context(), o)
	if no.Class != domain.Declined || no.DeclineCode != "insufficient_funds" || no.ChargeID == "" {
		t.Fatalf("first attempt: %+v", no)
	}
	if again := s.Take(t.Context(), o); again.Class != domain.Declined || again.ChargeID != no.ChargeID {
		t.Errorf("the same key again: %+v", again)
	}
	found := s.Find(t.Context(), o)
	if found.State != sagas.IntentDecided || found.LatestCharge != no.ChargeID || found.Outcome.Class != domain.Declined ||
		found.Outcome.ChargeID != no.ChargeID || found.Outcome.Code != no.Code || found.Outcome.DeclineCode != no.DeclineCode {
		t.Errorf("found %+v, the answer was %+v", found, no)
	}
	next := o
	next.Attempt, next.LatestCharge, next.PaymentMethodID = 2, found.LatestCharge, "pm_card_visa"
	if f := s.Find(t.Context(), next); f.State != sagas.IntentUnchanged {
		t.Errorf("before the second attempt: %+v", f)
	}
	s.charged(t, next, s.Take(t.Context(), next))
	s.keysAreSound(t)
}

func noMethod(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	for _, method := range []string{"", "pm_card_nosuchcard"} {
		o := s.prepared(t, "nomethod", "pm_1")
		o.PaymentMethodID = method
		out := s.Take(t.Context(), o)
		if out.Class != domain.Declined || domain.ClassifyDecline(out.Code, out.DeclineCode) != domain.MethodMissing {
			t.Errorf("%q: %+v", method, out)
		}
	}
	if len(s.stripe.LedgerWhere(sim.LedgerFilter{Status: "succeeded"})) != 0 {
		t.Error("money moved")
	}
}

func lostAfterCommit(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	for _, kind := range []sim.Kind{sim.CommitThenDrop, sim.TruncateBody, sim.TruncateHeaders, sim.Empty200AfterCommit, sim.HTML200AfterCommit, sim.Gateway502AfterCommit, sim.Gateway504AfterCommit} {
		o := s.prepared(t, string(kind), "pm_card_visa")
		r.lose(t, s, kind)
		if out := s.Take(t.Context(), o); out.Class != domain.Unknown {
			t.Errorf("%s: %+v", kind, out)
		}
		f := s.Find(t.Context(), o)
		if f.State != sagas.IntentDecided {
			t.Errorf("%s: %+v", kind, f)
		}
		s.charged(t, o, f.Outcome)
		s.charged(t, o, s.Take(t.Context(), o)) // the same key brings it back too
	}
	s.keysAreSound(t)
}

func lostBeforeCommit(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	for _, kind := range []sim.Kind{sim.DropBeforeCommit, sim.Gateway502, sim.Gateway503, sim.Empty200, sim.HTML200, sim.Error500NotStored} {
		o := s.prepared(t, string(kind), "pm_card_visa")
		r.lose(t, s, kind)
		if out := s.Take(t.Context(), o); out.Class != domain.Unknown {
			t.Errorf("%s: %+v", kind, out)
		}
		if f := s.Find(t.Context(), o); f.State != sagas.IntentUnchanged {
			t.Errorf("%s: %+v", kind, f)
		}
		s.charged(t, o, s.Take(t.Context(), o))
	}
	s.keysAreSound(t)
}

func notExecuted(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	for kind, want := range map[sim.Kind]domain.OutcomeClass{
		sim.RateLimit429: domain.RetrySameKey, sim.LockTimeout429: domain.RetrySameKey,
		sim.Kind("401"): domain.Held, sim.Kind("403"): domain.Held, sim.Kind("404"): domain.Held,
	} {
		o := s.prepared(t, "no"+string(kind), "pm_card_visa")
		r.lose(t, s, kind)
		if out := s.Take(t.Context(), o); out.Class != want {
			t.Errorf("%s: %+v", kind, out)
		}
		s.charged(t, o, s.Take(t.Context(), o))
	}
}

func inProgress(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "progress", "pm_card_visa")
	r.lose(t, s, sim.KeyInUse409)
	if out := s.Take(t.Context(), o); out.Class != domain.Unknown || out.Code != "idempotency_key_in_use" {
		t.Errorf("%+v", out)
	}
	s.charged(t, o, s.Take(t.Context(), o))
}

func stored500(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "stored", "pm_card_visa")
	r.lose(t, s, sim.Error500BeforeCommit)
	for range 2 { // the key brings it back
		if out := s.Take(t.Context(), o); out.Class != domain.Unknown || out.QuietSeconds != quietStored {
			t.Errorf("%+v", out)
		}
	}
	s.stripe.Advance(25 * time.Hour)
	if f := s.Find(t.Context(), o); f.State != sagas.IntentUnchanged {
		t.Errorf("%+v", f)
	}
	if s.Mutex(o) { // only an object that succeeds once may be sent again
		o.Again = 1
		s.charged(t, o, s.Take(t.Context(), o))
	}
}

func stored500AfterCommit(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "stored", "pm_card_visa")
	r.lose(t, s, sim.Error500AfterCommit)
	if out := s.Take(t.Context(), o); out.Class != domain.Unknown || out.QuietSeconds != quietStored {
		t.Errorf("%+v", out)
	}
	f := s.Find(t.Context(), o)
	s.charged(t, o, f.Outcome)
}

func rolledForward(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "forward", "pm_card_visa")
	r.lose(t, s, sim.Error500RolledForward)
	if out := s.Take(t.Context(), o); out.Class != domain.Unknown || out.QuietSeconds != quietStored {
		t.Errorf("%+v", out)
	}
	if f := s.Find(t.Context(), o); f.State != sagas.IntentUnchanged {
		t.Errorf("before: %+v", f)
	}
	s.stripe.Advance(3 * time.Hour)
	s.charged(t, o, s.Find(t.Context(), o).Outcome)
}

func otherParameters(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "frozen", "pm_card_visa")
	s.charged(t, o, s.Take(t.Context(), o))
	changed := o
	changed.PaymentMethodID = "pm_other"
	if out := s.Take(t.Context(), changed); out.Class != domain.NeedsReview {
		t.Errorf("another method under the key: %+v", out)
	}
	// What stands at Stripe is another amount than the order's.
	dearer := o
	dearer.Amount.Minor++
	if f := s.Find(t.Context(), dearer); f.State != sagas.IntentDecided || f.Outcome.Class != domain.NeedsReview || !strings.Contains(f.Outcome.Reason, "amount") {
		t.Errorf("another amount: %+v", f)
	}
	s.charged(t, o, s.Find(t.Context(), o).Outcome)
}

func refusedKey(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "refused", "pm_card_visa")
	r.lose(t, s, sim.Kind("404_stored"))
	if out := s.Take(t.Context(), o); out.Class != domain.Held {
		t.Errorf("%+v", out)
	}
	if out := s.Take(t.Context(), o); out.Class != domain.Unknown || out.QuietSeconds != quietStored {
		t.Errorf("replayed: %+v", out)
	}
}

func cancelEnds(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	open := s.prepared(t, "open", "pm_card_visa")
	if f := s.Cancel(t.Context(), open, "requested_by_customer"); f.State != sagas.IntentCancelled {
		t.Errorf("open: %+v", f)
	}
	failed := s.prepared(t, "failed", "pm_sim_declines_lost_card")
	s.Take(t.Context(), failed)
	if f := s.Cancel(t.Context(), failed, "requested_by_customer"); f.State != sagas.IntentCancelled {
		t.Errorf("declined: %+v", f)
	}
	paid := s.prepared(t, "paid", "pm_card_visa")
	out := s.Take(t.Context(), paid)
	f := s.Cancel(t.Context(), paid, "requested_by_customer")
	if f.State != sagas.IntentDecided || f.Outcome.ChargeID != out.ChargeID || f.Outcome.Source != domain.SourceCancel {
		t.Errorf("paid: %+v", f)
	}
	s.charged(t, paid, f.Outcome)
	s.keysAreSound(t)
}

func listShows(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "list", "pm_card_visa")
	out := s.Take(t.Context(), o)
	page, err := s.List(t.Context(), sagas.Listing{Resource: "charges", PageSize: 10})
	if err != nil || len(page.Found) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	f := page.Found[0]
	if !f.Succeeded || f.ChargeID != out.ChargeID || f.IntentID != out.IntentID || f.BillingKey != o.Markers()["billing_key"] || f.Amount != o.Amount {
		t.Errorf("%+v, taken %+v", f, out)
	}
}

func everyFault(t *testing.T, r road) {
	eachFault(t, r.take, func(t *testing.T, f sim.Fault, timeout time.Duration) {
		s := r.standIn(t, timeout)
		s.fault(t, f)
		r.settles(t, s, billFor("fault", "pm_card_visa"))
		s.keysAreSound(t)
		if s.stripe.Faults()[0].Hits == 0 {
			t.Error("the fault did not strike")
		}
	})
}

// settles collects a bill and fails unless it was charged once and that is
// known, or, on a road whose key alone makes a charge one, it was not charged
// and is left to a person.
func (r road) settles(t *testing.T, s *standIn, o sagas.Order) {
	t.Helper()
	out, err := s.collect(t, &o)
	switch {
	case errors.Is(err, errReview) && !s.Mutex(o):
		if n := len(s.stripe.LedgerWhere(sim.LedgerFilter{Customer: o.StripeCustomerID, Status: "succeeded"})); n != 0 {
			t.Errorf("%s: left to a person with %d charges: %+v", o.CustomerID, n, out)
		}
	case err != nil:
		t.Errorf("%s: %v: %+v", o.CustomerID, err, out)
	default:
		s.charged(t, o, out)
	}
}

func randomFaults(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	s.fault(t, sim.Fault{Seed: 11, Rate: 0.35, Match: sim.Match{Method: http.MethodPost}, Kinds: []sim.Kind{
		sim.DropBeforeRead, sim.DropBeforeCommit, sim.CommitThenDrop, sim.TruncateBody, sim.TruncateHeaders, sim.Error500NotStored,
		sim.RateLimit429, sim.LockTimeout429, sim.KeyInUse409, sim.Gateway502, sim.Gateway503AfterCommit, sim.Gateway504, sim.Empty200AfterCommit, sim.HTML200,
	}})
	var wait sync.WaitGroup
	for i := range 60 {
		wait.Go(func() { r.settles(t, s, billFor(fmt.Sprintf("r%d", i), "pm_card_visa")) })
	}
	wait.Wait()
	s.keysAreSound(t)
}

// longAfter: an intent remembers for ever that it has succeeded; a charge is
// found for ever, which is all that keeps it one.
func longAfter(t *testing.T, r road) {
	s := r.standIn(t, 30*time.Second)
	o := s.prepared(t, "long", "pm_card_visa")
	first := s.Take(t.Context(), o)
	s.stripe.Advance(40 * 24 * time.Hour)
	s.stripe.ForgetKeys("")
	s.charged(t, o, s.Find(t.Context(), o).Outcome)
	if s.Mutex(o) {
		again := o
		again.Again = 1
		if out := s.Take(t.Context(), again); out.Class != domain.Paid || out.ChargeID != first.ChargeID {
			t.Errorf("%+v, first %+v", out, first)
		}
	}
	s.charged(t, o, first)
}
