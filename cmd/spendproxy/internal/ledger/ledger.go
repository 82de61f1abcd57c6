package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// Options are the ledger's settings. The zero value is usable.
type Options struct {
	Now         func(context.Context) (time.Time, error) // business time; nil: the database's clock
	Quiet       time.Duration                            // after which a read proves that a lost send was not executed; 15 minutes
	QuietStored time.Duration                            // the same after a 500; 24 hours
	AuditKeep   time.Duration                            // after which rows of the audit are deleted; 0: never
	Log         *slog.Logger                             // nil: silent
	Registry    prometheus.Registerer                    // nil: no metrics
}

// Limits of the shared work.
const (
	groupMost    = 128 // pieces of work in a transaction
	groupRounds  = 2   // transactions: one is at work on the books, the other waits for the disk
	groupTimeout = 15 * time.Second
	lookupMost   = 256
	lookupRounds = 2
)

// Ledger keeps the books in a database. Its methods may be called by any number
// of goroutines.
type Ledger struct {
	pool    *pgxpool.Pool
	options Options
	log     *slog.Logger
	metrics *metrics

	tasks    *gatherer[*task]
	lookups  *gatherer[*lookup]
	glimpses *gatherer[*glimpse]
	notes    chan []auditRow

	mu    sync.Mutex
	calls map[string]*underway // forwarded, and not finished
	later map[string]Result    // results that could not be written
}

// New returns the ledger in pool's database, whose schema [Migrate] has made.
// Notes and what could not be written at once are written while [Ledger.Run] runs.
func New(pool *pgxpool.Pool, o Options) *Ledger {
	if o.Quiet == 0 {
		o.Quiet = 15 * time.Minute
	}
	if o.QuietStored == 0 {
		o.QuietStored = 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Ledger{
		pool: pool, options: o, log: o.Log, metrics: newMetrics(o.Registry), notes: make(chan []auditRow, notesMost),
		calls: map[string]*underway{}, later: map[string]Result{},
	}
	l.tasks = &gatherer[*task]{rounds: groupRounds, most: groupMost, work: l.together}
	l.lookups = &gatherer[*lookup]{rounds: lookupRounds, most: lookupMost, work: l.lookUp}
	l.glimpses = &gatherer[*glimpse]{rounds: lookupRounds, most: lookupMost, work: l.glance}
	return l
}

// task is a piece of work on the books, which shares its transaction with
// others. Both functions may be called again, after a transaction that failed.
type task struct {
	what    string
	want    func(*wanted)
	apply   func(*page) error // its error is the task's own, and changes nothing
	refused error             // what apply returned
}

// ErrCommitUnknown wraps a connection that broke while a commit was under way.
var ErrCommitUnknown = errors.New("the connection broke; it is not known whether the books were written")

// together writes a group of tasks in one transaction. If the database refuses
// it, each is tried by itself, so that one bad task harms no other.
func (l *Ledger) together(group []*turn[*task], pass func()) {
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	err := l.transact(ctx, group, pass)
	if err != nil && !errors.Is(err, ErrCommitUnknown) && broken(err) {
		err = l.transact(ctx, group, pass) // by a connection that is not stale
	}
	if len(group) > 1 && badData(err) {
		for _, t := range group {
			l.together([]*turn[*task]{t}, func() {})
		}
		return
	}
	for _, t := range group {
		t.err = err
		if err == nil {
			t.err = t.of.refused
		}
		l.metrics.done(t.of.what, t.err)
	}
	l.metrics.group(len(group))
}

// transact does the tasks of a group on one page of the books. Its transaction
// does not wait for the disk while it holds the lock: the wait comes after it, by
// the commit of the audit's rows, before anybody is answered, so that the next
// group works meanwhile. What that one saw of this one is on the disk before its
// own answers.
func (l *Ledger) transact(ctx context.Context, group []*turn[*task], pass func()) error {
	p, err := l.newPage(ctx)
	if err != nil {
		return err
	}
	w := newWanted()
	for _, t := range group {
		t.of.want(w)
	}
	pooled, err := l.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("reach the books: %w", err)
	}
	defer pooled.Release() // which closes a connection that is in a transaction still
	conn := pooled.Conn()
	if err := p.load(ctx, conn, w); err != nil {
		rollback(ctx, conn)
		return fmt.Errorf("read the books: %w", err)
	}
	for _, t := range group {
		t.of.refused = t.of.apply(p)
	}
	if err := p.commit(ctx, conn); err != nil {
		err = fmt.Errorf("write the books: %w", ambiguous(err))
		rollback(ctx, conn)
		return err
	}
	pass()
	if err := p.tell(ctx, conn); err != nil {
		return fmt.Errorf("write the audit: %w: %w", ErrCommitUnknown, err)
	}
	for _, words := range p.alarms {
		l.metrics.alarm()
		l.log.Error("the books hold what was not reserved", "what", words)
	}
	return nil
}

func rollback(ctx context.Context, conn *pgx.Conn) {
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		_, _ = conn.Exec(ctx, `ROLLBACK`) // if that fails as well, the connection is closed on its release
	}
}

func (l *Ledger) newPage(ctx context.Context) (*page, error) {
	p := &page{
		quiet: l.options.Quiet, quietStored: l.options.QuietStored,
		vaults: map[string]*vault{}, keys: map[string]*sentKey{}, answers: map[string]*Answer{}, objects: map[string]*object{},
		subjects: map[string]*subject{}, bills: map[policy.BillID]*obligation{}, books: map[bookID]*book{}, paid: map[policy.BillID]string{}, owners: map[string]policy.BillID{},
	}
	now, err := l.now(ctx)
	p.now = now
	return p, err
}

// now is the business time, or zero where the database's clock is meant.
func (l *Ledger) now(ctx context.Context) (time.Time, error) {
	if l.options.Now == nil {
		return time.Time{}, nil
	}
	now, err := l.options.Now(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the business clock: %w", err)
	}
	return now.UTC(), nil
}

// Clock is the business time, wherever it comes from.
func (l *Ledger) Clock(ctx context.Context) (now time.Time, err error) {
	if now, err = l.now(ctx); err == nil && now.IsZero() {
		err = l.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
	}
	return now.UTC(), err
}

// broken tells whether the connection failed, rather than the database refused.
func broken(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(pg.Code, "57P") || strings.HasPrefix(pg.Code, "08")
	}
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &network) ||
		strings.Contains(err.Error(), "conn closed")
}

// badData tells whether the database refused a value: one that a task of the
// group brought.
func badData(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23") || strings.HasPrefix(pg.Code, "54"))
}

// ambiguous marks an error after which the commit may or may not have happened.
func ambiguous(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && !strings.HasPrefix(pg.Code, "57P") {
		return err
	}
	if pgconn.SafeToRetry(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}
