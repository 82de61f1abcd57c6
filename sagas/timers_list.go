package sagas

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

// ScheduledCommand is a command that waits for its time, as operators see it.
type ScheduledCommand struct {
	Token         string     `json:"token"`
	Command       string     `json:"command"`
	Key           string     `json:"key"`
	CustomerID    string     `json:"customer_id"`
	BillingPeriod string     `json:"billing_period"`
	Attempt       int        `json:"attempt"`
	DueAt         *time.Time `json:"due_at"` // business time; nil: as soon as may be
}

// ScheduledCommands lists at most limit commands that wait, those due first at
// its beginning, of one customer or, with an empty id, of all.
func ScheduledCommands(ctx context.Context, q eventstore.Querier, customer string, limit int) ([]ScheduledCommand, error) {
	rows, err := q.Query(ctx, `SELECT token, command, key, customer_id, billing_period, attempt, nullif(due_at, '-infinity')
		FROM scheduled_commands WHERE $1 = '' OR customer_id = $1 ORDER BY due_at, token LIMIT $2`, customer, limit)
	if err != nil {
		return nil, fmt.Errorf("list scheduled commands: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ScheduledCommand])
	if err != nil {
		return nil, fmt.Errorf("list scheduled commands: %w", err)
	}
	return all, nil
}
