package rebuild

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
)

// Options say what is rebuilt, by whom and why.
type Options struct {
	Actor  string
	Reason string // for whoever reads the record; needed

	// Customer rebuilds the partition of one customer and leaves the other 63.
	Customer domain.CustomerID
	// From rebuilds the partitions in which something that the read model wants
	// was recorded at this position or after it, and leaves the others.
	From int64
	// To folds the log up to this position and no further. The differences are
	// then those between the read model of that time and the live one, so it is
	// for looking: nothing is switched.
	To int64
	// Dry builds beside, compares, and drops what it built.
	Dry bool
	// Restart begins at the beginning even if a rebuild was left unfinished.
	Restart bool

	Workers  int // pages that are folded at the same time (default 2)
	PageSize int // events of a page (default 2000)
	Examples int // differing rows of each table that the report shows (default 5)
	// Progress is told how many events are folded and how many there are. It is
	// called by one goroutine at a time.
	Progress func(folded, of int64)
}

// Defaults of Options.
const (
	defaultWorkers  = 2
	defaultPageSize = 2000
	defaultExamples = 5
)

// Report is what came of it.
type Report struct {
	Projection string `json:"projection"`
	Partitions int    `json:"partitions"` // rebuilt
	Events     int64  `json:"events"`     // that the rebuilt rows contain
	Found      int64  `json:"found"`      // of those: folded before, by a rebuild that did not finish
	Letters    int64  `json:"letters"`    // parked events that the rows contain now
	Switched   bool   `json:"switched"`
	Diffs      []Diff `json:"diffs"`
}

// Rows is how many rows differ in all tables.
func (r Report) Rows() (sum Diff) {
	for _, d := range r.Diffs {
		sum.OnlyFormer += d.OnlyFormer
		sum.OnlyRebuilt += d.OnlyRebuilt
		sum.Different += d.Different
	}
	return sum
}

// What a rebuild is refused.
var (
	ErrUnderWay  = &domain.Error{Kind: domain.Conflict, Code: "rebuild_under_way", Msg: "the read model is being rebuilt by somebody else right now"}
	ErrNoFormer  = &domain.Error{Kind: domain.NotFound, Code: "no_former_rows", Msg: "no former rows of the read model are kept"}
	ErrReshaped  = &domain.Error{Kind: domain.Conflict, Code: "former_rows_reshaped", Msg: "the read model's tables have changed since the former rows were kept"}
	ErrDisturbed = &domain.Error{Kind: domain.Conflict, Code: "rebuild_disturbed", Msg: "the processor was reset or told to skip a letter meanwhile; nothing was switched"}
)

// ErrTakenOver ends a rebuild whose connection was lost and whose place another
// one has taken.
var ErrTakenOver = errors.New("another rebuild has taken over")

// rebuildLock is the class of the advisory lock that one rebuild of a
// projection holds.
const rebuildLock = 7312

// nearly is how many events may be left to fold while the processor is held.
const nearly = 500

// rebuild is a rebuild or a rollback on its way.
type rebuild struct {
	store      *eventstore.Store
	projection projections.Projection
	options    Options
	tables     []table
	side       side
	scope      []int16
	reached    tracking.Vector
	skipped    map[int64]struct{}
	begun      time.Time // by the database's clock
	id         int64     // in rebuilds; 0: not there yet
	report     Report

	mu           sync.Mutex
	folded, most int64
}

// Run folds a read model anew beside the live one and switches to it, or only
// says what would change. The service may run. A rebuild that was left
// unfinished, of the same partitions, is taken up.
//
// It returns ErrUnderWay if another one runs, ErrDisturbed, and
// [tracking.ErrUnknownProcessor] if the processor has never run.
func Run(ctx context.Context, store *eventstore.Store, p projections.Projection, o Options) (Report, error) {
	return begin(ctx, store, p, o, func(r *rebuild) error {
		if err := r.findScope(ctx); err != nil || len(r.scope) == 0 {
			return err
		}
		if o.Dry || o.To > 0 {
			r.side = trial
			return r.try(ctx)
		}
		r.side = building
		if err := r.open(ctx); err != nil {
			return err
		}
		return r.finish(ctx, "rebuild")
	})
}

// Rollback switches back to the rows that the last switch replaced, after
// folding into them what has been recorded since. Called again it takes itself
// back. It returns ErrNoFormer, ErrReshaped and what Run returns.
func Rollback(ctx context.Context, store *eventstore.Store, p projections.Projection, o Options) (Report, error) {
	return begin(ctx, store, p, o, func(r *rebuild) (err error) {
		r.side = former
		if r.reached, r.scope, err = former.reached(ctx, store.Pool(), p.Name); err != nil {
			return err
		}
		if len(r.scope) == 0 {
			return ErrNoFormer
		}
		alike, err := former.alike(ctx, store.Pool(), r.tables)
		switch {
		case err != nil:
			return err
		case !alike:
			return ErrReshaped
		}
		if err := r.foldSettled(ctx); err != nil {
			return err
		}
		return r.finish(ctx, "rollback")
	})
}

// begin does what it does as the only one who does so to this projection.
func begin(ctx context.Context, store *eventstore.Store, p projections.Projection, o Options, do func(*rebuild) error) (Report, error) {
	fill(&o.Workers, defaultWorkers)
	fill(&o.PageSize, defaultPageSize)
	fill(&o.Examples, defaultExamples)
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	r := &rebuild{store: store, projection: p, options: o, report: Report{Projection: p.Name}}
	err := r.alone(ctx, func(conn *pgx.Conn) (err error) {
		if o.Reason == "" {
			return tracking.ErrReasonNeeded
		}
		if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&r.begun); err != nil {
			return err
		}
		if r.skipped, err = tracking.SkippedPositions(ctx, conn, p.Name); err != nil {
			return err
		}
		if r.tables, err = tablesOf(ctx, conn, p); err != nil {
			return err
		}
		return do(r)
	})
	r.report.Partitions = len(r.scope)
	if err != nil {
		return r.report, fmt.Errorf("rebuild %s: %w", p.Name, err)
	}
	return r.report, nil
}

// alone holds the projection's lock while f works. The lock spares two from
// doing the same work; that they do no harm is the tokens' part.
func (r *rebuild) alone(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := r.store.Pool().Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var mine bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, hashtext($2))`, rebuildLock, r.projection.Name).Scan(&mine); err != nil {
		return err
	}
	if !mine {
		return ErrUnderWay
	}
	defer func() {
		if _, err := conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1, hashtext($2))`, rebuildLock, r.projection.Name); err != nil {
			_ = conn.Conn().Close(context.WithoutCancel(ctx)) // and the lock goes with it
		}
	}()
	return f(conn.Conn())
}

// findScope finds the partitions to rebuild.
func (r *rebuild) findScope(ctx context.Context) error {
	o := r.options
	switch {
	case o.Customer != "":
		r.scope = []int16{eventstore.PartitionOfStream(o.Customer.Stream())}
	case o.From > 1:
		err := r.store.Pool().QueryRow(ctx, `SELECT coalesce(array_agg(DISTINCT partition ORDER BY partition), '{}') FROM events WHERE position >= $1 AND event_type = ANY ($2)`,
			o.From, r.projection.Events).Scan(&r.scope)
		if err != nil {
			return fmt.Errorf("find what was recorded from %d on: %w", o.From, err)
		}
	default:
		for p := range int16(eventstore.Partitions) {
			r.scope = append(r.scope, p)
		}
	}
	return nil
}

// open takes up the rebuild that was left unfinished, or begins one.
func (r *rebuild) open(ctx context.Context) error {
	return pgx.BeginFunc(ctx, r.store.Pool(), func(tx pgx.Tx) error {
		found, err := r.takeUp(ctx, tx)
		if err != nil || found {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE rebuilds SET given_up_at = clock_timestamp() WHERE projection = $1 AND switched_at IS NULL AND given_up_at IS NULL`, r.projection.Name); err != nil {
			return err
		}
		if err := building.create(ctx, tx, r.projection.Name, r.tables, r.scope); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `INSERT INTO rebuilds (projection, action, partitions, actor, reason, begun_at) VALUES ($1, 'rebuild', $2, $3, $4, $5) RETURNING id`,
			r.projection.Name, r.scope, r.options.Actor, r.options.Reason, r.begun).Scan(&r.id)
	})
}

// takeUp reports whether a rebuild was left unfinished that can be finished.
func (r *rebuild) takeUp(ctx context.Context, tx pgx.Tx) (bool, error) {
	if r.options.Restart {
		return false, nil
	}
	var id int64
	var begun time.Time
	err := tx.QueryRow(ctx, `SELECT id, begun_at FROM rebuilds WHERE projection = $1 AND partitions = $2 AND switched_at IS NULL AND given_up_at IS NULL`,
		r.projection.Name, r.scope).Scan(&id, &begun)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for an unfinished rebuild: %w", err)
	}
	if alike, err := building.alike(ctx, tx, r.tables); err != nil || !alike {
		return false, err
	}
	if disturbed, err := tracking.Disturbed(ctx, tx, r.projection.Name, begun); err != nil || disturbed {
		return false, err
	}
	reached, _, err := building.reached(ctx, tx, r.projection.Name)
	if err != nil {
		return false, err
	}
	r.id, r.begun, r.reached = id, begun, reached
	return true, nil
}

// progress counts events that were folded.
func (r *rebuild) progress(events int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.folded += events
	r.options.Progress(r.folded, max(r.most, r.folded))
}

func fill(v *int, otherwise int) {
	if *v <= 0 {
		*v = otherwise
	}
}
