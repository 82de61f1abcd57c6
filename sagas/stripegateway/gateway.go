package stripegateway

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/form"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// Gateway takes money with Stripe's PaymentIntents, or with legacy Charges. It
// is safe for concurrent use and holds no state but idle connections.
type Gateway struct {
	road    API // of bills that have none committed
	api     stripe.Backend
	key     string
	refunds string // the key of refunds
	runs    RunKeys
	base    *url.URL
	client  *http.Client
	timeout time.Duration
	limits  *limits
	log     *slog.Logger
}

var _ sagas.Gateway = (*Gateway)(nil)

// New returns a gateway, or an error that lists everything that is wrong with
// the configuration. It makes no call.
func New(c Config) (*Gateway, error) {
	c, base, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport: &wire{next: newTransport(c.Timeout, c.MaxConns), base: base, spare: make(chan *bytes.Buffer, 1)},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	return &Gateway{
		// One backend of its own: nothing process-wide of the library is used.
		api: stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
			URL:               stripe.String(base.String()),
			HTTPClient:        client,
			MaxNetworkRetries: stripe.Int64(0),
			EnableTelemetry:   stripe.Bool(false),
			LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		}),
		road: c.API, key: c.Key, refunds: c.RefundKey, runs: c.Runs, base: base, client: client, timeout: c.Timeout, log: c.Log,
		limits: newLimits(c.Rate, c.EndpointRate, c.Timeout/4),
	}, nil
}

// Close closes idle connections. Calls in flight go on.
func (g *Gateway) Close() { g.client.CloseIdleConnections() }

// String names the gateway's address and never its key.
func (g *Gateway) String() string { return "stripegateway " + g.base.String() }

// GoString is String.
func (g *Gateway) GoString() string { return g.String() }

// Mutex is true of an intent, which succeeds once whatever keys it is confirmed
// under, and false of a legacy charge, which its key alone makes one.
func (g *Gateway) Mutex(o sagas.Order) bool { return !byCharge(o) }

func chargeable(o sagas.Order) bool {
	return o.Amount.Minor > 0 && o.Amount.Currency != "" && o.StripeCustomerID != ""
}

// Prepare creates the bill's intent with the same parameters for every
// attempt: no method, no confirm. The intent is handed out only if it is the
// order's in every field.
func (g *Gateway) Prepare(ctx context.Context, o sagas.Order) sagas.Prepared {
	if !chargeable(o) {
		return sagas.Prepared{Outcome: refusal(answer{fault: violated, why: "the order lacks an amount or a customer"})}
	}
	if g.road == Charges {
		return g.prepareCharge(o)
	}
	a := g.askFor(ctx, o.Period, post("/v1/payment_intents", o.CreateKey()), &stripe.PaymentIntentParams{
		Amount:             stripe.Int64(o.Amount.Minor),
		Currency:           stripe.String(string(o.Amount.Currency)),
		Customer:           stripe.String(o.StripeCustomerID),
		PaymentMethodTypes: stripe.StringSlice(methodTypes),
		Metadata:           o.Markers(),
	})
	p := prepared(o, a)
	g.logCall(ctx, "create intent", o.CreateKey(), p.IntentID, a, string(p.Outcome.Class))
	return p
}

// Take confirms the committed intent off-session with the order's payment
// method, and reports what that means for the attempt.
func (g *Gateway) Take(ctx context.Context, o sagas.Order) domain.Outcome {
	switch {
	case byCharge(o):
		return g.takeCharge(ctx, o)
	case intentID(o.IntentID) == "":
		return refusal(answer{fault: violated, why: "the order lacks a committed intent"})
	case o.PaymentMethodID == "":
		return domain.Outcome{Class: domain.Declined, IntentID: o.IntentID, Code: noUsableMethod, Reason: "the order names no payment method"}
	}
	a := g.askFor(ctx, o.Period, post("/v1/payment_intents/"+o.IntentID+"/confirm", o.ConfirmKey()), &stripe.PaymentIntentConfirmParams{
		OffSession:    stripe.Bool(true),
		PaymentMethod: stripe.String(o.PaymentMethodID),
	})
	out := takeOutcome(o, a)
	g.logCall(ctx, "confirm intent", o.ConfirmKey(), o.IntentID, a, string(out.Class))
	return out
}

// Find reads the committed intent together with its latest charge.
func (g *Gateway) Find(ctx context.Context, o sagas.Order) sagas.Finding {
	if byCharge(o) {
		return g.findCharge(ctx, o)
	}
	if intentID(o.IntentID) == "" {
		return unreachable(answer{fault: violated, why: "the order lacks a committed intent"})
	}
	a := g.ask(ctx, get("/v1/payment_intents/"+o.IntentID, maxAnswer), &stripe.PaymentIntentParams{
		Expand: []*string{stripe.String("latest_charge")},
	})
	f := found(o, a)
	g.logCall(ctx, "read intent", "", o.IntentID, a, string(f.State))
	return f
}

// Cancel cancels the committed intent. reason is one of Stripe's cancellation
// reasons: duplicate, fraudulent, requested_by_customer, abandoned. The key
// does not know the reason: a lost cancel must be repeated with the same one.
func (g *Gateway) Cancel(ctx context.Context, o sagas.Order, reason string) sagas.Finding {
	if byCharge(o) {
		return g.cancelCharge(ctx, o)
	}
	if intentID(o.IntentID) == "" {
		return unreachable(answer{fault: violated, why: "the order lacks a committed intent"})
	}
	key := domain.CancelKey(o.CustomerID, o.Period, o.IntentID)
	a := g.ask(ctx, post("/v1/payment_intents/"+o.IntentID+"/cancel", key), &stripe.PaymentIntentCancelParams{
		CancellationReason: stripe.String(reason),
	})
	f := cancelled(o, a)
	g.logCall(ctx, "cancel intent", key, o.IntentID, a, string(f.State))
	return f
}

func post(path string, key domain.Key) *call {
	return &call{method: http.MethodPost, path: path, key: key, maxBytes: maxAnswer}
}

func get(path string, maxBytes int64) *call {
	return &call{method: http.MethodGet, path: path, maxBytes: maxBytes}
}

// ask makes one call whose answer is an intent.
func (g *Gateway) ask(ctx context.Context, c *call, p stripe.ParamsContainer) answer {
	var v intentAnswer
	return shows(g.send(ctx, c, p, &v), &v)
}

// askFor is ask with the key of a run.
func (g *Gateway) askFor(ctx context.Context, of domain.Period, c *call, p stripe.ParamsContainer) answer {
	var v intentAnswer
	return shows(g.sendFor(ctx, of, c, p, &v), &v)
}

func shows(a answer, v *intentAnswer) answer {
	if a.fault == noFault && a.status < 300 {
		a.intent = &v.intent
	}
	return a
}

// vaultKeyInvalid is the spend proxy's code for a key that it does not accept.
const vaultKeyInvalid = "vault_key_invalid"

// sendFor is send with the key of a run. A secret that the proxy does not accept
// any more, since the key was rotated, is replaced, and the call made once more:
// a 401 of the proxy proves that nothing was forwarded. Both together have the
// gateway's time-out.
func (g *Gateway) sendFor(ctx context.Context, of domain.Period, c *call, p stripe.ParamsContainer, v stripe.LastResponseSetter) answer {
	if g.runs == nil {
		return g.send(ctx, c, p, v)
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	secret, err := g.runs.Secret(ctx, of)
	if err != nil {
		return keyless(err)
	}
	first := *c
	first.secret = secret
	a := g.send(ctx, &first, p, v)
	if a.fault != noFault || a.status != http.StatusUnauthorized || a.code != vaultKeyInvalid {
		return a
	}
	if c.secret, err = g.runs.Renew(ctx, of, secret); err != nil {
		return keyless(err)
	}
	return g.send(ctx, c, p, v)
}

// keyless is the answer to a call that was not made for want of a key.
func keyless(err error) answer {
	if errors.Is(err, sagas.ErrVaultRefused) {
		return answer{fault: unsent, status: http.StatusUnauthorized, code: vaultKeyInvalid, why: "the spend proxy gives the run no key"}
	}
	return answer{fault: unsent, why: "the spend proxy did not give the run's key"}
}

// send makes one call: the only place where a request gets its key and its
// deadline. It returns within the gateway's time-out; v holds the answer only
// if there is no fault and the status is one of success.
func (g *Gateway) send(ctx context.Context, c *call, p stripe.ParamsContainer, v stripe.LastResponseSetter) answer {
	ctx, cancel := context.WithTimeout(c.in(ctx), g.timeout)
	defer cancel()
	if err := g.limits.wait(ctx, c); err != nil {
		return answer{fault: unsent, why: errNoRoom.Error()}
	}
	common := p.GetParams()
	common.Context = ctx
	if c.method == http.MethodPost {
		common.SetIdempotencyKey(string(c.key))
	}
	if c.secret == "" {
		c.secret = g.key
	}
	var body form.Values
	form.AppendTo(&body, p)
	return c.answer(g.api.CallRaw(c.method, c.path, c.secret, &body, common, v))
}

// logCall writes a line a call: identifiers and classes, never what was said.
func (g *Gateway) logCall(ctx context.Context, name string, key domain.Key, intent string, a answer, result string) {
	if a.fault == violated {
		g.log.ErrorContext(ctx, "call to Stripe refused by our own check", "call", name, "intent_id", intent, "idempotency_key", key, "reason", a.why)
		return
	}
	if !g.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	g.log.DebugContext(ctx, "call to Stripe", "call", name, "intent_id", intent, "idempotency_key", key,
		"status", a.status, "code", a.code, "fault", string(a.fault), "replayed", a.replayed, "request_id", a.requestID, "result", result)
}
