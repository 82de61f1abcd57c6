package sagas

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Wait is how many bills or refunds are in a state in which something is waited
// for: Stripe, a customer, the end of a pause, or a person.
type Wait struct {
	Of     string    // "bills" or "refunds"
	State  string    // of their rows
	Count  int64     // all of them
	Stuck  int64     // of these, those that wait for a person, or for what only a person can repair
	Since  time.Time // since when the one that has waited longest of those stuck does, on the database's clock; zero: none does
	Reason string    // why one of those stuck does; it names nobody
}

// Waits counts what is waited for. States in which nothing is are left out.
//
// A bill is stuck that needs review, or that Stripe's refusal holds (a key that
// is not accepted, a right that is missing). What a paused run holds is told by
// [RunTroubles].
func Waits(ctx context.Context, pool *pgxpool.Pool) ([]Wait, error) {
	rows, err := pool.Query(ctx, `WITH stuck AS (
			SELECT b.state, count(*) AS n, min(b.updated_at) AS since, min(b.outcome->>'reason') AS reason FROM billing_records b
			WHERE b.state IN ('needs_review', 'held')
				AND (b.state = 'needs_review' OR b.billing_period NOT IN (SELECT billing_period FROM billing_runs WHERE paused))
			GROUP BY b.state)
		SELECT 'bills', w.state, w.n, coalesce(stuck.n, 0), stuck.since, stuck.reason
		FROM (SELECT state, count(*) AS n FROM billing_records
			WHERE state IN ('unknown', 'held', 'waiting', 'needs_review', 'action_required', 'closing') GROUP BY state) w
		LEFT JOIN stuck USING (state)
		UNION ALL
		SELECT 'refunds', state, count(*), count(*) FILTER (WHERE state = 'needs_review'), min(updated_at) FILTER (WHERE state = 'needs_review'), NULL
		FROM refund_records WHERE state IN ('unknown', 'pending', 'needs_review') GROUP BY state
		ORDER BY 1, 2`)
	if err != nil {
		return nil, fmt.Errorf("count what waits: %w", err)
	}
	waits, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w Wait, err error) {
		var since *time.Time
		var reason *string
		err = row.Scan(&w.Of, &w.State, &w.Count, &w.Stuck, &since, &reason)
		if since != nil {
			w.Since = since.UTC()
		}
		if reason != nil {
			w.Reason = *reason
		}
		return w, err
	})
	if err != nil {
		return nil, fmt.Errorf("count what waits: %w", err)
	}
	return waits, nil
}
