package eventstore

import (
	"context"
	"fmt"
)

// RaisePositions sees to it that the next position is above all that there
// are, and says how many it passed over. A sequence can be behind its table
// after a failover by logical replication, which does not carry sequences, or
// after a restore of tables alone. Positions would then be drawn below what
// processors have read, and never be seen by them.
//
// It only draws positions, as appends do: it needs no other right, holds no
// lock, and may run anywhere at any time.
func RaisePositions(ctx context.Context, q Querier) (passed int64, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce(max(position), 0) - coalesce(pg_sequence_last_value('events_position_seq'), 0) FROM events`).Scan(&passed)
	if err == nil && passed > 0 {
		err = q.QueryRow(ctx, `SELECT count(nextval('events_position_seq')) FROM generate_series(1, $1::bigint)`, passed).Scan(&passed)
	}
	if err != nil {
		return 0, fmt.Errorf("raise positions: %w", err)
	}
	return max(passed, 0), nil
}
