package stripegateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

func aRefundOrder() sagas.RefundOrder {
	o := anOrder()
	return sagas.RefundOrder{CustomerID: o.CustomerID, Period: o.Period, RefundID: "goodwill-1", ChargeID: "ch_1", Amount: domain.Money{Minor: 1000, Currency: "usd"}}
}

func aRefund() object {
	return object{
		"id": "re_1", "object": "refund", "amount": 1000, "currency": "usd", "charge": "ch_1", "payment_intent": "pi_1", "status": "succeeded",
		"created": 1700000200, "failure_reason": nil, "reason": nil, "receipt_number": secret,
		"metadata": object{"customer_id": "cust_123", "billing_period": "2026-11", "refund_id": "goodwill-1"},
	}
}

func TestRefundTable(t *testing.T) {
	t.Parallel()
	const (
		refused   = domain.RefundStateRefused
		requested = domain.RefundStateRequested
		unclear   = domain.RefundStateUnknown
	)
	for _, c := range []struct {
		name   string
		status int
		body   string
		header []string
		state  domain.RefundState
		code   string
	}{
		{name: "succeeded", status: 200, body: aRefund().String(), state: domain.RefundStateSucceeded},
		{name: "succeeded, charge expanded", status: 200, body: aRefund().with("charge", aCharge()).String(), state: domain.RefundStateSucceeded},
		{name: "pending", status: 200, body: aRefund().with("status", "pending").String(), state: domain.RefundStatePending},
		{name: "requires_action", status: 200, body: aRefund().with("status", "requires_action").String(), state: domain.RefundStatePending},
		{name: "failed", status: 200, body: aRefund().with("status", "failed", "failure_reason", "lost_or_stolen_card").String(), state: domain.RefundStateFailed, code: "lost_or_stolen_card"},
		{name: "canceled", status: 200, body: aRefund().with("status", "canceled").String(), state: domain.RefundStateCancelled},
		{name: "a status from the future", status: 200, body: aRefund().with("status", "quantum").String(), state: unclear},
		{name: "another amount", status: 200, body: aRefund().with("amount", 999).String(), state: unclear, code: refundDiffers},
		{name: "another currency", status: 200, body: aRefund().with("currency", "jpy").String(), state: unclear, code: refundDiffers},
		{name: "another charge", status: 200, body: aRefund().with("charge", "ch_2").String(), state: unclear, code: refundDiffers},
		{name: "other metadata", status: 200, body: aRefund().with("metadata", object{}).String(), state: unclear, code: refundDiffers},
		{name: "200 {}", status: 200, body: `{}`, state: unclear},
		{name: "200 HTML", status: 200, body: html, state: unclear},
		{name: "200 a charge", status: 200, body: aCharge().String(), state: unclear},
		{name: "307", status: 307, body: `{}`, state: unclear},
		{name: "refunded before", status: 400, body: stripeError(badReq, "charge_already_refunded"), state: refused, code: "charge_already_refunded"},
		{name: "more than is left", status: 400, body: stripeError(badReq, "", "param", "amount", "message", "Refund amount ($10.00) is greater than unrefunded amount on charge ($5.00)"), state: refused, code: refundTooLarge},
		{name: "refused, replayed", status: 400, body: stripeError(badReq, "charge_already_refunded"), header: []string{"Idempotent-Replayed", "true"}, state: refused, code: "charge_already_refunded"},
		{name: "disputed", status: 400, body: stripeError(badReq, "charge_disputed"), state: refused, code: "charge_disputed"},
		{name: "no such charge", status: 404, body: stripeError(badReq, "resource_missing", "param", "charge"), state: requested, code: "resource_missing"},
		{name: "other parameters under the key", status: 400, body: stripeError("idempotency_error", ""), state: unclear},
		{name: "400 of another type", status: 400, body: stripeError("new_error", ""), state: unclear},
		{name: "400 HTML", status: 400, body: html, state: unclear},
		{name: "401", status: 401, body: stripeError(badReq, ""), state: requested},
		{name: "403", status: 403, body: stripeError(badReq, ""), state: requested},
		{name: "403 replayed", status: 403, body: stripeError(badReq, ""), header: []string{"Idempotent-Replayed", "true"}, state: unclear},
		{name: "409", status: 409, body: stripeError(badReq, "idempotency_key_in_use"), state: unclear, code: "idempotency_key_in_use"},
		{name: "429 rate limit", status: 429, body: stripeError(badReq, "rate_limit"), state: requested, code: "rate_limit"},
		{name: "429 lock time-out", status: 429, body: stripeError(badReq, "lock_timeout"), state: requested, code: "lock_timeout"},
		{name: "429 without a code", status: 429, body: stripeError(badReq, ""), state: unclear},
		{name: "500", status: 500, body: stripeError(apiError, ""), state: unclear},
		{name: "502 HTML", status: 502, body: html, state: unclear},
		{name: "503", status: 503, body: stripeError(apiError, ""), state: unclear},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sends := 0
			g := newRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
				sends++
				answers(c.status, c.body, c.header...)(w, r)
			})
			out := g.Refund(t.Context(), aRefundOrder())
			noSecret(t, "outcome", out)
			if out.State != c.state || out.Code != c.code || sends != 1 {
				t.Fatalf("got %+v after %d sends, want %s, code %q", out, sends, c.state, c.code)
			}
			if out.State != domain.RefundStateSucceeded && out.Reason == "" || out.Evidence == "" {
				t.Errorf("no reason or evidence: %+v", out)
			}
			switch out.State {
			case domain.RefundStateSucceeded, domain.RefundStatePending, domain.RefundStateFailed, domain.RefundStateCancelled:
				if out.StripeRefundID != "re_1" || out.ChargeID != "ch_1" || out.Money != aRefundOrder().Amount || out.Source != domain.SourceAnswer {
					t.Errorf("%+v", out)
				}
			}
		})
	}
}

func TestRefundOrderIsChecked(t *testing.T) {
	t.Parallel()
	g := newRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) { t.Error("a request left") })
	for name, spoil := range map[string]func(*sagas.RefundOrder){
		"charge": func(o *sagas.RefundOrder) { o.ChargeID = "pi_1" },
		"amount": func(o *sagas.RefundOrder) { o.Amount.Minor = 0 },
		"id":     func(o *sagas.RefundOrder) { o.RefundID = "" },
	} {
		o := aRefundOrder()
		spoil(&o)
		if out := g.Refund(t.Context(), o); out.State != domain.RefundStateRequested || out.Reason == "" {
			t.Errorf("%s: %+v", name, out)
		}
	}
	o := aRefundOrder()
	o.StripeRefundID = "re_1/../../charges"
	if out := g.FindRefund(t.Context(), o); out.State != domain.RefundStateUnknown {
		t.Errorf("%+v", out)
	}
}

func TestFindRefund(t *testing.T) {
	t.Parallel()
	mine := aRefund()
	other := mine.with("id", "re_9", "metadata", object{"refund_id": "another"})
	foreign := mine.with("id", "re_8", "metadata", nil)
	failed := mine.with("id", "re_0", "status", "failed")
	known := aRefundOrder()
	known.StripeRefundID = "re_1"
	for _, c := range []struct {
		name   string
		order  sagas.RefundOrder
		status int
		body   string
		state  domain.RefundState
		id     string
	}{
		{"by its id", known, 200, mine.String(), domain.RefundStateSucceeded, "re_1"},
		{"by its id, failed weeks later", known, 200, mine.with("status", "failed").String(), domain.RefundStateFailed, "re_1"},
		{"by its id, another", known, 200, other.String(), domain.RefundStateUnknown, ""},
		{"by its id, missing", known, 404, stripeError(badReq, "resource_missing"), domain.RefundStateUnknown, ""},
		{"by its id, 502", known, 502, html, domain.RefundStateUnknown, ""},
		{"in the list", aRefundOrder(), 200, page(false, other, mine, foreign), domain.RefundStateSucceeded, "re_1"},
		{"in the list, the living before the failed", aRefundOrder(), 200, page(false, mine, failed), domain.RefundStateSucceeded, "re_1"},
		{"in the list, failed alone", aRefundOrder(), 200, page(false, failed), domain.RefundStateFailed, "re_0"},
		{"in the list, another amount", aRefundOrder(), 200, page(false, mine.with("amount", 5)), domain.RefundStateReview, "re_1"},
		{"in the list, another amount beside one that fits", aRefundOrder(), 200, page(false, mine, mine.with("id", "re_0", "amount", 5)), domain.RefundStateSucceeded, "re_1"},
		{"not in the list", aRefundOrder(), 200, page(false, other, foreign), domain.RefundStateRequested, ""},
		{"an empty list", aRefundOrder(), 200, page(false), domain.RefundStateRequested, ""},
		{"no list", aRefundOrder(), 200, `{}`, domain.RefundStateUnknown, ""},
		{"a list of charges", aRefundOrder(), 200, page(false, aCharge()), domain.RefundStateUnknown, ""},
		{"the same page for ever", aRefundOrder(), 200, page(true, other), domain.RefundStateUnknown, ""},
		{"500", aRefundOrder(), 500, stripeError(apiError, ""), domain.RefundStateUnknown, ""},
		{"403", aRefundOrder(), 403, stripeError(badReq, ""), domain.RefundStateUnknown, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, time.Minute, answers(c.status, c.body))
			out := g.FindRefund(t.Context(), c.order)
			noSecret(t, "outcome", out)
			if out.State != c.state || out.StripeRefundID != c.id || out.Source != domain.SourceFind {
				t.Errorf("got %+v, want %s, %q", out, c.state, c.id)
			}
		})
	}
}

// An error on a later page is no proof of absence.
func TestFindRefundReadsToTheEnd(t *testing.T) {
	t.Parallel()
	for last, want := range map[string]domain.RefundState{"found": domain.RefundStateSucceeded, "error": domain.RefundStateUnknown} {
		g := newRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Query().Get("starting_after") == "":
				answers(200, page(true, aRefund().with("id", "re_9", "metadata", object{})))(w, r)
			case r.URL.Query().Get("starting_after") != "re_9":
				t.Errorf("asked for %s", r.URL)
			case last == "found":
				answers(200, page(false, aRefund()))(w, r)
			default:
				answers(502, html)(w, r)
			}
		})
		if out := g.FindRefund(t.Context(), aRefundOrder()); out.State != want {
			t.Errorf("%s: %+v", last, out)
		}
	}
}

// Against the stand-in: lost answers are found under the same key or in the
// list, equal refunds both work, and more than was taken never goes back.
func TestRefunds(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	o := s.prepared(t, "refund", "pm_card_visa")
	paid := s.Take(t.Context(), o)
	order := func(id string, minor int64) sagas.RefundOrder {
		return sagas.RefundOrder{CustomerID: o.CustomerID, Period: o.Period, RefundID: id, ChargeID: paid.ChargeID, Amount: domain.Money{Minor: minor, Currency: "usd"}}
	}
	first := order("r-1", 1000)
	if f := s.FindRefund(t.Context(), first); f.State != domain.RefundStateRequested {
		t.Errorf("before it was asked for: %+v", f)
	}
	s.fault(t, sim.Fault{Kind: sim.CommitThenDrop, Match: sim.Match{Method: http.MethodPost, Path: "/v1/refunds"}})
	if out := s.Refund(t.Context(), first); out.State != domain.RefundStateUnknown {
		t.Errorf("lost: %+v", out)
	}
	f := s.FindRefund(t.Context(), first)
	again := s.Refund(t.Context(), first)
	if f.State != domain.RefundStateSucceeded || again.State != domain.RefundStateSucceeded || f.StripeRefundID != again.StripeRefundID || !strings.Contains(again.Evidence, "replayed=true") {
		t.Errorf("found %+v, asked again %+v", f, again)
	}
	first.StripeRefundID = f.StripeRefundID
	if byID := s.FindRefund(t.Context(), first); byID.State != domain.RefundStateSucceeded || byID.StripeRefundID != f.StripeRefundID {
		t.Errorf("by id: %+v", byID)
	}
	if twin := s.Refund(t.Context(), order("r-2", 1000)); twin.State != domain.RefundStateSucceeded || twin.StripeRefundID == f.StripeRefundID {
		t.Errorf("an equal refund: %+v", twin)
	}
	if out := s.Refund(t.Context(), order("r-3", 901)); out.State != domain.RefundStateRefused || out.Code != refundTooLarge {
		t.Errorf("too much: %+v", out)
	}
	if out := s.Refund(t.Context(), order("r-4", 900)); out.State != domain.RefundStateSucceeded {
		t.Errorf("the rest: %+v", out)
	}
	if out := s.Refund(t.Context(), order("r-5", 1)); out.State != domain.RefundStateRefused || out.Code != "charge_already_refunded" {
		t.Errorf("nothing left: %+v", out)
	}
	moved := int64(0)
	for _, m := range s.stripe.LedgerWhere(sim.LedgerFilter{Customer: o.StripeCustomerID, Status: "succeeded"}) {
		moved += m.Refunded
	}
	if moved != 2900 {
		t.Errorf("%d went back", moved)
	}
	s.keysAreSound(t)
}

// Stripe holds a refund under our name with another amount: a read says so, with
// its id and how it stands, and one that fits is preferred. An answer that shows
// another one proves nothing.
func TestRefundThatDiffers(t *testing.T) {
	t.Parallel()
	s := newStandIn(t, 30*time.Second)
	o := s.prepared(t, "refund", "pm_card_visa")
	paid := s.Take(t.Context(), o)
	order := func(minor int64) sagas.RefundOrder {
		return sagas.RefundOrder{CustomerID: o.CustomerID, Period: o.Period, RefundID: "r-1", ChargeID: paid.ChargeID, Amount: domain.Money{Minor: minor, Currency: "usd"}}
	}
	other := s.Refund(t.Context(), order(1000))
	for _, byID := range []string{"", other.StripeRefundID} {
		asked := order(700)
		asked.StripeRefundID = byID
		f := s.FindRefund(t.Context(), asked)
		if f.State != domain.RefundStateReview || f.AtStripe != domain.RefundStateSucceeded || f.StripeRefundID != other.StripeRefundID || f.Money.Minor != 1000 || f.Code != refundDiffers {
			t.Errorf("read by %q: %+v", byID, f)
		}
	}
	s.stripe.Advance(25 * time.Hour) // the key is forgotten
	ours := s.Refund(t.Context(), order(700))
	if f := s.FindRefund(t.Context(), order(700)); f.State != domain.RefundStateSucceeded || f.StripeRefundID != ours.StripeRefundID {
		t.Errorf("beside one that fits: %+v", f)
	}
	shown := &refund{ID: "re_1", Status: "succeeded", Amount: 1000, Currency: "usd", Charge: ref(paid.ChargeID), Metadata: order(700).Markers()}
	for _, c := range []struct {
		source domain.Source
		status string
		want   domain.RefundState
		id     string
	}{
		{domain.SourceAnswer, "succeeded", domain.RefundStateUnknown, ""},
		{domain.SourceFind, "succeeded", domain.RefundStateReview, "re_1"},
		{domain.SourceFind, "pending", domain.RefundStateReview, "re_1"},
		{domain.SourceFind, "a word of tomorrow", domain.RefundStateReview, "re_1"},
		{domain.SourceFind, "failed", domain.RefundStateFailed, "re_1"},
		{domain.SourceFind, "canceled", domain.RefundStateCancelled, "re_1"},
	} {
		shown.Status = c.status
		if out := refunded(order(700), answer{status: 200}, shown, c.source); out.State != c.want || out.StripeRefundID != c.id {
			t.Errorf("%s %s: %+v", c.source, c.status, out)
		}
	}
}

// Every fault at a refund, once and three times: it is made once.
func TestEveryFaultEndsInOneRefund(t *testing.T) {
	t.Parallel()
	eachFault(t, "/v1/refunds", func(t *testing.T, f sim.Fault, timeout time.Duration) {
		s := newStandIn(t, timeout)
		o := s.prepared(t, "refund", "pm_card_visa")
		paid := s.Take(t.Context(), o)
		s.fault(t, f)
		order := sagas.RefundOrder{CustomerID: o.CustomerID, Period: o.Period, RefundID: "r", ChargeID: paid.ChargeID, Amount: domain.Money{Minor: 1000, Currency: "usd"}}
		var out domain.RefundOutcome
		for start := time.Now(); out.State != domain.RefundStateSucceeded && time.Since(start) < time.Minute; time.Sleep(5 * time.Millisecond) {
			if out = s.Refund(t.Context(), order); out.State != domain.RefundStateUnknown {
				continue
			}
			if strings.Contains(out.Evidence, "status=500") || strings.Contains(out.Evidence, "replayed=true") { // its key brings back nothing better
				s.stripe.Advance(25 * time.Hour)
			}
			if f := s.FindRefund(t.Context(), order); f.State == domain.RefundStateSucceeded {
				out = f
			}
		}
		back := int64(0)
		for _, m := range s.stripe.LedgerWhere(sim.LedgerFilter{Customer: o.StripeCustomerID}) {
			back += m.Refunded
		}
		if out.State != domain.RefundStateSucceeded || back != 1000 {
			t.Errorf("%+v, %d went back", out, back)
		}
		if s.stripe.Faults()[0].Hits == 0 {
			t.Error("the fault did not strike")
		}
	})
}
