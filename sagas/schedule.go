package sagas

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
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
