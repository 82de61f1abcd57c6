package projections

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Bill is the one obligation of a customer for a period, as readers see it.
type Bill struct {
	CustomerID      domain.CustomerID   `json:"customer_id"`
	BillingPeriod   domain.Period       `json:"billing_period"`
	Status          domain.BillStatus   `json:"status"`
	Amount          Money               `json:"amount"`             // frozen when due or requested
	Taken           *Money              `json:"taken,omitempty"`    // what Stripe took, once paid
	Refunded        *Money              `json:"refunded,omitempty"` // what of it went back, may have or is about to
	Disputed        bool                `json:"disputed,omitempty"` // a dispute holds or has taken its money
	DueAt           *time.Time          `json:"due_at,omitempty"`
	Attempt         int                 `json:"attempt"` // 0: no charge requested
	Starts          int                 `json:"starts"`  // of this attempt
	Key             domain.Key          `json:"key,omitempty"`
	PaymentMethodID string              `json:"payment_method_id,omitempty"`
	IntentID        string              `json:"intent_id,omitempty"`
	IntentNo        int                 `json:"intent_no"`
	ChargeID        string              `json:"charge_id,omitempty"` // the one that paid
	Code            string              `json:"code,omitempty"`      // of the decline
	DeclineCode     string              `json:"decline_code,omitempty"`
	DeclineClass    domain.DeclineClass `json:"decline_class,omitempty"`
	Dunning         *Dunning            `json:"dunning,omitempty"`
	CustomerAction  *CustomerAction     `json:"customer_action,omitempty"`
	Reason          string              `json:"reason,omitempty"` // why the status is what it is
	Evidence        string              `json:"evidence,omitempty"`
	Closing         domain.ClosingMode  `json:"closing,omitempty"`
	Reference       string              `json:"reference,omitempty"` // of a settlement by way of closing
	Unresolved      bool                `json:"unresolved,omitempty"`
	Cancelled       bool                `json:"cancelled,omitempty"`
	Source          domain.Source       `json:"source,omitempty"` // where the news of the payment came from
	Recovered       bool                `json:"recovered,omitempty"`
	Surprises       int                 `json:"surprises,omitempty"` // contradictions to be reconciled
	Surprise        string              `json:"surprise,omitempty"`  // the last one
	DeclaredAt      *time.Time          `json:"declared_at,omitempty"`
	RequestedAt     *time.Time          `json:"requested_at,omitempty"`
	StartedAt       *time.Time          `json:"started_at,omitempty"`
	PaidAt          *time.Time          `json:"paid_at,omitempty"`
	PaidPosition    eventstore.Place    `json:"paid_position,omitzero"`
	UpdatedAt       time.Time           `json:"updated_at"`
	Position        eventstore.Place    `json:"position"` // of the newest fact
}

// Bills lists a customer's bills, ordered by the day their periods begin, then
// by label. It returns domain.ErrUnknownCustomer for one that has neither bills
// nor a registration.
func (r Reads) Bills(ctx context.Context, customer string, page Page) (List[Bill], error) {
	list := List[Bill]{Items: []Bill{}}
	id, err := domain.ParseCustomerID(customer)
	if err != nil {
		return list, err
	}
	k, err := page.keyset(1, "bills", string(id))
	if err != nil {
		return list, err
	}
	where, args := "WHERE customer_id = $1", []any{string(id), k.limit + 1}
	if k.after != nil {
		last, err := domain.ParsePeriod(k.after[0])
		if err != nil {
			return list, badCursor()
		}
		where, args = where+" AND (begins, billing_period) "+k.compare+" ($3::date, $4::text)", append(args, begins(last), last.String())
	}
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if list.AsOf, err = asOfCustomer(ctx, tx, Bills, id); err != nil {
			return err
		}
		rows, err := billsTable.query(ctx, tx,
			billsTable.selectSQL(where+" ORDER BY begins "+k.order+", billing_period "+k.order+" LIMIT $2"), args...)
		if err != nil {
			return err
		}
		if len(rows) == 0 && k.after == nil {
			var known bool
			if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM customers WHERE customer_id = $1)`, string(id)).Scan(&known); err != nil {
				return err
			}
			if !known {
				return domain.ErrUnknownCustomer
			}
		}
		rows, more := cut(rows, k.limit)
		if more {
			list.NextCursor = k.next(rows[len(rows)-1].period)
		}
		for _, row := range rows {
			row.of = periodOf(row.period)
			list.Items = append(list.Items, row.read())
		}
		return nil
	})
	return list, wrap(err, "list the customer's bills")
}

// Dunning is what was decided to follow a decline.
type Dunning struct {
	NextAttempt   int            `json:"next_attempt,omitempty"`
	NextAttemptAt *time.Time     `json:"next_attempt_at,omitempty"` // business time
	Awaits        domain.Awaited `json:"awaits,omitempty"`          // what has to happen before a next attempt
	Reason        string         `json:"reason,omitempty"`
	DaysFrom      string         `json:"days_from,omitempty"` // the local day from which the schedule counts
}

// CustomerAction is what the customer must do before a bill can be paid. The
// intent's client secret, with which a page of the shop lets them do it, is not
// kept here: whoever serves that page reads it from Stripe by the intent's id.
type CustomerAction struct {
	Kind     string `json:"kind"` // authenticate
	IntentID string `json:"intent_id"`
	Help     string `json:"help"`
}

// actionOf is what b waits for the customer to do.
func actionOf(b domain.Bill) *CustomerAction {
	if b.IntentID == "" || b.Status != domain.BillActionRequired && (b.Status != domain.BillDeclined || b.Dunning.Awaits != domain.AwaitsCustomer) {
		return nil
	}
	return &CustomerAction{Kind: "authenticate", IntentID: b.IntentID,
		Help: "let the customer confirm this PaymentIntent on a page of yours; its success is recorded when Stripe tells of it, and retry-charge asks once more without them"}
}

func dunningOf(d domain.Dunning) *Dunning {
	if d.Reason == "" {
		return nil // nothing was decided, or what was decided has come to pass
	}
	return &Dunning{NextAttempt: d.Attempt, NextAttemptAt: utc(d.At), Awaits: d.Awaits, Reason: d.Reason, DaysFrom: d.From.String()}
}

func (row *billRow) read() Bill {
	b := Bill{
		CustomerID:      domain.CustomerID(row.customer),
		BillingPeriod:   row.of,
		Status:          domain.BillStatus(row.status),
		Amount:          money(row.amount, row.currency),
		DueAt:           inUTC(row.dueAt),
		Attempt:         row.attempt,
		Starts:          row.starts,
		Key:             domain.Key(row.key),
		PaymentMethodID: row.paymentMethod,
		IntentID:        row.intent,
		IntentNo:        row.intentNo,
		ChargeID:        row.charge,
		Code:            row.code,
		DeclineCode:     row.declineCode,
		DeclineClass:    domain.DeclineClass(row.declineClass),
		Reason:          row.reason,
		Evidence:        row.evidence,
		Closing:         domain.ClosingMode(row.closing),
		Reference:       row.reference,
		Unresolved:      row.unresolved,
		Cancelled:       row.cancelled,
		Source:          domain.Source(row.source),
		Recovered:       row.recovered,
		Surprises:       row.surprises,
		Surprise:        row.surprise,
		DeclaredAt:      inUTC(row.declaredAt),
		RequestedAt:     inUTC(row.requestedAt),
		StartedAt:       inUTC(row.startedAt),
		PaidAt:          inUTC(row.paidAt),
		UpdatedAt:       row.updatedAt.UTC(),
		Position:        eventstore.Place{Partition: row.partition, Position: row.last.Position},
	}
	b.Disputed = row.disputed
	bill := row.bill()
	b.Dunning, b.CustomerAction = dunningOf(bill.Dunning), actionOf(bill)
	if row.refunded > 0 {
		refunded := money(row.refunded, row.takenCurrency)
		b.Refunded = &refunded
	}
	if row.paidPosition > 0 {
		b.PaidPosition = eventstore.Place{Partition: row.partition, Position: row.paidPosition}
		taken := money(row.taken, row.takenCurrency)
		b.Taken = &taken
	}
	return b
}
