package projections

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
)

// RunProgress is how far the collection of a run has come, and how fast it is.
type RunProgress struct {
	Expected    int64   `json:"expected"`               // bills, with those that the manifest expects and that are not due yet
	Ended       int64   `json:"ended"`                  // paid, or ended without money through us
	Remaining   int64   `json:"remaining"`              // due, requested or started: collected without anybody's doing
	Rate        float64 `json:"bills_per_second"`       // paid, over the last half minute of the database's clock
	SecondsLeft *int64  `json:"seconds_left,omitempty"` // until Remaining is collected at this rate; left out: nothing moves, or nothing remains
}

// paceOver is the time over which a run's rate is taken.
const paceOver = 30 * time.Second

// progressOf says how fast a run goes that stands as is given.
func progressOf(ctx context.Context, tx pgx.Tx, run Run, manifest []ManifestTotal) (p RunProgress, err error) {
	for _, t := range manifest {
		p.Expected += t.Bills
	}
	p.Expected, p.Ended = max(p.Expected, run.Bills), run.Paid+run.Closed
	for _, s := range run.Statuses {
		switch s.Status {
		case domain.BillDue, domain.BillRequested, domain.BillStarted:
			p.Remaining += s.Bills
		}
	}
	var paid int64
	var seconds float64
	err = tx.QueryRow(ctx, `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(paid_at)), 0)::float8
		FROM bills WHERE billing_period = $1 AND paid_at > clock_timestamp() - $2 * interval '1 second'`, run.BillingPeriod.String(), paceOver.Seconds()).Scan(&paid, &seconds)
	if err != nil || paid == 0 {
		return p, err
	}
	rate := float64(paid) / max(seconds, 1)
	p.Rate = math.Round(rate*10) / 10
	if p.Remaining > 0 {
		left := int64(math.Ceil(float64(p.Remaining) / rate))
		p.SecondsLeft = &left
	}
	return p, nil
}
