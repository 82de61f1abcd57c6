package stripegateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
)

// aLegacyCharge is anOrder's charge, made by the road of legacy Charges.
func aLegacyCharge() object { return aCharge().with("payment_intent", nil) }

// The two roads on which anOrder can take money, and what succeeds on each.
var roads = []struct {
	api  API
	id   string
	paid object
}{
	{PaymentIntents, "pi_1", anIntent()},
	{Charges, chargeName(anOrder()), aLegacyCharge()},
}

// The outcome table, row by row: what can come back of a charge-making POST and
// what it means for the money, the same on both roads. What no row names is
// unknown.
func TestOutcomeTable(t *testing.T) {
	t.Parallel()
	const day = quietStored
	is := func(status int, body string, header ...string) func(object) http.HandlerFunc {
		return func(object) http.HandlerFunc { return answers(status, body, header...) }
	}
	shows := func(pairs ...any) func(object) http.HandlerFunc {
		return func(paid object) http.HandlerFunc { return answers(200, paid.with(pairs...).String()) }
	}
	replayed := []string{"Idempotent-Replayed", "true"}
	for _, row := range []struct {
		name   string
		answer func(paid object) http.HandlerFunc
		want   domain.OutcomeClass
		quiet  int
		only   API // empty: on both roads
	}{
		{"200, id, succeeded, amount, currency and customer equal", shows(), domain.Paid, 0, ""},
		{"200, replayed", func(paid object) http.HandlerFunc { return answers(200, paid.String(), replayed...) }, domain.Paid, 0, ""},
		{"200, another amount", shows("amount", 2901), domain.NeedsReview, 0, ""},
		{"200, another currency", shows("currency", "eur"), domain.NeedsReview, 0, ""},
		{"200, another customer", shows("customer", "cus_9"), domain.NeedsReview, 0, ""},
		{"200, not captured", shows("captured", false), domain.NeedsReview, 0, Charges},
		{"200, of another bill", shows("metadata", object{}), domain.NeedsReview, 0, Charges},
		{"200, pending", shows("status", "pending", "paid", false), domain.Unknown, quiet, Charges},
		{"200, failed", shows("status", "failed", "paid", false), domain.Unknown, quiet, Charges},
		{"200, processing", shows("status", "processing", "amount_received", 0), domain.Unknown, quiet, PaymentIntents},
		{"200, requires_action", shows("status", "requires_action", "amount_received", 0), domain.ActionRequired, 0, PaymentIntents},
		{"200, requires_capture", shows("status", "requires_capture", "amount_received", 0), domain.NeedsReview, 0, PaymentIntents},
		{"200, requires_confirmation", shows("status", "requires_confirmation", "amount_received", 0), domain.Unknown, quiet, PaymentIntents},
		{"200, id empty", shows("id", ""), domain.Unknown, quiet, ""},
		{"200, id with a wrong prefix", shows("id", "in_1"), domain.Unknown, quiet, ""},
		{"200, body {}", is(200, `{}`), domain.Unknown, quiet, ""},
		{"200, body not JSON", is(200, html), domain.Unknown, quiet, ""},
		{"307", is(307, `{}`, "Location", "/elsewhere"), domain.Unknown, quiet, ""},
		{"402 card_error", is(402, stripeError(cardError, "card_declined", "charge", "ch_1", "decline_code", "do_not_honor")), domain.Declined, 0, ""},
		{"402 card_error, replayed", is(402, stripeError(cardError, "card_declined", "charge", "ch_1"), replayed...), domain.Declined, 0, ""},
		{"402 of another type", is(402, stripeError("new_error", "")), domain.Unknown, quiet, ""},
		{"400 invalid_request_error", is(400, stripeError(badReq, "amount_too_small")), domain.Rejected, 0, ""},
		{"400, no such customer", is(400, stripeError(badReq, "resource_missing", "param", "customer")), domain.Declined, 0, ""},
		{"400, no such source", is(400, stripeError(badReq, "resource_missing", "param", "source")), domain.Declined, 0, ""},
		{"400 idempotency_error", is(400, stripeError("idempotency_error", "")), domain.NeedsReview, 0, ""},
		{"400 of another type", is(400, stripeError("new_error", "")), domain.Unknown, quiet, ""},
		{"400 payment_intent_unexpected_state, the intent succeeded", is(400, stripeError(badReq, unexpectedState, intentIn(anIntent())...)), domain.Paid, 0, PaymentIntents},
		{"401", is(401, stripeError(badReq, "")), domain.Held, 0, ""},
		{"403", is(403, stripeError(badReq, "")), domain.Held, 0, ""},
		{"404", is(404, stripeError(badReq, "resource_missing")), domain.Held, 0, ""},
		{"404, replayed", is(404, stripeError(badReq, "resource_missing"), replayed...), domain.Unknown, day, ""},
		{"409 idempotency_key_in_use", is(409, stripeError(badReq, "idempotency_key_in_use")), domain.Unknown, quiet, ""},
		{"429 rate_limit", is(429, stripeError(badReq, "rate_limit")), domain.RetrySameKey, 0, ""},
		{"429 lock_timeout", is(429, stripeError(badReq, "lock_timeout")), domain.RetrySameKey, 0, ""},
		{"429 from our proxy (cap)", is(429, stripeError(badReq, "spend_cap_exceeded"), "Stripe-Should-Retry", "false"), domain.Held, 0, ""},
		{"429 of another code", is(429, stripeError(badReq, "new_limit")), domain.Unknown, quiet, ""},
		{"500", is(500, stripeError(apiError, "")), domain.Unknown, day, ""},
		{"500, replayed", is(500, stripeError(apiError, ""), replayed...), domain.Unknown, day, ""},
		{"500, not in Stripe's form", is(500, html), domain.Unknown, day, ""},
		{"502", is(502, html), domain.Unknown, quiet, ""},
		{"503", is(503, stripeError(apiError, "")), domain.Unknown, quiet, ""},
		{"504", is(504, ""), domain.Unknown, quiet, ""},
		{"a status of tomorrow", is(599, stripeError(apiError, "")), domain.Unknown, quiet, ""},
		{"418", is(418, stripeError(badReq, "")), domain.Unknown, quiet, ""},
		{"time-out", func(object) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice that the client has gone
				<-r.Context().Done()
			}
		}, domain.Unknown, quiet, ""},
		{"EOF", func(object) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				drop(t, w)
			}
		}, domain.Unknown, quiet, ""},
		{"reset", func(object) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
		}, domain.Unknown, quiet, ""},
		{"truncated body", func(paid object) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Length", "9999")
				_, _ = io.WriteString(w, paid.String())
			}
		}, domain.Unknown, quiet, ""},
		{"non-JSON body of an error", is(400, "bad "+secret), domain.Unknown, quiet, ""},
		{"dial refused", nil, domain.RetrySameKey, 0, ""},
		{"DNS failure", nil, domain.RetrySameKey, 0, ""},
	} {
		for _, road := range roads {
			if row.only != "" && row.only != road.api {
				continue
			}
			t.Run(string(road.api)+"/"+row.name, func(t *testing.T) {
				t.Parallel()
				timeout := time.Minute
				if row.name == "time-out" {
					timeout = 100 * time.Millisecond
				}
				var g *rig
				switch row.name {
				case "dial refused":
					g = rigAt(t, closedPort(t), timeout)
				case "DNS failure":
					g = rigAt(t, closedPort(t), timeout)
					g.client.Transport.(*wire).next = noSuchHost{}
				default:
					g = newRig(t, timeout, row.answer(road.paid))
				}
				o := anOrder()
				o.IntentID = road.id
				out := g.Take(t.Context(), o)
				noSecret(t, "outcome", out)
				if out.Class != row.want || out.QuietSeconds != row.quiet {
					t.Fatalf("got %+v, want %s, quiet %d", out, row.want, row.quiet)
				}
				if out.Class == domain.Paid && (out.ChargeID != "ch_1" || out.Money != o.Amount || out.Source != domain.SourceAnswer) {
					t.Errorf("paid by %+v", out)
				}
				if out.Class != domain.Paid && out.Reason == "" {
					t.Errorf("no reason: %+v", out)
				}
			})
		}
	}
}

// noSuchHost is a network whose names are unknown.
type noSuchHost struct{}

func (noSuchHost) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}}
}

// A context that has ended before anything was sent is proof of not sending; one
// that ends on the way is not.
func TestOutcomeOfAnEndedContext(t *testing.T) {
	t.Parallel()
	for _, road := range roads {
		o := anOrder()
		o.IntentID = road.id
		arrived := make(chan struct{})
		g := newRig(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			close(arrived)
			<-r.Context().Done()
		})
		ctx, cancel := contextThatEnds(t, arrived)
		if out := g.Take(ctx, o); out.Class != domain.Unknown || out.QuietSeconds != quiet {
			t.Errorf("%s: %+v", road.api, out)
		}
		cancel()
		if out := g.Take(ctx, o); out.Class != domain.RetrySameKey {
			t.Errorf("%s, ended before: %+v", road.api, out)
		}
	}
}

// The faults of the way that no row above can name are unknown too.
func TestOutcomeOfFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		a     answer
		class domain.OutcomeClass
	}{
		"nothing known":                    {answer{}, domain.Unknown},
		"lost":                             {answer{fault: lost, why: describe(errors.New(secret))}, domain.Unknown},
		"unreadable":                       {answer{fault: unreadable, status: 403}, domain.Unknown},
		"a fault of tomorrow":              {answer{fault: "tomorrow", status: 299}, domain.Unknown},
		"unsent":                           {answer{fault: unsent}, domain.RetrySameKey},
		"refused by our own check":         {answer{fault: violated}, domain.Held},
		"an informational status":          {answer{status: 103}, domain.Unknown},
		"a decline that is no card's":      {answer{status: 402, kind: "invalid_request_error"}, domain.Unknown},
		"a status beyond all":              {answer{status: 999}, domain.Unknown},
		"401 that nobody should have kept": {answer{status: 401, replayed: true}, domain.Unknown},
	} {
		if out := refusal(c.a); out.Class != c.class {
			t.Errorf("%s: %+v", name, out)
		}
	}
}
