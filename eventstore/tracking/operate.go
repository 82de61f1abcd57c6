package tracking

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/eventstore"
)

// Reset empties the tables of a pure processor and sends its tokens back, so
// that it handles the log from position from on again (0 or 1: all of it). It
// may be called while the processor runs, anywhere: it waits for the pages
// under way, and new ones begin after it. Letters from there on are void.
//
// It returns ErrEffectful, ErrNotResettable, ErrUnknownProcessor or
// ErrReasonNeeded.
func Reset(ctx context.Context, pool *pgxpool.Pool, p Processor, from int64, actor, why string) error {
	switch {
	case p.Kind != Pure:
		return ErrEffectful.With("processor %q is effectful; it is reset only through a plan: billingctl saga plan %s", p.Name, p.Name)
	case p.Reset == nil:
		return ErrNotResettable
	}
	from = max(from, 1)
	return operate(ctx, pool, p.Name, actionReset, actor, why, &from, func(tx pgx.Tx) error {
		if err := p.Reset(ctx, tx); err != nil {
			return fmt.Errorf("empty its tables: %w", err)
		}
		return rewind(ctx, tx, p.Name, from, actor, why)
	})
}

// Pause stops a processor, in all processes, until Resume. When it returns no
// page of it is under way.
func Pause(ctx context.Context, pool *pgxpool.Pool, processor, actor, why string) error {
	return operate(ctx, pool, processor, actionPause, actor, why, nil, func(tx pgx.Tx) error { return setPaused(ctx, tx, processor, true) })
}

// RunTo lets a processor run, paused or not, up to a position of the whole log
// and no further, until Resume or another RunTo. Each partition stops behind
// its last event up to there, including those whose append is still under way.
//
// It returns ErrPast if a partition has come further already, ErrNoPosition,
// ErrUnknownProcessor or ErrReasonNeeded.
func RunTo(ctx context.Context, pool *pgxpool.Pool, processor string, position int64, actor, why string) error {
	if position < 1 {
		return ErrNoPosition
	}
	return operate(ctx, pool, processor, actionRunTo, actor, why, &position, func(tx pgx.Tx) error {
		var at int64
		if err := tx.QueryRow(ctx, `SELECT max(position) FROM processor_tokens WHERE processor = $1`, processor).Scan(&at); err != nil {
			return err
		}
		if at > position {
			return ErrPast.With("%s has handled events up to position %d already", processor, at)
		}
		_, err := tx.Exec(ctx, `UPDATE processor_tokens SET stop_at = $2, paused = false, updated_at = clock_timestamp() WHERE processor = $1`, processor, position)
		return err
	})
}

// Resume lets a processor go on that is paused or stopped at a position.
func Resume(ctx context.Context, pool *pgxpool.Pool, processor, actor, why string) error {
	return operate(ctx, pool, processor, actionResume, actor, why, nil, func(tx pgx.Tx) error { return setPaused(ctx, tx, processor, false) })
}

func setPaused(ctx context.Context, tx pgx.Tx, processor string, paused bool) error {
	_, err := tx.Exec(ctx, `UPDATE processor_tokens SET paused = $2, stop_at = CASE WHEN $2 THEN stop_at END, updated_at = clock_timestamp()
		WHERE processor = $1`, processor, paused)
	return err
}

// operate does something to a processor at rest, writes it down and wakes the
// processor wherever it runs.
func operate(ctx context.Context, pool *pgxpool.Pool, processor, action, actor, why string, from *int64, do func(pgx.Tx) error) error {
	if why == "" {
		return ErrReasonNeeded
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := Hold(ctx, tx, processor); err != nil {
			return err
		}
		if err := do(tx); err != nil {
			return err
		}
		return record(ctx, tx, processor, action, actor, from, nil, why)
	})
	if err != nil {
		return fmt.Errorf("%s processor %q: %w", action, processor, err)
	}
	Wake(ctx, pool)
	return nil
}

// Wake lets every processor, in all processes, look for what is new in all
// partitions. It spares them the wait for the next scan; if it fails, nothing is
// lost.
func Wake(ctx context.Context, pool *pgxpool.Pool) {
	_, _ = pool.Exec(ctx, `SELECT pg_notify($1, 'ffffffffffffffff')`, eventstore.Channel)
}
