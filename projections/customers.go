package projections

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Customers keeps one row a customer: who they are at Stripe, how they pay,
// and their subscription with the period that falls due next.
var Customers = Projection{
	Name: "customers", Tables: []string{"customers"}, fold: foldCustomers,
	Events: names(domain.CustomerRegistered{}, domain.PaymentMethodChanged{}, domain.HistoryImported{},
		domain.SubscriptionActivated{}, domain.SubscriptionAmountChanged{}, domain.SubscriptionScheduleChanged{},
		domain.SubscriptionPaused{}, domain.SubscriptionResumed{}, domain.SubscriptionCancelled{},
		domain.MonthlyBillingDue{}),
}

// customerRow is a row of customers.
type customerRow struct {
	customer                      string
	partition                     int16
	registeredAt                  *time.Time
	stripeCustomer, paymentMethod string
	billedThrough                 string

	// domain.Subscription
	status    string
	amount    int64
	currency  string
	changes   string // JSON
	schedules string // JSON
	pauses    string // JSON
	cadence   string
	anchorDay int
	timeZone  string
	startsOn  string
	endMode   string
	endedAt   *time.Time

	nextPeriod, lastPeriod string
	statusAt               *time.Time
	reason                 string
	first                  int64
	last                   eventstore.Mark
	updatedAt              time.Time

	changed bool // in this page
}

var customersTable = table[customerRow]{name: "customers", keys: 1, columns: []column[customerRow]{
	col("customer_id", func(r *customerRow) *string { return &r.customer }),
	col("partition", func(r *customerRow) *int16 { return &r.partition }),
	col("registered_at", func(r *customerRow) **time.Time { return &r.registeredAt }),
	col("stripe_customer_id", func(r *customerRow) *string { return &r.stripeCustomer }),
	col("payment_method_id", func(r *customerRow) *string { return &r.paymentMethod }),
	col("billed_through", func(r *customerRow) *string { return &r.billedThrough }),
	col("status", func(r *customerRow) *string { return &r.status }),
	col("amount_minor", func(r *customerRow) *int64 { return &r.amount }),
	col("currency", func(r *customerRow) *string { return &r.currency }),
	col("changes", func(r *customerRow) *string { return &r.changes }).as("json"),
	col("schedules", func(r *customerRow) *string { return &r.schedules }).as("json"),
	col("pauses", func(r *customerRow) *string { return &r.pauses }).as("json"),
	col("cadence", func(r *customerRow) *string { return &r.cadence }),
	col("anchor_day", func(r *customerRow) *int { return &r.anchorDay }),
	col("time_zone", func(r *customerRow) *string { return &r.timeZone }),
	col("starts_on", func(r *customerRow) *string { return &r.startsOn }),
	col("end_mode", func(r *customerRow) *string { return &r.endMode }),
	col("ended_at", func(r *customerRow) **time.Time { return &r.endedAt }),
	col("next_period", func(r *customerRow) *string { return &r.nextPeriod }),
	col("last_period", func(r *customerRow) *string { return &r.lastPeriod }),
	col("status_at", func(r *customerRow) **time.Time { return &r.statusAt }),
	col("reason", func(r *customerRow) *string { return &r.reason }),
	col("first_position", func(r *customerRow) *int64 { return &r.first }),
	col("last_position", func(r *customerRow) *int64 { return &r.last.Position }),
	col("updated_at", func(r *customerRow) *time.Time { return &r.updatedAt }),
}}

func foldCustomers(ctx context.Context, tx pgx.Tx, events []eventstore.Recorded) error {
	var ids []string
	page := map[string]*customerRow{}
	for _, r := range events {
		if page[r.SequenceKey] == nil {
			ids = append(ids, r.SequenceKey)
			page[r.SequenceKey] = &customerRow{customer: r.SequenceKey, partition: r.Partition, changes: "[]", schedules: "[]", pauses: "[]"}
		}
	}
	rows, err := customersTable.query(ctx, tx, customersTable.selectSQL(`WHERE customer_id = ANY ($1)`), ids)
	if err != nil {
		return err
	}
	for _, row := range rows {
		page[row.customer] = row
	}
	for _, r := range events {
		if err := page[r.SequenceKey].apply(r); err != nil {
			return err
		}
	}
	var changed []*customerRow
	for _, id := range ids {
		if page[id].changed {
			changed = append(changed, page[id])
		}
	}
	writes := &pgx.Batch{}
	customersTable.queueUpsert(writes, changed)
	return send(ctx, tx, writes)
}

// apply folds one fact about the customer into the row.
func (row *customerRow) apply(r eventstore.Recorded) error {
	if row.last.Covers(r) {
		return nil
	}
	before, err := row.subscription()
	if err != nil {
		return err
	}
	after := before.Evolve(r.Event)
	if err := row.set(after); err != nil {
		return err
	}
	if after.Status != before.Status || after.EndMode != before.EndMode {
		row.statusAt, row.reason = utc(r.RecordedAt), ""
	}
	switch e := r.Event.(type) {
	case domain.CustomerRegistered:
		row.registeredAt = utc(r.RecordedAt)
		row.stripeCustomer, row.paymentMethod = e.StripeCustomerID, e.PaymentMethodID
	case domain.PaymentMethodChanged:
		row.paymentMethod = e.PaymentMethodID
	case domain.HistoryImported:
		row.billedThrough = e.BilledThrough.String()
	case domain.SubscriptionActivated:
		row.nextPeriod = firstAfter(periodOf(row.lastPeriod), after.First()).String()
	case domain.SubscriptionPaused:
		row.reason = e.Reason
	case domain.SubscriptionResumed: // what fell due during the pause is not billed
		row.await(after.Next(periodOf(row.nextPeriod)))
	case domain.SubscriptionCancelled:
		row.reason = e.Reason
	case domain.MonthlyBillingDue:
		if last := periodOf(row.lastPeriod); last.Before(e.BillingPeriod) {
			row.lastPeriod = e.BillingPeriod.String()
		}
		row.await(e.BillingPeriod.Next())
		row.await(after.Next(periodOf(row.nextPeriod)))
	}
	if row.first == 0 {
		row.first = r.Position
	}
	row.last.Move(r)
	row.updatedAt, row.changed = r.RecordedAt.UTC(), true
	return nil
}

// firstAfter is the first period from p on that comes after last; a second
// subscription does not bill what the first one has.
func firstAfter(last, p domain.Period) domain.Period {
	for p.Before(last) || p.Overlaps(last) {
		p = p.Next()
	}
	return p
}

// await moves the period that falls due next, never back.
func (row *customerRow) await(next domain.Period) {
	if periodOf(row.nextPeriod).Before(next) {
		row.nextPeriod = next.String()
	}
}

// amountChange, scheduleChange and pause are the domain's, as the columns spell
// them.
type (
	amountChange struct {
		From        domain.Period `json:"from"`
		AmountMinor int64         `json:"amount_minor"`
	}
	scheduleChange struct {
		From      domain.Period `json:"from"`
		AnchorDay int           `json:"anchor_day,omitempty"`
		TimeZone  string        `json:"time_zone,omitempty"`
	}
	pause struct {
		From  time.Time `json:"from"`
		Until time.Time `json:"until,omitzero"`
	}
)

// subscription is the row as the domain knows it; the zero value is none.
func (row *customerRow) subscription() (s domain.Subscription, err error) {
	s = domain.Subscription{Status: domain.SubscriptionStatus(row.status), EndMode: domain.CancelMode(row.endMode)}
	if row.endedAt != nil {
		s.EndedAt = *row.endedAt
	}
	if row.timeZone == "" {
		return s, nil
	}
	s.Amount = domain.Money{Minor: row.amount, Currency: domain.Currency(row.currency)}
	s.Schedule = domain.Schedule{Cadence: domain.Cadence(row.cadence), AnchorDay: row.anchorDay, TimeZone: row.timeZone}
	var changes []amountChange
	var schedules []scheduleChange
	var pauses []pause
	if err := errors.Join(json.Unmarshal([]byte(row.changes), &changes), json.Unmarshal([]byte(row.schedules), &schedules), json.Unmarshal([]byte(row.pauses), &pauses)); err != nil {
		return s, fmt.Errorf("read the subscription of %s: %w", row.customer, err)
	}
	for _, c := range changes {
		s.Changes = append(s.Changes, domain.AmountChange(c))
	}
	for _, c := range schedules {
		s.Schedules = append(s.Schedules, domain.ScheduleChange(c))
	}
	for _, p := range pauses {
		s.Pauses = append(s.Pauses, domain.Pause(p))
	}
	s.StartsOn, err = domain.ParseDate("starts_on", row.startsOn)
	return s, err
}

func (row *customerRow) set(s domain.Subscription) error {
	row.status, row.endMode, row.endedAt = string(s.Status), string(s.EndMode), utc(s.EndedAt)
	if s.TimeZone == "" {
		return nil
	}
	row.amount, row.currency = s.Amount.Minor, string(s.Amount.Currency)
	row.cadence, row.anchorDay, row.timeZone, row.startsOn = string(s.Cadence), s.AnchorDay, s.TimeZone, s.StartsOn.String()
	changes, schedules, pauses := []amountChange{}, []scheduleChange{}, []pause{}
	for _, c := range s.Changes {
		changes = append(changes, amountChange(c))
	}
	for _, c := range s.Schedules {
		schedules = append(schedules, scheduleChange(c))
	}
	for _, p := range s.Pauses {
		pauses = append(pauses, pause(p))
	}
	return errors.Join(spell(&row.changes, changes), spell(&row.schedules, schedules), spell(&row.pauses, pauses))
}

func spell(to *string, list any) error {
	text, err := json.Marshal(list)
	*to = string(text)
	return err
}
