package sagas

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// The states of a pre-flight row.
const (
	stateReserved  = "reserved"
	stateSending   = "sending"
	stateSucceeded = "succeeded"
	stateDeclined  = "declined"
	stateAction    = "action_required"
	stateHeld      = "held"
	stateUnknown   = "unknown"
	stateRejected  = "rejected"
	stateWaiting   = "waiting"
	stateClosing   = "closing"
	stateVoid      = "void"
	stateReview    = "needs_review"
)

// record is a row of billing_records.
type record struct {
	customer     domain.CustomerID
	period       domain.Period
	attempt      int
	start        int
	amount       domain.Money
	stripe       string
	method       string
	state        string
	intentID     string
	intentNo     int
	latestCharge *string // nil: not known
	createAgain  int
	again        int
	fence        int64
	epoch        int64
	firstSent    *time.Time // business time
	lastSent     *time.Time // business time
	lastSentWall *time.Time // the database's clock
	quietSeconds int
	tries        int
	outcome      json.RawMessage
	wall         time.Time // the database's clock when the row was read

	lease   time.Duration // set when saved: lease_until = the database's now + lease; 0 clears it
	backoff time.Duration // set when saved: next_try_at = the database's now + backoff; 0 clears it
	parked  bool          // set when saved: not to be tried until something happens
}

// bill identifies a row.
type bill struct {
	customer domain.CustomerID
	period   domain.Period
}

func (r *record) bill() bill { return bill{r.customer, r.period} }

// order is the row as the gateway needs it.
func (r *record) order() Order {
	o := Order{
		CustomerID: r.customer, Period: r.period, Attempt: r.attempt, Amount: r.amount,
		StripeCustomerID: r.stripe, PaymentMethodID: r.method,
		IntentNo: r.intentNo, CreateAgain: r.createAgain, Again: r.again, IntentID: r.intentID,
	}
	if r.latestCharge != nil {
		o.LatestCharge = *r.latestCharge
	}
	return o
}

// stateOf is the row's state that follows from the bill's facts.
func stateOf(s domain.BillStatus) string {
	switch s {
	case domain.BillPaid:
		return stateSucceeded
	case domain.BillDeclined, domain.BillUncollectibleStatus: // its intent is open: a late success, or somebody's retry, still finds the row
		return stateDeclined
	case domain.BillRejected:
		return stateRejected
	case domain.BillHeld:
		return stateHeld
	case domain.BillUnknown:
		return stateUnknown
	case domain.BillActionRequired:
		return stateAction
	case domain.BillNeedsReview:
		return stateReview
	case domain.BillWaiting:
		return stateWaiting
	case domain.BillClosingStatus:
		return stateClosing
	case domain.BillSettledStatus, domain.BillWrittenOffStatus, domain.BillVoid:
		return stateVoid
	case domain.BillStarted:
		return stateSending
	case domain.BillFound, domain.BillDue, domain.BillRequested:
	}
	return stateReserved
}

const recordColumns = `customer_id, billing_period, attempt, start, amount, currency, stripe_customer_id, payment_method, state,
	coalesce(intent_id, ''), intent_no, latest_charge, create_again, again, fence, epoch, first_sent_at, last_sent_at, last_sent_wall,
	quiet_seconds, tries, coalesce(outcome, 'null'), clock_timestamp()`

func scanRecords(rows pgx.Rows) (records []*record, err error) {
	defer rows.Close()
	for rows.Next() {
		r := &record{}
		var customer, period, currency string
		if err := rows.Scan(&customer, &period, &r.attempt, &r.start, &r.amount.Minor, &currency, &r.stripe, &r.method, &r.state,
			&r.intentID, &r.intentNo, &r.latestCharge, &r.createAgain, &r.again, &r.fence, &r.epoch, &r.firstSent, &r.lastSent, &r.lastSentWall,
			&r.quietSeconds, &r.tries, &r.outcome, &r.wall); err != nil {
			return nil, err
		}
		r.customer, r.amount.Currency = domain.CustomerID(customer), domain.Currency(currency)
		if r.period, err = domain.ParsePeriod(period); err != nil {
			return nil, fmt.Errorf("billing record of %s: period %q: %w", customer, period, err)
		}
		records = append(records, r)
	}
	return records, rows.Err()
}

// queueRecords reads and locks rows as a statement of a pipeline. Where is a
// condition over the row, the bills given are $1 and $2; skip leaves out rows
// that somebody else holds.
func queueRecords(p *pgx.Batch, bills []bill, where string, skip bool) {
	lock := `FOR UPDATE`
	if skip {
		lock += ` SKIP LOCKED`
	}
	queueRecordsWith(p, bills, where, lock)
}

func queueRecordsUnlocked(p *pgx.Batch, bills []bill, where string) {
	queueRecordsWith(p, bills, where, `OFFSET 0`)
}

// queueRecordsWith reads rows by their keys and nothing else, and looks at the
// condition afterwards: an index of rows that fulfil it would be walked for each.
func queueRecordsWith(p *pgx.Batch, bills []bill, where, lock string) {
	var customers, periods []string
	for _, b := range sortedBills(bills) { // locks are taken in this order
		customers, periods = append(customers, string(b.customer)), append(periods, b.period.String())
	}
	p.Queue(`SELECT `+recordColumns+` FROM unnest($1::text[], $2::text[]) AS u(customer, period)
		CROSS JOIN LATERAL (SELECT * FROM billing_records r WHERE r.customer_id = u.customer AND r.billing_period = u.period `+lock+`) b
		WHERE `+where+` ORDER BY customer_id, billing_period`, customers, periods)
}

// sortedBills are bills in the order of their rows' key, each once.
func sortedBills(bills []bill) []bill {
	sorted := slices.SortedFunc(slices.Values(bills), func(a, b bill) int {
		return cmp.Or(cmp.Compare(a.customer, b.customer), cmp.Compare(a.period.String(), b.period.String()))
	})
	return slices.Compact(sorted)
}

// saveRecords writes what the collector may change of rows that it holds
// locked, in one statement. Business times come as values; lease and back-off
// are counted from the database's clock.
func saveRecords(ctx context.Context, q eventstore.Querier, records []*record) error {
	n := len(records)
	if n == 0 {
		return nil
	}
	var (
		customers, periods, states, intents = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		starts, numbers, creates, agains    = make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)
		quiets, tries                       = make([]int32, n), make([]int32, n)
		charges                             = make([]*string, n)
		fences, epochs, leases, backoffs    = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		firsts, lasts, walls                = make([]*time.Time, n), make([]*time.Time, n), make([]*time.Time, n)
		parked                              = make([]bool, n)
		outcomes                            = make([]string, n)
	)
	for i, r := range records {
		customers[i], periods[i], states[i], intents[i] = string(r.customer), r.period.String(), r.state, r.intentID
		starts[i], numbers[i], creates[i], agains[i] = int32(r.start), int32(r.intentNo), int32(r.createAgain), int32(r.again)
		quiets[i], tries[i], charges[i] = int32(r.quietSeconds), int32(r.tries), r.latestCharge
		fences[i], epochs[i], leases[i], backoffs[i] = r.fence, r.epoch, r.lease.Microseconds(), r.backoff.Microseconds()
		firsts[i], lasts[i], walls[i], parked[i] = r.firstSent, r.lastSent, r.lastSentWall, r.parked
		outcomes[i] = string(r.outcome)
		if r.outcome == nil {
			outcomes[i] = "null"
		}
	}
	tag, err := q.Exec(ctx, `
		UPDATE billing_records r SET
			state = u.state, start = u.start, intent_id = nullif(u.intent, ''), intent_no = u.number, latest_charge = u.charge,
			create_again = u.create_again, again = u.again, fence = u.fence, epoch = u.epoch,
			first_sent_at = u.first_sent, last_sent_at = u.last_sent, last_sent_wall = u.wall, quiet_seconds = u.quiet, tries = u.tries,
			lease_until = CASE WHEN u.lease > 0 THEN clock_timestamp() + u.lease * interval '1 microsecond' END,
			next_try_at = CASE WHEN u.parked THEN 'infinity' WHEN u.backoff > 0 THEN clock_timestamp() + u.backoff * interval '1 microsecond' END,
			read_again_at = CASE WHEN u.state <> 'declined' THEN NULL WHEN r.state = 'declined' THEN r.read_again_at
				ELSE coalesce(u.last_sent, clock_timestamp()) + $21 * interval '1 second' END,
			outcome = nullif(u.outcome, 'null')::json, updated_at = clock_timestamp()
		FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::text[], $6::int[], $7::text[], $8::int[], $9::int[], $10::bigint[], $11::bigint[],
			$12::timestamptz[], $13::timestamptz[], $14::timestamptz[], $15::int[], $16::int[], $17::bigint[], $18::bigint[], $19::bool[], $20::text[])
			AS u(customer, period, state, start, intent, number, charge, create_again, again, fence, epoch, first_sent, last_sent, wall, quiet, tries, lease, backoff, parked, outcome)
		CROSS JOIN LATERAL (SELECT ctid FROM billing_records WHERE customer_id = u.customer AND billing_period = u.period OFFSET 0) AS held
		WHERE r.ctid = held.ctid`,
		customers, periods, states, starts, intents, numbers, charges, creates, agains, fences, epochs,
		firsts, lasts, walls, quiets, tries, leases, backoffs, parked, outcomes, readAgainAfter.Seconds())
	if err != nil {
		return fmt.Errorf("save %d billing records: %w", n, err)
	}
	if tag.RowsAffected() != int64(n) {
		return fmt.Errorf("save %d billing records: %d were there", n, tag.RowsAffected())
	}
	return nil
}

// claimedOf names those of the bills behind items that a worker holds at this
// moment.
func claimedOf[T any](ctx context.Context, pool *pgxpool.Pool, items []T, of func(T) bill) (map[bill]bool, error) {
	bills := make([]bill, len(items))
	for i, item := range items {
		bills[i] = of(item)
	}
	rows := &pgx.Batch{}
	queueRecordsUnlocked(rows, bills, `state = 'sending' AND lease_until > clock_timestamp()`)
	results := pool.SendBatch(ctx, rows)
	defer results.Close()
	held, err := results.Query()
	if err != nil {
		return nil, fmt.Errorf("read claims: %w", err)
	}
	records, err := scanRecords(held)
	if err != nil {
		return nil, fmt.Errorf("read claims: %w", err)
	}
	claimed := make(map[bill]bool, len(records))
	for _, r := range records {
		claimed[r.bill()] = true
	}
	return claimed, nil
}
