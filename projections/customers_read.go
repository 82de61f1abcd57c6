package projections

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Customer is a customer as readers see it.
type Customer struct {
	CustomerID       domain.CustomerID `json:"customer_id"`
	StripeCustomerID string            `json:"stripe_customer_id"`
	PaymentMethodID  string            `json:"payment_method_id"` // of attempts yet to be requested
	RegisteredAt     *time.Time        `json:"registered_at,omitempty"`
	BilledThrough    domain.Period     `json:"billed_through,omitzero"` // by another system, before the customer came here
	Subscription     *Subscription     `json:"subscription,omitempty"`
	UpdatedAt        time.Time         `json:"updated_at"`
	Position         eventstore.Place  `json:"position"` // of the newest fact
}

// Subscription is what a customer pays for, and when.
type Subscription struct {
	Status    domain.SubscriptionStatus `json:"status"`
	Amount    Money                     `json:"amount"` // of the next period; of the last one if there is no next
	Changes   []AmountChange            `json:"amount_changes,omitempty"`
	Schedules []ScheduleChange          `json:"schedule_changes,omitempty"`
	Cadence   domain.Cadence            `json:"cadence"`
	AnchorDay int                       `json:"anchor_day"` // of the next period; of the last one if there is no next
	TimeZone  string                    `json:"time_zone"`  // the same
	StartsOn  domain.Date               `json:"starts_on"`
	Next      *NextDue                  `json:"next,omitempty"`        // what falls due next, if anything does
	Last      domain.Period             `json:"last_period,omitzero"`  // the newest period that fell due
	Since     *time.Time                `json:"since,omitempty"`       // when the status was recorded
	Reason    string                    `json:"reason,omitempty"`      // why it is paused or cancelled
	EndMode   domain.CancelMode         `json:"cancel_mode,omitempty"` // of a cancelled one
}

// AmountChange is an amount that holds from a period on.
type AmountChange struct {
	From   domain.Period `json:"from"`
	Amount Money         `json:"amount"`
}

// ScheduleChange is an anchor day, a zone or both that hold from a period on.
type ScheduleChange struct {
	From      domain.Period `json:"from"`
	AnchorDay int           `json:"anchor_day,omitempty"` // left out: as it was
	TimeZone  string        `json:"time_zone,omitempty"`  // left out: as it was
}

// NextDue is the period that falls due next, as the facts stand now.
type NextDue struct {
	BillingPeriod domain.Period `json:"billing_period"`
	DueAt         time.Time     `json:"due_at"`
	Amount        Money         `json:"amount"`
}

// CustomerAt is a customer and the moment it was read at.
type CustomerAt struct {
	Customer
	AsOf AsOf `json:"as_of"`
}

// Customers lists customers, ordered by their ids, bytewise.
func (r Reads) Customers(ctx context.Context, page Page) (List[Customer], error) {
	list := List[Customer]{Items: []Customer{}}
	k, err := page.keyset(1, "customers")
	if err != nil {
		return list, err
	}
	where, args := "", []any{k.limit + 1}
	if k.after != nil {
		if _, err := domain.ParseCustomerID(k.after[0]); err != nil {
			return list, badCursor()
		}
		where, args = "WHERE customer_id "+k.compare+" $2", append(args, k.after[0])
	}
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if list.AsOf, err = asOf(ctx, tx, Customers); err != nil {
			return err
		}
		rows, err := customersTable.query(ctx, tx, customersTable.selectSQL(where+" ORDER BY customer_id "+k.order+" LIMIT $1"), args...)
		if err != nil {
			return err
		}
		rows, more := cut(rows, k.limit)
		if more {
			list.NextCursor = k.next(rows[len(rows)-1].customer)
		}
		for _, row := range rows {
			c, err := row.read()
			if err != nil {
				return err
			}
			list.Items = append(list.Items, c)
		}
		return nil
	})
	return list, wrap(err, "list customers")
}

// Customer is one customer. It returns domain.ErrUnknownCustomer if the read
// model does not know it, at the place that comes with the error.
func (r Reads) Customer(ctx context.Context, customer string) (CustomerAt, error) {
	var c CustomerAt
	id, err := domain.ParseCustomerID(customer)
	if err != nil {
		return c, err
	}
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if c.AsOf, err = asOfCustomer(ctx, tx, Customers, id); err != nil {
			return err
		}
		rows, err := customersTable.query(ctx, tx, customersTable.selectSQL("WHERE customer_id = $1"), string(id))
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return domain.ErrUnknownCustomer
		}
		c.Customer, err = rows[0].read()
		return err
	})
	return c, wrap(err, "read the customer")
}

func (row *customerRow) read() (Customer, error) {
	c := Customer{
		CustomerID:       domain.CustomerID(row.customer),
		StripeCustomerID: row.stripeCustomer,
		PaymentMethodID:  row.paymentMethod,
		RegisteredAt:     inUTC(row.registeredAt),
		BilledThrough:    periodOf(row.billedThrough),
		UpdatedAt:        row.updatedAt.UTC(),
		Position:         eventstore.Place{Partition: row.partition, Position: row.last.Position},
	}
	if row.status == "" {
		return c, nil
	}
	s, err := row.subscription()
	if err != nil {
		return c, err
	}
	last, next := periodOf(row.lastPeriod), periodOf(row.nextPeriod)
	read := &Subscription{
		Status: s.Status, Cadence: s.Cadence, StartsOn: s.StartsOn,
		Last: last, Since: inUTC(row.statusAt), Reason: row.reason, EndMode: s.EndMode,
	}
	for _, change := range s.Changes {
		read.Changes = append(read.Changes, AmountChange{change.From, money(change.AmountMinor, row.currency)})
	}
	for _, change := range s.Schedules {
		read.Schedules = append(read.Schedules, ScheduleChange(change))
	}
	amount, schedule := s.AmountFor(last), s.ScheduleFor(last)
	if s.Bills(next) {
		amount, schedule = s.AmountFor(next), s.ScheduleFor(next)
		read.Next = &NextDue{next, s.DueAt(next), money(amount.Minor, row.currency)}
	}
	read.Amount, read.AnchorDay, read.TimeZone = money(amount.Minor, row.currency), schedule.AnchorDay, schedule.TimeZone
	c.Subscription = read
	return c, nil
}
