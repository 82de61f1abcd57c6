package projections

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Charges keeps one row an attempt. The newest attempt of a bill stands where
// the bill stands; an older one stays as it ended. If an older one turns out
// to have been paid, it is paid, and whatever followed it without an end of
// its own is void.
var Charges = Projection{
	Name: "charges", Tables: []string{"charges"}, fold: foldCharges,
	Events: slices.DeleteFunc(slices.Clone(billEvents), func(name string) bool {
		// A due is not yet a charge, what goes back of one is told by the refunds,
		// and a declined attempt stays one, whatever is decided to follow.
		if slices.Contains(names(domain.DunningScheduled{}, domain.DunningWaiting{}, domain.BillUncollectible{}, domain.SubscriptionDelinquent{}), name) {
			return true
		}
		return name == domain.MonthlyBillingDue{}.EventName() || slices.Contains(Refunds.Events, name) || name == domain.ChargeDisputed{}.EventName()
	}),
}

// chargeRow is a row of charges. Attempt 0 holds what is known of a bill
// before any attempt was requested: an intent that was found at Stripe.
type chargeRow struct {
	customer, period                string
	attempt                         int
	partition                       int16
	status                          string
	amount                          int64
	currency                        string
	key                             string
	starts                          int
	paymentMethod                   string
	intent                          string
	intentNo                        int
	charge                          string
	code, declineCode, declineClass string
	reason, evidence                string
	unresolved, perhapsSettled      bool
	requestedAt, startedAt, endedAt *time.Time
	first, last                     int64
	updatedAt                       time.Time

	changed bool // in this page
}

var chargesTable = table[chargeRow]{name: "charges", keys: 3, columns: []column[chargeRow]{
	col("customer_id", func(r *chargeRow) *string { return &r.customer }),
	col("billing_period", func(r *chargeRow) *string { return &r.period }),
	col("attempt", func(r *chargeRow) *int { return &r.attempt }),
	col("partition", func(r *chargeRow) *int16 { return &r.partition }),
	col("status", func(r *chargeRow) *string { return &r.status }),
	col("amount_minor", func(r *chargeRow) *int64 { return &r.amount }),
	col("currency", func(r *chargeRow) *string { return &r.currency }),
	col("key", func(r *chargeRow) *string { return &r.key }),
	col("starts", func(r *chargeRow) *int { return &r.starts }),
	col("payment_method_id", func(r *chargeRow) *string { return &r.paymentMethod }),
	col("intent_id", func(r *chargeRow) *string { return &r.intent }),
	col("intent_no", func(r *chargeRow) *int { return &r.intentNo }),
	col("charge_id", func(r *chargeRow) *string { return &r.charge }),
	col("code", func(r *chargeRow) *string { return &r.code }),
	col("decline_code", func(r *chargeRow) *string { return &r.declineCode }),
	col("decline_class", func(r *chargeRow) *string { return &r.declineClass }),
	col("reason", func(r *chargeRow) *string { return &r.reason }),
	col("evidence", func(r *chargeRow) *string { return &r.evidence }),
	col("unresolved", func(r *chargeRow) *bool { return &r.unresolved }),
	col("perhaps_settled", func(r *chargeRow) *bool { return &r.perhapsSettled }),
	col("requested_at", func(r *chargeRow) **time.Time { return &r.requestedAt }),
	col("started_at", func(r *chargeRow) **time.Time { return &r.startedAt }),
	col("ended_at", func(r *chargeRow) **time.Time { return &r.endedAt }),
	col("first_position", func(r *chargeRow) *int64 { return &r.first }),
	col("last_position", func(r *chargeRow) *int64 { return &r.last }),
	col("updated_at", func(r *chargeRow) *time.Time { return &r.updatedAt }),
}}

func foldCharges(ctx context.Context, tx pgx.Tx, events []eventstore.Recorded) error {
	rows, err := load(ctx, tx, chargesTable, touchedBy(events))
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b *chargeRow) int { return a.attempt - b.attempt })
	page := newPage[attempts]()
	for _, row := range rows {
		bill := page.bill(billKey{row.customer, row.period}, func() *attempts { return &attempts{of: periodOf(row.period)} })
		bill.add(row)
	}
	page.each(events, blankAttempts, (*attempts).apply)
	var changed []*chargeRow
	for _, bill := range page.all {
		for _, row := range bill.rows {
			if row.changed {
				changed = append(changed, row)
			}
		}
	}
	writes := &pgx.Batch{}
	chargesTable.queueUpsert(writes, changed)
	return send(ctx, tx, writes)
}

// attempts are the charges of one bill, in the order of their attempts.
type attempts struct {
	of   domain.Period
	rows []*chargeRow
	last eventstore.Mark // the newest fact in any of them
	paid bool
}

func blankAttempts(_ eventstore.Recorded, p domain.Period) *attempts { return &attempts{of: p} }

func (a *attempts) add(row *chargeRow) {
	a.rows = append(a.rows, row)
	a.last.Position = max(a.last.Position, row.last)
	a.paid = a.paid || row.status == string(domain.BillPaid)
}

// bill is the bill as its newest attempt shows it.
func (a *attempts) bill() domain.Bill {
	b := domain.BlankBill(a.of)
	if n := len(a.rows); n > 0 {
		row := a.rows[n-1]
		b.Status = domain.BillStatus(row.status)
		b.Amount = domain.Money{Minor: row.amount, Currency: domain.Currency(row.currency)}
		b.Attempt, b.Start, b.Key = row.attempt, row.starts, domain.Key(row.key)
		b.PaymentMethodID, b.IntentID, b.IntentNo = row.paymentMethod, row.intent, row.intentNo
		b.DeclineClass, b.Unresolved, b.PerhapsSettled = domain.DeclineClass(row.declineClass), row.unresolved, row.perhapsSettled
	}
	if a.paid {
		b.Status = domain.BillPaid
	}
	return b
}

// apply folds one fact about the bill, or about its customer, into its attempts.
func (a *attempts) apply(r eventstore.Recorded) {
	_, _, own := domain.BillOf(r.Event)
	if a.last.Covers(r) || !own && len(a.rows) == 0 {
		return
	}
	before := a.bill()
	after := before.Evolve(r.Event)
	if paid, ok := r.Event.(domain.CustomerBilled); ok {
		a.pay(r, paid, after)
		return
	}
	if !own && after.Status == before.Status || len(a.rows) == 0 && after == before {
		return
	}
	row := a.row(after.Attempt, r)
	switch fresh := row.first == r.Position; {
	case fresh && after.Status == domain.BillPaid:
		row.moveTo(domain.BillVoid, r) // it never had a chance
	case fresh || after.Status != before.Status:
		row.moveTo(after.Status, r)
	}
	row.amount, row.currency = after.Amount.Minor, string(after.Amount.Currency)
	row.starts, row.key, row.unresolved, row.perhapsSettled = after.Start, string(after.Key), after.Unresolved, after.PerhapsSettled
	row.paymentMethod, row.intent, row.intentNo = after.PaymentMethodID, after.IntentID, after.IntentNo
	if account, ok := accountOf(r.Event); ok && !before.Status.Final() {
		row.tell(account)
	}
	switch e := r.Event.(type) {
	case domain.ChargeRequested:
		row.requestedAt, row.startedAt, row.declineClass = utc(r.RecordedAt), nil, ""
	case domain.ChargeAttemptStarted:
		row.startedAt = utc(r.RecordedAt)
	case domain.ChargeDeclined:
		if !before.Status.Final() {
			row.charge, row.declineClass = e.ChargeID, string(e.Class)
		}
	}
	a.touch(row, r)
}

// pay makes the attempt that was billed the paid one.
func (a *attempts) pay(r eventstore.Recorded, e domain.CustomerBilled, after domain.Bill) {
	n := e.Attempt
	if n < 1 {
		n = max(after.Attempt, 1)
	}
	row := a.row(n, r)
	if row.amount == 0 {
		row.amount, row.currency = after.Amount.Minor, string(after.Amount.Currency)
	}
	if row.key == "" {
		row.key = string(domain.ChargeKey(e.CustomerID, e.BillingPeriod, n))
	}
	row.intent, row.intentNo = after.IntentID, after.IntentNo
	row.charge, row.unresolved, row.declineClass = e.ChargeID, false, ""
	row.moveTo(domain.BillPaid, r)
	row.tell(account{})
	a.paid = true
	a.touch(row, r)
	for _, other := range a.rows {
		if other != row && !ended(domain.BillStatus(other.status)) {
			other.moveTo(domain.BillVoid, r)
			other.tell(account{reason: "paid by another attempt"})
			other.unresolved = false
			a.touch(other, r)
		}
	}
}

// row is the row of an attempt, made if it is new.
func (a *attempts) row(attempt int, r eventstore.Recorded) *chargeRow {
	i, found := slices.BinarySearchFunc(a.rows, attempt, func(row *chargeRow, n int) int { return row.attempt - n })
	if !found {
		row := &chargeRow{
			customer: r.SequenceKey, period: a.of.String(), attempt: attempt, partition: r.Partition,
			intentNo: domain.BlankBill(a.of).IntentNo, first: r.Position,
		}
		a.rows = slices.Insert(a.rows, i, row)
	}
	return a.rows[i]
}

func (a *attempts) touch(row *chargeRow, r eventstore.Recorded) {
	row.last, row.updatedAt, row.changed = r.Position, r.RecordedAt.UTC(), true
	a.last.Move(r)
}

func (row *chargeRow) moveTo(status domain.BillStatus, r eventstore.Recorded) {
	row.status, row.endedAt = string(status), nil
	if ended(status) {
		row.endedAt = utc(r.RecordedAt)
	}
}

func (row *chargeRow) tell(a account) {
	row.code, row.declineCode, row.reason, row.evidence = a.code, a.declineCode, a.reason, a.evidence
}

// ended reports whether nothing more comes of an attempt with this status,
// news of a payment excepted.
func ended(s domain.BillStatus) bool {
	return s.Final() || s == domain.BillDeclined || s == domain.BillRejected
}
