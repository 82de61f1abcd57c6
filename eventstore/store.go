package eventstore

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Querier is what reads and appends run on: a pool, a connection or a
// transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Store is the log. It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	codec    *Codec
	log      *slog.Logger
	appender appender
	notifier *notifier
	commits  atomic.Int64
}

// New makes a store over a migrated database. Close it to send the last
// notifications.
func New(pool *pgxpool.Pool, codec *Codec, log *slog.Logger) *Store {
	s := &Store{pool: pool, codec: codec, log: log}
	s.appender.store = s
	s.notifier = newNotifier(pool, log)
	return s
}

// Close sends what is left to be notified and stops. Appends still work
// afterwards; other processes then notice them by their fallback scan.
func (s *Store) Close() { s.notifier.close() }

// Codec is the codec of the store's facts.
func (s *Store) Codec() *Codec { return s.codec }

// Pool is the pool of the database the log is in.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Commits counts the transactions that Append has committed; appends that
// share a commit count once.
func (s *Store) Commits() int64 { return s.commits.Load() }

// OnAppend calls f after each commit of an append of this process, with what was
// added. f must be quick, must not block and must not change it. Call cancel to
// stop.
func (s *Store) OnAppend(f func(Growth)) (cancel func()) { return s.notifier.subscribe(f) }

// Heard is the mask of partitions that the payload of a notification on
// [Channel] tells of: none if this log sent it, whose readers know by
// [Store.OnAppend], and all if the payload cannot be read.
func (s *Store) Heard(payload string) (partitions uint64) { return s.notifier.heard(payload) }

// Committed tells the readers, here and in other processes, that a transaction
// with appends made by AppendTx has committed. Forgetting it delays delivery by
// the fallback scan, no more.
func (s *Store) Committed(added Growth) { s.notifier.announce(added) }
