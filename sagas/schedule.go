package sagas

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// never is a due time that does not come: the subscription is paused, or over.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// Schedule keeps, for each subscription, when its next period falls due: the
// oldest that the customer owes and that is not declared. It is worked out from
// all that is known of the customer, so that a repeat of the log changes nothing.
func Schedule(d *commands.Dispatcher) tracking.Processor {
	return tracking.Processor{
		Name: "schedule", Kind: tracking.Effectful, Start: tracking.Beginning,
		Events: []string{
			domain.SubscriptionActivated{}.EventName(), domain.SubscriptionScheduleChanged{}.EventName(), domain.SubscriptionPaused{}.EventName(),
			domain.SubscriptionResumed{}.EventName(), domain.SubscriptionCancelled{}.EventName(),
		},
		PageSize: 256, Partitions: eventstore.Partitions,
		Handler: tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error { return schedule(ctx, d, p) }),
	}
}

func schedule(ctx context.Context, d *commands.Dispatcher, p *tracking.Page) error {
	newest := map[domain.CustomerID]eventstore.Recorded{}
	for _, r := range p.Events {
		newest[domain.CustomerID(r.SequenceKey)] = r
	}
	customers, broken, err := d.Customers(ctx, p.Tx, slices.Collect(maps.Keys(newest)))
	if err != nil {
		return err
	}
	for _, err := range broken {
		return fmt.Errorf("schedule: %w", err)
	}
	writes := &pgx.Batch{}
	for _, id := range slices.Sorted(maps.Keys(newest)) {
		r := newest[id]
		customer := customers[id]
		sub, _ := customer.Subscription()
		next, due := nextDue(customer, sub.First())
		writes.Queue(`INSERT INTO subscription_schedule (customer_id, partition, next_period, due_at, last_position) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (customer_id) DO UPDATE SET next_period = excluded.next_period, due_at = excluded.due_at, last_position = excluded.last_position
			WHERE subscription_schedule.last_position < excluded.last_position`,
			string(id), r.Partition, next.String(), due, r.Position)
	}
	if err := p.Tx.SendBatch(ctx, writes).Close(); err != nil {
		return fmt.Errorf("schedule: %w", err)
	}
	return nil
}

// nextDue is the row of a customer from p on: what they owe next, or p, never.
func nextDue(c domain.Customer, p domain.Period) (domain.Period, time.Time) {
	if next, due := c.NextDue(p); !next.IsZero() {
		return next, due
	}
	return p, never
}

// DueScanner declares what has fallen due. Any number of replicas run one each,
// without a leader: rows are taken with SKIP LOCKED, the command's key is the
// bill, and the schedule advances in the same transaction.
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

// Scan declares one batch of what is due at this moment, at most one period a
// customer, and says how many rows it moved.
func (s *DueScanner) Scan(ctx context.Context) (moved int, err error) {
	now, err := s.clock.Now(ctx)
	if err != nil {
		return 0, err
	}
	rows, err := s.pool.Query(ctx, `SELECT customer_id FROM subscription_schedule WHERE due_at <= $1 ORDER BY due_at LIMIT $2`, now, dueMost)
	if err != nil {
		return 0, fmt.Errorf("read the schedule: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	var unit *commands.Unit
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		moved, unit, err = s.scanIn(ctx, tx, ids, now)
		crashpoint.Reach("due.committing")
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("declare dues: %w", err)
	}
	crashpoint.Reach("due.committed")
	unit.Committed()
	return moved, nil
}

func (s *DueScanner) scanIn(ctx context.Context, tx pgx.Tx, ids []string, now time.Time) (int, *commands.Unit, error) {
	streams := make([]domain.StreamID, len(ids))
	for i, id := range ids {
		streams[i] = domain.CustomerID(id).Stream()
	}
	type due struct {
		customer domain.CustomerID
		period   domain.Period
	}
	var dues []due
	lock := &pgx.Batch{}
	lock.Queue(`SELECT customer_id, next_period FROM subscription_schedule WHERE customer_id = ANY($1) AND due_at <= $2
		ORDER BY customer_id FOR UPDATE SKIP LOCKED`, ids, now)
	unit, err := s.d.Begin(ctx, tx, streams, lock, func(answers pgx.BatchResults) error {
		rows, err := answers.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var customer, period string
			if err := rows.Scan(&customer, &period); err != nil {
				return err
			}
			p, err := domain.ParsePeriod(period)
			if err != nil {
				return err
			}
			dues = append(dues, due{domain.CustomerID(customer), p})
		}
		return rows.Err()
	})
	if err != nil {
		return 0, nil, err
	}
	requests := make([]commands.Request, len(dues))
	for i, d := range dues {
		requests[i] = commands.Of(commands.NewDeclareBillingDue(d.customer, d.period))
	}
	replies, err := unit.Dispatch(ctx, eventstore.Meta{Actor: "scheduler"}, requests...)
	if err != nil {
		return 0, nil, err
	}
	var customers, periods []string
	var times []time.Time
	for i, d := range dues {
		if err := unit.Broken(d.customer); err != nil {
			s.log.Error("nothing falls due for a customer whose facts cannot be read; looked at again later", "customer", d.customer, "period", d.period, "error", err)
			customers, periods, times = append(customers, string(d.customer)), append(periods, d.period.String()), append(times, now.Add(brokenAgain))
			continue
		}
		if refusal := replies[i].Refusal; refusal != nil {
			s.log.Info("a period does not fall due", "customer", d.customer, "period", d.period, "reason", refusal)
		}
		next, at := nextDue(unit.Customer(d.customer), d.period.Next())
		customers, periods, times = append(customers, string(d.customer)), append(periods, next.String()), append(times, at)
	}
	_, err = tx.Exec(ctx, `UPDATE subscription_schedule s SET next_period = u.period, due_at = u.at
		FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS u(customer, period, at) WHERE s.customer_id = u.customer`, customers, periods, times)
	if err != nil {
		return 0, nil, fmt.Errorf("advance the schedule: %w", err)
	}
	return len(dues), unit, nil
}
