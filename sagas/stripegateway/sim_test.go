package stripegateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// standIn is a gateway in front of the Stripe stand-in, whose ledger is the
// judge.
type standIn struct {
	*rig
	stripe *sim.Server
}

func newStandIn(t *testing.T, timeout time.Duration) *standIn {
	t.Helper()
	s, err := sim.Start(sim.Options{APIKeys: []string{apiKey}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &standIn{rig: rigAt(t, s.APIURL, timeout), stripe: s}
}

func (s *standIn) fault(t *testing.T, f sim.Fault) {
	t.Helper()
	if _, err := s.stripe.AddFault(f); err != nil {
		t.Fatal(err)
	}
}

// keysAreSound fails if a POST went without its key, or with one that had been
// used for something else.
func (s *standIn) keysAreSound(t *testing.T) {
	t.Helper()
	if c := s.stripe.Counters(); c.UnkeyedPOSTs != 0 || c.Mismatches != 0 || c.Unknown != 0 {
		t.Errorf("%d POSTs without a key, %d mismatches, %d unknown URLs", c.UnkeyedPOSTs, c.Mismatches, c.Unknown)
	}
}

// charged fails unless the ledger shows exactly one success for the order, of
// its amount and with its markers.
func (s *standIn) charged(t *testing.T, o sagas.Order, by domain.Outcome) {
	t.Helper()
	succeeded := s.stripe.LedgerWhere(sim.LedgerFilter{Customer: o.StripeCustomerID, Status: "succeeded"})
	if len(succeeded) != 1 {
		t.Fatalf("%s: %d charges succeeded: %+v", o.CustomerID, len(succeeded), succeeded)
	}
	m := succeeded[0]
	if m.Amount != o.Amount.Minor || m.Currency != string(o.Amount.Currency) || m.Metadata["billing_key"] != o.Markers()["billing_key"] {
		t.Errorf("charged %+v, want %+v", m, o)
	}
	if by.Class != domain.Paid || by.ChargeID != m.Charge || by.IntentID != m.Intent || by.Money != o.Amount {
		t.Errorf("recorded %+v, the ledger says %+v", by, m)
	}
}

func billFor(name, method string) sagas.Order {
	o := anOrder()
	o.CustomerID, o.StripeCustomerID, o.PaymentMethodID, o.IntentID = domain.CustomerID(name), "cus_"+name, method, ""
	return o
}

// prepared is an order with its intent committed.
func (s *standIn) prepared(t *testing.T, name, method string) sagas.Order {
	t.Helper()
	o := billFor(name, method)
	p := s.Prepare(t.Context(), o)
	if p.IntentID == "" {
		t.Fatalf("prepare: %+v", p)
	}
	o.IntentID, o.LatestCharge = p.IntentID, p.LatestCharge
	return o
}

// errLost is an order that did not come to an end, errReview one that is left to
// a person.
var (
	errLost   = errors.New("the bill was lost")
	errReview = errors.New("the bill needs review")
)

// collect brings one attempt to its end as a collector must: it commits the
// intent's id before the confirm, asks what happened before it sends again, and
// changes the key only after the quiet period. Waiting is done on the
// stand-in's clock.
func (s *standIn) collect(t *testing.T, o *sagas.Order) (domain.Outcome, error) {
	for repeats := 0; o.IntentID == ""; repeats++ {
		p := s.Prepare(t.Context(), *o)
		switch {
		case p.IntentID != "":
			o.IntentID, o.LatestCharge = p.IntentID, p.LatestCharge
		case repeats > 50:
			return p.Outcome, errLost
		case p.Outcome.QuietSeconds == quietStored || p.Outcome.Class == domain.Unknown && repeats%8 == 7:
			o.CreateAgain++
		case p.Outcome.Class == domain.Declined, p.Outcome.Class == domain.Rejected, p.Outcome.Class == domain.NeedsReview:
			return p.Outcome, nil
		}
		if t.Context().Err() != nil {
			return p.Outcome, errLost
		}
	}
	for repeats := range 200 {
		out := s.Take(t.Context(), *o)
		switch out.Class {
		case domain.Paid, domain.Declined, domain.Rejected, domain.ActionRequired, domain.NeedsReview:
			return out, nil
		case domain.Held, domain.RetrySameKey: // repaired meanwhile
			continue
		}
		if out.Code == "idempotency_key_in_use" {
			time.Sleep(5 * time.Millisecond) // as a collector backs off
		}
		f := s.Find(t.Context(), *o)
		if f.State == sagas.IntentUnchanged && out.QuietSeconds == quietStored && !s.Mutex(*o) {
			s.stripe.Advance(time.Duration(out.QuietSeconds+1) * time.Second)
			if f = s.Find(t.Context(), *o); f.State == sagas.IntentUnchanged {
				return f.Outcome, errReview // its key may be forgotten, and nothing else makes the charge one
			}
		}
		if f.State == sagas.IntentUnchanged && (repeats%8 == 7 || out.QuietSeconds == quietStored) && s.Mutex(*o) {
			s.stripe.Advance(time.Duration(out.QuietSeconds+1) * time.Second)
			o.Again++
			f = s.Find(t.Context(), *o)
		}
		switch f.State {
		case sagas.IntentDecided:
			return f.Outcome, nil
		case sagas.IntentProcessing:
			s.stripe.Advance(time.Hour)
		case sagas.IntentCancelled, sagas.IntentMissing:
			return f.Outcome, errLost
		}
		if t.Context().Err() != nil {
			break
		}
	}
	return domain.Outcome{}, errLost
}

// faultOf is a fault at POSTs to a path, and a client's time-out under which it
// shows.
func faultOf(kind sim.Kind, times int, path string) (f sim.Fault, timeout time.Duration) {
	timeout = 30 * time.Second
	f = sim.Fault{Kind: kind, Times: times, Match: sim.Match{Method: http.MethodPost, Path: path}}
	switch kind {
	case sim.DelayBeforeCommit, sim.DelayAfterCommit:
		f.Delay, timeout = 700*time.Millisecond, 300*time.Millisecond
	case sim.Hang, sim.CommitThenHang:
		timeout = 300 * time.Millisecond
	case sim.Redirect307:
		f.Location = "/v1/payment_intents"
	case sim.Gateway502, sim.Gateway503AfterCommit:
		f.Body = "html"
	case sim.Gateway504, sim.Gateway502AfterCommit:
		f.Body = "empty"
	case sim.CommitThenDrop:
		f.Close = "rst"
	}
	return f, timeout
}

// eachFault runs a test with every fault of the stand-in at a path, once and
// three times in a row. A decline is no fault.
func eachFault(t *testing.T, path string, run func(t *testing.T, f sim.Fault, timeout time.Duration)) {
	t.Helper()
	for _, kind := range sim.Kinds() {
		if kind == sim.Decline {
			continue
		}
		for _, times := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", kind, times), func(t *testing.T) {
				t.Parallel()
				f, timeout := faultOf(kind, times, path)
				run(t, f, timeout)
			})
		}
	}
}

// Every fault of the stand-in at the create, once and three times in a row: the
// customer is charged once, and we know by which charge. TestConformance does the
// same at the call that takes the money.
func TestEveryFaultAtTheCreateEndsInOneCharge(t *testing.T) {
	t.Parallel()
	eachFault(t, "/v1/payment_intents", func(t *testing.T, f sim.Fault, timeout time.Duration) {
		s := newStandIn(t, timeout)
		s.fault(t, f)
		o := billFor("fault", "pm_card_visa")
		out, err := s.collect(t, &o)
		if err != nil {
			t.Fatalf("%v: %+v\n%s", err, out, s.log)
		}
		s.charged(t, o, out)
		s.keysAreSound(t)
		if struck := s.stripe.Faults()[0].Hits; struck == 0 {
			t.Error("the fault did not strike")
		}
	})
}

// Hundreds of bills through faults drawn at random.
func TestRandomFaultsEndInOneChargeEach(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			s := newStandIn(t, 30*time.Second)
			s.fault(t, sim.Fault{Seed: seed + 1, Rate: 0.35, Match: sim.Match{Method: http.MethodPost}, Kinds: []sim.Kind{
				sim.DropBeforeRead, sim.DropBeforeCommit, sim.CommitThenDrop, sim.TruncateBody, sim.TruncateHeaders,
				sim.Error500BeforeCommit, sim.Error500AfterCommit, sim.Error500NotStored, sim.RateLimit429, sim.LockTimeout429,
				sim.KeyInUse409, sim.Gateway502, sim.Gateway503AfterCommit, sim.Gateway504, sim.Empty200AfterCommit, sim.HTML200,
			}})
			var wait sync.WaitGroup
			for i := range 100 {
				wait.Go(func() {
					o := billFor(fmt.Sprintf("r%d", i), "pm_card_visa")
					out, err := s.collect(t, &o)
					if err != nil {
						t.Errorf("%s: %v: %+v", o.CustomerID, err, out)
						return
					}
					s.charged(t, o, out)
				})
			}
			wait.Wait()
			s.keysAreSound(t)
		})
	}
}

func TestTheSameOrderTwice(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	o := s.prepared(t, "twice", "pm_card_visa")
	if again := s.Prepare(t.Context(), o); again.IntentID != o.IntentID {
		t.Errorf("prepared again: %+v, first %s", again, o.IntentID)
	}
	first := s.Take(t.Context(), o)
	second := s.Take(t.Context(), o)
	if second.Class != domain.Paid || second.ChargeID != first.ChargeID || !strings.Contains(second.Evidence, "replayed=true") {
		t.Errorf("taken again: %+v, first %+v", second, first)
	}
	// Long after the key is forgotten, and under other keys, the intent itself
	// remembers.
	s.stripe.Advance(40 * 24 * time.Hour)
	s.stripe.ForgetKeys("")
	third := s.Take(t.Context(), o)
	later := o
	later.Again, later.Attempt = 3, 2
	fourth := s.Take(t.Context(), later)
	found := s.Find(t.Context(), o)
	for name, out := range map[string]domain.Outcome{"forgotten key": third, "other key": fourth, "find": found.Outcome} {
		if out.Class != domain.Paid || out.ChargeID != first.ChargeID || out.Money != o.Amount {
			t.Errorf("%s: %+v, first %+v", name, out, first)
		}
	}
	s.charged(t, o, first)
	s.keysAreSound(t)
}

// Twenty callers at once, one key: one charge, and no caller is told a no.
func TestTheSameOrderAtOnce(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	o := s.prepared(t, "atonce", "pm_card_visa")
	outcomes := make([]domain.Outcome, 20)
	var wait sync.WaitGroup
	for i := range outcomes {
		wait.Go(func() { outcomes[i] = s.Take(t.Context(), o) })
	}
	wait.Wait()
	paid := 0
	for _, out := range outcomes {
		switch {
		case out.Class == domain.Paid:
			paid++
		case out.Class != domain.Unknown || out.Code != "idempotency_key_in_use":
			t.Errorf("got %+v", out)
		}
	}
	if paid == 0 {
		t.Error("nobody was told of the payment")
	}
	s.charged(t, o, s.Find(t.Context(), o).Outcome)
}

func TestDeclineThenNextAttempt(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	o := s.prepared(t, "decline", "pm_sim_declines_n_2_insufficient_funds")
	no := s.Take(t.Context(), o)
	if no.Class != domain.Declined || no.DeclineCode != "insufficient_funds" || no.ChargeID == "" || no.IntentID != o.IntentID {
		t.Fatalf("first attempt: %+v", no)
	}
	if again := s.Take(t.Context(), o); again.Class != domain.Declined || again.ChargeID != no.ChargeID {
		t.Errorf("the same key again: %+v", again)
	}
	found := s.Find(t.Context(), o)
	if found.State != sagas.IntentDecided || found.Outcome.Class != domain.Declined || found.LatestCharge != no.ChargeID ||
		found.Outcome.ChargeID != no.ChargeID || found.Outcome.Code != no.Code || found.Outcome.DeclineCode != no.DeclineCode {
		t.Errorf("find after the decline: %+v, the answer was %+v", found, no)
	}

	next := o
	next.Attempt, next.LatestCharge = 2, found.LatestCharge
	if f := s.Find(t.Context(), next); f.State != sagas.IntentUnchanged {
		t.Errorf("find before the second attempt: %+v", f)
	}
	yes := s.Take(t.Context(), next)
	s.charged(t, next, yes)
	if yes.IntentID != o.IntentID {
		t.Errorf("the second attempt used %s, the first %s", yes.IntentID, o.IntentID)
	}
	if movements := s.stripe.Ledger(); len(movements) != 2 || movements[0].Key == movements[1].Key {
		t.Errorf("ledger: %+v", movements)
	}
	s.keysAreSound(t)
}

func TestDeclineClasses(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	for method, want := range map[string]domain.DeclineClass{
		"pm_card_chargeCustomerFail":         domain.Soft,
		"pm_sim_declines_lost_card":          domain.Hard,
		"pm_card_chargeDeclinedExpiredCard":  domain.Hard,
		"pm_card_chargeDeclinedStolenCard":   domain.Hard,
		"pm_sim_declines_processing_error":   domain.Soft,
		"pm_sim_declines_do_not_try_again":   domain.Hard,
		"pm_card_authenticationRequired":     domain.Authentication,
		"pm_card_nosuchcard":                 domain.MethodMissing,
		"card_without_its_prefix":            domain.MethodMissing,
		"pm_sim_declines_merchant_blacklist": domain.Hard,
	} {
		o := s.prepared(t, strings.ReplaceAll(method, "pm_", ""), method)
		out := s.Take(t.Context(), o)
		if out.Class != domain.Declined || domain.ClassifyDecline(out.Code, out.DeclineCode) != want {
			t.Errorf("%s: %+v, want %s", method, out, want)
		}
		noSecret(t, "outcome", out)
	}
	if n := len(s.stripe.LedgerWhere(sim.LedgerFilter{Status: "succeeded"})); n != 0 {
		t.Errorf("%d charges succeeded", n)
	}
}

func TestMethodOrCustomerGone(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	for name, state := range map[string]sim.CustomerState{"detached": {Detached: true}, "deleted": {Deleted: true}} {
		o := s.prepared(t, name, "pm_1")
		if err := s.stripe.SetCustomer(o.StripeCustomerID, state); err != nil {
			t.Fatal(err)
		}
		out := s.Take(t.Context(), o)
		if out.Class != domain.Declined || domain.ClassifyDecline(out.Code, out.DeclineCode) != domain.MethodMissing {
			t.Errorf("%s: %+v", name, out)
		}
		// After a new method is stored, the next attempt goes through.
		if err := s.stripe.SetCustomer(o.StripeCustomerID, sim.CustomerState{}); err != nil {
			t.Fatal(err)
		}
		o.Attempt, o.PaymentMethodID = 2, "pm_2"
		s.charged(t, o, s.Take(t.Context(), o))
	}
	o := billFor("gone", "pm_1")
	if err := s.stripe.SetCustomer(o.StripeCustomerID, sim.CustomerState{Deleted: true}); err != nil {
		t.Fatal(err)
	}
	p := s.Prepare(t.Context(), o)
	if p.IntentID != "" || p.Outcome.Class != domain.Declined || domain.ClassifyDecline(p.Outcome.Code, "") != domain.MethodMissing {
		t.Errorf("prepare for a deleted customer: %+v", p)
	}
}

func TestProcessing(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]domain.OutcomeClass{
		"pm_sim_processing_1h_succeeds":           domain.Paid,
		"pm_sim_processing_1h_insufficient_funds": domain.Declined,
	} {
		s := newStandIn(t, 30*time.Second)
		o := s.prepared(t, "processing", method)
		out := s.Take(t.Context(), o)
		f := s.Find(t.Context(), o)
		if out.Class != domain.Unknown || f.State != sagas.IntentProcessing || f.LatestCharge == "" {
			t.Fatalf("%s: %+v, %+v", method, out, f)
		}
		if c := s.Cancel(t.Context(), o, "requested_by_customer"); c.State != sagas.IntentProcessing {
			t.Errorf("%s: cancel: %+v", method, c)
		}
		s.stripe.Advance(2 * time.Hour)
		f = s.Find(t.Context(), o)
		if f.State != sagas.IntentDecided || f.Outcome.Class != want {
			t.Errorf("%s: %+v, want %s", method, f, want)
		}
		if want == domain.Paid {
			s.charged(t, o, f.Outcome)
		}
	}
}

// An intent whose amount somebody else changed is not confirmed in silence.
func TestChangedBehindOurBack(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	o := s.prepared(t, "changed", "pm_card_visa")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.stripe.APIURL+"/v1/payment_intents/"+o.IntentID,
		strings.NewReader(url.Values{"amount": {"990000"}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+apiKey)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Idempotency-Key", "somebody else's")
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer, err)
	}
	_ = answer.Body.Close()

	if f := s.Find(t.Context(), o); f.State != sagas.IntentDecided || f.Outcome.Class != domain.NeedsReview {
		t.Errorf("find: %+v", f)
	}
	if out := s.Take(t.Context(), o); out.Class != domain.NeedsReview || !strings.Contains(out.Reason, "amount") || out.IntentID != "" {
		t.Errorf("take: %+v", out)
	}
}

func TestOtherParametersUnderTheKey(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	o := s.prepared(t, "frozen", "pm_card_visa")
	changed := o
	changed.Amount.Minor++
	if p := s.Prepare(t.Context(), changed); p.IntentID != "" || p.Outcome.Class != domain.NeedsReview {
		t.Errorf("prepare: %+v", p)
	}
	s.charged(t, o, s.Take(t.Context(), o))
	changed = o
	changed.PaymentMethodID = "pm_other"
	if out := s.Take(t.Context(), changed); out.Class != domain.NeedsReview {
		t.Errorf("take: %+v", out)
	}
	s.charged(t, o, s.Find(t.Context(), o).Outcome)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	open := s.prepared(t, "open", "pm_card_visa")
	for range 2 {
		if f := s.Cancel(t.Context(), open, "requested_by_customer"); f.State != sagas.IntentCancelled {
			t.Fatalf("%+v", f)
		}
	}
	s.stripe.ForgetKeys("")
	if f := s.Cancel(t.Context(), open, "duplicate"); f.State != sagas.IntentCancelled {
		t.Errorf("cancelled before: %+v", f)
	}
	if out := s.Take(t.Context(), open); out.Class != domain.Unknown || !strings.Contains(out.Reason, "cancelled") {
		t.Errorf("take of a cancelled intent: %+v", out)
	}
	if f := s.Find(t.Context(), open); f.State != sagas.IntentCancelled {
		t.Errorf("find of a cancelled intent: %+v", f)
	}

	paid := s.prepared(t, "paid", "pm_card_visa")
	out := s.Take(t.Context(), paid)
	f := s.Cancel(t.Context(), paid, "requested_by_customer")
	if f.State != sagas.IntentDecided || f.Outcome.Source != domain.SourceCancel || f.Outcome.ChargeID != out.ChargeID {
		t.Errorf("cancel of a paid intent: %+v", f)
	}
	s.charged(t, paid, f.Outcome)
}

// A cancel and a confirm at the same moment agree on who won.
func TestCancelAgainstConfirm(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	for i := range 100 {
		o := s.prepared(t, fmt.Sprintf("race%d", i), "pm_card_visa")
		var (
			wait sync.WaitGroup
			out  domain.Outcome
			f    sagas.Finding
		)
		wait.Go(func() { out = s.Take(t.Context(), o) })
		wait.Go(func() { f = s.Cancel(t.Context(), o, "requested_by_customer") })
		wait.Wait()
		taken := len(s.stripe.LedgerWhere(sim.LedgerFilter{Customer: o.StripeCustomerID, Status: "succeeded"}))
		switch {
		case out.Class == domain.Paid && f.State == sagas.IntentDecided && f.Outcome.ChargeID == out.ChargeID && taken == 1:
		case out.Class == domain.Unknown && f.State == sagas.IntentCancelled && taken == 0:
		default:
			t.Errorf("take %+v, cancel %+v, %d charges", out, f, taken)
		}
	}
}

func TestIntentUnknownToStripe(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	o := s.prepared(t, "missing", "pm_card_visa")
	if err := s.stripe.Reset(); err != nil {
		t.Fatal(err)
	}
	if f := s.Find(t.Context(), o); f.State != sagas.IntentMissing {
		t.Errorf("find: %+v", f)
	}
	if f := s.Cancel(t.Context(), o, "requested_by_customer"); f.State != sagas.IntentMissing {
		t.Errorf("cancel: %+v", f)
	}
	if out := s.Take(t.Context(), o); out.Class != domain.Held {
		t.Errorf("take: %+v", out)
	}
}

// A sweep by pages sees every object once, and an error on a later page is an
// error.
func TestListPages(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	orders := map[string]sagas.Order{}
	for i := range 25 {
		o := s.prepared(t, fmt.Sprintf("list%d", i), "pm_card_visa")
		if i%2 == 0 {
			s.charged(t, o, s.Take(t.Context(), o))
		}
		orders[o.IntentID] = o
	}
	sweep := func(resource string) (all []sagas.Found, err error) {
		l := sagas.Listing{Resource: resource, Since: s.stripe.Now().Add(-time.Hour), PageSize: 10}
		for {
			page, err := s.List(t.Context(), l)
			if err != nil {
				return all, err
			}
			all = append(all, page.Found...)
			if !page.More {
				return all, nil
			}
			l.After = page.Found[len(page.Found)-1].ID
		}
	}
	for resource, want := range map[string]int{"payment_intents": 25, "charges": 13} {
		all, err := sweep(resource)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, f := range all {
			o, ok := orders[f.IntentID]
			if !ok || f.CustomerID != string(o.CustomerID) || f.Period != "2026-11" || f.BillingKey != o.Markers()["billing_key"] ||
				f.Amount != o.Amount || f.StripeCustomerID != o.StripeCustomerID || seen[f.ID] {
				t.Errorf("%s: %+v", resource, f)
			}
			if f.Succeeded != (f.ChargeID != "") {
				t.Errorf("%s: %+v", resource, f)
			}
			seen[f.ID] = true
		}
		if len(seen) != want {
			t.Errorf("%d %s, want %d", len(seen), resource, want)
		}
		newest, err := s.List(t.Context(), sagas.Listing{Resource: resource, PageSize: 100, Before: all[5].ID})
		if err != nil || len(newest.Found) != 5 || newest.Found[0].ID != all[0].ID || newest.More {
			t.Errorf("%s newer than the sixth: %+v, %v", resource, newest, err)
		}
		old, err := s.List(t.Context(), sagas.Listing{Resource: resource, PageSize: 100, Since: s.stripe.Now().Add(time.Hour)})
		if err != nil || len(old.Found) != 0 || old.More {
			t.Errorf("%s of the future: %+v, %v", resource, old, err)
		}
		s.fault(t, sim.Fault{Kind: sim.Gateway502, Match: sim.Match{Method: http.MethodGet, Path: "/v1/" + resource, Nth: 2}})
		if all, err := sweep(resource); err == nil || len(all) != 10 {
			t.Errorf("%s: an error on the second page went by: %d found, %v", resource, len(all), err)
		}
	}
}
