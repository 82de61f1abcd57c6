package sagas_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// plantIntent makes an open intent of a bill at Stripe that the log does not know of.
func (r *rig) plantIntent(id domain.CustomerID, key string) (intent string) {
	r.t.Helper()
	intent = r.byHand("/v1/payment_intents", key, url.Values{
		"amount": {"5000"}, "currency": {"usd"}, "customer": {"cus_" + strings.ReplaceAll(string(id), "-", "")}, "payment_method_types[]": {"card"},
		"metadata[customer_id]": {string(id)}, "metadata[billing_period]": {november.String()}, "metadata[billing_key]": {string(domain.ChargeKey(id, november, 1))},
	})
	r.stripe.Advance(time.Second) // the next one is younger
	return intent
}

// intentState reads an intent at Stripe.
func (r *rig) intentState(id string) (status, reason string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.stripe.APIURL+"/v1/payment_intents/"+id, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer sk_test_rig")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	var intent struct {
		Status string `json:"status"`
		Reason string `json:"cancellation_reason"`
	}
	if err := json.NewDecoder(res.Body).Decode(&intent); err != nil {
		r.t.Fatal(err)
	}
	return intent.Status, intent.Reason
}

func (r *rig) mustBe(intent, status, reason string) {
	r.t.Helper()
	if s, why := r.intentState(intent); s != status || why != reason {
		r.t.Errorf("intent %s is %s %q, want %s %q", intent, s, why, status, reason)
	}
}

func card(method string) url.Values {
	return url.Values{"payment_method": {method}, "off_session": {"true"}}
}

// TestLookChooses finds several intents of one bill, on different pages of the
// list: one that succeeded comes first, else the oldest; the others are
// cancelled as duplicates before anything is confirmed.
func TestLookChooses(t *testing.T) {
	r := newRig(t)
	oldest := r.plantIntent("open", "k1")
	taken := r.plantIntent("taken", "k2")
	r.byHand("/v1/payment_intents/"+taken+"/confirm", "k3", card("pm_card_visa"))
	for i := range 100 { // a page of somebody else's
		r.plantIntent(domain.CustomerID(fmt.Sprint("filler-", i)), fmt.Sprint("filler ", i))
	}
	younger, spare := r.plantIntent("open", "k4"), r.plantIntent("taken", "k5")
	quiet := r.start(options{noCollector: true})
	quiet.owe("open", "taken")
	r.awaitState("open", november, "reserved")
	r.awaitState("taken", november, "reserved")
	r.start(options{})
	r.once(november, "open", "taken")
	if got := r.intentOf("open"); got != oldest {
		t.Errorf("the bill uses %s, the oldest is %s", got, oldest)
	}
	r.mustBe(younger, "canceled", "duplicate")
	r.mustBe(spare, "canceled", "duplicate")
	r.mustBe(oldest, "succeeded", "")
}

// TestLookWaitsForProcessing finds a second intent of a bill that Stripe is
// still processing: nothing is created before it has ended. Here it succeeds,
// and is adopted as what paid the bill.
func TestLookWaitsForProcessing(t *testing.T) {
	r := newRig(t)
	first, second := r.plantIntent("acme", "k1"), r.plantIntent("acme", "k2")
	r.byHand("/v1/payment_intents/"+second+"/confirm", "k3", card("pm_sim_processing_2h_succeeds"))
	s := r.start(options{})
	s.owe("acme", "other")
	r.awaitState("other", november, "reserved")
	r.eventually("the open one is adopted", func() bool { return r.facts("acme", "charge.intent_committed.v1") == 1 })
	reads := len(r.stripe.Requests())
	r.eventually("the second was read again", func() bool { return len(r.stripe.Requests()) > reads+1 })
	if s.collector.Look().Completed() {
		t.Error("the look is complete while an intent is being processed")
	}
	if n := r.stripe.Counters().Confirms; n != 1 {
		t.Errorf("%d confirms", n)
	}
	r.stripe.Advance(3 * time.Hour)
	r.once(november, "acme", "other")
	if status, _ := r.intentState(first); status == "succeeded" {
		t.Error("both intents have taken money")
	}
}

// racing lets an intent succeed between the look's read and its cancel.
type racing struct {
	sagas.Gateway
	before func(sagas.Order)
}

func (g racing) Cancel(ctx context.Context, o sagas.Order, reason string) sagas.Finding {
	g.before(o)
	return g.Gateway.Cancel(ctx, o, reason)
}

// TestCancelMeetsSuccess: the duplicate that is to be cancelled has succeeded
// at that moment. It is adopted as paid, and the other takes nothing.
func TestCancelMeetsSuccess(t *testing.T) {
	r := newRig(t)
	first, second := r.plantIntent("acme", "k1"), r.plantIntent("acme", "k2")
	s := r.start(options{gateway: func(g sagas.Gateway) sagas.Gateway {
		return racing{g, func(o sagas.Order) {
			if o.IntentID == second {
				r.byHand("/v1/payment_intents/"+second+"/confirm", "k3", card("pm_card_visa"))
			}
		}}
	}})
	r.eventually("it counts as paid", func() bool { return r.facts("acme", "customer.billed.v1") == 1 })
	s.register("pm_card_visa", "acme", "other")
	s.charge("acme", november)
	s.charge("other", november)
	r.once(november, "other")
	if n := r.charged("acme", november); n != 1 {
		t.Errorf("%d charges", n)
	}
	if status, _ := r.intentState(first); status == "succeeded" {
		t.Error("both intents have taken money")
	}
}

// TestPerhapsSettled finds an intent that a closing had cancelled, of a bill
// that the log takes for open: it waits, whatever else is open, until an
// operator releases or settles it. A pause that ends is no such word.
func TestPerhapsSettled(t *testing.T) {
	r := newRig(t)
	for i, id := range []domain.CustomerID{"released", "settled"} {
		intent := r.plantIntent(id, fmt.Sprint("k", i))
		r.byHand("/v1/payment_intents/"+intent+"/cancel", fmt.Sprint("c", i), url.Values{"cancellation_reason": {"requested_by_customer"}})
		r.plantIntent(id, fmt.Sprint("open", i)) // something else is open
	}
	s := r.start(options{})
	s.owe("released", "settled", "other")
	r.once(november, "other")
	r.awaitState("released", november, "waiting")
	r.awaitState("settled", november, "waiting")
	if n := r.count(`SELECT count(DISTINCT stream_id) FROM events WHERE event_type = 'charge.waiting.v1' AND payload->>'reason' = 'settled before a restore?'`); n != 2 {
		t.Errorf("%d bills say why they wait", n)
	}
	s.must(commands.Of(commands.NewReleaseBilling("released", november, "never settled", "op-1")))
	s.must(commands.Of(commands.NewSettleBilling("settled", november, "wire 77", "op-2")))
	r.once(november, "released")
	r.awaitState("settled", november, "void")
	if n := r.charged("settled", november); n != 0 {
		t.Errorf("%d charges of what is settled", n)
	}
	s.stop()
	s = r.start(options{}) // another look finds nothing new
	s.owe("last")
	r.once(november, "last", "released")
}

// TestLookNeedsTheWholeList fails the second page of a list: that is no end of
// it. Nothing is created before the page has been read.
func TestLookNeedsTheWholeList(t *testing.T) {
	r := newRig(t)
	intent := r.plantIntent("acme", "k1")
	for i := range 100 {
		r.plantIntent(domain.CustomerID(fmt.Sprint("filler-", i)), fmt.Sprint("filler ", i))
	}
	r.fault(sim.Fault{Match: sim.Match{Method: "GET", Path: "/v1/payment_intents", Nth: 2}, Kind: sim.Gateway502, Times: 1})
	s := r.start(options{})
	s.owe("acme")
	r.once(november, "acme")
	if got := r.intentOf("acme"); got != intent {
		t.Errorf("the bill uses %s; Stripe had %s", got, intent)
	}
}

// TestLookOutlivesItsCursor: the data of a test account are deleted, and with
// them the object at which the look had stopped. A start still comes to the end
// of its look, and sees what there is by then.
func TestLookOutlivesItsCursor(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.owe("before")
	r.once(november, "before")
	s.stop()
	s = r.start(options{})
	r.eventually("the look has its places", func() bool { return r.count(`SELECT count(*) FROM looks WHERE cursor <> ''`) == 2 })
	s.stop()
	if err := r.stripe.Reset(); err != nil {
		t.Fatal(err)
	}
	s = r.start(options{})
	s.owe("emptied")
	r.once(november, "emptied")
	s.stop()
	if err := r.stripe.Reset(); err != nil {
		t.Fatal(err)
	}
	intent := r.plantIntent("later", "k1")
	s = r.start(options{})
	s.owe("later")
	r.once(november, "later")
	if got := r.intentOf("later"); got != intent {
		t.Errorf("the bill uses %s; Stripe had %s", got, intent)
	}
}
