package tracking

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Replay sends the tokens of an effectful processor back, so that it reads the
// log from position from on again (0 or 1: all of it). Everything up to the
// newest event of that moment is a replay, and letters from there on are void.
//
// Prepare runs first, in the same transaction, while no page of the processor is
// under way anywhere. It is where somebody has looked at what will follow and
// agrees: an error of it is returned as it is, and nothing has changed.
//
// It returns ErrNotEffectful, ErrUnknownProcessor or ErrReasonNeeded.
func Replay(ctx context.Context, pool *pgxpool.Pool, p Processor, from int64, actor, why string, prepare func(context.Context, pgx.Tx) error) error {
	if p.Kind != Effectful {
		return ErrNotEffectful
	}
	from = max(from, 1)
	return operate(ctx, pool, p.Name, actionReplay, actor, why, &from, func(tx pgx.Tx) error {
		if err := prepare(ctx, tx); err != nil {
			return err
		}
		if err := rewind(ctx, tx, p.Name, from, actor, why); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE processor_tokens t SET replay_until = greatest(replay_until, coalesce(`+newestOf("t.partition")+`, 0)) WHERE processor = $1`, p.Name)
		if err != nil {
			return fmt.Errorf("mark the replay: %w", err)
		}
		return nil
	})
}
