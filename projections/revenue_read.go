package projections

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
)

// MonthRevenue is what was collected for the billing periods that begin in a
// month, in one currency.
type MonthRevenue struct {
	Month  domain.Period `json:"month"`
	Bills  int64         `json:"bills"` // paid
	Amount Money         `json:"amount"`
}

// Revenue lists what was collected per month and currency, ordered by month,
// then by currency code. From and to are months such as 2026-11, both
// included; empty: without a bound.
func (r Reads) Revenue(ctx context.Context, from, to string, order Order) (List[MonthRevenue], error) {
	list := List[MonthRevenue]{Items: []MonthRevenue{}}
	k, err := Page{Order: order}.keyset(0, "revenue")
	if err != nil {
		return list, err
	}
	first, err := month("from", from)
	if err != nil {
		return list, err
	}
	last, err := month("to", to)
	if err != nil {
		return list, err
	}
	if first != nil && last != nil && last.Before(*first) {
		return list, domain.InvalidField("to", "must not be before from")
	}
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if list.AsOf, err = asOf(ctx, tx, Revenue); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT month, currency, sum(bills)::bigint, sum(taken_minor)::bigint FROM revenue
			WHERE month >= coalesce($1::date, '-infinity') AND month <= coalesce($2::date, 'infinity')
			GROUP BY month, currency ORDER BY month `+k.order+`, currency `+k.order, first, last)
		if err != nil {
			return err
		}
		var at time.Time
		var currency string
		var bills, taken int64
		_, err = pgx.ForEachRow(rows, []any{&at, &currency, &bills, &taken}, func() error {
			list.Items = append(list.Items, MonthRevenue{
				Month: domain.PeriodOf(domain.Monthly, at.Year(), int(at.Month())), Bills: bills, Amount: money(taken, currency),
			})
			return nil
		})
		return err
	})
	return list, wrap(err, "read the revenue")
}

// month accepts a month, or nothing.
func month(name, s string) (*time.Time, error) {
	if s == "" {
		return nil, nil
	}
	p, err := domain.ParsePeriod(s)
	if err != nil || !p.Fits(domain.Monthly) {
		return nil, domain.InvalidField(name, "must be a month such as 2026-11")
	}
	first := begins(p)
	return &first, nil
}
