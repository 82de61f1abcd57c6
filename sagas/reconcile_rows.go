package sagas

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/billonce/billonce/domain"
)

// compareRows goes through the rows in scope: each must say what the log says,
// and what the log says is paid Stripe must have.
func (p *pass) compareRows(ctx context.Context) error {
	var customer, period string
	for {
		// Rows are read before the log: a row is never ahead of its facts.
		rows, err := p.pool.Query(ctx, `SELECT `+recordColumns+` FROM billing_records WHERE `+inScope+`
			AND (customer_id, billing_period) > ($3, $4) ORDER BY customer_id, billing_period LIMIT $5`, p.period(), p.since(), customer, period, passRows)
		if err != nil {
			return fmt.Errorf("read rows: %w", err)
		}
		page, err := scanRecords(rows)
		if err != nil {
			return fmt.Errorf("read rows: %w", err)
		}
		if len(page) == 0 {
			return nil
		}
		last := page[len(page)-1]
		customer, period = string(last.customer), last.period.String()
		if err := p.comparePage(ctx, page); err != nil {
			return err
		}
		p.bills += int64(len(page))
		if err := p.note(ctx); err != nil {
			return err
		}
	}
}

func (p *pass) comparePage(ctx context.Context, page []*record) error {
	ids := make([]domain.CustomerID, len(page))
	for i, r := range page {
		ids[i] = r.customer
	}
	customers, broken, err := p.d.Customers(ctx, p.pool, ids)
	if err != nil {
		return err
	}
	var paid []billed
	for _, r := range page {
		finding := Difference{Kind: DifferenceRow, Subject: string(r.customer) + " " + r.period.String(), CustomerID: string(r.customer), BillingPeriod: r.period.String(),
			IntentID: r.intentID, Action: "look at the bill: billingctl bill " + string(r.customer) + " " + r.period.String()}
		if broken[r.customer] != nil {
			finding.Detail, finding.Action = "the customer's facts cannot be read", "repair the log or run the version that wrote it, then reconcile again"
			if err := p.keep(ctx, p.pool, finding); err != nil {
				return err
			}
			continue
		}
		b, _ := customers[r.customer].Bill(r.period)
		if b.Amount.Minor != 0 && b.Amount != r.amount {
			finding.Detail = "the row asks for " + r.amount.String() + ", the bill is " + b.Amount.String()
			if err := p.keep(ctx, p.pool, finding); err != nil {
				return err
			}
		}
		switch isPaid := b.Status == domain.BillPaid; {
		case isPaid && r.state != stateSucceeded:
			err = p.mend(ctx, r, b, finding)
		case !isPaid && r.state == stateSucceeded:
			err = p.contradiction(ctx, r, b, finding)
		}
		if err != nil {
			return err
		}
		if b.Status == domain.BillPaid {
			order := r.order()
			order.LatestCharge = ""
			if b.IntentID != "" {
				order.IntentID = b.IntentID
			}
			paid = append(paid, billed{r.bill(), b, order})
		}
	}
	return p.missing(ctx, paid)
}

// mend brings a row to where its bill stands, if that is still so under the
// locks.
func (p *pass) mend(ctx context.Context, r *record, b domain.Bill, finding Difference) error {
	s := success{bill: r.bill(), found: Found{ID: b.ChargeID, ChargeID: b.ChargeID, IntentID: b.IntentID, Amount: b.Amount}, source: domain.SourceReconcile}
	return p.holding(ctx, []success{s}, func(h *held) error {
		row := h.rows[s.bill]
		if row == nil || row.state == stateSucceeded || !s.knownTo(h.bill(s.bill)) {
			return nil
		}
		finding.Detail, finding.Repaired, finding.Action = "the row says "+row.state+", the bill is paid", true, "the row follows the log"
		if _, err := h.record(ctx, p.meta, []success{s}); err != nil {
			return err
		}
		return p.keep(ctx, h.tx, finding)
	})
}

// contradiction is a row that says paid where the log does not: its intent
// decides, if it can be read.
func (p *pass) contradiction(ctx context.Context, r *record, b domain.Bill, finding Difference) error {
	finding.Detail = "the row says succeeded, the log says " + string(b.Status)
	if r.intentID != "" {
		order := r.order()
		order.LatestCharge = ""
		f, err := p.find(ctx, order)
		if err != nil {
			return err
		}
		if f.State == IntentDecided && f.Outcome.Class == domain.Paid {
			found := Found{ID: r.intentID, IntentID: r.intentID, ChargeID: f.Outcome.ChargeID, Status: "succeeded", Succeeded: true, Amount: f.Outcome.Money}
			return p.take(ctx, []success{p.success(r.bill(), found)})
		}
	}
	return p.keep(ctx, p.pool, finding)
}

// find reads an intent.
func (p *pass) find(ctx context.Context, o Order) (Finding, error) {
	return read(ctx, p, func(ctx context.Context) (Finding, error) {
		f := p.gateway.Find(ctx, o)
		if f.State == IntentUnreachable {
			return f, errors.New("read " + o.IntentID + ": " + f.Outcome.Reason)
		}
		return f, nil
	})
}

// billed is a bill that the log says is paid.
type billed struct {
	bill  bill
	state domain.Bill
	order Order
}

// charge reads a charge by its id.
func (p *pass) charge(ctx context.Context, id string) (f Found, there bool, err error) {
	f, err = read(ctx, p, func(ctx context.Context) (v Found, err error) {
		v, there, err = p.gateway.Charge(ctx, id)
		return v, err
	})
	return f, there, err
}

// missing finds bills whose charges Stripe does not have. A charge that the
// sweep has not met may lie outside of its window: its intent is read, and a
// charge that has none by itself.
func (p *pass) missing(ctx context.Context, paid []billed) error {
	unseen, err := p.unseen(ctx, paid)
	if err != nil || len(unseen) == 0 {
		return err
	}
	var mu sync.Mutex
	var findings []Difference
	var read []Found // what is there, outside of the sweep or without its charge's id
	took := func(charge string, m domain.Money) {
		mu.Lock()
		defer mu.Unlock()
		read = append(read, Found{ChargeID: charge, Amount: m})
	}
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(passReads)
	for _, c := range unseen {
		reads.Go(func() error {
			finding := differenceOf(DifferenceMissing, c.bill, Found{ChargeID: c.state.ChargeID, ID: c.order.IntentID, IntentID: c.state.IntentID})
			finding.Detail, finding.Action = "Stripe's list of charges does not hold it", "look for it at Stripe, in another account or mode; billingctl bill tells how it was learnt of"
			if c.order.IntentID != "" {
				f, err := p.find(ctx, c.order)
				if err != nil {
					return err
				}
				switch {
				case f.State == IntentDecided && f.Outcome.Class == domain.Paid && (c.state.ChargeID == "" || f.Outcome.ChargeID == c.state.ChargeID):
					took(f.Outcome.ChargeID, f.Outcome.Money)
					return nil
				case f.State == IntentDecided && f.Outcome.Class == domain.NeedsReview:
					finding.Kind, finding.Detail = DifferenceMismatch, "its intent is not what was frozen: "+f.Outcome.Reason
				default:
					finding.Detail = "its intent is " + string(f.State) + " at Stripe"
				}
			}
			if finding.Kind == DifferenceMissing && c.state.ChargeID != "" {
				f, found, err := p.charge(ctx, c.state.ChargeID)
				switch {
				case err != nil:
					return err
				case found && c.order.StripeCustomerID != "" && f.StripeCustomerID != "" && f.StripeCustomerID != c.order.StripeCustomerID:
					finding.Kind, finding.Detail = DifferenceMismatch, "the charge is of another customer, "+f.StripeCustomerID
				case found && f.Succeeded:
					took(f.ChargeID, f.Amount)
					return p.sameAmount(ctx, p.pool, success{bill: c.bill, found: f}, c.state)
				case found:
					finding.Detail = "the charge is " + f.Status + " at Stripe"
				}
			}
			mu.Lock()
			defer mu.Unlock()
			findings = append(findings, finding)
			return nil
		})
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := p.tookUnseen(ctx, read); err != nil {
		return err
	}
	return p.keep(ctx, p.pool, findings...)
}

// tookUnseen counts what was read by itself, but for charges that the sweep has
// met and counted.
func (p *pass) tookUnseen(ctx context.Context, read []Found) error {
	charges := make([]string, len(read))
	for i, f := range read {
		charges[i] = f.ChargeID
	}
	unseen, err := p.unseenCharges(ctx, charges)
	for _, i := range unseen {
		p.took(read[i].Amount)
	}
	return err
}

// unseen are those whose charges the sweep has not met.
func (p *pass) unseen(ctx context.Context, paid []billed) ([]billed, error) {
	charges := make([]string, len(paid))
	for i, c := range paid {
		charges[i] = c.state.ChargeID
	}
	indexes, err := p.unseenCharges(ctx, charges)
	unseen := make([]billed, len(indexes))
	for i, n := range indexes {
		unseen[i] = paid[n]
	}
	return unseen, err
}

// unseenCharges are the indexes of charges that the sweep has not met.
func (p *pass) unseenCharges(ctx context.Context, charges []string) ([]int64, error) {
	if len(charges) == 0 {
		return nil, nil
	}
	rows, err := p.conn.Query(ctx, `SELECT n - 1 FROM unnest($1::text[]) WITH ORDINALITY AS u(charge, n)
		WHERE NOT EXISTS (SELECT FROM reconcile_seen s WHERE s.charge = u.charge)`, charges)
	if err != nil {
		return nil, fmt.Errorf("compare with what was seen: %w", err)
	}
	indexes, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("compare with what was seen: %w", err)
	}
	return indexes, nil
}

// compareRowless is for bills that were recovered and have no row.
func (p *pass) compareRowless(ctx context.Context) error {
	var position int64
	for {
		rows, err := p.pool.Query(ctx, `SELECT e.position, e.payload->>'customer_id', e.payload->>'billing_period' FROM events e
			WHERE e.event_type = 'customer.billed.v1' AND e.position > $3 AND ($1 = '' OR e.payload->>'billing_period' = $1)
				AND e.recorded_at >= coalesce($2::timestamptz, '-infinity')
				AND NOT EXISTS (SELECT FROM billing_records r WHERE r.customer_id = e.payload->>'customer_id' AND r.billing_period = e.payload->>'billing_period')
			ORDER BY e.position LIMIT $4`, p.period(), p.since(), position, passRows)
		if err != nil {
			return fmt.Errorf("read recovered bills: %w", err)
		}
		var ids []domain.CustomerID
		var bills []bill
		for rows.Next() {
			var customer, period string
			if err := rows.Scan(&position, &customer, &period); err != nil {
				rows.Close()
				return fmt.Errorf("read recovered bills: %w", err)
			}
			q, err := domain.ParsePeriod(period)
			if err != nil {
				rows.Close()
				return fmt.Errorf("read recovered bills: %w", err)
			}
			ids, bills = append(ids, domain.CustomerID(customer)), append(bills, bill{domain.CustomerID(customer), q})
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("read recovered bills: %w", err)
		}
		if len(bills) == 0 {
			return nil
		}
		customers, _, err := p.d.Customers(ctx, p.pool, ids)
		if err != nil {
			return err
		}
		var paid []billed
		for _, at := range bills {
			b, _ := customers[at.customer].Bill(at.period)
			if b.Status == domain.BillPaid {
				paid = append(paid, billed{at, b, Order{CustomerID: at.customer, Period: at.period, Attempt: 1, IntentNo: 1,
					Amount: b.Amount, StripeCustomerID: b.StripeCustomerID, IntentID: b.IntentID}})
			}
		}
		if err := p.missing(ctx, paid); err != nil {
			return err
		}
		p.bills += int64(len(bills))
		if err := p.note(ctx); err != nil {
			return err
		}
	}
}
