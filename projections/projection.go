package projections

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Projection is a read model: its tables, and how facts become rows.
type Projection struct {
	Name   string
	Tables []string // written by this projection alone
	Events []string // contract names of the facts it folds; it passes over others
	fold   func(context.Context, pgx.Tx, []eventstore.Recorded) error
}

// All lists every projection.
func All() []Projection { return []Projection{Customers, Bills, Charges, Refunds, Runs, Revenue} }

// Named is the projection of that name. The error is a domain refusal.
func Named(name string) (Projection, error) {
	all := All()
	i := slices.IndexFunc(all, func(p Projection) bool { return p.Name == name })
	if i < 0 {
		names := make([]string, len(all))
		for i, p := range all {
			names[i] = p.Name
		}
		return Projection{}, domain.InvalidField("projection", "must be one of %v", names)
	}
	return all[i], nil
}

// Fold writes events into the projection's tables. The events of a customer
// must come in order, those of different customers may come in any; facts
// that were folded before are passed over. Two calls that hold customers of
// different partitions may run at the same time and never wait for each other.
//
// Fold fails on a wanted event that this build cannot read.
func (p Projection) Fold(ctx context.Context, tx pgx.Tx, events []eventstore.Recorded) error {
	wanted := make([]eventstore.Recorded, 0, len(events))
	for _, r := range events {
		if !slices.Contains(p.Events, r.Name()) {
			continue
		}
		if r.Event == nil {
			return fmt.Errorf("project %s into %s: %w", r.Place, p.Name, r.Err)
		}
		wanted = append(wanted, r)
	}
	if len(wanted) == 0 {
		return nil
	}
	if err := p.fold(ctx, tx, wanted); err != nil {
		return fmt.Errorf("project %s to %s into %s: %w", wanted[0].Place, wanted[len(wanted)-1].Place, p.Name, err)
	}
	return nil
}

// Reset empties the projection's tables. Readers go on seeing the former rows
// until tx commits, which TRUNCATE would not allow.
func (p Projection) Reset(ctx context.Context, tx pgx.Tx) error {
	for _, table := range p.Tables {
		if _, err := tx.Exec(ctx, "DELETE FROM "+pgx.Identifier{table}.Sanitize()); err != nil {
			return fmt.Errorf("empty %s: %w", table, err)
		}
	}
	return nil
}

// names lists contract names.
func names(events ...domain.Event) []string {
	names := make([]string, len(events))
	for i, e := range events {
		names[i] = e.EventName()
	}
	return names
}

// billEvents are the facts that can move a bill: those about one bill, and
// those about a customer that change all open ones. A run's own facts are about
// neither.
var billEvents = func() (wanted []string) {
	for e := range domain.Events() {
		switch e.(type) {
		case domain.CustomerRegistered, domain.PaymentMethodChanged, domain.SubscriptionActivated,
			domain.SubscriptionAmountChanged, domain.SubscriptionScheduleChanged, domain.SubscriptionPaused, domain.RunPaused, domain.RunResumed, domain.RunClosed:
		default:
			wanted = append(wanted, e.EventName())
		}
	}
	return wanted
}()
