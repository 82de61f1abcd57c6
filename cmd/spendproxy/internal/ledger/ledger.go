package ledger

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// Options are the ledger's settings. The zero value is usable.
type Options struct {
	Now         func(context.Context) (time.Time, error) // business time; nil: the database's clock
	Quiet       time.Duration                            // after which a read proves that a lost send was not executed; 15 minutes
	QuietStored time.Duration                            // the same after a 500; 24 hours
	Log         *slog.Logger
	Registry    prometheus.Registerer
}

// Ledger keeps the books in a database.
type Ledger struct{ pool *pgxpool.Pool }

var errUnfinished = errors.New("not yet")

func Migrate(ctx context.Context, dsn string) error { return errUnfinished }
func New(pool *pgxpool.Pool, o Options) *Ledger     { return &Ledger{pool} }
func (l *Ledger) Run(ctx context.Context) error     { return errUnfinished }
func (l *Ledger) Authenticate(ctx context.Context, secret string) (key VaultKey, ok bool, why string, err error) {
	return VaultKey{}, false, "", errUnfinished
}
func (l *Ledger) Begin(ctx context.Context, a Ask) (Decision, error) {
	return Decision{}, errUnfinished
}
func (l *Ledger) Finish(ctx context.Context, r Result) error                { return errUnfinished }
func (l *Ledger) Observe(ctx context.Context, seen []policy.Evidence) error { return errUnfinished }
func (l *Ledger) Note(n Note)                                               {}
func (l *Ledger) Doubts(ctx context.Context, limit int) ([]Doubt, error)    { return nil, errUnfinished }
func (l *Ledger) Issue(ctx context.Context, i Issue) (key VaultKey, secret string, existed bool, err error) {
	return VaultKey{}, "", false, errUnfinished
}
func (l *Ledger) Keys(ctx context.Context, f KeyFilter) ([]VaultKey, error) {
	return nil, errUnfinished
}
func (l *Ledger) Key(ctx context.Context, id string) (VaultKey, error) {
	return VaultKey{}, errUnfinished
}
func (l *Ledger) Raise(ctx context.Context, r Raise) (VaultKey, error) {
	return VaultKey{}, errUnfinished
}
func (l *Ledger) Raises(ctx context.Context, id string) ([]Raised, error) { return nil, errUnfinished }
func (l *Ledger) Extend(ctx context.Context, id string, until time.Time, reason, by string) (VaultKey, error) {
	return VaultKey{}, errUnfinished
}
func (l *Ledger) Rotate(ctx context.Context, id string, grace time.Duration, by string) (secret string, err error) {
	return "", errUnfinished
}
func (l *Ledger) Revoke(ctx context.Context, id, reason, by string) error { return errUnfinished }
func (l *Ledger) Register(ctx context.Context, keyID string, entries iter.Seq2[Entry, error]) (Registered, error) {
	return Registered{}, errUnfinished
}
func (l *Ledger) Calls(ctx context.Context, f CallFilter) (calls []Recorded, next string, err error) {
	return nil, "", errUnfinished
}
func (l *Ledger) Books(ctx context.Context, f BooksFilter) ([]Sum, error)       { return nil, errUnfinished }
func (l *Ledger) Release(ctx context.Context, subject, reason, by string) error { return errUnfinished }
