package sagas

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// DueScanner declares what has fallen due. Every replica runs one, without a
// leader and without a lease, because none is needed: a row that another scanner
// has in hand is passed over (SKIP LOCKED), a declaration is keyed by its bill,
// and the row moves on in the transaction that records the due. A scanner that
// dies gives its rows back with its connection; two that meet after all decide
// one after the other, under the partition's lock, and the second finds the bill
// known.
type DueScanner struct {
	pool  *pgxpool.Pool
	d     *commands.Dispatcher
	clock *Clock
	log   *slog.Logger
	every time.Duration
}

// NewDueScanner makes a scanner that looks every so often.
func NewDueScanner(d *commands.Dispatcher, clock *Clock, every time.Duration, log *slog.Logger) *DueScanner {
	return &DueScanner{pool: d.Log().Pool(), d: d, clock: clock, log: log, every: every}
}

// brokenAgain is how long a customer rests whose facts cannot be read.
const brokenAgain = time.Minute

// dueMost bounds the dues of one transaction.
const dueMost = 200

// Run declares dues until ctx ends.
func (s *DueScanner) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		n, err := s.Scan(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("declaring dues failed; trying again", "error", err)
		}
		if n == 0 || err != nil {
			pause(ctx, s.every)
		}
	}
	return nil
}

// Scan declares one batch of what is due at this moment, the oldest first and at
// most one period a customer, and says how many rows it moved.
func (s *DueScanner) Scan(ctx context.Context) (moved int, err error) {
	dues, err := s.scan(ctx)
	return len(dues), err
}

// Start declares at once whatever is due at this moment, as looks do one after
// another, and says how many dues of p were new. It may be called at any time, on
// any replica, beside scanners and other calls: what is declared is not declared
// again, what is not due yet is not declared early, and of a customer with older
// dues those come first.
func (s *DueScanner) Start(ctx context.Context, p domain.Period) (declared int, err error) {
	for {
		dues, err := s.scan(ctx)
		if err != nil || len(dues) == 0 {
			return declared, err
		}
		for _, d := range dues {
			if d.declared && d.period == p {
				declared++
			}
		}
	}
}

func (s *DueScanner) scan(ctx context.Context) (dues []due, err error) {
	now, err := s.clock.Now(ctx)
	if err != nil {
		return nil, err
	}
	var unit *commands.Unit
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if dues, err = takeDues(ctx, tx, now); err != nil || len(dues) == 0 {
			return err
		}
		unit, err = s.declare(ctx, tx, dues, now)
		crashpoint.Reach("due.committing")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("declare dues: %w", err)
	}
	if len(dues) > 0 {
		crashpoint.Reach("due.committed")
		unit.Committed()
	}
	return dues, nil
}

// due is a row of the schedule that a scanner has in hand.
type due struct {
	customer domain.CustomerID
	period   domain.Period
	declared bool // by this scanner, now
}

// takeDues locks the oldest rows that are due and that no other scanner has in
// hand.
func takeDues(ctx context.Context, tx pgx.Tx, now time.Time) ([]due, error) {
	rows, err := tx.Query(ctx, `SELECT customer_id, next_period FROM subscription_schedule WHERE due_at <= $1
		ORDER BY due_at, customer_id LIMIT $2 FOR UPDATE SKIP LOCKED`, now, dueMost)
	if err != nil {
		return nil, fmt.Errorf("read the schedule: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d due, err error) {
		var period string
		if err := row.Scan(&d.customer, &period); err != nil {
			return d, err
		}
		d.period, err = domain.ParsePeriod(period)
		return d, err
	})
}

// declare records dues and moves their rows on.
func (s *DueScanner) declare(ctx context.Context, tx pgx.Tx, dues []due, now time.Time) (*commands.Unit, error) {
	streams := make([]domain.StreamID, len(dues))
	for i, d := range dues {
		streams[i] = d.customer.Stream()
	}
	unit, err := s.d.Begin(ctx, tx, streams, nil, nil)
	if err != nil {
		return nil, err
	}
	requests := make([]commands.Request, len(dues))
	for i, d := range dues {
		requests[i] = commands.Of(commands.NewDeclareBillingDue(d.customer, d.period))
	}
	replies, err := unit.Dispatch(ctx, eventstore.Meta{Actor: "scheduler"}, requests...)
	if err != nil {
		return nil, err
	}
	var customers, periods []string
	var times []time.Time
	for i, d := range dues {
		if err := unit.Broken(d.customer); err != nil {
			s.log.Error("nothing falls due for a customer whose facts cannot be read; looked at again later", "customer", d.customer, "period", d.period, "error", err)
			customers, periods, times = append(customers, string(d.customer)), append(periods, d.period.String()), append(times, now.Add(brokenAgain))
			continue
		}
		dues[i].declared = len(replies[i].Events) > 0
		if refusal := replies[i].Refusal; refusal != nil {
			s.log.Info("a period does not fall due", "customer", d.customer, "period", d.period, "reason", refusal)
		}
		next, at := nextDue(unit.Customer(d.customer), d.period.Next())
		customers, periods, times = append(customers, string(d.customer)), append(periods, next.String()), append(times, at)
	}
	_, err = tx.Exec(ctx, `UPDATE subscription_schedule s SET next_period = u.period, due_at = u.at
		FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS u(customer, period, at) WHERE s.customer_id = u.customer`, customers, periods, times)
	if err != nil {
		return nil, fmt.Errorf("advance the schedule: %w", err)
	}
	return unit, nil
}
