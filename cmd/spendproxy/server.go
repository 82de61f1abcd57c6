package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/admin"
)

// Bounds of a connection. The bodies of calls have bounds of their own.
const (
	headerTimeout = 10 * time.Second // from the connection, or the request's first byte, to the last header
	idleTimeout   = 60 * time.Second // between requests
	maxHeaders    = 16 << 10
	readyTimeout  = 2 * time.Second
)

// newServer serves a handler to strangers: who connects and says nothing, or
// says it byte by byte, is let go. There is no ServeMux in it: that would tidy
// paths before they are judged.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:                      h,
		ReadHeaderTimeout:            headerTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaders,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// handler sends a request to its part, by the target as it came. side is the
// admin API, nil on a listener that does not serve it.
func (a *App) handler(front, side http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch {
		case reads && r.RequestURI == "/healthz":
			say(w, http.StatusOK, "ok\n")
		case reads && r.RequestURI == "/readyz":
			a.ready(w, r)
		case reads && r.RequestURI == "/metrics":
			a.metrics.ServeHTTP(w, r)
		case side != nil && admin.Owns(r):
			side.ServeHTTP(w, r)
		default:
			front.ServeHTTP(w, r)
		}
	})
}

// ready tells whether the ledger's database answers: without it every call is
// refused.
func (a *App) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if err := a.pool.Ping(ctx); err != nil {
		a.log.Warn("not ready: the ledger's database does not answer", "error", err)
		say(w, http.StatusServiceUnavailable, "the ledger's database does not answer; every call is refused\n")
		return
	}
	say(w, http.StatusOK, "ready\n")
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}
