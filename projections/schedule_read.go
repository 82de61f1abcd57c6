package projections

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/billonce/billonce/domain"
)

// Schedule is what says how old the schedule is. Its rows are not folded here:
// the sagas keep them, by the processor of this name and with each decision.
var Schedule = Projection{
	Name: "schedule",
	Events: names(domain.SubscriptionActivated{}, domain.SubscriptionScheduleChanged{}, domain.SubscriptionPaused{},
		domain.SubscriptionResumed{}, domain.SubscriptionCancelled{}),
}

// Scheduled is a command that will be sent when its time has come.
type Scheduled struct {
	// DueAt is business time; nil: as soon as may be.
	DueAt         *time.Time        `json:"due_at"`
	Command       string            `json:"command" example:"retry-charge"`
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	Attempt       int               `json:"attempt,omitempty"` // of a bill that was declined
	Token         string            `json:"token,omitempty"`   // of what operators can stop or move; empty: the subscription's own due
	Key           domain.Key        `json:"key"`               // under which the command takes effect once
}

// ScheduledQuery asks for what is scheduled. Empty filters let everything pass.
type ScheduledQuery struct {
	Customer string
	Command  string
	Page
}

// scheduledSQL is the next due of each subscription that has one, and the
// commands that wait. Keys are ASCII, and ordered bytewise.
const scheduledSQL = `SELECT due_at, command, customer_id, billing_period, attempt, token, key FROM (
		SELECT due_at, 'declare-billing-due' AS command, customer_id, next_period AS billing_period, 0 AS attempt, '' AS token,
			'declare-billing-due/' || customer_id || '/' || next_period AS key
		FROM subscription_schedule WHERE due_at < '9999-01-01Z'
		UNION ALL
		SELECT due_at, command, customer_id, billing_period, attempt, token, key FROM scheduled_commands) AS scheduled`

// soon is how a cursor spells a due time before all others.
const soon = "-infinity"

// Scheduled lists what falls due when: ordered by due time, then by key.
// Subscriptions that are paused or over have nothing in it.
func (r Reads) Scheduled(ctx context.Context, q ScheduledQuery) (List[Scheduled], error) {
	list := List[Scheduled]{Items: []Scheduled{}}
	k, err := q.keyset(2, "schedule", q.Customer, q.Command)
	if err != nil {
		return list, err
	}
	where, args := []string{"true"}, []any{}
	if q.Customer != "" {
		id, err := parse("customer", q.Customer, domain.ParseCustomerID)
		if err != nil {
			return list, err
		}
		args = append(args, string(id))
		where = append(where, fmt.Sprintf("customer_id = $%d", len(args)))
	}
	if q.Command != "" {
		args = append(args, q.Command)
		where = append(where, fmt.Sprintf("command = $%d", len(args)))
	}
	if k.after != nil {
		if at, err := time.Parse(time.RFC3339Nano, k.after[0]); k.after[0] != soon && (err != nil || at.Year() < 1) || strings.ContainsRune(k.after[1], 0) {
			return list, badCursor()
		}
		args = append(args, k.after[0], k.after[1])
		at := fmt.Sprintf("$%d::text::timestamptz", len(args)-1)
		where = append(where, fmt.Sprintf(`due_at %[1]s= %[2]s AND (due_at %[1]s %[2]s OR key COLLATE "C" %[1]s $%[3]d)`, k.compare, at, len(args)))
	}
	args = append(args, k.limit+1)
	sql := fmt.Sprintf(`%s WHERE %s ORDER BY due_at %[3]s, key COLLATE "C" %[3]s LIMIT $%[4]d`, scheduledSQL, strings.Join(where, " AND "), k.order, len(args))
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if list.AsOf, err = asOf(ctx, tx, Schedule); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		items, err := pgx.CollectRows(rows, readScheduled)
		if err != nil {
			return err
		}
		items, more := cut(items, k.limit)
		list.Items = append(list.Items, items...)
		if more {
			last, at := items[len(items)-1], soon
			if last.DueAt != nil {
				at = last.DueAt.Format(time.RFC3339Nano)
			}
			list.NextCursor = k.next(at, string(last.Key))
		}
		return nil
	})
	return list, wrap(err, "list the schedule")
}

func readScheduled(row pgx.CollectableRow) (s Scheduled, err error) {
	var due pgtype.Timestamptz
	var customer, period, key string
	if err := row.Scan(&due, &s.Command, &customer, &period, &s.Attempt, &s.Token, &key); err != nil {
		return s, err
	}
	s.CustomerID, s.BillingPeriod, s.Key = domain.CustomerID(customer), periodOf(period), domain.Key(key)
	if due.InfinityModifier == pgtype.Finite {
		s.DueAt = utc(due.Time)
	}
	return s, nil
}
