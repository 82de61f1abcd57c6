package projections

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Runs keeps, per period label, how many bills stand where and for how much.
// It counts a bill out of its former status and into the new one; what it
// counted of each bill stands in run_bills.
var Runs = Projection{Name: "runs", Tables: []string{"run_totals", "run_bills"}, Events: billEvents, fold: foldRuns}

// runBill is a row of run_bills: as much of a bill as decides its status, and
// the amounts that were counted.
type runBill struct {
	customer, period string
	partition        int16
	status           string
	unresolved       bool
	perhapsSettled   bool
	amount           int64
	currency         string
	taken            int64
	takenCurrency    string
	last             eventstore.Mark

	of      domain.Period
	counted []tally // as loaded: what the totals contain of it
	changed bool
}

var runBillsTable = table[runBill]{name: "run_bills", keys: 2, columns: []column[runBill]{
	col("customer_id", func(r *runBill) *string { return &r.customer }),
	col("billing_period", func(r *runBill) *string { return &r.period }),
	col("partition", func(r *runBill) *int16 { return &r.partition }),
	col("status", func(r *runBill) *string { return &r.status }),
	col("unresolved", func(r *runBill) *bool { return &r.unresolved }),
	col("perhaps_settled", func(r *runBill) *bool { return &r.perhapsSettled }),
	col("amount_minor", func(r *runBill) *int64 { return &r.amount }),
	col("currency", func(r *runBill) *string { return &r.currency }),
	col("taken_minor", func(r *runBill) *int64 { return &r.taken }),
	col("taken_currency", func(r *runBill) *string { return &r.takenCurrency }),
	col("last_position", func(r *runBill) *int64 { return &r.last.Position }),
}}

// runTotal is a row of run_totals, or the change of one.
type runTotal struct {
	period, currency, status string
	partition                int16
	begins                   time.Time
	bills, amount, taken     int64
}

// tally is what one bill adds to one total.
type tally struct {
	currency, status     string
	bills, amount, taken int64
}

func foldRuns(ctx context.Context, tx pgx.Tx, events []eventstore.Recorded) error {
	rows, err := load(ctx, tx, runBillsTable, touchedBy(events))
	if err != nil {
		return err
	}
	page := newPage[runBill]()
	for _, row := range rows {
		row.of = periodOf(row.period)
		row.counted = row.tallies()
		page.bill(billKey{row.customer, row.period}, func() *runBill { return row })
	}
	page.each(events, blankRunBill, (*runBill).apply)

	var changed []*runBill
	var totals changes
	for _, row := range page.all {
		if !row.changed {
			continue
		}
		changed = append(changed, row)
		totals.add(row, row.counted, -1)
		totals.add(row, row.tallies(), +1)
	}
	writes := &pgx.Batch{}
	runBillsTable.queueUpsert(writes, changed)
	totals.queue(writes)
	if err := send(ctx, tx, writes); err != nil {
		return err
	}
	return totals.sweep(ctx, tx)
}

func blankRunBill(r eventstore.Recorded, p domain.Period) *runBill {
	return &runBill{customer: r.SequenceKey, period: p.String(), partition: r.Partition, of: p}
}

func (row *runBill) apply(r eventstore.Recorded) {
	_, _, own := domain.BillOf(r.Event)
	if row.last.Covers(r) || !own && row.last.Position == 0 {
		return
	}
	before := domain.BlankBill(row.of)
	before.Status, before.Unresolved, before.PerhapsSettled = domain.BillStatus(row.status), row.unresolved, row.perhapsSettled
	before.Amount = domain.Money{Minor: row.amount, Currency: domain.Currency(row.currency)}
	after := before.Evolve(r.Event)
	if !own && after.Status == before.Status || row.last.Position == 0 && after == before {
		return
	}
	row.status, row.unresolved, row.perhapsSettled = string(after.Status), after.Unresolved, after.PerhapsSettled
	row.amount, row.currency = after.Amount.Minor, string(after.Amount.Currency)
	if e, ok := r.Event.(domain.CustomerBilled); ok && row.taken == 0 {
		row.taken, row.takenCurrency = e.Minor, string(e.Currency)
	}
	row.last.Move(r)
	row.changed = true
}

// tallies is what the bill adds to its run's totals. What was taken counts in
// its own currency, should that ever differ from what was asked.
func (row *runBill) tallies() []tally {
	if row.taken == 0 || row.takenCurrency == row.currency {
		return []tally{{row.currency, row.status, 1, row.amount, row.taken}}
	}
	return []tally{{row.currency, row.status, 1, row.amount, 0}, {row.takenCurrency, row.status, 0, 0, row.taken}}
}

// changes are the changes of totals that a page makes.
type changes struct {
	of    map[runTotal]*runTotal // by the total with its figures left out
	order []*runTotal
}

func (c *changes) add(row *runBill, tallies []tally, sign int64) {
	if c.of == nil {
		c.of = map[runTotal]*runTotal{}
	}
	for _, t := range tallies {
		key := runTotal{period: row.period, currency: t.currency, status: t.status, partition: row.partition, begins: begins(row.of)}
		total, ok := c.of[key]
		if !ok {
			total = &key
			c.of[*total] = total
			c.order = append(c.order, total)
		}
		total.bills += sign * t.bills
		total.amount += sign * t.amount
		total.taken += sign * t.taken
	}
}

// queue writes the changes.
func (c *changes) queue(p *pgx.Batch) {
	var begins []time.Time
	var bills, amounts, taken []int64
	key := c.keys(func(t *runTotal) bool { return t.bills != 0 || t.amount != 0 || t.taken != 0 }, func(t *runTotal) {
		begins, bills, amounts, taken = append(begins, t.begins), append(bills, t.bills), append(amounts, t.amount), append(taken, t.taken)
	})
	if len(bills) == 0 {
		return
	}
	p.Queue(`INSERT INTO run_totals AS t (billing_period, currency, status, partition, begins, bills, amount_minor, taken_minor)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::date[], $6::bigint[], $7::bigint[], $8::bigint[])
		ON CONFLICT (billing_period, currency, status, partition) DO UPDATE SET
			bills = t.bills + excluded.bills, amount_minor = t.amount_minor + excluded.amount_minor, taken_minor = t.taken_minor + excluded.taken_minor`,
		append(key, begins, bills, amounts, taken)...)
}

// sweep removes totals that have come to nothing, so that the table does not
// tell by which way its bills went.
func (c *changes) sweep(ctx context.Context, tx pgx.Tx) error {
	n := 0
	key := c.keys(func(t *runTotal) bool { return t.bills < 0 || t.taken < 0 }, func(*runTotal) { n++ })
	if n == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `DELETE FROM run_totals WHERE (billing_period, currency, status, partition) IN
			(SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[]))
			AND bills = 0 AND amount_minor = 0 AND taken_minor = 0`,
		append([]any{pgx.QueryExecModeCacheDescribe}, key...)...)
	return err
}

// keys are the primary keys of the changes that fit, a column each.
func (c *changes) keys(fits func(*runTotal) bool, each func(*runTotal)) []any {
	var periods, currencies, statuses []string
	var partitions []int16
	for _, t := range c.order {
		if fits(t) {
			periods, currencies, statuses = append(periods, t.period), append(currencies, t.currency), append(statuses, t.status)
			partitions = append(partitions, t.partition)
			each(t)
		}
	}
	return []any{periods, currencies, statuses, partitions}
}
