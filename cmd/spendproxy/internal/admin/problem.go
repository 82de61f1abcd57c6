package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/domain"
)

// problem is an error as the caller sees it.
type problem struct {
	status  int
	code    string
	message string
	allow   string // of a 405
	close   bool   // the rest of the request is not read
}

func (p *problem) Error() string { return p.code + ": " + p.message }

func invalid(format string, args ...any) *problem {
	return &problem{status: http.StatusBadRequest, code: "invalid_input", message: fmt.Sprintf(format, args...)}
}

func refused(code, message string) *problem {
	return &problem{status: http.StatusForbidden, code: code, message: message}
}

func unauthorised(message string) *problem {
	return &problem{status: http.StatusUnauthorized, code: "unauthorised", message: message}
}

func notFound() *problem {
	return &problem{status: http.StatusNotFound, code: "not_found", message: "there is nothing at this path"}
}

// refusedBody is a problem after which the rest of the body is not read.
func refusedBody(status int, code, format string, args ...any) *problem {
	return &problem{status: status, code: code, message: fmt.Sprintf(format, args...), close: true}
}

// refusals are what the ledger refuses, in words that hold for every caller.
var refusals = []struct {
	err    error
	status int
	code   string
}{
	{ledger.ErrNoKey, http.StatusNotFound, "unknown_vault_key"},
	{ledger.ErrRevoked, http.StatusConflict, "vault_key_revoked"},
	{ledger.ErrExpired, http.StatusConflict, "vault_key_expired"},
	{ledger.ErrInvalid, http.StatusBadRequest, "invalid_input"},
	{ledger.ErrNoSubject, http.StatusNotFound, "unknown_reservation"},
	{ledger.ErrSettled, http.StatusConflict, "already_charged"},
	{ledger.ErrReleased, http.StatusConflict, "already_released"},
}

// problemOf turns an error into what the caller is told: a refusal in its own
// words, of everything else no more than that it may be tried again.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*domain.Error](err); ok && e.Kind == domain.Invalid {
		return invalid("%s", sentence(e))
	}
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			words := r.err.Error()
			if _, what, ok := strings.Cut(err.Error(), words+": "); ok { // what is invalid
				words = what
			}
			return &problem{status: r.status, code: r.code, message: words}
		}
	}
	return &problem{status: http.StatusServiceUnavailable, code: "ledger_unavailable",
		message: "the ledger cannot be asked at the moment; send the very same request again"}
}

func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	header := w.Header()
	switch p.status {
	case http.StatusUnauthorized:
		header.Set("WWW-Authenticate", `Bearer realm="spendproxy"`)
	case http.StatusMethodNotAllowed:
		header.Set("Allow", p.allow)
	case http.StatusServiceUnavailable:
		header.Set("Retry-After", "1")
		if !errors.Is(err, context.Canceled) {
			s.log.ErrorContext(r.Context(), "the admin API could not answer", slog.String("method", r.Method),
				slog.String("request_id", header.Get(requestIDHeader)), slog.String("error", err.Error()))
		}
	}
	if p.close {
		header.Set("Connection", "close")
	}
	type body struct {
		Code      string `json:"code"`
		Message   string `json:"message"`
		RequestID string `json:"request_id"`
	}
	writeJSON(w, p.status, map[string]body{"error": {p.code, p.message, header.Get(requestIDHeader)}})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(body) // whoever asked may be gone
}
