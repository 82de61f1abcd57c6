package admin

import (
	"log/slog"
	"net/http"
	"time"
)

// NewImpatient is New for callers that may take no more than so long.
func NewImpatient(l Ledger, t Tokens, log *slog.Logger, most time.Duration) http.Handler {
	return &server{ledger: l, tokens: t, log: log, limits: limits{most, most, most, most}, uploads: make(chan struct{}, 1)}
}
