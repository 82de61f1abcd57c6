package proxy

import (
	"context"
	"net/http"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// post asks the ledger and, if it agrees, Stripe. From here on the caller's
// hanging up changes nothing.
func (p *Proxy) post(x *exchange) {
	if x.r.Context().Err() != nil {
		p.deny(x, policy.Refuse(statusGone, policy.CodeRequest, "the caller has gone"))
		return
	}
	p.sights.wait()
	ctx := context.WithoutCancel(x.r.Context())
	ask := ledger.Ask{ID: x.id, VaultKey: x.key.ID, Call: x.call, Verdict: x.verdict}
	for range maxRounds {
		d, err := p.begin(ctx, ask)
		switch {
		case err != nil:
			p.deny(x, p.storeAway(x, "begin", err))
			return
		case d.Learn != "":
			if v := p.learn(ctx, d.Learn); !v.Allow {
				p.deny(x, v)
				return
			}
			continue
		case d.Answer != nil:
			p.repeat(x, d.Answer)
			return
		case d.Forward:
			p.forward(ctx, x)
			return
		}
		p.refuse(x, d.Verdict)
		return
	}
	p.log.Error("the ledger asks for one thing again and again; the call is refused", "call", x.id, "path", x.call.Path)
	p.deny(x, policy.Refuse(http.StatusServiceUnavailable, policy.CodeStore, "the spend proxy cannot learn what the call is about; nothing was executed"))
}

func (p *Proxy) begin(ctx context.Context, ask ledger.Ask) (ledger.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	return p.ledger.Begin(ctx, ask)
}

// forward sends the call to Stripe, books what came back, and only then answers.
func (p *Proxy) forward(ctx context.Context, x *exchange) {
	x.sent = true
	got := p.stripe.send(ctx, x.call)
	r := ledger.Result{ID: x.id, Fate: got.fate, Latency: time.Since(x.start)}
	if got.fate == ledger.Answered {
		r.Answer = ledger.Answer{Status: got.status, ContentType: got.contentType, RequestID: got.requestID, Body: got.body}
		r.Refused = policy.Proves(x.call, got.status, got.body, got.replayed)
		r.Settles = policy.Settles(x.call, got.status, got.body, got.replayed)
		if seen := policy.ReadEvidence(x.call, got.status, got.body); len(seen) > 0 {
			r.Evidence = &seen[0]
		}
	}
	p.finish(x, r)
	if got.fate != ledger.Answered || isRedirect(got.status) {
		p.answerError(x, got.verdict())
		return
	}
	p.give(x, got)
}

// finish books a result. If the ledger cannot write it the reservation stays
// held, and the ledger writes it once it can; the caller gets its answer.
func (p *Proxy) finish(x *exchange, r ledger.Result) {
	x.finished = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), ledgerTimeout)
	defer cancel()
	if err := p.ledger.Finish(ctx, r); err != nil {
		p.metrics.unbooked.Inc()
		p.log.Error("what came back for a call could not be booked at once; its reservation stays held", "call", x.id, "vault_key", x.key.ID,
			"path", x.call.Path, "idempotency_key", x.call.Key, "fate", string(r.Fate), "status", r.Answer.Status, "request_id", r.Answer.RequestID, "error", err)
	}
}

// learn reads an object that the ledger must know before it can judge. Nothing
// has been executed if it cannot be read.
func (p *Proxy) learn(ctx context.Context, id string) policy.Verdict {
	c, ok := reading(id)
	if !ok {
		return policy.Refuse(http.StatusForbidden, policy.CodeParameter, "the call names an object that is none")
	}
	got := p.stripe.send(ctx, c)
	if got.fate != ledger.Answered || got.status >= 500 || isRedirect(got.status) {
		return policy.Refuse(http.StatusBadGateway, policy.CodeUnsent, "%s could not be read at Stripe; nothing was executed", id)
	}
	seen := policy.ReadEvidence(c, got.status, got.body)
	if len(seen) == 0 {
		p.log.Warn("Stripe does not show what a call is about; the call is refused", "object", id, "status", got.status, "request_id", got.requestID)
		return policy.Refuse(http.StatusBadGateway, policy.CodeUnsent, "Stripe does not show %s to the spend proxy (status %d); nothing was executed", id, got.status)
	}
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	if err := p.ledger.Observe(ctx, seen); err != nil {
		p.log.Error("the ledger cannot be told what a call is about; the call is refused", "object", id, "error", err)
		return policy.Refuse(http.StatusServiceUnavailable, policy.CodeStore, "the spend proxy's ledger is not available; nothing was executed")
	}
	return policy.Verdict{Allow: true}
}

// reading is the call that reads an object by its id; ok is false for an id
// that is not one of an object that tells about money.
func reading(id string) (c policy.Call, ok bool) {
	c = policy.Call{Method: http.MethodGet, Object: id}
	switch {
	case policy.IntentID(id) != "":
		c.Rule, c.Path = policy.IntentsRead, "/v1/payment_intents/"+id
	case policy.ChargeID(id) != "":
		c.Rule, c.Path = policy.ChargesRead, "/v1/charges/"+id
	case policy.RefundID(id) != "":
		c.Rule, c.Path = policy.RefundsRead, "/v1/refunds/"+id
	default:
		return policy.Call{}, false
	}
	return c, true
}
