package projections

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Revenue keeps what was collected per month and currency. A payment counts in
// the month in which its billing period begins, whenever it came in, with the
// amount that Stripe took. A bill counts once.
var Revenue = Projection{
	Name: "revenue", Tables: []string{"revenue", "revenue_bills"}, Events: names(domain.CustomerBilled{}), fold: foldRevenue,
}

// The bills that are new decide the sums: what was counted before is left out
// by its key, so that the same fact again adds nothing.
const addRevenue = `
	WITH fresh AS (
		INSERT INTO revenue_bills (customer_id, billing_period, partition, month, currency, taken_minor, position)
		SELECT * FROM unnest($1::text[], $2::text[], $3::smallint[], $4::date[], $5::text[], $6::bigint[], $7::bigint[])
		ON CONFLICT (customer_id, billing_period) DO NOTHING
		RETURNING month, currency, partition, taken_minor)
	INSERT INTO revenue AS r (month, currency, partition, bills, taken_minor)
	SELECT month, currency, partition, count(*), sum(taken_minor) FROM fresh GROUP BY month, currency, partition
	ON CONFLICT (month, currency, partition) DO UPDATE SET
		bills = r.bills + excluded.bills, taken_minor = r.taken_minor + excluded.taken_minor`

func foldRevenue(ctx context.Context, tx pgx.Tx, events []eventstore.Recorded) error {
	var customers, periods, currencies []string
	var partitions []int16
	var months []time.Time
	var taken, positions []int64
	for _, r := range events {
		e, ok := r.Event.(domain.CustomerBilled)
		if !ok {
			continue
		}
		customers, periods = append(customers, r.SequenceKey), append(periods, e.BillingPeriod.String())
		partitions, months = append(partitions, r.Partition), append(months, begins(e.BillingPeriod))
		currencies, taken = append(currencies, string(e.Currency)), append(taken, e.Minor)
		positions = append(positions, r.Position)
	}
	_, err := tx.Exec(ctx, addRevenue, customers, periods, partitions, months, currencies, taken, positions)
	return err
}
