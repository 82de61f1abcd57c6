package sagas

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
)

// sighting is a success at Stripe that the sweep has met.
type sighting struct {
	Found
	ours   bool   // a bill's, by its markers, its intent or an import
	detail string // of one that is not: why
}

// see keeps what was met, in a table of this connection. Only the list of
// charges tells what was taken of whom, and what of it has gone back.
func (p *pass) see(ctx context.Context, all []sighting, charges bool) error {
	n := len(all)
	if n == 0 {
		return nil
	}
	ids, intents, customers, currencies, details := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	markedCustomers, markedPeriods := make([]string, n), make([]string, n)
	ours, refunded := make([]bool, n), make([]bool, n)
	amounts, created := make([]int64, n), make([]time.Time, n)
	for i, s := range all {
		ids[i], intents[i], customers[i], currencies[i], details[i] = s.ChargeID, s.IntentID, s.StripeCustomerID, string(s.Amount.Currency), s.detail
		markedCustomers[i], markedPeriods[i] = s.CustomerID, s.Period
		ours[i], refunded[i], amounts[i], created[i] = s.ours, s.Refunded, s.Amount.Minor, s.Created
	}
	var err error
	if charges {
		_, err = p.conn.Exec(ctx, `INSERT INTO reconcile_seen
			SELECT DISTINCT ON (charge) * FROM unnest($1::text[], $2::bool[], $3::bool[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::timestamptz[], $9::text[], $10::text[], $11::text[])
				AS u(charge, ours, refunded, intent, customer, amount, currency, created, marked_customer, marked_period, detail)
			ON CONFLICT (charge) DO UPDATE SET ours = excluded.ours, refunded = excluded.refunded, intent = excluded.intent, customer = excluded.customer,
				amount = excluded.amount, currency = excluded.currency, created = excluded.created,
				marked_customer = excluded.marked_customer, marked_period = excluded.marked_period, detail = excluded.detail`,
			ids, ours, refunded, intents, customers, amounts, currencies, created, markedCustomers, markedPeriods, details)
	} else {
		_, err = p.conn.Exec(ctx, `INSERT INTO reconcile_seen (charge) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING`, ids)
	}
	if err != nil {
		return fmt.Errorf("keep what was seen: %w", err)
	}
	return nil
}

// sameDay is how far apart two charges of one customer and amount may be to be
// taken for one that was made twice.
const sameDay = 24 * time.Hour

// judgeStrangers finds charges that no bill is known by and of which nothing has
// gone back. Beside a charge of ours of the same customer and amount, made on
// the same day, one may be the same bill collected by another road: whether it
// is, nothing at Stripe can prove.
func (p *pass) judgeStrangers(ctx context.Context) error {
	for _, statement := range []string{`CREATE INDEX IF NOT EXISTS reconcile_seen_taken ON reconcile_seen (customer, amount, created)`, `ANALYZE reconcile_seen`} {
		if _, err := p.conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("judge strangers: %w", err)
		}
	}
	for after := ""; ; {
		rows, err := p.conn.Query(ctx, `SELECT s.charge, s.intent, s.amount, s.currency, s.marked_customer, s.marked_period, s.detail, coalesce(o.charge, '')
			FROM reconcile_seen s LEFT JOIN LATERAL (
				SELECT charge FROM reconcile_seen o WHERE o.customer = s.customer AND o.customer <> '' AND o.amount = s.amount AND o.currency = s.currency AND o.ours
					AND NOT o.refunded AND o.created BETWEEN s.created - $2 * interval '1 second' AND s.created + $2 * interval '1 second'
				ORDER BY abs(extract(epoch FROM o.created - s.created)), o.charge LIMIT 1) o ON true
			WHERE s.charge > $1 AND NOT s.ours AND NOT s.refunded ORDER BY s.charge LIMIT $3`, after, sameDay.Seconds(), passRows)
		if err != nil {
			return fmt.Errorf("judge strangers: %w", err)
		}
		found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (finding Difference, err error) {
			var f Found
			var currency, detail, beside string
			if err := row.Scan(&f.ChargeID, &f.IntentID, &f.Amount.Minor, &currency, &f.CustomerID, &f.Period, &detail, &beside); err != nil {
				return finding, err
			}
			f.ID, f.Amount.Currency = f.ChargeID, domain.Currency(currency)
			finding = differenceOf(DifferenceOrphan, bill{}, f)
			finding.Detail, finding.Action = detail, "find out who made it; refund it at Stripe if nobody should have, or dismiss it with the reason"
			if beside != "" {
				finding.Kind = DifferencePossible
				finding.Detail = detail + "; " + beside + " took the same amount from the same customer on the same day"
				finding.Action = "find out whether " + f.ChargeID + " and " + beside + " are for the same thing; refund one at Stripe, or dismiss it with the reason"
			}
			return finding, nil
		})
		if err != nil {
			return fmt.Errorf("judge strangers: %w", err)
		}
		if len(found) == 0 {
			return nil
		}
		if err := p.keep(ctx, p.pool, found...); err != nil {
			return err
		}
		after = found[len(found)-1].Subject
	}
}

// compareRefunds finds refunds of ours that are something else at Stripe.
func (p *pass) compareRefunds(ctx context.Context) error {
	rows, err := p.pool.Query(ctx, `SELECT customer_id, billing_period, refund_id, amount, currency FROM refund_records
		WHERE state = 'needs_review' AND `+inScope+` ORDER BY customer_id, refund_id`, p.period(), p.since())
	if err != nil {
		return fmt.Errorf("read refunds: %w", err)
	}
	var customer, period, refund string
	var asked domain.Money
	var found []Difference // few: each waits for a person
	var ids []domain.CustomerID
	var names []string
	if _, err := pgx.ForEachRow(rows, []any{&customer, &period, &refund, &asked.Minor, &asked.Currency}, func() error {
		found = append(found, Difference{Kind: DifferenceRefund, CustomerID: customer, BillingPeriod: period, Detail: "refund " + refund + " of " + asked.String() + " is another one at Stripe",
			Action: "billingctl refunds accept lets it stand; refund what is still missing under another name"})
		ids, names = append(ids, domain.CustomerID(customer)), append(names, refund)
		return nil
	}); err != nil {
		return fmt.Errorf("read refunds: %w", err)
	}
	customers, _, err := p.d.Customers(ctx, p.pool, ids)
	if err != nil {
		return err
	}
	for i, f := range found {
		q, err := domain.ParsePeriod(f.BillingPeriod)
		if err != nil {
			return fmt.Errorf("read refunds: %w", err)
		}
		r, ok := customers[ids[i]].MoneyBack(q).InReview(names[i])
		if !ok {
			continue // an operator has spoken, and the row has not followed yet
		}
		f.Subject, f.ChargeID, f.Amount = r.StripeRefundID, r.ChargeID, r.Amount
		f.Detail += ": " + r.Reason
		if err := p.keep(ctx, p.pool, f); err != nil {
			return err
		}
	}
	return nil
}
