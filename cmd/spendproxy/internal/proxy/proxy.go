package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// Upstream is Stripe.
type Upstream struct {
	Base    *url.URL      // scheme, host and an optional path; nothing else is ever contacted
	Key     string        // the real one; it appears in the Authorization header of what goes out, and nowhere else
	Timeout time.Duration // of a call from its first step to the last byte of its answer; longer than the callers' own
}

// Proxy forwards what the ledger permits. It is safe for concurrent use and
// holds nothing but connections: the promises are the ledger's.
type Proxy struct {
	ledger  Ledger
	stripe  *stripe
	now     func(context.Context) (time.Time, error)
	log     *slog.Logger
	metrics *metrics
	lists   chan struct{} // places for answers that may be large
	sights  sights
}

// Bounds of the ledger's part of a call, and of what is held in memory.
const (
	ledgerTimeout = 5 * time.Second
	maxLists      = 16
	maxSights     = 64
	maxRounds     = 4 // of asking, learning and asking again
)

// New returns a proxy; now is business time, nil the machine's. It makes no
// call.
func New(l Ledger, u Upstream, now func(context.Context) (time.Time, error), log *slog.Logger, registry prometheus.Registerer) *Proxy {
	if now == nil {
		now = func(context.Context) (time.Time, error) { return time.Now().UTC(), nil }
	}
	return &Proxy{
		ledger: l, stripe: newStripe(u), now: now, log: log, metrics: newMetrics(registry),
		lists: make(chan struct{}, maxLists), sights: sights{places: make(chan struct{}, maxSights)},
	}
}

// Close closes idle connections to Stripe, once what reads have shown is booked.
func (p *Proxy) Close() {
	p.sights.wait()
	p.stripe.client.CloseIdleConnections()
}

// exchange is one request and what is known about it so far.
type exchange struct {
	w     http.ResponseWriter
	r     *http.Request
	id    string
	start time.Time
	began time.Time // business time

	call     policy.Call
	key      ledger.VaultKey // zero: not authenticated
	verdict  policy.Verdict  // of the rules
	sent     bool            // handed to net/http for Stripe
	finished bool            // Finish was told
	answered bool            // bytes have gone to the caller
}

// ServeHTTP serves Stripe's API. The handler sees the request target as it came
// over the wire, so nothing in front of it may clean paths.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{w: w, r: r, id: newID(), start: time.Now()}
	var err error
	if x.began, err = p.now(r.Context()); err != nil { // for the audit alone: the ledger asks for itself
		x.began = x.start.UTC()
	}
	p.metrics.inFlight.Inc()
	defer p.metrics.inFlight.Dec()
	defer p.recovered(x)
	p.serve(x)
}

func (p *Proxy) serve(x *exchange) {
	if v := p.admit(x); !v.Allow {
		p.deny(x, v)
		return
	}
	if x.call.Method == http.MethodGet {
		p.read(x)
		return
	}
	p.post(x)
}

// admit authenticates the caller and reads the request, in the order of what
// costs least. A refusal here binds in every mode.
func (p *Proxy) admit(x *exchange) policy.Verdict {
	secret, v := secretOf(x.r.Header["Authorization"])
	if !v.Allow {
		x.call.Path = shownPath(x.r)
		return v
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), ledgerTimeout)
	defer cancel()
	key, ok, why, err := p.ledger.Authenticate(ctx, secret)
	switch {
	case err != nil:
		x.call.Path = shownPath(x.r)
		return p.storeAway(x, "authenticate", err)
	case !ok:
		x.call.Path = shownPath(x.r)
		return policy.Refuse(http.StatusUnauthorized, policy.CodeVaultKey, "%s", why)
	}
	x.key = key
	if v := readRequest(x); !v.Allow {
		return v
	}
	// Expiry is judged by the ledger, on the business clock.
	x.verdict = key.Grant.Judge(x.call, time.Time{})
	return policy.Verdict{Allow: true}
}

// storeAway is the verdict when the ledger cannot be asked: nothing is sent.
func (p *Proxy) storeAway(x *exchange, doing string, err error) policy.Verdict {
	if x.r.Context().Err() == nil || !errors.Is(err, context.Canceled) {
		p.log.Error("the ledger cannot be asked; the call is refused", "step", doing, "call", x.id, "vault_key", x.key.ID, "error", err)
	}
	return policy.Refuse(http.StatusServiceUnavailable, policy.CodeStore, "the spend proxy's ledger is not available; nothing was executed")
}

// refuses tells whether the rules' verdict ends the call.
func (x *exchange) refuses() bool {
	return !x.verdict.Allow && (x.key.Grant.Mode == policy.Enforce || x.key.Grant.Mode == "" || !x.verdict.Yields())
}

// read forwards a GET, gives the answer on and lets the ledger see it.
func (p *Proxy) read(x *exchange) {
	if x.refuses() {
		p.deny(x, x.verdict)
		return
	}
	if x.call.List {
		select {
		case p.lists <- struct{}{}:
			defer func() { <-p.lists }()
		case <-x.r.Context().Done():
			p.deny(x, policy.Refuse(statusGone, policy.CodeRequest, "the caller has gone"))
			return
		}
	}
	got := p.stripe.send(context.WithoutCancel(x.r.Context()), x.call)
	if got.fate != ledger.Answered || isRedirect(got.status) {
		p.deny(x, got.verdict())
		return
	}
	v := x.verdict
	v.Allow = true // with a code: it would have been refused, but for the key's mode
	answer := func() {
		p.give(x, got)
		p.note(x, v, got.status, got.requestID)
	}
	seen := policy.ReadEvidence(x.call, got.status, got.body)
	if len(seen) == 0 {
		answer()
		return
	}
	ctx := context.WithoutCancel(x.r.Context())
	p.sights.book(answer, func() {
		defer p.panicked(x)
		p.observe(ctx, x.call, seen)
	})
}

// observe tells the ledger what a read shows. The caller has its answer.
func (p *Proxy) observe(ctx context.Context, c policy.Call, seen []policy.Evidence) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if err := p.ledger.Observe(ctx, seen); err != nil {
		p.log.Warn("what a read shows could not be booked; it is read again if it matters", "path", c.Path, "error", err)
	}
}

// note writes a call that Begin did not see into the audit.
func (p *Proxy) note(x *exchange, v policy.Verdict, status int, requestID string) {
	p.ledger.Note(ledger.Note{
		ID: x.id, VaultKey: x.key.ID, Call: x.call, Verdict: v, Status: status, RequestID: requestID,
		Began: x.began, Latency: time.Since(x.start),
	})
}

// recovered answers and books a call whose handling panicked: what may have
// been sent is lost, and so held.
func (p *Proxy) recovered(x *exchange) {
	v := recover()
	if v == nil {
		return
	}
	p.tellPanic(x, v)
	if x.sent && !x.finished {
		p.finish(x, ledger.Result{ID: x.id, Fate: ledger.Lost})
	}
	switch {
	case x.answered:
	case x.sent:
		p.answerError(x, policy.Refuse(http.StatusBadGateway, policy.CodeUpstream, "the spend proxy failed; what became of the call is unknown, and repeating it with its Idempotency-Key is safe"))
	default:
		p.answerError(x, policy.Refuse(http.StatusBadGateway, policy.CodeUnsent, "the spend proxy failed; nothing was executed"))
	}
}

// panicked books the panic of work that goes on after the answer.
func (p *Proxy) panicked(x *exchange) {
	if v := recover(); v != nil {
		p.tellPanic(x, v)
	}
}

func (p *Proxy) tellPanic(x *exchange, v any) {
	what := fmt.Sprintf("%T", v) // its text may quote a request
	if e, ok := v.(runtime.Error); ok {
		what = e.Error()
	}
	p.log.Error("a call panicked", "call", x.id, "vault_key", x.key.ID, "sent", x.sent, "panic", what, "stack", string(debug.Stack()))
	p.metrics.panics.Inc()
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }
