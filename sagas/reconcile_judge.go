package sagas

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// judge compares successes with the log, and takes over what it does not have.
// Whether a second success has gone back is told by the list of charges alone.
func (p *pass) judge(ctx context.Context, ours []success, charges bool) error {
	if len(ours) == 0 {
		return nil
	}
	ids := make([]domain.CustomerID, len(ours))
	for i, s := range ours {
		ids[i] = s.bill.customer
	}
	customers, broken, err := p.d.Customers(ctx, p.pool, ids)
	if err != nil {
		return err
	}
	var news []success
	for _, s := range ours {
		if err := broken[s.bill.customer]; err != nil {
			finding := differenceOf(DifferenceRow, s.bill, s.found)
			finding.Detail, finding.Action = "the customer's facts cannot be read", "repair the log or run the version that wrote it, then reconcile again"
			if err := p.keep(ctx, p.pool, finding); err != nil {
				return err
			}
			continue
		}
		b, _ := customers[s.bill.customer].Bill(s.bill.period)
		switch {
		case s.knownTo(b):
			if err := p.sameAmount(ctx, p.pool, s, b); err != nil {
				return err
			}
		case b.Status == domain.BillPaid && (!charges || s.found.Refunded || dealtWith(customers[s.bill.customer].MoneyBack(s.bill.period), s.found.ChargeID)):
		default:
			news = append(news, s)
		}
	}
	if news, err = p.unclaimed(ctx, news); err != nil || len(news) == 0 {
		return err
	}
	return p.take(ctx, news)
}

// dealtWith reports whether the refund of a surplus charge was proposed and
// then dismissed, or is on its way.
func dealtWith(back domain.MoneyBack, charge string) bool {
	proposal, ok := back.Proposal(charge)
	return ok && !back.Open(proposal)
}

// sameAmount finds a charge that took something else than its bill.
func (p *pass) sameAmount(ctx context.Context, q eventstore.Querier, s success, b domain.Bill) error {
	if b.Amount.Minor == 0 || b.Amount == s.found.Amount {
		return nil
	}
	finding := differenceOf(DifferenceMismatch, s.bill, s.found)
	finding.Detail = "Stripe took " + s.found.Amount.String() + ", the bill is " + b.Amount.String()
	finding.Action = "compare with the customer; refund what was taken too much"
	return p.keep(ctx, q, finding)
}

// unclaimed leaves out bills that a worker has in its hands: it is about to
// write what was found here.
func (p *pass) unclaimed(ctx context.Context, news []success) ([]success, error) {
	if len(news) == 0 {
		return nil, nil
	}
	claimed, err := claimedOf(ctx, p.pool, news, func(s success) bill { return s.bill })
	return slices.DeleteFunc(news, func(s success) bool { return claimed[s.bill] }), err
}

// take records successes that the log does not have, with their findings, in
// one transaction.
func (p *pass) take(ctx context.Context, news []success) error {
	return p.holding(ctx, news, func(h *held) error {
		before := make([]domain.Bill, len(news))
		for i, s := range news {
			before[i] = h.bill(s.bill)
		}
		if _, err := h.record(ctx, p.meta, news); err != nil {
			return err
		}
		for i, s := range news {
			was, b := before[i], h.bill(s.bill)
			if s.knownTo(was) {
				continue // told meanwhile
			}
			finding := differenceOf(DifferenceUnrecorded, s.bill, s.found)
			finding.Detail, finding.Repaired, finding.Action = "the log said "+string(was.Status), true, "recorded as recovered"
			switch {
			case !s.knownTo(b):
				finding.Kind, finding.Repaired = DifferenceDuplicate, false
				finding.Detail, finding.Action = "the bill is paid by "+b.ChargeID, "a refund is proposed: billingctl refunds list"
			case !was.Status.Known():
				finding.Kind, finding.Detail = DifferenceOrphan, "the log had not asked for it; its markers are a bill's"
			}
			if err := p.keep(ctx, h.tx, finding); err != nil {
				return err
			}
			if s.knownTo(b) {
				if err := p.sameAmount(ctx, h.tx, s, was); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// holding does work in a transaction that holds the successes' bills, and does
// it again if others were in the way.
func (p *pass) holding(ctx context.Context, all []success, work func(*held) error) error {
	var bills []bill
	for _, s := range all {
		if !slices.Contains(bills, s.bill) {
			bills = append(bills, s.bill)
		}
	}
	for n, wait := 1, 20*time.Millisecond; ; n, wait = n+1, 2*wait {
		var unit *commands.Unit
		err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
			h, err := hold(ctx, p.d, tx, bills)
			if err != nil {
				return err
			}
			unit = h.unit
			return work(h)
		})
		switch {
		case err == nil:
			unit.Committed()
			return nil
		case n == passTries || !eventstore.Transient(err) || ctx.Err() != nil:
			return err
		}
		pause(ctx, jitter(wait))
	}
}

// match gives news of which the bill was not known to the bills that were seen
// with the same charge or intent.
func (p *pass) match(ctx context.Context, ours []success) error {
	if !p.deferred || len(ours) == 0 {
		return nil
	}
	n := len(ours)
	customers, periods, intents, charges := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, s := range ours {
		customers[i], periods[i], intents[i], charges[i] = string(s.bill.customer), s.bill.period.String(), s.found.IntentID, s.found.ChargeID
	}
	_, err := p.pool.Exec(ctx, `
		UPDATE webhook_inbox w SET customer_id = u.customer, billing_period = u.period, next_try_at = clock_timestamp()
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS u(customer, period, intent, charge)
		WHERE w.state = 'deferred' AND w.customer_id IS NULL AND (w.charge_id = u.charge OR w.intent_id = nullif(u.intent, ''))`,
		customers, periods, intents, charges)
	if err != nil {
		return fmt.Errorf("match deferred news: %w", err)
	}
	return nil
}
