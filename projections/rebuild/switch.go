package rebuild

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// chase folds up to where the processor stands, and again, until little is left.
func (r *rebuild) chase(ctx context.Context) error {
	pool := r.store.Pool()
	found, err := r.between(ctx, tracking.Vector{}, r.reached)
	if err != nil {
		return err
	}
	r.report.Found, r.folded = found, found
	for {
		live, err := tracking.AsOf(ctx, pool, r.projection.Name)
		if err != nil {
			return err
		}
		left, err := r.between(ctx, r.reached, r.bounded(live))
		if err != nil {
			return err
		}
		r.most = r.folded + left
		r.progress(0)
		if left <= nearly {
			break
		}
		if err := r.foldTo(ctx, r.bounded(live), r.options.Workers, r.besideLive); err != nil {
			return err
		}
	}
	for _, t := range r.tables {
		if _, err := pool.Exec(ctx, "ANALYZE "+t.on(r.side)); err != nil {
			return fmt.Errorf("analyze %s: %w", t.on(r.side), err)
		}
	}
	return nil
}

// bounded is v, but no further than the rebuild is to go.
func (r *rebuild) bounded(v tracking.Vector) tracking.Vector {
	if r.options.To > 0 {
		for p := range v {
			v[p] = min(v[p], r.options.To)
		}
	}
	return v
}

// settle makes both sides stand at the same place, the live one held, and
// compares them. Then is called for each table, while its differences are at hand.
func (r *rebuild) settle(ctx context.Context, tx pgx.Tx, then func(table) error) (live tracking.Vector, err error) {
	for _, sql := range []string{`SET LOCAL work_mem = '64MB'`, `SET LOCAL jit = off`} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return live, err
		}
	}
	if err := r.side.enter(ctx, tx); err != nil {
		return live, err
	}
	if live, err = tracking.Hold(ctx, tx, r.projection.Name); err != nil {
		return live, err
	}
	disturbed, err := tracking.Disturbed(ctx, tx, r.projection.Name, r.begun)
	if err != nil {
		return live, err
	}
	for _, p := range r.scope {
		disturbed = disturbed || r.reached[p] > live[p]
	}
	if disturbed {
		return live, ErrDisturbed
	}
	within := func(_ context.Context, f func(pgx.Tx) error) error { return f(tx) }
	if err := r.foldTo(ctx, r.bounded(live), 1, within); err != nil {
		return live, err
	}
	r.report.Events = r.folded
	for _, t := range r.tables {
		d, err := r.compare(ctx, tx, t)
		if err != nil {
			return live, err
		}
		r.report.Diffs = append(r.report.Diffs, d)
		if err := then(t); err != nil {
			return live, err
		}
	}
	return live, nil
}

// try builds on the trial side, compares, and drops it.
func (r *rebuild) try(ctx context.Context) error {
	if err := pgx.BeginFunc(ctx, r.store.Pool(), func(tx pgx.Tx) error {
		return trial.create(ctx, tx, r.projection.Name, r.tables, r.scope)
	}); err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		_ = pgx.BeginFunc(ctx, r.store.Pool(), func(tx pgx.Tx) error { return trial.drop(ctx, tx, r.projection.Name, r.tables) }) // else by the next one
	}()
	if err := r.chase(ctx); err != nil {
		return err
	}
	defer tracking.Wake(ctx, r.store.Pool()) // what came in while it was held
	return pgx.BeginFunc(ctx, r.store.Pool(), func(tx pgx.Tx) error {
		_, err := r.settle(ctx, tx, func(table) error { return nil })
		return err
	})
}

// finish folds what is missing and switches.
func (r *rebuild) finish(ctx context.Context, action string) error {
	if err := r.chase(ctx); err != nil {
		return err
	}
	defer tracking.Wake(ctx, r.store.Pool()) // what came in while it was held
	err := pgx.BeginFunc(ctx, r.store.Pool(), func(tx pgx.Tx) error {
		live, err := r.settle(ctx, tx, func(t table) error { return r.exchange(ctx, tx, t) })
		if err != nil {
			return err
		}
		if r.side != former {
			if err := r.side.become(ctx, tx, former, r.projection.Name, r.tables); err != nil {
				return err
			}
		}
		if err := r.record(ctx, tx, action, live); err != nil {
			return err
		}
		r.report.Letters, err = tracking.Rebuilt(ctx, tx, r.projection.Name, r.scope, mark(r.id), r.options.Actor, action+": "+r.options.Reason)
		return err
	})
	r.report.Switched = err == nil
	return err
}

// record writes down what the switch does.
func (r *rebuild) record(ctx context.Context, tx pgx.Tx, action string, live tracking.Vector) error {
	if r.id == 0 {
		if err := tx.QueryRow(ctx, `INSERT INTO rebuilds (projection, action, partitions, actor, reason, begun_at, switched_at) VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp()) RETURNING id`,
			r.projection.Name, action, r.scope, r.options.Actor, r.options.Reason, r.begun).Scan(&r.id); err != nil {
			return fmt.Errorf("record the %s: %w", action, err)
		}
	}
	positions := make([]int64, len(r.scope))
	for i, p := range r.scope {
		positions[i] = live[p]
	}
	sum := r.report.Rows()
	if _, err := tx.Exec(ctx, `UPDATE rebuilds SET switched_at = clock_timestamp(), positions = $2, only_former = $3, only_rebuilt = $4, different = $5 WHERE id = $1`,
		r.id, positions, sum.OnlyFormer, sum.OnlyRebuilt, sum.Different); err != nil {
		return fmt.Errorf("record the %s: %w", action, err)
	}
	return nil
}

// mark is what letters say that a switch has settled.
func mark(id int64) string { return fmt.Sprintf("rebuild %d", id) }

// foldSettled folds into the former rows the letters that the last switch
// settled: the rows that it replaced lacked them.
func (r *rebuild) foldSettled(ctx context.Context) error {
	var last int64
	if err := r.store.Pool().QueryRow(ctx, `SELECT coalesce(max(id), 0) FROM rebuilds WHERE projection = $1 AND switched_at IS NOT NULL`, r.projection.Name).Scan(&last); err != nil {
		return fmt.Errorf("find the last switch: %w", err)
	}
	letters, partitions := map[int64]struct{}{}, map[int16]struct{}{}
	rows, err := r.store.Pool().Query(ctx, `SELECT partition, position FROM dead_letters WHERE processor = $1 AND reason = $2`, r.projection.Name, mark(last))
	if err != nil {
		return fmt.Errorf("read the letters of the last switch: %w", err)
	}
	var partition int16
	var position int64
	if _, err := pgx.ForEachRow(rows, []any{&partition, &position}, func() error {
		letters[position], partitions[partition] = struct{}{}, struct{}{}
		return nil
	}); err != nil || len(letters) == 0 {
		return err
	}
	var events []eventstore.Recorded
	for partition := range partitions {
		for e, err := range r.store.ReadPartition(ctx, r.store.Pool(), partition, 0) {
			if err != nil {
				return err
			}
			if _, lacked := letters[e.Position]; lacked {
				events = append(events, e)
			}
		}
	}
	return r.besideLive(ctx, func(tx pgx.Tx) error { return r.projection.Fold(ctx, tx, events) })
}
