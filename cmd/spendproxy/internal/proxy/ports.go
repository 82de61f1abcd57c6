package proxy

import (
	"context"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// Ledger is where the proxy's promises are kept. Every method is safe for
// concurrent use by any number of proxies on one database. An error means that
// nothing is known to be written: the caller fails closed.
type Ledger interface {
	// Authenticate finds the key of a secret. It reads the database each time, so
	// that a revocation holds from the next request on. ok is false for a secret
	// that is unknown, retired, revoked or expired; why says which.
	Authenticate(ctx context.Context, secret string) (key ledger.VaultKey, ok bool, why string, err error)
	// Begin judges a POST under lock (key still valid, obligation, one success a
	// bill, cap), reserves, and writes the audit's row before the call: all in one
	// commit, shared with other callers.
	Begin(ctx context.Context, a ledger.Ask) (ledger.Decision, error)
	// Finish books what came back: settle, release, hold; the audit's row after
	// the call.
	Finish(ctx context.Context, r ledger.Result) error
	// Observe books what passed through in reads: it settles what is held, and
	// teaches the ledger intents it does not know.
	Observe(ctx context.Context, seen []policy.Evidence) error
	// Note writes the audit's rows of a call that Begin did not see: a read, or
	// one that was refused before. It may be written a little later.
	Note(n ledger.Note)
	// Doubts lists what has been held or reserved without an answer for its quiet
	// time, oldest first.
	Doubts(ctx context.Context, limit int) ([]ledger.Doubt, error)
}
