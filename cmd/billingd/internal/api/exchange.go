package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/domain"
)

// exchange is what is known of one request, for its log line and for whoever
// works on it. It belongs to the request's goroutine.
type exchange struct {
	id      string
	caller  access.Caller
	command string
	key     domain.Key
	attrs   []slog.Attr // more for the log line
	problem *Problem
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{}
}

// failed notes the problem that err is, and gives it the request's id.
func (x *exchange) failed(err error) *Problem {
	p := *problemOf(err)
	p.RequestID = x.id
	x.problem = &p
	return &p
}

// requestIDShape is what is taken over from a caller: enough for every usual
// kind of id, and nothing that could forge a log line.
var requestIDShape = regexp.MustCompile(`^[A-Za-z0-9._:/+=-]{1,128}$`)

func requestID(r *http.Request) string {
	if ids := r.Header.Values("X-Request-Id"); len(ids) == 1 && requestIDShape.MatchString(ids[0]) {
		return ids[0]
	}
	return newRequestID()
}

func newRequestID() string { return "req_" + rand.Text() }

// ServeHTTP implements http.Handler: everything that is done for every request,
// whether or not there is something at its address.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	x := &exchange{id: requestID(r)}
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	answer := &response{ResponseWriter: w, control: http.NewResponseController(w), limit: s.limits.Write}
	answer.Header().Set("X-Request-Id", x.id)
	answer.Header().Set("X-Content-Type-Options", "nosniff")
	answer.Header().Set("Cache-Control", "no-store")
	answer.arm()
	if r.ContentLength != 0 {
		// Also for whoever does not read the body: net/http reads on to its end.
		_ = answer.control.SetReadDeadline(begun.Add(s.limits.BodyTime))
	}
	s.metrics.inFlight.Inc()
	defer func() {
		s.metrics.inFlight.Dec()
		s.finish(x, answer, r, time.Since(begun), recover())
	}()
	if s.isDraining() && r.URL.Path != "/healthz" {
		p := problem(http.StatusServiceUnavailable, "shutting_down", "the service is stopping; another instance will answer")
		p.retryAfter, p.close = retryAfter, true
		fail(answer, r, p)
		return
	}
	s.route(answer, r)
}

// finish answers for a handler that panicked, and writes the request's line.
func (s *Server) finish(x *exchange, answer *response, r *http.Request, took time.Duration, panicked any) {
	broken := false
	if panicked != nil {
		p := s.panicked(x, panicked)
		broken = answer.status != 0
		if !broken {
			fail(answer, r, p)
		}
	}
	route := routeOf(r)
	s.metrics.requests.WithLabelValues(methodLabel(r.Method), route, strconv.Itoa(answer.status)).Observe(took.Seconds())

	attrs := []slog.Attr{
		slog.String("method", methodLabel(r.Method)), slog.String("route", route), slog.Int("status", answer.status),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000), slog.String("request_id", x.id), slog.String("actor", x.caller.Name),
	}
	if x.command != "" {
		attrs = append(attrs, slog.String("command", x.command), slog.String("key", string(x.key)))
	}
	level := slog.LevelInfo
	if p := x.problem; p != nil {
		attrs = append(attrs, slog.String("code", p.Code))
		switch {
		case errors.Is(p.cause, context.Canceled): // the caller's own doing
		case p.cause != nil:
			attrs = append(attrs, slog.Any("error", p.cause))
			level = slog.LevelWarn
		case p.Status == http.StatusInternalServerError, p.Status == http.StatusGatewayTimeout:
			level = slog.LevelWarn
		}
	}
	s.log.LogAttrs(r.Context(), level, "request", append(attrs, x.attrs...)...)
	if broken {
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
}

// panicked tells the log of a panic. Its value may hold anything, a request's
// body included: its type and the stack tell enough.
func (s *Server) panicked(x *exchange, v any) *Problem {
	what := fmt.Sprintf("%T", v)
	if e, ok := v.(runtime.Error); ok {
		what = e.Error()
	}
	if v != http.ErrAbortHandler {
		s.log.Error("a request panicked", "request_id", x.id, "panic", what, "stack", string(debug.Stack()))
	}
	return internalProblem()
}

// methodLabel keeps what callers invent out of log lines and metrics.
func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}

// response notes the status and gives every write its own time limit, so that
// a caller who stops reading cannot hold a request for ever.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	status  int
	armed   time.Time
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *response) Write(b []byte) (int, error) {
	w.arm()
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// FlushError lets http.ResponseController flush under the same limit.
func (w *response) FlushError() error {
	w.arm()
	return w.control.Flush()
}

func (w *response) arm() {
	if now := time.Now(); now.Sub(w.armed) > w.limit/4 {
		w.armed = now
		_ = w.control.SetWriteDeadline(now.Add(w.limit)) // not every writer has one
	}
}

// Unwrap lets http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }
