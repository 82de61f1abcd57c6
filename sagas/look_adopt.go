package sagas

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// marked is an object at Stripe whose markers name a bill of ours.
type marked struct {
	Found
	bill bill
}

// open reports whether the object is an intent that has taken nothing and
// still may.
func (m marked) open() bool { return !m.Succeeded && m.Status != "canceled" }

// news is what of a page is ours and unknown to the log. While the collector
// works, the newest objects are those of bills that its workers hold: these are
// left to them, before their customers' facts are read.
func (l *Look) news(ctx context.Context, page []Found, ongoing bool) ([]marked, error) {
	var found []marked
	for _, f := range page {
		b, ours := billOf(f)
		if !ours {
			continue // somebody else's use of the account
		}
		if m := (marked{f, b}); m.tells() {
			found = append(found, m)
		}
	}
	found, err := l.unrecorded(ctx, found, ongoing)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	ids := make([]domain.CustomerID, len(found))
	for i, m := range found {
		ids[i] = m.bill.customer
	}
	customers, broken, err := l.c.d.Customers(ctx, l.c.pool, ids)
	if err != nil {
		return nil, err
	}
	for id, err := range broken { // nothing is created for them either, until their facts can be read
		l.c.log.Error("the look passes over a customer whose facts cannot be read; restart after the repair", "customer", id, "error", err)
	}
	var news []marked
	for _, m := range found {
		if broken[m.bill.customer] != nil {
			continue
		}
		b, _ := customers[m.bill.customer].Bill(m.bill.period)
		if m.unknownTo(b) {
			news = append(news, m)
		}
	}
	return news, nil
}

// tells reports whether the object may have anything to say: an intent that
// can take nothing, or a charge that has, says nothing about its bill.
func (m marked) tells() bool {
	return m.Succeeded || m.closed() || m.IntentID != "" && m.ID == m.IntentID && m.Status != "canceled"
}

// unrecorded leaves out what the pre-flight rows show as known: nearly
// everything, and at a fraction of what reading the facts of all these
// customers costs. What a row says, the log said in the same transaction.
// Ongoing leaves out bills that a worker holds at this moment, too.
func (l *Look) unrecorded(ctx context.Context, found []marked, ongoing bool) ([]marked, error) {
	if len(found) == 0 {
		return nil, nil
	}
	customers, periods := make([]string, len(found)), make([]string, len(found))
	for i, m := range found {
		customers[i], periods[i] = string(m.bill.customer), m.bill.period.String()
	}
	rows, err := l.c.pool.Query(ctx, `
		SELECT customer_id, billing_period, coalesce(intent_id, ''), CASE WHEN state = 'succeeded' THEN coalesce(outcome->>'charge_id', '') ELSE '' END,
			coalesce(state = 'sending' AND lease_until > clock_timestamp(), false)
		FROM billing_records WHERE (customer_id, billing_period) IN (SELECT * FROM unnest($1::text[], $2::text[]))`, customers, periods)
	if err != nil {
		return nil, fmt.Errorf("read the rows of what was found: %w", err)
	}
	type recorded struct {
		intent, charge string
		claimed        bool
	}
	known := make(map[[2]string]recorded, len(found))
	var customer, period string
	var k recorded
	if _, err := pgx.ForEachRow(rows, []any{&customer, &period, &k.intent, &k.charge, &k.claimed}, func() error {
		known[[2]string{customer, period}] = k
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the rows of what was found: %w", err)
	}
	rest := found[:0]
	for i, m := range found {
		k := known[[2]string{customers[i], periods[i]}]
		if m.Succeeded && m.ChargeID != "" && m.ChargeID == k.charge || m.open() && m.IntentID == k.intent || ongoing && k.claimed {
			continue
		}
		rest = append(rest, m)
	}
	return rest, nil
}

// unknownTo reports whether the object says something that the bill's facts do
// not.
func (m marked) unknownTo(b domain.Bill) bool {
	switch {
	case m.Succeeded:
		return b.Status != domain.BillPaid || m.ChargeID != "" && b.ChargeID != m.ChargeID
	case m.IntentID == "" || m.ID != m.IntentID:
		return false // a failed charge
	case m.Status == "canceled":
		return m.closed() && b.MayBeSettled()
	}
	return b.IntentID != m.IntentID
}

// closed reports whether the intent was cancelled because its bill was being
// closed, and not as a duplicate.
func (m marked) closed() bool {
	return m.Status == "canceled" && m.CancellationReason == cancelClosing
}

// take records what was found: successes as paid, open intents as the bills'
// committed ones. It returns open intents of bills that have another.
func (l *Look) take(ctx context.Context, news []marked) (orphans []marked, err error) {
	var unit *commands.Unit
	err = pgx.BeginFunc(ctx, l.c.pool, func(tx pgx.Tx) error {
		orphans, unit, err = l.takeIn(ctx, tx, news)
		crashpoint.Reach("adopt.committing")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	crashpoint.Reach("adopt.committed")
	unit.Committed()
	l.commits.Add(1)
	return orphans, nil
}

func (l *Look) takeIn(ctx context.Context, tx pgx.Tx, news []marked) (orphans []marked, unit *commands.Unit, err error) {
	bills := make([]bill, len(news))
	for i, m := range news {
		bills[i] = m.bill
	}
	rows, byBill := &pgx.Batch{}, map[bill]*record{}
	queueRecords(rows, bills, "true", false)
	unit, err = l.c.d.Begin(ctx, tx, streamsOf(bills), rows, func(results pgx.BatchResults) error {
		locked, err := results.Query()
		if err != nil {
			return fmt.Errorf("lock rows: %w", err)
		}
		records, err := scanRecords(locked)
		for _, r := range records {
			byBill[r.bill()] = r
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	var changed []*record
	// Oldest first: of several open intents of a bill the oldest is adopted.
	// Successes come before them all.
	for _, succeeded := range []bool{true, false} {
		for _, m := range slices.Backward(news) {
			b, _ := unit.Customer(m.bill.customer).Bill(m.bill.period)
			if m.Succeeded != succeeded || !m.unknownTo(b) {
				continue
			}
			if m.open() && crashpoint.Broken(crashpoint.Adopt) {
				continue
			}
			if m.open() && (b.IntentID != "" || b.Status.Final()) {
				orphans = append(orphans, m)
				continue
			}
			replies, err := unit.Dispatch(ctx, l.c.book.meta, m.request(b))
			if err != nil {
				return nil, nil, err
			}
			if len(replies[0].Events) == 0 {
				continue
			}
			l.adopted.Add(1)
			l.c.log.Warn("found at Stripe what the log did not know; adopted", "customer", m.bill.customer, "period", m.bill.period,
				"object", m.ID, "status", m.Status, "charge", m.ChargeID)
			r := byBill[m.bill]
			if r == nil {
				continue
			}
			b, _ = unit.Customer(m.bill.customer).Bill(m.bill.period)
			switch {
			case m.closed():
				r.state, r.lease, r.backoff = stateOf(b.Status), 0, 0
			case m.Succeeded:
				settle(r, b, domain.Outcome{Class: domain.Paid, ChargeID: m.ChargeID, IntentID: m.IntentID, Money: m.Amount, Source: domain.SourceLook})
			default:
				charge := m.ChargeID
				r.intentID, r.intentNo, r.latestCharge = b.IntentID, b.IntentNo, &charge
				r.state, r.lease, r.backoff = stateOf(b.Status), 0, 0
			}
			changed = append(changed, r)
		}
	}
	return orphans, unit, saveRecords(ctx, tx, distinct(changed))
}

func (m marked) request(b domain.Bill) commands.Request {
	if m.closed() {
		return commands.Of(commands.SuspectSettlement{CustomerID: m.bill.customer, BillingPeriod: m.bill.period, IntentID: m.IntentID})
	}
	if m.Succeeded {
		return commands.Of(commands.NewRecordChargeOutcome(m.bill.customer, m.bill.period, max(b.Attempt, 1), b.Start, domain.Outcome{
			Class: domain.Paid, ChargeID: m.ChargeID, IntentID: m.IntentID, Money: m.Amount, Source: domain.SourceLook, Recovered: b.Attempt == 0 || b.IntentID == "" || b.IntentID != m.IntentID,
			Evidence: m.ID + " " + m.Status,
		}))
	}
	return commands.Of(commands.CommitIntent{CustomerID: m.bill.customer, BillingPeriod: m.bill.period, IntentID: m.IntentID, Adopted: true})
}

// cancelOrphan cancels an open intent of a bill that has another committed, or
// has ended. A success that it meets is recorded. The intent is read first: a
// cancel that is refused while Stripe processes it would be refused under its
// key for good.
func (l *Look) cancelOrphan(ctx context.Context, m marked) error {
	o := Order{CustomerID: m.bill.customer, Period: m.bill.period, Attempt: 1, Amount: m.Amount, StripeCustomerID: m.StripeCustomerID,
		IntentNo: 1, IntentID: m.IntentID, LatestCharge: m.ChargeID}
	f := l.c.gateway.Find(ctx, o)
	switch f.State {
	case IntentUnchanged, IntentAction:
		f = cancelOrFind(ctx, l.c.gateway, o, cancelDuplicate)
	case IntentDecided:
		if f.Outcome.Class == domain.Declined {
			f = cancelOrFind(ctx, l.c.gateway, o, cancelDuplicate)
		}
	case IntentProcessing, IntentCancelled, IntentMissing, IntentUnreachable:
	}
	switch {
	case f.State == IntentCancelled:
		l.c.log.Info("cancelled an intent that its bill does not use", "customer", m.bill.customer, "period", m.bill.period, "intent", m.IntentID)
		return nil
	case f.State == IntentDecided && f.Outcome.Class == domain.Paid:
		m.Succeeded, m.ChargeID, m.Status = true, f.Outcome.ChargeID, "succeeded"
		_, err := l.take(ctx, []marked{m})
		return err
	case f.State == IntentMissing:
		return nil
	}
	return fmt.Errorf("cancel %s, which its bill does not use: %s", m.IntentID, f.State)
}

// Reasons of a cancel, as Stripe keeps them.
const (
	cancelDuplicate = "duplicate"
	cancelClosing   = "requested_by_customer"
)

func distinct(records []*record) []*record {
	seen := map[*record]bool{}
	out := records[:0]
	for _, r := range records {
		if !seen[r] {
			seen[r] = true
			out = append(out, r)
		}
	}
	return out
}
