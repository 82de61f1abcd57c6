package sagas

import (
	"context"
	"errors"
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

// Timer is a command that is to be sent at a time.
type Timer struct {
	Token   string     // by which it is cancelled or replaced: there is one timer a token
	Key     domain.Key // of the command
	Command string
	Bill    BillID
	Attempt int
	Due     time.Time // business time; zero: as soon as may be
}

// BillID names a bill.
type BillID struct {
	Customer domain.CustomerID
	Period   domain.Period
}

// TimerChange sets the timer of a token, in place of the one that it may have;
// Set nil cancels it.
type TimerChange struct {
	Token string
	Set   *Timer
}

// The commands that timers send.
const (
	commandPlan  = "plan-dunning"
	commandRetry = "retry-charge"
)

// DunningToken is the token of what the dunning of a bill has scheduled.
func DunningToken(c domain.CustomerID, p domain.Period) string {
	return "dunning/" + string(c) + "/" + p.String()
}

// planTimer lets a decline be decided about. It is a timer, and no command of
// the saga's, since the decision asks for the time.
func planTimer(c domain.CustomerID, p domain.Period, attempt int) Timer {
	return Timer{Token: DunningToken(c, p), Key: commands.PlanDunningKey(c, p, attempt), Command: commandPlan, Bill: BillID{c, p}, Attempt: attempt}
}

func retryTimer(c domain.CustomerID, p domain.Period, attempt int, at time.Time) Timer {
	key := commands.NewRetryCharge(c, p, attempt, commands.StepDunning).Key()
	return Timer{Token: DunningToken(c, p), Key: key, Command: commandRetry, Bill: BillID{c, p}, Attempt: attempt, Due: at}
}

// timerChange is a change, and the event it follows from.
type timerChange struct {
	TimerChange
	cause eventstore.Recorded
}

// changeTimers writes changes; the last one of a token holds.
func changeTimers(ctx context.Context, tx pgx.Tx, changes []timerChange) error {
	if len(changes) == 0 {
		return nil
	}
	last := make(map[string]int, len(changes))
	for i, c := range changes {
		last[c.Token] = i
	}
	var (
		tokens                                                               []string
		keys, set, names, customers, periods, dues, causations, correlations []string
		attempts                                                             []int32
	)
	for i, c := range changes {
		if last[c.Token] != i {
			continue
		}
		tokens = append(tokens, c.Token)
		if c.Set == nil {
			continue
		}
		due := "-infinity"
		if !c.Set.Due.IsZero() {
			due = c.Set.Due.UTC().Format(time.RFC3339Nano)
		}
		keys, set, names = append(keys, string(c.Set.Key)), append(set, c.Token), append(names, c.Set.Command)
		customers, periods, attempts = append(customers, string(c.Set.Bill.Customer)), append(periods, c.Set.Bill.Period.String()), append(attempts, int32(c.Set.Attempt))
		dues, causations, correlations = append(dues, due), append(causations, c.cause.EventID.String()), append(correlations, correlation(c.cause))
	}
	writes := &pgx.Batch{}
	writes.Queue(`DELETE FROM scheduled_commands WHERE token = ANY($1)`, tokens)
	if len(keys) > 0 {
		writes.Queue(`INSERT INTO scheduled_commands (key, token, command, customer_id, billing_period, attempt, due_at, causation, correlation)
			SELECT key, token, command, customer, period, attempt, due::timestamptz, causation, correlation
			FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::text[], $9::text[])
				AS u(key, token, command, customer, period, attempt, due, causation, correlation)
			ORDER BY key`, keys, set, names, customers, periods, attempts, dues, causations, correlations)
	}
	if err := tx.SendBatch(ctx, writes).Close(); err != nil {
		return fmt.Errorf("change timers: %w", err)
	}
	return nil
}

// Timers sends the commands that are due. Any number of replicas run one each,
// without a leader: rows are taken with SKIP LOCKED, and each is deleted in the
// transaction that sends its command, under a key that is always the same. What
// was due while nobody ran is sent when somebody does.
type Timers struct {
	pool  *pgxpool.Pool
	d     *commands.Dispatcher
	clock *Clock
	days  domain.DunningDays
	log   *slog.Logger
	every time.Duration
}

// NewTimers makes a worker that looks every so often. With no days it sends
// nothing: what is scheduled rests.
func NewTimers(d *commands.Dispatcher, clock *Clock, days domain.DunningDays, every time.Duration, log *slog.Logger) *Timers {
	return &Timers{pool: d.Log().Pool(), d: d, clock: clock, days: days, log: log, every: every}
}

// timersMost bounds the commands of one transaction.
const timersMost = 200

// Run sends commands until ctx ends.
func (t *Timers) Run(ctx context.Context) error {
	if len(t.days) == 0 {
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		met, _, err := t.Fire(ctx)
		if err != nil && ctx.Err() == nil {
			t.log.Warn("sending scheduled commands failed; trying again", "error", err)
		}
		if met == 0 || err != nil {
			pause(ctx, t.every)
		}
	}
	return nil
}

// Fire sends one batch of what is due. Met counts the rows that were due, sent
// those of which no other replica was quicker.
func (t *Timers) Fire(ctx context.Context) (met, sent int, err error) {
	now, err := t.clock.Now(ctx)
	if err != nil {
		return 0, 0, err
	}
	rows, err := t.pool.Query(ctx, `SELECT key, customer_id FROM scheduled_commands WHERE due_at <= $1 ORDER BY due_at LIMIT $2`, now, timersMost)
	if err != nil {
		return 0, 0, fmt.Errorf("read scheduled commands: %w", err)
	}
	var keys []string
	var streams []domain.StreamID
	var key, customer string
	_, err = pgx.ForEachRow(rows, []any{&key, &customer}, func() error {
		keys, streams = append(keys, key), append(streams, domain.CustomerID(customer).Stream())
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("read scheduled commands: %w", err)
	}
	if len(keys) == 0 {
		return 0, 0, nil
	}
	var unit *commands.Unit
	err = pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		sent, unit, err = t.fireIn(ctx, tx, keys, streams, now)
		crashpoint.Reach("timer.committing")
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("send scheduled commands: %w", err)
	}
	crashpoint.Reach("timer.committed")
	unit.Committed()
	return len(keys), sent, nil
}

// dueTimer is a row that this transaction holds.
type dueTimer struct {
	key                    string
	command                string
	customer               domain.CustomerID
	period                 domain.Period
	attempt                int
	causation, correlation string
}

func (t *Timers) fireIn(ctx context.Context, tx pgx.Tx, keys []string, streams []domain.StreamID, now time.Time) (int, *commands.Unit, error) {
	var due []dueTimer
	lock := &pgx.Batch{}
	lock.Queue(`SELECT key, command, customer_id, billing_period, attempt, causation, correlation FROM scheduled_commands
		WHERE key = ANY($1) AND due_at <= $2 ORDER BY key FOR UPDATE SKIP LOCKED`, keys, now)
	unit, err := t.d.Begin(ctx, tx, streams, lock, func(answers pgx.BatchResults) error {
		rows, err := answers.Query()
		if err != nil {
			return err
		}
		due, err = pgx.CollectRows(rows, scanTimer)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	requests, gone := make([]commands.Request, len(due)), make([]string, 0, len(due))
	for i, d := range due {
		if requests[i], err = t.request(d, now); err != nil {
			return 0, nil, err
		}
	}
	replies, err := unit.DispatchEach(ctx, requests, func(i int) eventstore.Meta {
		return eventstore.Meta{Actor: "dunning", Causation: due[i].causation, Correlation: due[i].correlation}
	})
	if err != nil {
		return 0, nil, err
	}
	var broken []string
	for i, d := range due {
		switch refusal := replies[i].Refusal; {
		case unit.Broken(d.customer) != nil:
			t.log.Error("a scheduled command waits: the customer's facts cannot be read", "command", d.command, "customer", d.customer, "period", d.period, "error", refusal)
			broken = append(broken, d.key)
			continue
		case refusal != nil:
			t.log.Info("a scheduled command was refused: something else was quicker", "command", d.command, "customer", d.customer, "period", d.period, "attempt", d.attempt, "reason", refusal)
		}
		gone = append(gone, d.key)
	}
	if _, err := tx.Exec(ctx, `DELETE FROM scheduled_commands WHERE key = ANY($1)`, gone); err != nil {
		return 0, nil, fmt.Errorf("delete what was sent: %w", err)
	}
	if len(broken) > 0 {
		if _, err := tx.Exec(ctx, `UPDATE scheduled_commands SET due_at = $2 WHERE key = ANY($1)`, broken, now.Add(brokenAgain)); err != nil {
			return 0, nil, fmt.Errorf("put off what cannot be sent: %w", err)
		}
	}
	return len(gone), unit, nil
}

func scanTimer(row pgx.CollectableRow) (d dueTimer, err error) {
	var customer, period string
	if err = row.Scan(&d.key, &d.command, &customer, &period, &d.attempt, &d.causation, &d.correlation); err != nil {
		return d, err
	}
	d.customer = domain.CustomerID(customer)
	d.period, err = domain.ParsePeriod(period)
	return d, err
}

func (t *Timers) request(d dueTimer, now time.Time) (commands.Request, error) {
	switch d.command {
	case commandPlan:
		return commands.Of(commands.NewPlanDunning(d.customer, d.period, d.attempt, t.days, now)), nil
	case commandRetry:
		return commands.Of(commands.NewRetryCharge(d.customer, d.period, d.attempt, commands.StepDunning)), nil
	}
	return commands.Request{}, errors.New("a newer build has scheduled the command " + d.command)
}
