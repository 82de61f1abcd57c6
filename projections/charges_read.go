package projections

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Charge is one attempt to collect a bill, as readers see it.
type Charge struct {
	CustomerID      domain.CustomerID   `json:"customer_id"`
	BillingPeriod   domain.Period       `json:"billing_period"`
	Attempt         int                 `json:"attempt"`
	Status          domain.BillStatus   `json:"status"`
	Parked          bool                `json:"parked,omitempty"` // a fact of the customer waits in some processor's dead letters
	Amount          Money               `json:"amount"`
	Refunded        *Money              `json:"refunded,omitempty"` // what of it went back, may have or is about to, by the read model refunds
	Key             domain.Key          `json:"key"`
	Starts          int                 `json:"starts"`
	PaymentMethodID string              `json:"payment_method_id,omitempty"`
	IntentID        string              `json:"intent_id,omitempty"`
	ChargeID        string              `json:"charge_id,omitempty"` // that paid or was declined
	Code            string              `json:"code,omitempty"`
	DeclineCode     string              `json:"decline_code,omitempty"`
	DeclineClass    domain.DeclineClass `json:"decline_class,omitempty"`
	Reason          string              `json:"reason,omitempty"`
	Evidence        string              `json:"evidence,omitempty"`
	Unresolved      bool                `json:"unresolved,omitempty"`
	RequestedAt     *time.Time          `json:"requested_at,omitempty"`
	StartedAt       *time.Time          `json:"started_at,omitempty"`
	EndedAt         *time.Time          `json:"ended_at,omitempty"`
	UpdatedAt       time.Time           `json:"updated_at"`
	Requested       eventstore.Place    `json:"requested_position"` // the list's order
	Position        eventstore.Place    `json:"position"`           // of the newest fact
}

// ChargesQuery asks for charges. Empty filters let everything pass.
type ChargesQuery struct {
	Status   string // a status, or one of the groups open, stuck and parked
	Period   string
	Customer string
	Page
}

// Groups of statuses that ChargesQuery.Status accepts.
const (
	GroupOpen   = "open"   // not ended: money may still come of it
	GroupStuck  = "stuck"  // rests or hangs until somebody, or evidence, moves it
	GroupParked = "parked" // the customer has facts in a processor's dead letters
)

// chargeStatuses are the statuses a charge can have.
var chargeStatuses = []domain.BillStatus{
	domain.BillRequested, domain.BillStarted, domain.BillUnknown, domain.BillActionRequired, domain.BillNeedsReview,
	domain.BillHeld, domain.BillWaiting, domain.BillClosingStatus, domain.BillDeclined, domain.BillRejected,
	domain.BillPaid, domain.BillSettledStatus, domain.BillWrittenOffStatus, domain.BillVoid,
}

var stuckStatuses = []domain.BillStatus{
	domain.BillUnknown, domain.BillActionRequired, domain.BillNeedsReview, domain.BillHeld, domain.BillWaiting, domain.BillRejected,
}

// parkedSQL are the customers with facts in dead letters.
const parkedSQL = `customer_id IN (SELECT sequence_key FROM dead_letters WHERE status IN ('parked', 'behind'))`

// refundedSQL is what of a charge went back, or may have.
const refundedSQL = `CASE WHEN charge_id = '' OR status <> 'paid' THEN 0 ELSE (SELECT least(coalesce(sum(f.amount_minor), 0), 9223372036854775807)::bigint FROM refunds f
	WHERE f.charge_id = charges.charge_id AND f.customer_id = charges.customer_id AND f.billing_period = charges.billing_period
		AND f.status NOT IN ('failed', 'cancelled', 'refused', 'proposed', 'answered', 'dismissed')) END`

// Charges lists attempts in the order in which they were requested: by the
// position of the fact that asked for each, which no two share.
func (r Reads) Charges(ctx context.Context, q ChargesQuery) (List[Charge], error) {
	list := List[Charge]{Items: []Charge{}}
	k, err := q.keyset(1, "charges", q.Status, q.Period, q.Customer)
	if err != nil {
		return list, err
	}
	where, args, err := q.where()
	if err != nil {
		return list, err
	}
	if k.after != nil {
		position, err := strconv.ParseInt(k.after[0], 10, 64)
		if err != nil {
			return list, badCursor()
		}
		args = append(args, position)
		where = append(where, fmt.Sprintf("first_position %s $%d", k.compare, len(args)))
	}
	args = append(args, k.limit+1)
	sql := fmt.Sprintf("SELECT %s, %s, %s FROM charges WHERE %s ORDER BY first_position %s LIMIT $%d",
		chargesTable.names(""), parkedSQL, refundedSQL, strings.Join(where, " AND "), k.order, len(args))
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if list.AsOf, err = asOf(ctx, tx, Charges); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sql, append([]any{pgx.QueryExecModeCacheDescribe}, args...)...)
		if err != nil {
			return err
		}
		list.Items, err = pgx.AppendRows(list.Items, rows, scanCharge)
		if err != nil {
			return err
		}
		var more bool
		if list.Items, more = cut(list.Items, k.limit); more {
			list.NextCursor = k.next(strconv.FormatInt(list.Items[k.limit-1].Requested.Position, 10))
		}
		return nil
	})
	return list, wrap(err, "list charges")
}

// where spells the filters as SQL made of constants, and their arguments.
func (q ChargesQuery) where() (where []string, args []any, err error) {
	where = []string{"attempt > 0"}
	with := func(condition string, arg any) {
		args = append(args, arg)
		where = append(where, fmt.Sprintf(condition, len(args)))
	}
	switch q.Status {
	case "":
	case GroupOpen:
		with("status <> 'paid' AND status = ANY ($%d)", statusTexts(func(s domain.BillStatus) bool { return !ended(s) }))
	case GroupStuck:
		with("status <> 'paid' AND status = ANY ($%d)", statusTexts(func(s domain.BillStatus) bool { return slices.Contains(stuckStatuses, s) }))
	case GroupParked:
		where = append(where, parkedSQL)
	case string(domain.BillPaid):
		where = append(where, "status = 'paid'")
	default:
		if !slices.Contains(chargeStatuses, domain.BillStatus(q.Status)) {
			return nil, nil, domain.InvalidField("status", "must be a status (%s) or one of open, stuck and parked", join(chargeStatuses))
		}
		// The first half is what makes the partial index of the unpaid usable.
		with("status <> 'paid' AND status = $%d", q.Status)
	}
	if q.Period != "" {
		p, err := parse("period", q.Period, domain.ParsePeriod)
		if err != nil {
			return nil, nil, err
		}
		with("billing_period = $%d", p.String())
	}
	if q.Customer != "" {
		id, err := parse("customer", q.Customer, domain.ParseCustomerID)
		if err != nil {
			return nil, nil, err
		}
		with("customer_id = $%d", string(id))
	}
	return where, args, nil
}

func statusTexts(keep func(domain.BillStatus) bool) (texts []string) {
	for _, s := range chargeStatuses {
		if keep(s) {
			texts = append(texts, string(s))
		}
	}
	return texts
}

func join[S ~string](words []S) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, ", ")
}

// scanCharge reads a row of charges, whether its customer is parked and what
// went back of it.
func scanCharge(row pgx.CollectableRow) (Charge, error) {
	var r chargeRow
	var parked bool
	var refunded int64
	if err := row.Scan(append(chargesTable.fields(&r), &parked, &refunded)...); err != nil {
		return Charge{}, err
	}
	c := r.read()
	c.Parked = parked
	if refunded > 0 {
		back := money(refunded, r.currency)
		c.Refunded = &back
	}
	return c, nil
}

func (row *chargeRow) read() Charge {
	return Charge{
		CustomerID:      domain.CustomerID(row.customer),
		BillingPeriod:   periodOf(row.period),
		Attempt:         row.attempt,
		Status:          domain.BillStatus(row.status),
		Amount:          money(row.amount, row.currency),
		Key:             domain.Key(row.key),
		Starts:          row.starts,
		PaymentMethodID: row.paymentMethod,
		IntentID:        row.intent,
		ChargeID:        row.charge,
		Code:            row.code,
		DeclineCode:     row.declineCode,
		DeclineClass:    domain.DeclineClass(row.declineClass),
		Reason:          row.reason,
		Evidence:        row.evidence,
		Unresolved:      row.unresolved,
		RequestedAt:     inUTC(row.requestedAt),
		StartedAt:       inUTC(row.startedAt),
		EndedAt:         inUTC(row.endedAt),
		UpdatedAt:       row.updatedAt.UTC(),
		Requested:       eventstore.Place{Partition: row.partition, Position: row.first},
		Position:        eventstore.Place{Partition: row.partition, Position: row.last},
	}
}
