package stripegateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

const (
	cardError = "card_error"
	badReq    = "invalid_request_error"
	apiError  = "api_error"
	html      = "<html><body>502 " + secret + "</body></html>"
)

// intentIn is an error's payment_intent field.
func intentIn(o object) []any { return []any{"payment_intent", o} }

func failedIntent() object { return anIntent().open().with("latest_charge", "ch_1") }

// row is one line of the outcome table, as it arrives on the wire.
type row struct {
	name   string
	status int
	body   string
	header []string

	class   domain.OutcomeClass
	code    string
	quiet   int
	decline domain.DeclineClass // of a decline
	reason  string              // a part of it
}

var takeTable = []row{
	// Success, and what only looks like it.
	{name: "succeeded", status: 200, body: anIntent().String(), class: domain.Paid},
	{name: "succeeded, replayed", status: 200, body: anIntent().String(), header: []string{"Idempotent-Replayed", "true"}, class: domain.Paid},
	{name: "succeeded, charge expanded", status: 200, body: anIntent().with("latest_charge", aCharge()).String(), class: domain.Paid},
	{name: "succeeded, customer expanded", status: 200, body: anIntent().with("customer", object{"id": "cus_0001", "name": secret}).String(), class: domain.Paid},
	{name: "succeeded without a charge", status: 200, body: anIntent().with("latest_charge", nil).String(), class: domain.Unknown, quiet: 900},
	{name: "wrong amount", status: 200, body: anIntent().with("amount", 2901).String(), class: domain.NeedsReview, reason: "amount"},
	{name: "wrong amount received", status: 200, body: anIntent().with("amount_received", 1).String(), class: domain.NeedsReview, reason: "amount_received"},
	{name: "wrong currency", status: 200, body: anIntent().with("currency", "eur").String(), class: domain.NeedsReview, reason: "currency"},
	{name: "wrong customer", status: 200, body: anIntent().with("customer", "cus_0002").String(), class: domain.NeedsReview, reason: "customer"},
	{name: "another intent", status: 200, body: anIntent().with("id", "pi_2").String(), class: domain.NeedsReview},
	{name: "processing", status: 200, body: anIntent().with("status", "processing", "amount_received", 0).String(), class: domain.Unknown, quiet: 900},
	{name: "requires_action", status: 200, body: anIntent().with("status", "requires_action", "amount_received", 0).String(), class: domain.ActionRequired},
	{name: "requires_capture", status: 200, body: anIntent().with("status", "requires_capture", "amount_received", 0).String(), class: domain.NeedsReview},
	{name: "requires_payment_method", status: 200, body: anIntent().open().String(), class: domain.Unknown, quiet: 900},
	{name: "canceled", status: 200, body: anIntent().open().with("status", "canceled").String(), class: domain.Unknown, quiet: 900},
	{name: "a status from the future", status: 200, body: anIntent().with("status", "quantum", "amount_received", 0).String(), class: domain.Unknown, quiet: 900},
	{name: "200 {}", status: 200, body: `{}`, class: domain.Unknown, quiet: 900},
	{name: "200 null", status: 200, body: `null`, class: domain.Unknown, quiet: 900},
	{name: "200 []", status: 200, body: `[]`, class: domain.Unknown, quiet: 900},
	{name: "200 without a body", status: 200, body: ``, class: domain.Unknown, quiet: 900},
	{name: "200 HTML", status: 200, body: html, class: domain.Unknown, quiet: 900},
	{name: "200 half a body", status: 200, body: anIntent().String()[:700], class: domain.Unknown, quiet: 900},
	{name: "200 another object", status: 200, body: aCharge().String(), class: domain.Unknown, quiet: 900},
	{name: "200 an error", status: 200, body: stripeError(cardError, "card_declined"), class: domain.Unknown, quiet: 900},
	{name: "200 a secret for an id", status: 200, body: anIntent().with("id", "pi_1_secret_x").String(), class: domain.Unknown, quiet: 900},
	{name: "200 the amount as text", status: 200, body: anIntent().with("amount", "2900").String(), class: domain.Unknown, quiet: 900},
	{name: "200 two billion dollars", status: 200, body: anIntent().with("amount_received", int64(1)<<61).String(), class: domain.NeedsReview},
	{name: "202 without content", status: 202, body: `{}`, class: domain.Unknown, quiet: 900},
	{name: "307", status: 307, body: `{}`, header: []string{"Location", "/elsewhere"}, class: domain.Unknown, quiet: 900, reason: "redirect"},
	{name: "302 HTML", status: 302, body: html, header: []string{"Location", "/elsewhere"}, class: domain.Unknown, quiet: 900, reason: "redirect"},

	// Declines.
	{name: "declined", status: 402, body: stripeError(cardError, "card_declined", append(intentIn(failedIntent()), "charge", "ch_1", "decline_code", "insufficient_funds")...),
		class: domain.Declined, code: "card_declined", decline: domain.Soft},
	{name: "declined, replayed", status: 402, body: stripeError(cardError, "card_declined", append(intentIn(failedIntent()), "charge", "ch_1", "decline_code", "lost_card")...),
		header: []string{"Idempotent-Replayed", "true"}, class: domain.Declined, code: "card_declined", decline: domain.Hard},
	{name: "declined without an intent", status: 402, body: stripeError(cardError, "expired_card", "charge", "ch_1"), class: domain.Declined, code: "expired_card", decline: domain.Hard},
	{name: "authentication required", status: 402, body: stripeError(cardError, "authentication_required", append(intentIn(failedIntent()), "charge", "ch_1", "decline_code", "authentication_required")...),
		class: domain.Declined, code: "authentication_required", decline: domain.Authentication},
	{name: "too many tries of the card", status: 402, body: stripeError(cardError, "card_declined", "charge", "ch_1", "decline_code", "card_decline_rate_limit_exceeded"), class: domain.Declined, code: "card_declined", decline: domain.RateLimited},
	{name: "declined, and the intent is cancelled with it", status: 402, body: stripeError(cardError, "card_declined", append(intentIn(failedIntent().with("status", "canceled")), "charge", "ch_1")...), class: domain.Declined, code: "card_declined", decline: domain.Soft},
	{name: "a decline that waits for the customer", status: 402, body: stripeError(cardError, "authentication_required", intentIn(anIntent().with("status", "requires_action", "amount_received", 0))...), class: domain.ActionRequired, code: "authentication_required"},
	{name: "a decline of an intent that is processing", status: 402, body: stripeError(cardError, "card_declined", intentIn(anIntent().with("status", "processing", "amount_received", 0))...), class: domain.Unknown, code: "card_declined", quiet: 900},
	{name: "a decline of an intent that succeeded", status: 402, body: stripeError(cardError, "card_declined", intentIn(anIntent())...), class: domain.Paid},
	{name: "a decline of another intent", status: 402, body: stripeError(cardError, "card_declined", intentIn(failedIntent().with("id", "pi_2"))...), class: domain.NeedsReview, code: "card_declined"},
	{name: "402 of another type", status: 402, body: stripeError("new_error", "card_declined"), class: domain.Unknown, code: "card_declined", quiet: 900},
	{name: "402 in another form", status: 402, body: `{"error":"declined ` + secret + `"}`, class: domain.Unknown, quiet: 900},
	{name: "402 HTML", status: 402, body: html, class: domain.Unknown, quiet: 900},

	// No usable method.
	{name: "no such method", status: 400, body: stripeError(badReq, "resource_missing", "param", "payment_method"), class: domain.Declined, code: "resource_missing", decline: domain.MethodMissing},
	{name: "no such customer", status: 400, body: stripeError(badReq, "resource_missing", "param", "customer"), class: domain.Declined, code: "resource_missing", decline: domain.MethodMissing},
	{name: "no such method, in words alone", status: 400, body: stripeError(badReq, "", "message", "No such PaymentMethod: 'pm_1'"), class: domain.Declined, code: noUsableMethod, decline: domain.MethodMissing},
	{name: "detached method", status: 400, body: stripeError(badReq, "payment_method_unexpected_state"), class: domain.Declined, code: noUsableMethod, decline: domain.MethodMissing},
	{name: "another customer's method", status: 400, body: stripeError(badReq, "", "param", "payment_method"), class: domain.Declined, code: noUsableMethod, decline: domain.MethodMissing},
	{name: "no method with the intent shown", status: 400, body: stripeError(badReq, "resource_missing", append(intentIn(anIntent().open()), "param", "payment_method")...), class: domain.Declined, code: "resource_missing", decline: domain.MethodMissing},
	{name: "no card on the customer", status: 402, body: stripeError(cardError, "missing"), class: domain.Declined, code: noUsableMethod, decline: domain.MethodMissing},

	// Refusals of the request.
	{name: "invalid parameter", status: 400, body: stripeError(badReq, "parameter_invalid_integer", "param", "amount"), class: domain.Rejected, code: "parameter_invalid_integer"},
	{name: "invalid parameter, replayed", status: 400, body: stripeError(badReq, "amount_too_small"), header: []string{"Idempotent-Replayed", "true"}, class: domain.Rejected, code: "amount_too_small"},
	{name: "unknown parameter named like a method", status: 400, body: stripeError(badReq, "parameter_unknown", "param", "payment_method"), class: domain.Rejected, code: "parameter_unknown"},
	{name: "400 of another type", status: 400, body: stripeError("new_error", ""), class: domain.Unknown, quiet: 900},
	{name: "400 HTML", status: 400, body: html, class: domain.Unknown, quiet: 900},
	{name: "other parameters under the key", status: 400, body: stripeError("idempotency_error", ""), class: domain.NeedsReview},
	{name: "other parameters, with an intent", status: 400, body: stripeError("idempotency_error", "", intentIn(anIntent())...), class: domain.NeedsReview},

	// The intent is not where it should be.
	{name: "succeeded before", status: 400, body: stripeError(badReq, unexpectedState, intentIn(anIntent())...), class: domain.Paid},
	{name: "succeeded before with another amount", status: 400, body: stripeError(badReq, unexpectedState, intentIn(anIntent().with("amount_received", 1))...), class: domain.NeedsReview, code: unexpectedState},
	{name: "cancelled before", status: 400, body: stripeError(badReq, unexpectedState, intentIn(anIntent().open().with("status", "canceled"))...), class: domain.Unknown, code: unexpectedState, quiet: 900, reason: "cancelled"},
	{name: "processing still", status: 400, body: stripeError(badReq, unexpectedState, intentIn(anIntent().with("status", "processing", "amount_received", 0))...), class: domain.Unknown, code: unexpectedState, quiet: 900, reason: "processed"},
	{name: "open, yet unexpected", status: 400, body: stripeError(badReq, unexpectedState, intentIn(anIntent().open())...), class: domain.Unknown, code: unexpectedState, quiet: 900},
	{name: "unexpected state without the intent", status: 400, body: stripeError(badReq, unexpectedState), class: domain.Unknown, code: unexpectedState, quiet: 900},

	// Configuration and policy.
	{name: "401", status: 401, body: stripeError(badReq, ""), class: domain.Held},
	{name: "403", status: 403, body: stripeError(badReq, ""), class: domain.Held},
	{name: "403 of the proxy", status: 403, body: stripeError(badReq, "policy_denied"), class: domain.Held, code: "policy_denied"},
	{name: "404", status: 404, body: stripeError(badReq, "resource_missing", "param", "intent"), class: domain.Held, code: "resource_missing"},
	{name: "404 for the method", status: 404, body: stripeError(badReq, "resource_missing", "param", "payment_method"), class: domain.Held, code: "resource_missing"},
	{name: "404, replayed", status: 404, body: stripeError(badReq, "resource_missing"), header: []string{"Idempotent-Replayed", "true"}, class: domain.Unknown, code: "resource_missing", quiet: 86400, reason: "replayed"},
	{name: "403 HTML", status: 403, body: html, class: domain.Unknown, quiet: 900},
	{name: "spend cap", status: 429, body: stripeError(badReq, "spend_cap_exceeded"), header: []string{"Stripe-Should-Retry", "false"}, class: domain.Held, code: "spend_cap_exceeded"},
	{name: "count cap", status: 429, body: stripeError(badReq, "charge_cap_exceeded"), header: []string{"Stripe-Should-Retry", "false"}, class: domain.Held, code: "charge_cap_exceeded"},
	{name: "the proxy's books away", status: 503, body: stripeError(badReq, "ledger_unavailable"), header: []string{"Stripe-Should-Retry", "false"}, class: domain.RetrySameKey, code: "ledger_unavailable"},

	// Proof that nothing was executed.
	{name: "rate limit", status: 429, body: stripeError(badReq, "rate_limit"), class: domain.RetrySameKey, code: "rate_limit"},
	{name: "rate limit, urged to retry", status: 429, body: stripeError(badReq, "rate_limit"), header: []string{"Stripe-Should-Retry", "true"}, class: domain.RetrySameKey, code: "rate_limit"},
	{name: "lock time-out", status: 429, body: stripeError(badReq, "lock_timeout"), class: domain.RetrySameKey, code: "lock_timeout"},
	{name: "rate limit, replayed", status: 429, body: stripeError(badReq, "rate_limit"), header: []string{"Idempotent-Replayed", "true"}, class: domain.Unknown, code: "rate_limit", quiet: 86400},
	{name: "429 without a code", status: 429, body: stripeError(badReq, ""), class: domain.Unknown, quiet: 900},
	{name: "429 as text", status: 429, body: "slow down " + secret, class: domain.Unknown, quiet: 900},

	// Nobody can tell.
	{name: "key in use", status: 409, body: stripeError(badReq, "idempotency_key_in_use"), class: domain.Unknown, code: "idempotency_key_in_use", quiet: 900},
	{name: "key in use under another type", status: 409, body: stripeError("idempotency_error_of_old", "idempotency_key_in_use"), class: domain.Unknown, code: "idempotency_key_in_use", quiet: 900},
	{name: "500", status: 500, body: stripeError(apiError, ""), class: domain.Unknown, quiet: 86400},
	{name: "500, not to be retried", status: 500, body: stripeError(apiError, ""), header: []string{"Stripe-Should-Retry", "false"}, class: domain.Unknown, quiet: 86400},
	{name: "500 HTML", status: 500, body: html, class: domain.Unknown, quiet: 86400},
	{name: "500 empty", status: 500, body: "", class: domain.Unknown, quiet: 86400},
	{name: "502 HTML", status: 502, body: html, class: domain.Unknown, quiet: 900},
	{name: "502 empty", status: 502, body: "", class: domain.Unknown, quiet: 900},
	{name: "502 in Stripe's form", status: 502, body: stripeError(apiError, ""), class: domain.Unknown, quiet: 900},
	{name: "503", status: 503, body: stripeError(apiError, ""), header: []string{"Stripe-Should-Retry", "true"}, class: domain.Unknown, quiet: 900},
	{name: "504", status: 504, body: html, class: domain.Unknown, quiet: 900},
	{name: "418", status: 418, body: stripeError(badReq, ""), class: domain.Unknown, quiet: 900},
}

func TestTakeTable(t *testing.T) {
	t.Parallel()
	for _, c := range takeTable {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sends := 0
			g := newRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
				sends++
				answers(c.status, c.body, c.header...)(w, r)
			})
			out := g.Take(t.Context(), anOrder())
			noSecret(t, "outcome", out)
			if out.Class != c.class || out.QuietSeconds != c.quiet || !strings.Contains(out.Reason, c.reason) {
				t.Fatalf("got %+v, want class %s, quiet %d, reason with %q", out, c.class, c.quiet, c.reason)
			}
			if out.Code != c.code {
				t.Errorf("code %q, want %q", out.Code, c.code)
			}
			if sends != 1 {
				t.Errorf("sent %d times", sends)
			}
			switch out.Class {
			case domain.Paid:
				want := domain.Outcome{
					Class: domain.Paid, ChargeID: "ch_1", IntentID: "pi_1", Money: domain.Money{Minor: 2900, Currency: "usd"},
					Source: domain.SourceAnswer, Evidence: out.Evidence,
				}
				if out != want {
					t.Errorf("paid as %+v, want %+v", out, want)
				}
			case domain.Declined:
				if got := domain.ClassifyDecline(out.Code, out.DeclineCode); got != c.decline {
					t.Errorf("decline class %s, want %s", got, c.decline)
				}
				fallthrough
			default:
				if out.Reason == "" || !strings.Contains(out.Evidence, "status=") || !strings.Contains(out.Evidence, "request=req_1") {
					t.Errorf("no reason or evidence in %+v", out)
				}
			}
		})
	}
}

// A decline names the charge it left behind.
func TestDeclineNamesItsCharge(t *testing.T) {
	t.Parallel()
	g := newRig(t, time.Minute, answers(402, stripeError(cardError, "card_declined", append(intentIn(failedIntent()), "charge", "ch_1", "decline_code", "do_not_honor")...)))
	out := g.Take(t.Context(), anOrder())
	if out.ChargeID != "ch_1" || out.IntentID != "pi_1" || out.DeclineCode != "do_not_honor" {
		t.Errorf("got %+v", out)
	}
}

func TestBackOffThatStripeAsksFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		code   string
		header []string
		want   int
	}{
		{"rate limit", 429, "rate_limit", nil, 0},
		{"rate limit with Retry-After", 429, "rate_limit", []string{"Retry-After", "7"}, 7},
		{"rate limit, no retry wanted", 429, "rate_limit", []string{"Stripe-Should-Retry", "false"}, unwillingBackOff},
		{"rate limit, both", 429, "rate_limit", []string{"Stripe-Should-Retry", "false", "Retry-After", "30"}, 30},
		{"lock time-out, retry wanted", 429, "lock_timeout", []string{"Stripe-Should-Retry", "true"}, 0},
		{"503 with Retry-After", 503, "", []string{"Retry-After", "20"}, 20},
		{"an absurd Retry-After", 503, "", []string{"Retry-After", "99999999"}, 3600},
		{"a date for Retry-After", 503, "", []string{"Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT"}, 0},
		{"a negative Retry-After", 429, "rate_limit", []string{"Retry-After", "-5"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, time.Minute, answers(c.status, stripeError(badReq, c.code), c.header...))
			if out := g.Take(t.Context(), anOrder()); out.RetryAfterSeconds != c.want {
				t.Errorf("got %d, want %d", out.RetryAfterSeconds, c.want)
			}
		})
	}
}

func TestPrepareTable(t *testing.T) {
	t.Parallel()
	fresh := anIntent().open()
	for _, c := range []struct {
		name   string
		status int
		body   string
		class  domain.OutcomeClass // empty: the intent is handed out
		latest string
		reason string
	}{
		{name: "created", status: 200, body: fresh.String()},
		{name: "created under a former answer with a charge", status: 200, body: fresh.with("latest_charge", "ch_9").String(), latest: "ch_9"},
		{name: "wrong amount", status: 200, body: fresh.with("amount", 1).String(), class: domain.NeedsReview, reason: "amount"},
		{name: "wrong currency", status: 200, body: fresh.with("currency", "jpy").String(), class: domain.NeedsReview, reason: "currency"},
		{name: "wrong customer", status: 200, body: fresh.with("customer", nil).String(), class: domain.NeedsReview, reason: "customer"},
		{name: "no metadata", status: 200, body: fresh.with("metadata", object{}).String(), class: domain.NeedsReview, reason: "metadata"},
		{name: "more metadata", status: 200, body: fresh.with("metadata", object{"customer_id": "cust_123", "billing_period": "2026-11", "billing_key": "78add715f5445db3d7f8c24b1df859b6", "x": "y"}).String(), class: domain.NeedsReview, reason: "metadata"},
		{name: "manual capture", status: 200, body: fresh.with("capture_method", "manual").String(), class: domain.NeedsReview, reason: "capture_method"},
		{name: "already succeeded", status: 200, body: anIntent().String(), class: domain.NeedsReview, reason: "status"},
		{name: "a charge's id", status: 200, body: fresh.with("id", "ch_1").String(), class: domain.Unknown},
		{name: "200 {}", status: 200, body: `{}`, class: domain.Unknown},
		{name: "200 HTML", status: 200, body: html, class: domain.Unknown},
		{name: "307", status: 307, body: `{}`, class: domain.Unknown},
		{name: "no such customer", status: 400, body: stripeError(badReq, "resource_missing", "param", "customer"), class: domain.Declined},
		{name: "amount too small", status: 400, body: stripeError(badReq, "amount_too_small"), class: domain.Rejected},
		{name: "other parameters under the key", status: 400, body: stripeError("idempotency_error", ""), class: domain.NeedsReview},
		{name: "401", status: 401, body: stripeError(badReq, ""), class: domain.Held},
		{name: "403", status: 403, body: stripeError(badReq, ""), class: domain.Held},
		{name: "spend cap", status: 429, body: stripeError(badReq, "spend_cap_exceeded"), class: domain.Held},
		{name: "rate limit", status: 429, body: stripeError(badReq, "rate_limit"), class: domain.RetrySameKey},
		{name: "409", status: 409, body: stripeError(badReq, "idempotency_key_in_use"), class: domain.Unknown},
		{name: "500", status: 500, body: stripeError(apiError, ""), class: domain.Unknown},
		{name: "502 HTML", status: 502, body: html, class: domain.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, time.Minute, answers(c.status, c.body))
			o := anOrder()
			o.IntentID = ""
			p := g.Prepare(t.Context(), o)
			noSecret(t, "outcome", p)
			if c.class == "" {
				if p != (sagas.Prepared{IntentID: "pi_1", LatestCharge: c.latest}) {
					t.Errorf("got %+v", p)
				}
				return
			}
			if p.IntentID != "" || p.LatestCharge != "" || p.Outcome.Class != c.class || !strings.Contains(p.Outcome.Reason, c.reason) {
				t.Errorf("got %+v, want %s with %q", p, c.class, c.reason)
			}
		})
	}
}

func TestFindTable(t *testing.T) {
	t.Parallel()
	failed := aCharge().with("id", "ch_2", "status", "failed", "paid", false, "captured", false, "failure_code", "card_declined", "outcome", object{"reason": "insufficient_funds"})
	open := anIntent().open()
	for _, c := range []struct {
		name   string
		latest string // the order's
		status int
		body   string
		state  sagas.IntentState
		class  domain.OutcomeClass
		shows  string // latest charge in the finding
		code   string
		second string // decline code
	}{
		{name: "succeeded", status: 200, body: anIntent().with("latest_charge", aCharge()).String(), state: sagas.IntentDecided, class: domain.Paid, shows: "ch_1"},
		{name: "succeeded after an earlier decline", latest: "ch_0", status: 200, body: anIntent().with("latest_charge", aCharge()).String(), state: sagas.IntentDecided, class: domain.Paid, shows: "ch_1"},
		{name: "succeeded, wrong amount", status: 200, body: anIntent().with("amount_received", 5, "latest_charge", aCharge()).String(), state: sagas.IntentDecided, class: domain.NeedsReview, shows: "ch_1"},
		{name: "succeeded, wrong customer", status: 200, body: anIntent().with("customer", "cus_9").String(), state: sagas.IntentDecided, class: domain.NeedsReview, shows: "ch_1"},
		{name: "open with another amount", status: 200, body: open.with("amount", 1).String(), state: sagas.IntentDecided, class: domain.NeedsReview},
		{name: "processing", status: 200, body: anIntent().with("status", "processing", "amount_received", 0).String(), state: sagas.IntentProcessing, class: domain.Unknown, shows: "ch_1"},
		{name: "requires_action", status: 200, body: open.with("status", "requires_action").String(), state: sagas.IntentAction, class: domain.ActionRequired},
		{name: "canceled", latest: "ch_2", status: 200, body: open.with("status", "canceled", "latest_charge", failed).String(), state: sagas.IntentCancelled, class: domain.Unknown, shows: "ch_2"},
		{name: "untouched", status: 200, body: open.String(), state: sagas.IntentUnchanged, class: domain.Unknown},
		{name: "untouched since the last decline", latest: "ch_2", status: 200, body: open.with("latest_charge", failed).String(), state: sagas.IntentUnchanged, class: domain.Unknown, shows: "ch_2"},
		{name: "declined", status: 200, body: open.with("latest_charge", failed).String(), state: sagas.IntentDecided, class: domain.Declined, shows: "ch_2", code: "card_declined", second: "insufficient_funds"},
		{name: "declined, told by the intent", latest: "ch_1", status: 200, body: open.with("latest_charge", failed, "last_payment_error", object{"charge": "ch_2", "code": "expired_card", "decline_code": "expired_card", "message": secret}).String(),
			state: sagas.IntentDecided, class: domain.Declined, shows: "ch_2", code: "expired_card", second: "expired_card"},
		{name: "declined, told of another charge", status: 200, body: open.with("latest_charge", failed, "last_payment_error", object{"charge": "ch_1", "code": "expired_card"}).String(),
			state: sagas.IntentDecided, class: domain.Declined, shows: "ch_2", code: "card_declined", second: "insufficient_funds"},
		{name: "charge pending", status: 200, body: open.with("latest_charge", failed.with("status", "pending")).String(), state: sagas.IntentProcessing, class: domain.Unknown, shows: "ch_2"},
		{name: "charge succeeded, intent open", status: 200, body: open.with("latest_charge", aCharge()).String(), state: sagas.IntentDecided, class: domain.NeedsReview, shows: "ch_1"},
		{name: "charge not expanded", status: 200, body: open.with("latest_charge", "ch_2").String(), state: sagas.IntentUnreachable, class: domain.Unknown, shows: "ch_2"},
		{name: "the former charge is gone", latest: "ch_2", status: 200, body: open.String(), state: sagas.IntentUnreachable, class: domain.Unknown},
		{name: "authorised only", status: 200, body: anIntent().with("status", "requires_capture", "amount_received", 0).String(), state: sagas.IntentDecided, class: domain.NeedsReview, shows: "ch_1"},
		{name: "another intent", status: 200, body: anIntent().with("id", "pi_2").String(), state: sagas.IntentDecided, class: domain.NeedsReview},
		{name: "a status from the future", status: 200, body: open.with("status", "quantum").String(), state: sagas.IntentUnreachable, class: domain.Unknown},
		{name: "200 {}", status: 200, body: `{}`, state: sagas.IntentUnreachable, class: domain.Unknown},
		{name: "200 HTML", status: 200, body: html, state: sagas.IntentUnreachable, class: domain.Unknown},
		{name: "missing", status: 404, body: stripeError(badReq, "resource_missing", "param", "intent"), state: sagas.IntentMissing, class: domain.NeedsReview},
		{name: "a wrong address", status: 404, body: stripeError(badReq, ""), state: sagas.IntentUnreachable, class: domain.Unknown},
		{name: "404 HTML", status: 404, body: html, state: sagas.IntentUnreachable, class: domain.Unknown},
		{name: "401", status: 401, body: stripeError(badReq, ""), state: sagas.IntentUnreachable, class: domain.Unknown},
		{name: "rate limit", status: 429, body: stripeError(badReq, "rate_limit"), state: sagas.IntentUnreachable, class: domain.Unknown},
		{name: "500", status: 500, body: stripeError(apiError, ""), state: sagas.IntentUnreachable, class: domain.Unknown},
		{name: "502 HTML", status: 502, body: html, state: sagas.IntentUnreachable, class: domain.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, time.Minute, answers(c.status, c.body))
			o := anOrder()
			o.LatestCharge = c.latest
			f := g.Find(t.Context(), o)
			noSecret(t, "finding", f)
			if f.State != c.state || f.Outcome.Class != c.class || f.LatestCharge != c.shows {
				t.Fatalf("got %+v, want %s, %s, latest charge %q", f, c.state, c.class, c.shows)
			}
			if f.Outcome.Class == domain.Declined && (f.Outcome.ChargeID != c.shows || f.Outcome.Code != c.code || f.Outcome.DeclineCode != c.second) {
				t.Errorf("declined by %+v, want charge %s, codes %s, %s", f.Outcome, c.shows, c.code, c.second)
			}
			if f.Outcome.Class == domain.Paid && (f.Outcome.Source != domain.SourceFind || f.Outcome.ChargeID != "ch_1" || f.Outcome.Money != o.Amount) {
				t.Errorf("paid by %+v", f.Outcome)
			}
			if f.Outcome.Class != domain.Paid && f.Outcome.Reason == "" {
				t.Error("no reason")
			}
		})
	}
}

func TestCancelTable(t *testing.T) {
	t.Parallel()
	gone := anIntent().open().with("status", "canceled")
	for _, c := range []struct {
		name   string
		status int
		body   string
		state  sagas.IntentState
		class  domain.OutcomeClass
	}{
		{"canceled", 200, gone.String(), sagas.IntentCancelled, domain.Unknown},
		{"canceled, whatever its amount", 200, gone.with("amount", 1).String(), sagas.IntentCancelled, domain.Unknown},
		{"canceled before", 400, stripeError(badReq, unexpectedState, intentIn(gone)...), sagas.IntentCancelled, domain.Unknown},
		{"succeeded before", 400, stripeError(badReq, unexpectedState, intentIn(anIntent())...), sagas.IntentDecided, domain.Paid},
		{"succeeded before, wrong amount", 400, stripeError(badReq, unexpectedState, intentIn(anIntent().with("amount_received", 1))...), sagas.IntentDecided, domain.NeedsReview},
		{"processing", 400, stripeError(badReq, unexpectedState, intentIn(anIntent().with("status", "processing"))...), sagas.IntentProcessing, domain.Unknown},
		{"another intent is canceled", 200, gone.with("id", "pi_2").String(), sagas.IntentDecided, domain.NeedsReview},
		{"still open", 200, anIntent().open().String(), sagas.IntentUnreachable, domain.Unknown},
		{"unexpected state without an intent", 400, stripeError(badReq, unexpectedState), sagas.IntentUnreachable, domain.Unknown},
		{"other parameters under the key", 400, stripeError("idempotency_error", ""), sagas.IntentUnreachable, domain.NeedsReview},
		{"200 {}", 200, `{}`, sagas.IntentUnreachable, domain.Unknown},
		{"missing", 404, stripeError(badReq, "resource_missing", "param", "intent"), sagas.IntentMissing, domain.NeedsReview},
		{"a wrong address", 404, stripeError(badReq, ""), sagas.IntentUnreachable, domain.Unknown},
		{"409", 409, stripeError(badReq, "idempotency_key_in_use"), sagas.IntentUnreachable, domain.Unknown},
		{"500", 500, stripeError(apiError, ""), sagas.IntentUnreachable, domain.Unknown},
		{"502 HTML", 502, html, sagas.IntentUnreachable, domain.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, time.Minute, answers(c.status, c.body))
			f := g.Cancel(t.Context(), anOrder(), "requested_by_customer")
			noSecret(t, "finding", f)
			if f.State != c.state || f.Outcome.Class != c.class {
				t.Fatalf("got %+v, want %s, %s", f, c.state, c.class)
			}
			if f.Outcome.Class == domain.Paid && f.Outcome.Source != domain.SourceCancel {
				t.Errorf("source %s", f.Outcome.Source)
			}
		})
	}
}
