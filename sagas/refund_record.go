package sagas

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// refundSending is the state of a row that a worker holds; the others are those
// of the refund.
const refundSending = "sending"

// refundRecord is a row of refund_records.
type refundRecord struct {
	customer     domain.CustomerID
	period       domain.Period
	refundID     string
	chargeID     string
	amount       domain.Money
	state        string
	stripeID     string
	fence        int64
	firstSent    *time.Time // business time; nil: no send is unresolved
	lastSent     *time.Time // business time
	lastSentWall *time.Time // the database's clock
	tries        int
	outcome      json.RawMessage
	wall         time.Time // the database's clock when the row was read

	lease   time.Duration // set when saved, as in record
	backoff time.Duration
}

// refundName identifies a row.
type refundName struct {
	customer domain.CustomerID
	refundID string
}

func (r *refundRecord) order() RefundOrder {
	return RefundOrder{CustomerID: r.customer, Period: r.period, RefundID: r.refundID, ChargeID: r.chargeID, Amount: r.amount, StripeRefundID: r.stripeID}
}

// refundClaimable is the condition under which a row may be claimed.
const refundClaimable = `state IN ('requested', 'sending', 'unknown', 'pending')
	AND coalesce(greatest(lease_until, next_try_at), '-infinity'::timestamptz) <= clock_timestamp()`

// queueRefunds reads and locks rows as a statement of a pipeline.
func queueRefunds(p *pgx.Batch, names []refundName, where, lock string) {
	customers, ids := make([]string, len(names)), make([]string, len(names))
	for i, n := range names {
		customers[i], ids[i] = string(n.customer), n.refundID
	}
	p.Queue(`SELECT customer_id, refund_id, billing_period, charge_id, amount, currency, state, coalesce(stripe_refund_id, ''), fence,
			first_sent_at, last_sent_at, last_sent_wall, tries, coalesce(outcome, 'null'), clock_timestamp()
		FROM refund_records WHERE (customer_id, refund_id) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND `+where+`
		ORDER BY customer_id, refund_id `+lock, customers, ids)
}

func scanRefunds(answers pgx.BatchResults) ([]*refundRecord, error) {
	rows, err := answers.Query()
	if err != nil {
		return nil, fmt.Errorf("lock refund rows: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*refundRecord, error) {
		r := &refundRecord{}
		var customer, period, currency string
		err := row.Scan(&customer, &r.refundID, &period, &r.chargeID, &r.amount.Minor, &currency, &r.state, &r.stripeID, &r.fence,
			&r.firstSent, &r.lastSent, &r.lastSentWall, &r.tries, &r.outcome, &r.wall)
		if err != nil {
			return nil, err
		}
		r.customer, r.amount.Currency = domain.CustomerID(customer), domain.Currency(currency)
		if r.period, err = domain.ParsePeriod(period); err != nil {
			return nil, fmt.Errorf("refund record of %s: period %q: %w", customer, period, err)
		}
		return r, nil
	})
}

// saveRefund writes what the worker may change of a row that it holds locked.
func saveRefund(ctx context.Context, q eventstore.Querier, r *refundRecord) error {
	outcome := string(r.outcome)
	if outcome == "" {
		outcome = "null"
	}
	tag, err := q.Exec(ctx, `UPDATE refund_records SET state = $3, stripe_refund_id = coalesce(stripe_refund_id, nullif($4, '')), fence = $5,
			first_sent_at = $6, last_sent_at = $7, last_sent_wall = $8, tries = $9, outcome = nullif($10::text, 'null')::json,
			lease_until = CASE WHEN $11::bigint > 0 THEN clock_timestamp() + $11 * interval '1 microsecond' END,
			next_try_at = CASE WHEN $12::bigint > 0 THEN clock_timestamp() + $12 * interval '1 microsecond' END, updated_at = clock_timestamp()
		WHERE customer_id = $1 AND refund_id = $2`,
		string(r.customer), r.refundID, r.state, r.stripeID, r.fence, r.firstSent, r.lastSent, r.lastSentWall, r.tries, outcome,
		r.lease.Microseconds(), r.backoff.Microseconds())
	if err != nil {
		return fmt.Errorf("save the row of refund %s of %s: %w", r.refundID, r.customer, err)
	}
	if tag.RowsAffected() != 1 {
		return fmt.Errorf("the row of refund %s of %s is gone", r.refundID, r.customer)
	}
	return nil
}

// Back-offs of a refund that the bank has not answered.
const (
	firstPendingPoll = 30 * time.Second
	mostPendingPoll  = time.Hour
)

// settle sets a row to where its refund stands after o was recorded.
func (r *refundRecord) settle(known domain.Refund, o domain.RefundOutcome) {
	r.state, r.lease, r.backoff = string(known.State), 0, 0
	if r.stripeID == "" && known.StripeRefundID != "" {
		r.stripeID, r.tries = known.StripeRefundID, 0 // from here on it is only read
	}
	r.outcome, _ = json.Marshal(o)
	if o.State == domain.RefundStateRequested && known.State == domain.RefundStateRequested {
		r.firstSent, r.lastSent, r.lastSentWall = nil, nil, nil // proven: nothing was executed
	}
	switch known.State {
	case domain.RefundStateRequested, domain.RefundStateUnknown:
		r.backoff = backoffAfter(r.tries)
		r.tries++
	case domain.RefundStatePending:
		r.backoff = jitter(min(firstPendingPoll<<min(r.tries, 10), mostPendingPoll))
		r.tries++
	default:
		r.tries, r.firstSent = 0, nil
	}
}
