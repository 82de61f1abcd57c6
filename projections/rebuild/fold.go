package rebuild

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// writes runs f in a transaction, or in a part of one.
type writes func(ctx context.Context, f func(pgx.Tx) error) error

// besideLive are transactions of the rebuild's own. One that is lost is folded
// again, so none waits for the disk.
func (r *rebuild) besideLive(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, r.store.Pool(), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = off`); err != nil {
			return err
		}
		if err := r.side.enter(ctx, tx); err != nil {
			return err
		}
		return f(tx)
	})
}

// foldTo folds the side's partitions up to a position each.
func (r *rebuild) foldTo(ctx context.Context, until tracking.Vector, workers int, write writes) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int32
	for range workers {
		group.Go(func() error {
			w := &worker{rebuild: r, write: write, from: r.reached, to: r.reached}
			for i := next.Add(1) - 1; int(i) < len(r.scope); i = next.Add(1) - 1 {
				if err := w.partition(ctx, r.scope[i], until[r.scope[i]]); err != nil {
					return err
				}
			}
			return w.flush(ctx)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, p := range r.scope {
		r.reached[p] = max(r.reached[p], until[p])
	}
	return nil
}

// worker folds some partitions. A page may hold events of several: the more
// they are, the fewer statements.
type worker struct {
	*rebuild
	write    writes
	from, to tracking.Vector // the page moves tokens from here to there
	page     []eventstore.Recorded
	read     int64
}

func (w *worker) partition(ctx context.Context, partition int16, until int64) error {
	if until <= w.to[partition] {
		return nil
	}
	for e, err := range w.store.ReadPartition(ctx, w.store.Pool(), partition, w.to[partition]) {
		if err != nil {
			return fmt.Errorf("partition %d: %w", partition, err)
		}
		if e.Position > until {
			break
		}
		w.to[partition] = e.Position
		w.read++
		if _, skipped := w.skipped[e.Position]; !skipped {
			w.page = append(w.page, e)
		}
		if len(w.page) >= w.options.PageSize {
			if err := w.flush(ctx); err != nil {
				return err
			}
		}
	}
	w.to[partition] = until
	return nil
}

// flush folds the page and moves the tokens, together.
func (w *worker) flush(ctx context.Context) error {
	var partitions []int16
	var from, to []int64
	for p := range w.to {
		if w.to[p] != w.from[p] {
			partitions, from, to = append(partitions, int16(p)), append(from, w.from[p]), append(to, w.to[p])
		}
	}
	if len(partitions) == 0 {
		return nil
	}
	err := w.write(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE rebuild_tokens t SET position = m.up_to FROM unnest($3::smallint[], $4::bigint[], $5::bigint[]) AS m(partition, since, up_to)
			WHERE t.side = $1 AND t.projection = $2 AND t.partition = m.partition AND t.position = m.since`, w.side, w.projection.Name, partitions, from, to)
		if err != nil {
			return fmt.Errorf("move the tokens of the rebuild: %w", err)
		}
		if tag.RowsAffected() != int64(len(partitions)) {
			return ErrTakenOver
		}
		return w.projection.Fold(ctx, tx, w.page)
	})
	if err != nil {
		return err
	}
	w.from = w.to
	clear(w.page)
	w.page = w.page[:0]
	w.progress(w.read)
	w.read = 0
	return nil
}

// between counts the events of the side's partitions after one position each, up
// to another.
func (r *rebuild) between(ctx context.Context, since, until tracking.Vector) (events int64, err error) {
	var after, to []int64
	for _, p := range r.scope {
		after, to = append(after, since[p]), append(to, until[p])
	}
	err = r.store.Pool().QueryRow(ctx, `SELECT coalesce(sum(c.n), 0)::bigint FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS t(partition, after, until)
		CROSS JOIN LATERAL (SELECT count(*) AS n FROM events e
			WHERE (e.partition, e.position) > (t.partition, t.after) AND (e.partition, e.position) <= (t.partition, t.until)) c`, r.scope, after, to).Scan(&events)
	if err != nil {
		return 0, fmt.Errorf("count what is to be folded: %w", err)
	}
	return events, nil
}
