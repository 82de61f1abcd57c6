package tracking

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

// Hold waits for the pages of a processor that are under way, keeps new ones
// from beginning until tx ends, anywhere, and returns where it stands. It
// returns ErrUnknownProcessor if that has never run.
func Hold(ctx context.Context, tx pgx.Tx, processor string) (Vector, error) {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, hashtext($2))`, tokensLock, processor); err != nil {
		return Vector{}, fmt.Errorf("hold processor %q: %w", processor, err)
	}
	if err := lockTokens(ctx, tx, processor); err != nil {
		return Vector{}, fmt.Errorf("hold processor %q: %w", processor, err)
	}
	var known bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM processor_tokens WHERE processor = $1)`, processor).Scan(&known); err != nil {
		return Vector{}, fmt.Errorf("hold processor %q: %w", processor, err)
	}
	if !known {
		return Vector{}, ErrUnknownProcessor
	}
	return AsOf(ctx, tx, processor)
}

// SkippedPositions lists the events that were decided against, but for those
// that a reset has delivered again.
func SkippedPositions(ctx context.Context, q eventstore.Querier, processor string) (map[int64]struct{}, error) {
	rows, err := q.Query(ctx, `SELECT position FROM dead_letters l WHERE processor = $1 AND status = 'skipped' AND NOT EXISTS (
		SELECT FROM processor_runs r WHERE r.processor = l.processor AND r.action IN ($2, $3) AND r.started_at > l.resolved_at)`,
		processor, actionReset, actionLost)
	if err != nil {
		return nil, fmt.Errorf("read what %q skipped: %w", processor, err)
	}
	skipped := map[int64]struct{}{}
	var position int64
	if _, err := pgx.ForEachRow(rows, []any{&position}, func() error {
		skipped[position] = struct{}{}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read what %q skipped: %w", processor, err)
	}
	return skipped, nil
}

// Disturbed reports whether a processor was reset, or one of its letters
// skipped, since a moment of the database's clock.
func Disturbed(ctx context.Context, q eventstore.Querier, processor string, since time.Time) (disturbed bool, err error) {
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM processor_runs WHERE processor = $1 AND action IN ($3, $4) AND started_at > $2)
		OR EXISTS (SELECT FROM dead_letters WHERE processor = $1 AND status = 'skipped' AND resolved_at > $2)`,
		processor, since, actionReset, actionLost).Scan(&disturbed)
	if err != nil {
		return false, fmt.Errorf("read what was done to %q: %w", processor, err)
	}
	return disturbed, nil
}

// Rebuilt settles the letters of partitions whose rows were replaced by ones
// that contain them, on the transaction that holds the processor, and writes
// down who did so and why. Mark stands in the letters as their reason.
func Rebuilt(ctx context.Context, tx pgx.Tx, processor string, partitions []int16, mark, actor, why string) (letters int64, err error) {
	letters, err = voided(ctx, tx, processor, mark, actor, why, `partition = ANY ($5)`, partitions)
	if err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, `DELETE FROM passed_events WHERE processor = $1 AND partition = ANY ($2)`, processor, partitions); err != nil {
		return 0, fmt.Errorf("settle what %q passed over: %w", processor, err)
	}
	if err := record(ctx, tx, processor, actionRebuild, actor, nil, nil, why); err != nil {
		return 0, fmt.Errorf("settle the letters of %q: %w", processor, err)
	}
	return letters, nil
}
