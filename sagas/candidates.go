package sagas

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
)

// rested is when a row may be looked at, on the database's clock; two indexes
// are over it.
const rested = `coalesce(greatest(b.lease_until, b.next_try_at), '-infinity'::timestamptz)`

// Rows that may be claimed: bills that are to begin, and bills under way.
const (
	toBegin  = `b.state IN ('reserved', 'held') AND ` + rested + ` <= statement_timestamp()`
	underWay = `b.state IN ('sending', 'unknown', 'closing', 'action_required') AND ` + rested + ` <= statement_timestamp()`
	claimed  = `(` + toBegin + ` OR ` + underWay + `)`
)

// openRuns are the runs with bills that are to begin, found by one step into
// the index for each, and left out while they are paused: what has been paused
// with a hundred thousand bills costs the others nothing. $2 and $3 are the runs
// that this process has paused a moment ago.
const openRuns = `WITH RECURSIVE labels AS (
		(SELECT b.billing_period FROM billing_records b WHERE b.state IN ('reserved', 'held') ORDER BY b.billing_period LIMIT 1)
		UNION ALL
		SELECT (SELECT b.billing_period FROM billing_records b WHERE b.state IN ('reserved', 'held') AND b.billing_period > labels.billing_period
			ORDER BY b.billing_period LIMIT 1)
		FROM labels WHERE labels.billing_period IS NOT NULL
	), open AS (
		SELECT l.billing_period FROM labels l LEFT JOIN billing_runs r ON r.billing_period = l.billing_period
		WHERE l.billing_period IS NOT NULL AND r.paused IS NOT TRUE
			AND (l.billing_period, coalesce(r.turn, 0)) NOT IN (SELECT * FROM unnest($2::text[], $3::int[]))`

// candidatesSQL reads what may be claimed where there is no proxy, and where
// there is one: then its manifest holds the bill, and the run has a key. A bill
// of a paused run that was claimed, and of which nothing was sent, waits too.
// Where it was the proxy that paused the run, its bills are claimed once more, to
// be held, each with the reason: see holdIn.
var candidatesSQL, proxiedSQL = candidatesFrom("", ""), candidatesFrom(
	` AND r.vault_key IS NOT NULL AND r.expires_at > $4`,
	` JOIN run_manifest m ON m.billing_period = b.billing_period AND m.customer_id = b.customer_id AND m.registered`)

func candidatesFrom(keyed, registered string) string {
	return openRuns + keyed + `)
	SELECT customer_id, billing_period FROM (
		(SELECT b.customer_id, b.billing_period, ` + rested + ` AS at FROM billing_records b
		WHERE ` + underWay + ` AND (b.intent_id IS NOT NULL OR NOT EXISTS (SELECT FROM billing_runs r WHERE r.billing_period = b.billing_period AND r.paused))
		ORDER BY ` + rested + ` LIMIT $1)
		UNION ALL
		(SELECT c.* FROM billing_runs r CROSS JOIN LATERAL (
			SELECT b.customer_id, b.billing_period, ` + rested + ` AS at FROM billing_records b
			WHERE b.billing_period = r.billing_period AND b.state = 'reserved' AND ` + toBegin + `
			ORDER BY ` + rested + ` LIMIT $1) c
		WHERE r.paused AND r.refusal IS NOT NULL LIMIT $1)
		UNION ALL
		(SELECT c.* FROM open CROSS JOIN LATERAL (
			SELECT b.customer_id, b.billing_period, ` + rested + ` AS at FROM billing_records b` + registered + `
			WHERE b.billing_period = open.billing_period AND ` + toBegin + `
			ORDER BY ` + rested + ` LIMIT $1) c
		ORDER BY c.at LIMIT $1)) found
	ORDER BY at LIMIT $1`
}

// candidates reads rows that look claimable, without locks.
func (c *Collector) candidates(ctx context.Context, n int, now time.Time) ([]bill, error) {
	periods, turns := c.holds.list()
	sql, args := candidatesSQL, []any{n, periods, turns}
	if c.config.Keys != nil {
		sql, args = proxiedSQL, append(args, now)
	}
	rows, err := c.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read candidates: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b bill, err error) {
		var customer, period string
		if err := row.Scan(&customer, &period); err != nil {
			return b, err
		}
		b.customer = domain.CustomerID(customer)
		b.period, err = domain.ParsePeriod(period)
		return b, err
	})
}

// runState is how a run stands when bills of it are claimed.
type runState struct {
	turn   int
	paused bool
	reason string
	code   string // of the proxy's refusal, if that is why it is paused
}

// queueRuns reads the runs of bills as a statement of a pipeline.
func queueRuns(p *pgx.Batch, bills []bill) {
	var labels []string
	for _, b := range bills {
		if label := b.period.String(); !slices.Contains(labels, label) {
			labels = append(labels, label)
		}
	}
	p.Queue(`SELECT billing_period, turn, paused, reason, coalesce(refusal->>'code', '') FROM billing_runs WHERE billing_period = ANY ($1)`, labels)
}

func readRuns(answers pgx.BatchResults) (map[string]runState, error) {
	rows, err := answers.Query()
	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	runs := map[string]runState{}
	var label string
	var s runState
	_, err = pgx.ForEachRow(rows, []any{&label, &s.turn, &s.paused, &s.reason, &s.code}, func() error {
		runs[label] = s
		return nil
	})
	return runs, err
}
