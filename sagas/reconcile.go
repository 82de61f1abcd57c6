package sagas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Reconciler compares the three books, log, billing_records and Stripe, and
// says where they differ. What Stripe proves it repairs, through the same
// commands as every other road; of the rest it says what it proposes, until it is
// done or an operator dismisses it ([Reconciler.Dismiss]). It never moves money.
//
// One reconciliation runs at a time, in whichever replica takes it; if that one
// dies, another begins it anew. Repeating one changes nothing: commands are
// keyed by the charge, findings by what they are about.
type Reconciler struct {
	config  ReconcilerConfig
	pool    *pgxpool.Pool
	d       *commands.Dispatcher
	gateway Gateway
	news    Newsstand
	inbox   *Inbox
	clock   *Clock
	log     *slog.Logger
	meta    eventstore.Meta
	wake    chan struct{}
	began   time.Time
}

// ReconcilerConfig sets up a reconciler.
type ReconcilerConfig struct {
	Every     time.Duration // between scheduled reconciliations; 0: only when asked for
	Poll      time.Duration // how often the table is looked at when nobody says that there is one to do
	Allowance *Allowance    // how much may be asked of Stripe; nil: no limit
	Actor     string        // recorded with every fact
}

// NewReconciler makes a reconciler; Run carries out what is asked for. News
// may be nil: then Stripe's list of events is not read.
func NewReconciler(config ReconcilerConfig, d *commands.Dispatcher, gateway Gateway, news Newsstand, inbox *Inbox, clock *Clock, log *slog.Logger) (*Reconciler, error) {
	if config.Poll <= 0 || config.Every < 0 {
		return nil, errors.New("reconciler: the poll interval must be positive, the schedule not negative")
	}
	return &Reconciler{
		config: config, pool: d.Log().Pool(), d: d, gateway: gateway, news: news, inbox: inbox, clock: clock, log: log,
		meta: eventstore.Meta{Actor: config.Actor}, wake: make(chan struct{}, 1), began: time.Now(),
	}, nil
}

// Scope says which bills and charges a reconciliation is about. The zero value
// is everything.
type Scope struct {
	Period domain.Period // the bills of this period alone, and charges since a month before it
	Since  time.Time     // charges created, and bills recorded, since then
}

const (
	scopePeriod     = "period "
	scopeSince      = "since "
	scopeEverything = "everything"
)

// String is the scope in words: period 2026-11, since 2026-11-01T00:00:00Z, or
// everything.
func (s Scope) String() string {
	switch {
	case !s.Period.IsZero():
		return scopePeriod + s.Period.String()
	case !s.Since.IsZero():
		return scopeSince + s.Since.UTC().Format(time.RFC3339)
	}
	return scopeEverything
}

func parseScope(text string) (s Scope, err error) {
	if period, ok := strings.CutPrefix(text, scopePeriod); ok {
		s.Period, err = domain.ParsePeriod(period)
	} else if since, ok := strings.CutPrefix(text, scopeSince); ok {
		s.Since, err = time.Parse(time.RFC3339, since)
	}
	return s, err
}

// sweptSince is how far back Stripe's lists are read. A bill may be charged
// before its period begins, by hand; what lies further back is read by itself.
func (s Scope) sweptSince() time.Time {
	if s.Period.IsZero() {
		return s.Since
	}
	year, month := s.Period.Start()
	return time.Date(year, time.Month(month)-1, 1, 0, 0, 0, 0, time.UTC)
}

// Reconciliation is how a comparison stands.
type Reconciliation struct {
	ID          int64  `json:"id"`
	Scope       string `json:"scope" example:"period 2026-11"`
	RequestedBy string `json:"requested_by"`
	State       string `json:"state" enum:"queued,running,done,failed"`
	Phase       string `json:"phase,omitempty" doc:"What is being read: charges, bills or events."`
	Objects     int64  `json:"objects" doc:"Intents and charges read from Stripe's lists."`
	Charges     int64  `json:"charges" doc:"Successful charges among them, in scope."`
	Bills       int64  `json:"bills" doc:"Bills compared with the log."`
	Expected    int64  `json:"expected" doc:"Bills in scope when it began."`
	Events      int64  `json:"events" doc:"Events read from Stripe's list."`
	Missing     int64  `json:"missing" doc:"Bills that the log says are paid by a charge that Stripe does not have."`
	Orphans     int64  `json:"orphans" doc:"Charges that the log has not asked for."`
	Unrecorded  int64  `json:"unrecorded" doc:"Charges of bills that the log did not know to be paid."`
	Mismatches  int64  `json:"mismatches" doc:"Amounts that differ, refunds that are not what was asked for, and rows that contradict the log."`
	Duplicates  int64  `json:"duplicates" doc:"Further successes of a bill that is paid, and charges that may be such."`
	Repaired    int64  `json:"repaired"`
	Unrepaired  int64  `json:"unrepaired"`
	Dismissed   int64  `json:"dismissed" doc:"Findings that an operator leaves as they are; no other figure counts them."`
	// Taken is what Stripe took for the bills of a period, in minor units, of one
	// that is done and was about a period alone.
	Taken     map[domain.Currency]int64 `json:"taken,omitempty"`
	Error     string                    `json:"error,omitempty"`
	CreatedAt time.Time                 `json:"created_at"`
	StartedAt *time.Time                `json:"started_at,omitempty"`
	EndedAt   *time.Time                `json:"ended_at,omitempty"`
}

// Ended reports whether nothing more will come of it.
func (r Reconciliation) Ended() bool { return r.State == reconcileDone || r.State == reconcileFailed }

// Done reports whether it has ended well.
func (r Reconciliation) Done() bool { return r.State == reconcileDone }

const (
	reconcileQueued  = "queued"
	reconcileRunning = "running"
	reconcileDone    = "done"
	reconcileFailed  = "failed"
)

// Start asks for a reconciliation and returns its id. Who asks for a scope that
// is asked for already joins that one.
func (r *Reconciler) Start(ctx context.Context, s Scope, by string) (id int64, err error) {
	for range 10 {
		err = r.pool.QueryRow(ctx, `INSERT INTO reconciliations (scope, requested_by, state) VALUES ($1, $2, 'queued')
			ON CONFLICT (scope) WHERE state IN ('queued', 'running') DO NOTHING RETURNING id`, s.String(), by).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			err = r.pool.QueryRow(ctx, `SELECT id FROM reconciliations WHERE scope = $1 AND state IN ('queued', 'running')`, s.String()).Scan(&id)
		}
		if !errors.Is(err, pgx.ErrNoRows) { // it may have ended between the two
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("ask for a reconciliation: %w", err)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return id, nil
}

// Get is how a reconciliation stands. The error wraps domain.ErrNotFound if
// there is none.
func (r *Reconciler) Get(ctx context.Context, id int64) (v Reconciliation, err error) {
	err = r.pool.QueryRow(ctx, `
		SELECT r.id, scope, requested_by, state, phase, objects, charges, bills, expected, events, coalesce(error, ''), taken, created_at, started_at, ended_at,
			count(*) FILTER (WHERE kind = 'missing' AND open), count(*) FILTER (WHERE kind = 'orphan' AND open), count(*) FILTER (WHERE kind = 'unrecorded' AND open),
			count(*) FILTER (WHERE kind IN ('mismatch', 'row', 'refund') AND open), count(*) FILTER (WHERE kind IN ('duplicate', 'possible_duplicate') AND open),
			count(*) FILTER (WHERE repaired AND open), count(*) FILTER (WHERE NOT repaired AND open), count(*) FILTER (WHERE NOT open)
		FROM reconciliations r LEFT JOIN (
			SELECT reconciliation_id, kind, repaired, d.kind IS NULL AS open
			FROM reconcile_findings f LEFT JOIN reconcile_dismissals d USING (kind, subject)) f ON f.reconciliation_id = r.id
		WHERE r.id = $1 GROUP BY r.id`, id).
		Scan(&v.ID, &v.Scope, &v.RequestedBy, &v.State, &v.Phase, &v.Objects, &v.Charges, &v.Bills, &v.Expected, &v.Events, &v.Error,
			&v.Taken, &v.CreatedAt, &v.StartedAt, &v.EndedAt, &v.Missing, &v.Orphans, &v.Unrecorded, &v.Mismatches, &v.Duplicates, &v.Repaired, &v.Unrepaired, &v.Dismissed)
	if errors.Is(err, pgx.ErrNoRows) {
		return v, ErrNoReconciliation
	}
	if err != nil {
		return v, fmt.Errorf("read reconciliation %d: %w", id, err)
	}
	return v, nil
}

// Latest is the id of the newest reconciliation of a scope that is done. The
// error is ErrNoReconciliation if there is none.
func (r *Reconciler) Latest(ctx context.Context, s Scope) (id int64, err error) {
	err = r.pool.QueryRow(ctx, `SELECT id FROM reconciliations WHERE scope = $1 AND state = 'done' ORDER BY id DESC LIMIT 1`, s.String()).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrNoReconciliation.With("there is no reconciliation of %s that is done", s)
	}
	if err != nil {
		return 0, fmt.Errorf("find a reconciliation: %w", err)
	}
	return id, nil
}

// ErrNoReconciliation says that there is none under an id.
var ErrNoReconciliation = &domain.Error{Kind: domain.NotFound, Code: "reconciliation_not_found", Msg: "there is no such reconciliation"}

// Reconcile asks for a reconciliation and returns when it has ended, whichever
// replica carries it out.
func (r *Reconciler) Reconcile(ctx context.Context, s Scope) (Reconciliation, error) {
	id, err := r.Start(ctx, s, r.config.Actor)
	if err != nil {
		return Reconciliation{}, err
	}
	for {
		if _, err := r.next(ctx); err != nil {
			return Reconciliation{}, err
		}
		v, err := r.Get(ctx, id)
		if err != nil || v.Ended() {
			return v, err
		}
		pause(ctx, jitter(100*time.Millisecond)) // another replica is at it
		if ctx.Err() != nil {
			return v, ctx.Err()
		}
	}
}

// Run carries out what is asked for, and asks for one itself when it is time,
// until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error {
	var looked time.Time
	for ctx.Err() == nil {
		if r.config.Every > 0 && time.Since(looked) >= min(time.Minute, r.config.Every) {
			if err := r.schedule(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("the next reconciliation cannot be scheduled yet; trying again", "error", err)
			}
			looked = time.Now()
		}
		did, err := r.next(ctx)
		if err != nil && ctx.Err() == nil {
			r.log.Warn("reconciliation cannot go on yet; trying again", "error", err)
			pause(ctx, jitter(time.Second))
			continue
		}
		if did {
			continue
		}
		timer := time.NewTimer(r.config.Poll)
		select {
		case <-r.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// scheduled is the requester of what the service asks for itself.
const scheduled = "schedule"

// Scheduled reconciliations look back further than they are apart, so that what
// Stripe reports late is met by some; the first looks back over a billing month.
const (
	scheduleOverlap = 3 * 24 * time.Hour
	scheduleFirst   = 35 * 24 * time.Hour
	scheduleSettle  = time.Hour // of a service that has never reconciled, before it first does
)

// schedule asks for a reconciliation if the last scheduled one is long enough
// ago. Several replicas that find so at once ask for the same one.
func (r *Reconciler) schedule(ctx context.Context) error {
	var last *float64
	err := r.pool.QueryRow(ctx, `SELECT extract(epoch FROM clock_timestamp() - max(created_at)) FROM reconciliations WHERE requested_by = $1`, scheduled).Scan(&last)
	if err != nil {
		return err
	}
	back := scheduleFirst
	if last != nil {
		if time.Duration(*last*float64(time.Second)) < r.config.Every {
			return nil
		}
		back = time.Duration(*last*float64(time.Second)) + scheduleOverlap
	} else if time.Since(r.began) < min(r.config.Every, scheduleSettle) {
		return nil
	}
	now, err := r.clock.Now(ctx)
	if err != nil {
		return err
	}
	_, err = r.Start(ctx, Scope{Since: now.Add(-back).Truncate(24 * time.Hour)}, scheduled)
	return err
}

// reconcileLock is the advisory lock that whoever reconciles holds for the time.
const reconcileLock = `7311, 0`

// next carries out the oldest reconciliation that is asked for, if there is one
// and no replica is at any. A running one without a holder of the lock is of a
// replica that died.
func (r *Reconciler) next(ctx context.Context) (did bool, err error) {
	const oldest = `SELECT id, scope FROM reconciliations WHERE state IN ('queued', 'running') ORDER BY id LIMIT 1`
	var id int64
	var text string
	err = r.pool.QueryRow(ctx, oldest).Scan(&id, &text)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read what to reconcile: %w", err)
	}
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("reconcile: %w", err)
	}
	defer release(conn)
	var mine bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(`+reconcileLock+`)`).Scan(&mine); err != nil || !mine {
		return false, err
	}
	err = conn.QueryRow(ctx, oldest).Scan(&id, &text) // another may have ended it meanwhile
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read what to reconcile: %w", err)
	}
	scope, err := parseScope(text)
	if err != nil {
		return true, r.end(ctx, id, err)
	}
	p := &pass{Reconciler: r, id: id, scope: scope, conn: conn}
	err = p.run(ctx)
	if ctx.Err() != nil {
		return false, ctx.Err() // it stays as it is, for the next to begin anew
	}
	return true, r.end(ctx, id, err)
}

// release gives the lock and the connection back. A connection that cannot be
// cleaned is closed, which does the same.
func release(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`); err != nil {
		_ = conn.Conn().Close(ctx)
	}
	conn.Release()
}

func (r *Reconciler) end(ctx context.Context, id int64, failure error) error {
	state, why := reconcileDone, ""
	if failure != nil {
		state, why = reconcileFailed, failure.Error()
	}
	if _, err := r.pool.Exec(ctx, `UPDATE reconciliations SET state = $2, error = nullif($3, ''), phase = '', ended_at = clock_timestamp() WHERE id = $1`, id, state, why); err != nil {
		return fmt.Errorf("end reconciliation %d: %w", id, err)
	}
	v, err := r.Get(ctx, id)
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if failure != nil || v.Unrepaired > 0 {
		level = slog.LevelError
	}
	r.log.Log(ctx, level, "reconciled", "id", id, "scope", v.Scope, "state", v.State, "bills", v.Bills, "charges", v.Charges, "missing", v.Missing, "orphans", v.Orphans,
		"mismatches", v.Mismatches, "duplicates", v.Duplicates, "repaired", v.Repaired, "unrepaired", v.Unrepaired, "dismissed", v.Dismissed, "error", why)
	return nil
}
