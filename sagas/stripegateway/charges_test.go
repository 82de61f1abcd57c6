package stripegateway

import (
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

func legacyOrder() sagas.Order {
	o := anOrder()
	o.IntentID, o.PaymentMethodID = chargeName(o), "card_1"
	return o
}

func legacyRig(t *testing.T, timeout time.Duration, stripe http.HandlerFunc) *rig {
	t.Helper()
	g := newRig(t, timeout, stripe)
	g.road = Charges
	return g
}

func TestChargesOnTheWire(t *testing.T) {
	t.Parallel()
	var method, path, key, form string
	g := legacyRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.Method == http.MethodGet {
			body = []byte(r.URL.RawQuery)
		}
		values, err := url.ParseQuery(string(body))
		if err != nil {
			t.Error(err)
		}
		method, path, key, form = r.Method, r.URL.Path, r.Header.Get("Idempotency-Key"), values.Encode()
		answers(200, page(false))(w, r)
	})
	o := legacyOrder()
	o.IntentID = ""
	p := g.Prepare(t.Context(), o)
	if p != (sagas.Prepared{IntentID: "charge-78add715f5445db3d7f8c24b1df859b6"}) || method != "" {
		t.Errorf("prepared %+v, called %s %s", p, method, path)
	}
	const parameters = "amount=2900&currency=usd&customer=cus_0001&metadata%5Bbilling_key%5D=78add715f5445db3d7f8c24b1df859b6&metadata%5Bbilling_period%5D=2026-11&metadata%5Bcustomer_id%5D=cust_123&source=card_1"
	o.IntentID = p.IntentID
	if g.Take(t.Context(), o); method != "POST" || path != "/v1/charges" || key != "78add715f5445db3d7f8c24b1df859b6" || form != parameters {
		t.Errorf("charge: %s %s under %s: %s", method, path, key, form)
	}
	o.Attempt = 2
	if g.Take(t.Context(), o); key != string(domain.ChargeKey(o.CustomerID, o.Period, 2)) || form != parameters {
		t.Errorf("second attempt: under %s: %s", key, form)
	}
	if g.Find(t.Context(), o); method != "GET" || path != "/v1/charges" || key != "" || form != "customer=cus_0001&limit=100" {
		t.Errorf("find: %s %s under %s: %s", method, path, key, form)
	}
	if g.Cancel(t.Context(), o, "requested_by_customer"); method != "GET" || path != "/v1/charges" {
		t.Errorf("cancel: %s %s", method, path)
	}
}

// A bill stays on the road that was committed, whatever the configuration has
// become.
func TestTheCommittedRoadIsKept(t *testing.T) {
	t.Parallel()
	var path string
	see := func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		answers(500, stripeError(apiError, ""))(w, r)
	}
	byIntent, byCharge := newRig(t, time.Minute, see), legacyRig(t, time.Minute, see)
	for name, g := range map[string]*rig{"payment_intents": byIntent, "charges": byCharge} {
		if g.Take(t.Context(), anOrder()); path != "/v1/payment_intents/pi_1/confirm" || !g.Mutex(anOrder()) {
			t.Errorf("%s: an intent is taken by %s", name, path)
		}
		if g.Take(t.Context(), legacyOrder()); path != "/v1/charges" || g.Mutex(legacyOrder()) {
			t.Errorf("%s: a charge is taken by %s", name, path)
		}
		if g.Find(t.Context(), anOrder()); path != "/v1/payment_intents/pi_1" {
			t.Errorf("%s: an intent is read by %s", name, path)
		}
		if g.Cancel(t.Context(), legacyOrder(), "duplicate"); path != "/v1/charges" {
			t.Errorf("%s: a charge is cancelled by %s", name, path)
		}
	}
}

func TestChargeOrdersAreChecked(t *testing.T) {
	t.Parallel()
	g := legacyRig(t, time.Minute, func(http.ResponseWriter, *http.Request) { t.Error("a request left") })
	for name, spoil := range map[string]func(*sagas.Order){
		"another bill's charge": func(o *sagas.Order) { o.IntentID += "0" },
		"no amount":             func(o *sagas.Order) { o.Amount.Minor = 0 },
		"no customer":           func(o *sagas.Order) { o.StripeCustomerID = "" },
	} {
		o := legacyOrder()
		spoil(&o)
		if out := g.Take(t.Context(), o); out.Class != domain.Held {
			t.Errorf("%s: %+v", name, out)
		}
	}
	o := legacyOrder()
	o.PaymentMethodID = ""
	if out := g.Take(t.Context(), o); out.Class != domain.Declined || domain.ClassifyDecline(out.Code, out.DeclineCode) != domain.MethodMissing {
		t.Errorf("no source: %+v", out)
	}
	o.IntentID, o.Amount.Minor = "", 0
	if p := g.Prepare(t.Context(), o); p.IntentID != "" || p.Outcome.Class != domain.Held {
		t.Errorf("prepare: %+v", p)
	}
}

func TestFindChargeTable(t *testing.T) {
	t.Parallel()
	paid := aLegacyCharge()
	failed := paid.with("id", "ch_2", "status", "failed", "paid", false, "captured", false, "created", 1700000002, "failure_code", "card_declined", "outcome", object{"reason": "insufficient_funds"})
	pending := paid.with("id", "ch_3", "status", "pending", "paid", false, "created", 1700000003)
	othersBill := paid.with("id", "ch_4", "metadata", object{"customer_id": "cust_123", "billing_period": "2026-10", "billing_key": "f00"})
	foreign := paid.with("id", "ch_5", "metadata", object{})
	for _, c := range []struct {
		name   string
		latest string
		status int
		body   string
		state  sagas.IntentState
		class  domain.OutcomeClass
		charge string // of the outcome
		shows  string // latest charge
		cancel sagas.IntentState
	}{
		{"paid", "", 200, page(false, foreign, paid, othersBill), sagas.IntentDecided, domain.Paid, "ch_1", "ch_1", sagas.IntentDecided},
		{"paid, and refunded since", "", 200, page(false, paid.with("refunded", true)), sagas.IntentDecided, domain.Paid, "ch_1", "ch_1", sagas.IntentDecided},
		{"paid after a decline", "ch_2", 200, page(false, paid.with("created", 1700000009), failed), sagas.IntentDecided, domain.Paid, "ch_1", "ch_1", sagas.IntentDecided},
		{"paid twice: the first one", "", 200, page(false, paid.with("id", "ch_9", "created", 1700000009), paid), sagas.IntentDecided, domain.Paid, "ch_1", "ch_9", sagas.IntentDecided},
		{"paid, and named no customer", "", 200, page(false, paid.with("customer", nil)), sagas.IntentDecided, domain.Paid, "ch_1", "ch_1", sagas.IntentDecided},
		{"paid by an intent", "", 200, page(false, paid.with("payment_intent", "pi_7")), sagas.IntentDecided, domain.Paid, "ch_1", "ch_1", sagas.IntentDecided},
		{"failed by an intent", "", 200, page(false, failed.with("payment_intent", "pi_7")), sagas.IntentUnchanged, domain.Unknown, "", "", sagas.IntentCancelled},
		{"paid another amount", "", 200, page(false, paid.with("amount", 1)), sagas.IntentDecided, domain.NeedsReview, "", "ch_1", sagas.IntentDecided},
		{"paid by another customer", "", 200, page(false, paid.with("customer", "cus_9")), sagas.IntentDecided, domain.NeedsReview, "", "ch_1", sagas.IntentDecided},
		{"authorised only", "", 200, page(false, paid.with("captured", false)), sagas.IntentDecided, domain.NeedsReview, "", "ch_1", sagas.IntentDecided},
		{"declined", "", 200, page(false, failed), sagas.IntentDecided, domain.Declined, "ch_2", "ch_2", sagas.IntentCancelled},
		{"declined before this attempt", "ch_2", 200, page(false, failed), sagas.IntentUnchanged, domain.Unknown, "", "ch_2", sagas.IntentCancelled},
		{"declined again", "ch_2", 200, page(false, failed.with("id", "ch_6", "created", 1700000006), failed), sagas.IntentDecided, domain.Declined, "ch_6", "ch_6", sagas.IntentCancelled},
		{"pending", "", 200, page(false, pending), sagas.IntentProcessing, domain.Unknown, "", "ch_3", sagas.IntentProcessing},
		{"a status from the future", "", 200, page(false, paid.with("status", "quantum")), sagas.IntentUnreachable, domain.Unknown, "", "ch_1", sagas.IntentUnreachable},
		{"nothing of the bill", "", 200, page(false, foreign, othersBill), sagas.IntentUnchanged, domain.Unknown, "", "", sagas.IntentCancelled},
		{"nothing at all", "", 200, page(false), sagas.IntentUnchanged, domain.Unknown, "", "", sagas.IntentCancelled},
		{"the former charge is gone", "ch_2", 200, page(false), sagas.IntentUnreachable, domain.Unknown, "", "", sagas.IntentUnreachable},
		{"no list", "", 200, `{}`, sagas.IntentUnreachable, domain.Unknown, "", "", sagas.IntentUnreachable},
		{"a list of intents", "", 200, page(false, anIntent()), sagas.IntentUnreachable, domain.Unknown, "", "", sagas.IntentUnreachable},
		{"a list without an end", "", 200, page(true, foreign), sagas.IntentUnreachable, domain.Unknown, "", "", sagas.IntentUnreachable},
		{"404", "", 404, stripeError(badReq, "resource_missing"), sagas.IntentUnreachable, domain.Unknown, "", "", sagas.IntentUnreachable},
		{"401", "", 401, stripeError(badReq, ""), sagas.IntentUnreachable, domain.Unknown, "", "", sagas.IntentUnreachable},
		{"500", "", 500, stripeError(apiError, ""), sagas.IntentUnreachable, domain.Unknown, "", "", sagas.IntentUnreachable},
		{"502 HTML", "", 502, html, sagas.IntentUnreachable, domain.Unknown, "", "", sagas.IntentUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := legacyRig(t, time.Minute, answers(c.status, c.body))
			o := legacyOrder()
			o.LatestCharge = c.latest
			f := g.Find(t.Context(), o)
			noSecret(t, "finding", f)
			if f.State != c.state || f.Outcome.Class != c.class || f.Outcome.ChargeID != c.charge || f.LatestCharge != c.shows {
				t.Errorf("got %+v, want %s, %s by %q, latest %q", f, c.state, c.class, c.charge, c.shows)
			}
			if f.Outcome.Class == domain.Paid && (f.Outcome.Money != o.Amount || f.Outcome.Source != domain.SourceFind) {
				t.Errorf("paid by %+v", f.Outcome)
			}
			if f.Outcome.Class == domain.Declined && (f.Outcome.Code != "card_declined" || f.Outcome.DeclineCode != "insufficient_funds") {
				t.Errorf("declined by %+v", f.Outcome)
			}
			k := g.Cancel(t.Context(), o, "requested_by_customer")
			if k.State != c.cancel || k.Outcome.Class == domain.Paid && k.Outcome.Source != domain.SourceCancel {
				t.Errorf("cancel: %+v, want %s", k, c.cancel)
			}
		})
	}
}

// Absence is told only of a list that was read to its end.
func TestFindChargeReadsToTheEnd(t *testing.T) {
	t.Parallel()
	foreign := aLegacyCharge().with("id", "ch_9", "metadata", object{})
	for last, want := range map[string]sagas.IntentState{"found": sagas.IntentDecided, "nothing": sagas.IntentUnchanged, "error": sagas.IntentUnreachable} {
		g := legacyRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Query().Get("starting_after") == "":
				answers(200, page(true, foreign))(w, r)
			case r.URL.Query().Get("starting_after") != "ch_9":
				t.Errorf("asked for %s", r.URL)
			case last == "found":
				answers(200, page(false, aLegacyCharge()))(w, r)
			case last == "nothing":
				answers(200, page(false))(w, r)
			default:
				answers(502, html)(w, r)
			}
		})
		if f := g.Find(t.Context(), legacyOrder()); f.State != want {
			t.Errorf("%s: %+v", last, f)
		}
	}
}
