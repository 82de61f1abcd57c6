package projections

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Bills keeps one row a customer and period: the domain's own fold of the
// bill, with the codes, reasons and times a reader wants beside it.
var Bills = Projection{Name: "bills", Tables: []string{"bills"}, Events: billEvents, fold: foldBills}

// billRow is a row of bills.
type billRow struct {
	customer, period string
	partition        int16
	begins           time.Time

	// domain.Bill
	status                        string
	amount                        int64
	currency                      string
	hasDue                        bool
	dueAt                         *time.Time
	attempt, starts               int
	key                           string
	stripeCustomer, paymentMethod string
	intent                        string
	intentNo                      int
	charge, declineClass          string
	closing, reference            string
	closingReason                 string
	unresolved, cancelled         bool

	// beside it
	code, declineCode                          string
	reason, evidence, source                   string
	recovered                                  bool
	taken                                      int64
	takenCurrency                              string
	surprises                                  int
	surprise                                   string
	back                                       string // domain.MoneyBack as JSON
	dunning                                    string // domain.Dunning as JSON
	refunded                                   int64
	disputed, perhapsSettled, released         bool
	reviewed                                   bool
	declaredAt, requestedAt, startedAt, paidAt *time.Time
	paidPosition, first                        int64
	last                                       eventstore.Mark
	updatedAt                                  time.Time

	of      domain.Period // period, parsed
	changed bool          // in this page
}

var billsTable = table[billRow]{name: "bills", keys: 2, columns: []column[billRow]{
	col("customer_id", func(r *billRow) *string { return &r.customer }),
	col("billing_period", func(r *billRow) *string { return &r.period }),
	col("partition", func(r *billRow) *int16 { return &r.partition }),
	col("begins", func(r *billRow) *time.Time { return &r.begins }).as("date"),
	col("status", func(r *billRow) *string { return &r.status }),
	col("amount_minor", func(r *billRow) *int64 { return &r.amount }),
	col("currency", func(r *billRow) *string { return &r.currency }),
	col("has_due", func(r *billRow) *bool { return &r.hasDue }),
	col("due_at", func(r *billRow) **time.Time { return &r.dueAt }),
	col("attempt", func(r *billRow) *int { return &r.attempt }),
	col("starts", func(r *billRow) *int { return &r.starts }),
	col("key", func(r *billRow) *string { return &r.key }),
	col("stripe_customer_id", func(r *billRow) *string { return &r.stripeCustomer }),
	col("payment_method_id", func(r *billRow) *string { return &r.paymentMethod }),
	col("intent_id", func(r *billRow) *string { return &r.intent }),
	col("intent_no", func(r *billRow) *int { return &r.intentNo }),
	col("charge_id", func(r *billRow) *string { return &r.charge }),
	col("decline_class", func(r *billRow) *string { return &r.declineClass }),
	col("closing", func(r *billRow) *string { return &r.closing }),
	col("reference", func(r *billRow) *string { return &r.reference }),
	col("closing_reason", func(r *billRow) *string { return &r.closingReason }),
	col("unresolved", func(r *billRow) *bool { return &r.unresolved }),
	col("cancelled", func(r *billRow) *bool { return &r.cancelled }),
	col("code", func(r *billRow) *string { return &r.code }),
	col("decline_code", func(r *billRow) *string { return &r.declineCode }),
	col("reason", func(r *billRow) *string { return &r.reason }),
	col("evidence", func(r *billRow) *string { return &r.evidence }),
	col("source", func(r *billRow) *string { return &r.source }),
	col("recovered", func(r *billRow) *bool { return &r.recovered }),
	col("taken_minor", func(r *billRow) *int64 { return &r.taken }),
	col("taken_currency", func(r *billRow) *string { return &r.takenCurrency }),
	col("surprises", func(r *billRow) *int { return &r.surprises }),
	col("surprise", func(r *billRow) *string { return &r.surprise }),
	col("money_back", func(r *billRow) *string { return &r.back }).as("json"),
	col("refunded_minor", func(r *billRow) *int64 { return &r.refunded }),
	col("disputed", func(r *billRow) *bool { return &r.disputed }),
	col("perhaps_settled", func(r *billRow) *bool { return &r.perhapsSettled }),
	col("released", func(r *billRow) *bool { return &r.released }),
	col("reviewed", func(r *billRow) *bool { return &r.reviewed }),
	col("dunning", func(r *billRow) *string { return &r.dunning }).as("json"),
	col("declared_at", func(r *billRow) **time.Time { return &r.declaredAt }),
	col("requested_at", func(r *billRow) **time.Time { return &r.requestedAt }),
	col("started_at", func(r *billRow) **time.Time { return &r.startedAt }),
	col("paid_at", func(r *billRow) **time.Time { return &r.paidAt }),
	col("paid_position", func(r *billRow) *int64 { return &r.paidPosition }),
	col("first_position", func(r *billRow) *int64 { return &r.first }),
	col("last_position", func(r *billRow) *int64 { return &r.last.Position }),
	col("updated_at", func(r *billRow) *time.Time { return &r.updatedAt }),
}}

func foldBills(ctx context.Context, tx pgx.Tx, events []eventstore.Recorded) error {
	rows, err := load(ctx, tx, billsTable, touchedBy(events))
	if err != nil {
		return err
	}
	page := newPage[billRow]()
	for _, row := range rows {
		row.of = periodOf(row.period)
		page.bill(billKey{row.customer, row.period}, func() *billRow { return row })
	}
	page.each(events, blankBillRow, (*billRow).apply)
	var changed []*billRow
	for _, row := range page.all {
		if row.changed {
			changed = append(changed, row)
		}
	}
	writes := &pgx.Batch{}
	billsTable.queueUpsert(writes, changed)
	return send(ctx, tx, writes)
}

func blankBillRow(r eventstore.Recorded, p domain.Period) *billRow {
	return &billRow{
		customer: r.SequenceKey, period: p.String(), partition: r.Partition,
		of: p, begins: begins(p), intentNo: domain.BlankBill(p).IntentNo, back: nothingBack, dunning: noDunning,
	}
}

// periodOf reads a label that a table holds.
func periodOf(label string) domain.Period {
	p, _ := domain.ParsePeriod(label) // it was written by Period.String
	return p
}

// begins is the first day of a period.
func begins(p domain.Period) time.Time {
	year, month := p.Start()
	return time.Date(year, time.Month(month), 1, 0, 0, 0, 0, time.UTC)
}

// apply folds one fact about the bill, or about its customer, into the row.
func (row *billRow) apply(r eventstore.Recorded) {
	_, _, own := domain.BillOf(r.Event)
	if row.last.Covers(r) || !own && row.first == 0 {
		return
	}
	before := row.bill()
	after := before.Evolve(r.Event)
	if after == before && (!own || row.first == 0) {
		return // it says nothing about this bill, or surprises about one that is not known
	}
	row.set(after)
	row.note(r, before)
	if row.first == 0 {
		row.first = r.Position
	}
	row.last.Move(r)
	row.updatedAt, row.changed = r.RecordedAt.UTC(), true
}

// note keeps what a reader wants and a decision does not ask about.
func (row *billRow) note(r eventstore.Recorded, before domain.Bill) {
	at := r.RecordedAt.UTC()
	if a, ok := accountOf(r.Event); ok && (!before.Status.Final() || a.paid) {
		row.code, row.declineCode, row.reason, row.evidence = a.code, a.declineCode, a.reason, a.evidence
	}
	row.giveBack(r.Event)
	switch e := r.Event.(type) {
	case domain.MonthlyBillingDue:
		row.declaredAt = &at
	case domain.ChargeRequested:
		row.requestedAt, row.startedAt = &at, nil
	case domain.ChargeAttemptStarted:
		row.startedAt = &at
	case domain.CustomerBilled:
		if row.paidAt == nil {
			row.paidAt, row.paidPosition = &at, r.Position
			row.taken, row.takenCurrency = e.Minor, string(e.Currency)
			row.source, row.recovered = string(e.Source), e.Recovered
		}
	case domain.ChargeOutcomeSurprise:
		row.surprises++
		row.surprise = e.Reason
	}
}

// nothingBack is the column while nothing of the bill's money went back and
// nobody fights over it: of nearly all bills, for ever.
const nothingBack = "null"

// noDunning is the column of a bill whose decline nothing was decided about.
const noDunning = "null"

// giveBack folds a fact into what went back of the bill's money.
func (row *billRow) giveBack(e domain.Event) {
	switch e.(type) {
	case domain.RefundRequested, domain.RefundRecorded, domain.RefundProposed, domain.RefundProposalDismissed, domain.ChargeDisputed:
	default:
		if row.back == nothingBack {
			return
		}
	}
	var back domain.MoneyBack
	if json.Unmarshal([]byte(row.back), &back) != nil { // it was written below
		back = domain.MoneyBack{}
	}
	back.Period, back.ChargeID = row.of, row.charge
	after := back.Evolve(e)
	if len(after.Refunds)+len(after.Proposals)+len(after.Disputes) == 0 {
		return
	}
	text, err := json.Marshal(after)
	if err != nil {
		panic(err) // texts and numbers always marshal
	}
	row.back, row.refunded, row.disputed = string(text), after.Refunded(row.charge), after.Disputed()
}

// bill is the row as the domain knows it.
func (row *billRow) bill() domain.Bill {
	b := domain.Bill{
		Period:           row.of,
		Status:           domain.BillStatus(row.status),
		Amount:           domain.Money{Minor: row.amount, Currency: domain.Currency(row.currency)},
		HasDue:           row.hasDue,
		Attempt:          row.attempt,
		Start:            row.starts,
		Key:              domain.Key(row.key),
		StripeCustomerID: row.stripeCustomer,
		PaymentMethodID:  row.paymentMethod,
		IntentID:         row.intent,
		IntentNo:         row.intentNo,
		ChargeID:         row.charge,
		DeclineClass:     domain.DeclineClass(row.declineClass),
		Closing:          domain.ClosingMode(row.closing),
		Reference:        row.reference,
		Reason:           row.closingReason,
		Unresolved:       row.unresolved,
		Cancelled:        row.cancelled,
		PerhapsSettled:   row.perhapsSettled,
		Released:         row.released,
		Reviewed:         row.reviewed,
	}
	if row.dueAt != nil {
		b.DueAt = *row.dueAt
	}
	if row.dunning != noDunning && json.Unmarshal([]byte(row.dunning), &b.Dunning) != nil { // it was written below
		b.Dunning = domain.Dunning{}
	}
	return b
}

func (row *billRow) set(b domain.Bill) {
	row.status = string(b.Status)
	row.amount, row.currency = b.Amount.Minor, string(b.Amount.Currency)
	row.hasDue, row.dueAt = b.HasDue, utc(b.DueAt)
	row.attempt, row.starts, row.key = b.Attempt, b.Start, string(b.Key)
	row.stripeCustomer, row.paymentMethod = b.StripeCustomerID, b.PaymentMethodID
	row.intent, row.intentNo = b.IntentID, b.IntentNo
	row.charge, row.declineClass = b.ChargeID, string(b.DeclineClass)
	row.closing, row.reference, row.closingReason = string(b.Closing), b.Reference, b.Reason
	row.unresolved, row.cancelled, row.perhapsSettled = b.Unresolved, b.Cancelled, b.PerhapsSettled
	row.released, row.reviewed = b.Released, b.Reviewed
	row.dunning = noDunning
	if b.Dunning != (domain.Dunning{}) {
		text, err := json.Marshal(b.Dunning)
		if err != nil {
			panic(err) // texts, numbers and a time of this age always marshal
		}
		row.dunning = string(text)
	}
}

// utc is t for a column, NULL for the zero time.
func utc(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// account is why a bill stands where it stands, as one fact tells it.
type account struct {
	code, declineCode, reason, evidence string
	paid                                bool
}

// accountOf reads the account that a fact gives; ok is false if it gives none
// and the former one holds.
func accountOf(e domain.Event) (a account, ok bool) {
	switch e := e.(type) {
	case domain.MonthlyBillingDue, domain.ChargeIntentCommitted, domain.ChargeOutcomeSurprise, domain.SubscriptionCancelled,
		domain.RefundRequested, domain.RefundRecorded, domain.RefundProposed, domain.RefundProposalDismissed, domain.ChargeDisputed,
		domain.DunningScheduled, domain.DunningWaiting, domain.BillUncollectible, domain.SubscriptionDelinquent: // the decline is the reason still
		return a, false
	case domain.CustomerBilled:
		a.paid = true
	case domain.ChargeDeclined:
		a.code, a.declineCode = e.Code, e.DeclineCode
	case domain.ChargeActionRequired:
		a.reason, a.evidence = e.Reason, e.Evidence
	case domain.ChargeRejected:
		a.reason, a.evidence = e.Reason, e.Evidence
	case domain.ChargeHeld:
		a.reason, a.evidence = e.Reason, e.Evidence
	case domain.ChargeNotSent:
		a.reason, a.evidence = e.Reason, e.Evidence
	case domain.ChargeUnknown:
		a.reason, a.evidence = e.Reason, e.Evidence
	case domain.ChargeNeedsReview:
		a.reason, a.evidence = e.Reason, e.Evidence
	case domain.ChargeWaiting:
		a.reason = e.Reason
	case domain.ChargeReleased:
		a.reason = e.Reason
	case domain.ChargeVoided:
		a.reason = e.Reason
	case domain.BillClosing:
		a.reason = e.Reason
	case domain.BillSettled:
		a.reason = e.Reference
	case domain.BillWrittenOff:
		a.reason = e.Reason
	}
	return a, true
}
