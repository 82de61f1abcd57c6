package proxy

import (
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// statusGone is what metrics and audit show of a caller that did not wait.
const statusGone = 499

// writeTimeout bounds how slowly a caller may take its answer.
const writeTimeout = 30 * time.Second

// passed are the headers of Stripe's answers that are given on.
var passed = []string{"Content-Type", "Request-Id", "Idempotent-Replayed", "Original-Request", "Stripe-Should-Retry", "Stripe-Version", "Retry-After"}

func isRedirect(status int) bool { return status >= 300 && status < 400 }

// give hands Stripe's answer on, byte for byte.
func (p *Proxy) give(x *exchange, got received) {
	h := x.w.Header()
	for _, name := range passed {
		if v := got.header[name]; len(v) > 0 {
			h[name] = v[:1]
		}
	}
	p.write(x, got.status, got.body)
	code := policy.Code("")
	if !x.verdict.Allow {
		code = x.verdict.Code
	}
	p.metrics.count(x, code)
}

// repeat gives an answer of old again.
func (p *Proxy) repeat(x *exchange, a *ledger.Answer) {
	h := x.w.Header()
	h.Set("Content-Type", a.ContentType)
	h.Set("Idempotent-Replayed", "true")
	h.Set("Request-Id", requestID())
	h.Set("Stripe-Version", APIVersion)
	if a.RequestID != "" {
		h.Set("Original-Request", a.RequestID)
	}
	p.write(x, a.Status, a.Body)
	p.metrics.repeats.Inc()
	p.metrics.count(x, "")
}

// deny refuses a call that Begin has not written down.
func (p *Proxy) deny(x *exchange, v policy.Verdict) {
	id := p.answerError(x, v)
	if x.key.ID != "" || v.Code != policy.CodeVaultKey { // what names no key is only counted
		p.note(x, v, v.Status, id)
	}
	p.logRefusal(x, v)
}

// refuse refuses a call that Begin has written down.
func (p *Proxy) refuse(x *exchange, v policy.Verdict) {
	p.answerError(x, v)
	p.logRefusal(x, v)
}

// logRefusal writes a line; strangers at the door are not worth one.
func (p *Proxy) logRefusal(x *exchange, v policy.Verdict) {
	level := slog.LevelInfo
	if x.key.ID == "" {
		level = slog.LevelDebug
	}
	p.log.Log(x.r.Context(), level, "call refused", "call", x.id, "vault_key", x.key.ID, "rule", string(x.call.Rule), "path", x.call.Path,
		"idempotency_key", x.call.Key, "status", v.Status, "code", string(v.Code), "reason", v.Reason)
}

// problem is an error in Stripe's shape (https://docs.stripe.com/api/errors).
type problem struct {
	Error struct {
		Code    policy.Code `json:"code"`
		Message string      `json:"message"`
		Type    string      `json:"type"`
	} `json:"error"`
}

func errorBody(v policy.Verdict) []byte {
	var body problem
	body.Error.Code, body.Error.Message, body.Error.Type = v.Code, v.Reason, "invalid_request_error"
	switch {
	case v.Code == policy.CodeReused:
		body.Error.Type = "idempotency_error"
	case v.Status >= http.StatusInternalServerError:
		body.Error.Type = "api_error"
	}
	text, _ := json.Marshal(body) // of strings alone
	return text
}

// answerError answers with a refusal in Stripe's shape. Libraries obey
// Stripe-Should-Retry where the error can be read, which this one can. After a
// call whose outcome is unknown they are not told: repeating it with its key is
// safe.
func (p *Proxy) answerError(x *exchange, v policy.Verdict) (requestID string) {
	text := errorBody(v)
	id := requestIDOf(x.id)
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Request-Id", id)
	if v.Code != policy.CodeUpstream {
		h.Set("Stripe-Should-Retry", "false")
	}
	if !x.bodyRead() {
		h.Set("Connection", "close") // rather than read on
	}
	p.write(x, v.Status, text)
	p.metrics.count(x, v.Code)
	return id
}

// bodyRead tells whether nothing of the request is left on the connection.
func (x *exchange) bodyRead() bool {
	return x.r.ContentLength == 0 || x.call.Fingerprint != [32]byte{}
}

func (p *Proxy) write(x *exchange, status int, body []byte) {
	x.answered = true
	control := http.NewResponseController(x.w)
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body) // whoever has gone does not read it
	_ = control.Flush()
	_ = control.SetWriteDeadline(time.Time{}) // the connection's next answer may be another part's
}

func requestID() string { return requestIDOf(rand.Text()) }

// requestIDOf is a request id made like Stripe's.
func requestIDOf(id string) string { return "req_" + id }
