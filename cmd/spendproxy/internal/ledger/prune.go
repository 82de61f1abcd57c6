package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// pruneMost rows of the audit are looked at in a transaction: no lock is held for
// long, and no call waits for one.
const (
	pruneMost  = 5000
	pruneEvery = time.Hour
)

// pruneSQL deletes of the next rows of the audit those that are old enough, and
// tells where the next ones begin and whether there may be old ones among them.
// What is about a reservation that is open stays, however old it is: by its
// object, its idempotency keys or its bill.
const pruneSQL = `WITH part AS MATERIALIZED (
		SELECT id, at, object, idempotency_key, customer_id, billing_period FROM spendproxy.audit WHERE id > $1 ORDER BY id LIMIT $3
	), unsettled AS MATERIALIZED (
		SELECT id, intent, object, customer_id, billing_period, sends FROM spendproxy.subjects WHERE state IN ('reserved', 'held')
	), named AS MATERIALIZED (
		SELECT id AS name FROM unsettled UNION SELECT intent FROM unsettled UNION SELECT object FROM unsettled
		UNION SELECT 'key:' || (send ->> 'key') FROM unsettled, json_array_elements(sends) AS send
	), gone AS (
		DELETE FROM spendproxy.audit a USING part p WHERE a.id = p.id AND p.at < $2
			AND NOT EXISTS (SELECT FROM named WHERE name = 'key:' || p.idempotency_key)
			AND NOT EXISTS (SELECT FROM named WHERE name = p.object AND name <> '')
			AND NOT EXISTS (SELECT FROM unsettled u WHERE u.customer_id <> '' AND u.customer_id = p.customer_id AND u.billing_period = p.billing_period)
		RETURNING 1
	)
	SELECT coalesce(max(id), 0), coalesce(min(at) < $2, false), (SELECT count(*) FROM gone) FROM part`

// prune deletes rows of the audit that were written longer ago than they are to be
// kept, in business time. One proxy of several does it.
func (l *Ledger) prune(ctx context.Context) error {
	now, err := l.Clock(ctx)
	if err != nil {
		return fmt.Errorf("prune the audit: %w", err)
	}
	before := now.Add(-l.options.AuditKeep)
	var all int64
	for after, more := int64(0), true; more; {
		var deleted int64
		err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
			var mine bool
			if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(7311, 2)`).Scan(&mine); err != nil {
				return err
			}
			if !mine {
				return errOthers
			}
			return tx.QueryRow(ctx, pruneSQL, after, before, pruneMost).Scan(&after, &more, &deleted)
		})
		switch {
		case errors.Is(err, errOthers):
			return nil
		case err != nil:
			return fmt.Errorf("prune the audit: %w", err)
		}
		all += deleted
		l.metrics.prune(deleted)
	}
	if all > 0 {
		l.log.Info("rows of the audit were deleted", "rows", all, "before", before)
	}
	return nil
}

var errOthers = errors.New("another proxy prunes the audit")

// pruning prunes the audit now and then, until ctx ends.
func (l *Ledger) pruning(ctx context.Context) {
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		if err := l.prune(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn("the audit could not be pruned; it is tried again", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
