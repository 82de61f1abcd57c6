package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Problem is the one shape of every error (RFC 9457). Programs go by Code.
type Problem struct {
	Type      string              `json:"type" example:"about:blank"`
	Title     string              `json:"title" example:"Bad Request"`
	Status    int                 `json:"status" example:"400"`
	Detail    string              `json:"detail" example:"the request has fields that cannot be accepted"`
	Code      string              `json:"code" doc:"Stable name of the problem." example:"invalid_input"`
	RequestID string              `json:"request_id,omitempty" doc:"Find it in the service's log."`
	Errors    []domain.FieldError `json:"errors,omitempty" doc:"What is wrong with which field."`
	// AsOf is where the read model stands that was waited for in vain.
	AsOf *eventstore.Place `json:"as_of,omitempty" doc:"How far the read model has come, where that is the problem."`

	retryAfter time.Duration
	close      bool  // the rest of the request is not worth reading
	cause      error // for the log, never for the caller
}

func problem(status int, code, format string, args ...any) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Error is the problem in one line.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// Unwrap is what caused the problem, if anything did.
func (p *Problem) Unwrap() error { return p.cause }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return problemType }

// GetHeaders implements huma.HeadersError.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(max(p.retryAfter, time.Second)/time.Second)))
	}
	if p.close {
		h.Set("Connection", "close")
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="billonce"`)
	}
	return h
}

const problemType = "application/problem+json"

// retryAfter is when a caller should come back after trouble that passes.
const retryAfter = time.Second

// problemOf turns an error into what the caller is told. Refusals carry their
// own words; of everything else the caller learns no more than whether to come
// again.
func problemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*domain.Error](err); ok {
		p := problem(statusOf(e), e.Code, "%s", e.Msg)
		p.Errors = e.Fields
		return p
	}
	var p *Problem
	switch {
	case errors.Is(err, eventstore.ErrCommitUnknown):
		p = problem(http.StatusServiceUnavailable, "outcome_unknown", "the database went away while it committed; send the very same request again to learn what became of it")
	case eventstore.Transient(err), errors.Is(err, commands.ErrContended), errors.Is(err, context.Canceled):
		p = problem(http.StatusServiceUnavailable, "try_again", "this cannot be done at the moment; send the very same request again")
	default:
		p = internalProblem()
		p.cause = err
		return p
	}
	p.retryAfter, p.cause = retryAfter, err
	return p
}

// internalProblem is all that a caller learns of a fault of the service.
func internalProblem() *Problem {
	return problem(http.StatusInternalServerError, "internal", "the service has failed; its log says more under the request id")
}

func statusOf(e *domain.Error) int {
	if errors.Is(e, domain.ErrInternal) {
		return http.StatusForbidden
	}
	switch e.Kind {
	case domain.Invalid:
		return http.StatusBadRequest
	case domain.NotFound:
		return http.StatusNotFound
	case domain.Conflict:
		return http.StatusConflict
	case domain.Refused:
		return http.StatusUnprocessableEntity
	}
	return http.StatusInternalServerError
}

// fail answers a request with the problem that err is.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	p := exchangeOf(r.Context()).failed(err)
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	writeJSON(w, p.Status, p.ContentType(""), p)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(body) // whoever asked may be gone
}
