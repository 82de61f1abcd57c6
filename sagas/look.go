package sagas

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// Look reads what Stripe already holds, so that nothing is created over it: a
// charge that another road made, an intent that a lost transaction had
// created, everything that a restored database has forgotten.
//
// A start sweeps both lists, payment intents and charges, from what was last
// committed less an hour; the first start from LookSince, default everything.
// While the collector creates, the look goes on by cursor, one read about
// every hundred creates and at least once a minute. Progress is kept in
// Stripe's own time, so that a restore takes it back too.
type Look struct {
	c         *Collector
	completed atomic.Bool
	creates   atomic.Int64 // since the last read
	total     atomic.Int64
	commits   atomic.Int64
	adopted   atomic.Int64
	ask       chan struct{}
}

// Limits of the look.
const (
	lookPage    = 100 // Stripe's most
	lookOverlap = time.Hour
	lookCreates = 100
	lookEvery   = time.Minute
)

var lookResources = [...]string{"payment_intents", "charges"}

func newLook(c *Collector) *Look { return &Look{c: c, ask: make(chan struct{}, 1)} }

// Completed reports whether the start's sweep is complete.
func (l *Look) Completed() bool { return l.completed.Load() }

// Adopted counts the objects at Stripe that the log did not know of.
func (l *Look) Adopted() int64 { return l.adopted.Load() }

// created counts a create; enough of them ask for the next read.
func (l *Look) created() {
	l.total.Add(1)
	if l.creates.Add(1) >= lookCreates {
		select {
		case l.ask <- struct{}{}:
		default:
		}
	}
}

// complete sweeps both lists to their ends.
func (l *Look) complete(ctx context.Context) error {
	began := time.Now()
	var seen int
	for _, resource := range lookResources {
		n, err := l.sweep(ctx, resource)
		if err != nil {
			return fmt.Errorf("look at %s: %w", resource, err)
		}
		seen += n
	}
	l.completed.Store(true)
	l.c.log.Info("look complete", "objects", seen, "adopted", l.adopted.Load(), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// follow goes on by cursor while the collector creates.
func (l *Look) follow(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ask:
		case <-tick.C:
		}
		if l.creates.Swap(0) == 0 {
			continue
		}
		for _, resource := range lookResources {
			if err := l.goOn(ctx, resource); err != nil && ctx.Err() == nil {
				l.creates.Add(1) // so that the next tick tries again
				l.c.log.Warn("the look could not go on; trying again", "resource", resource, "error", err)
			}
		}
	}
}

// progress is how far a list has been read, in Stripe's own time.
type progress struct {
	through *time.Time
	cursor  string
}

func (l *Look) progress(ctx context.Context, resource string) (p progress, err error) {
	err = l.c.pool.QueryRow(ctx, `SELECT swept_through, coalesce(cursor, '') FROM looks WHERE resource = $1`, resource).Scan(&p.through, &p.cursor)
	if errors.Is(err, pgx.ErrNoRows) {
		return progress{}, nil
	}
	return p, err
}

// sweep reads a list from its newest object down to where the last sweep
// stood, less an hour, and adopts what it finds. What is newer than the sweep's
// first page is left to the next read by cursor.
func (l *Look) sweep(ctx context.Context, resource string) (seen int, err error) {
	at, err := l.progress(ctx, resource)
	if err != nil {
		return 0, fmt.Errorf("read its progress: %w", err)
	}
	since := l.c.config.LookSince
	if at.through != nil {
		since = at.through.Add(-lookOverlap)
	}
	listing := Listing{Resource: resource, Since: since, PageSize: lookPage}
	var newest progress
	for {
		page, err := l.page(ctx, listing)
		if err != nil {
			return seen, err
		}
		if err := l.adopt(ctx, page.Found, false); err != nil {
			return seen, err
		}
		seen += len(page.Found)
		if newest.cursor == "" && len(page.Found) > 0 {
			newest = progress{&page.Found[0].Created, page.Found[0].ID}
		}
		if !page.More || len(page.Found) == 0 {
			break
		}
		listing.After = page.Found[len(page.Found)-1].ID
	}
	if newest.cursor == "" {
		return seen, nil // an empty list says nothing about how far it was read
	}
	return seen, l.commit(ctx, resource, newest)
}

// goOn reads what is newer than the cursor.
func (l *Look) goOn(ctx context.Context, resource string) error {
	at, err := l.progress(ctx, resource)
	if err != nil {
		return fmt.Errorf("read its progress: %w", err)
	}
	if at.cursor == "" {
		_, err := l.sweep(ctx, resource)
		return err
	}
	for {
		page, err := l.page(ctx, Listing{Resource: resource, Before: at.cursor, PageSize: lookPage})
		if err != nil {
			return err
		}
		if len(page.Found) == 0 {
			return nil
		}
		if err := l.adopt(ctx, page.Found, true); err != nil {
			return err
		}
		at = progress{&page.Found[0].Created, page.Found[0].ID}
		if err := l.commit(ctx, resource, at); err != nil {
			return err
		}
		if !page.More {
			return nil
		}
	}
}

func (l *Look) page(ctx context.Context, listing Listing) (Page, error) {
	if err := l.c.limit.Wait(ctx); err != nil {
		return Page{}, err
	}
	return l.c.gateway.List(ctx, listing)
}

// commit keeps the progress; it never goes back by itself.
func (l *Look) commit(ctx context.Context, resource string, p progress) error {
	_, err := l.c.pool.Exec(ctx, `
		INSERT INTO looks (resource, swept_through, cursor) VALUES ($1, $2, $3)
		ON CONFLICT (resource) DO UPDATE SET swept_through = excluded.swept_through, cursor = excluded.cursor, updated_at = clock_timestamp()
		WHERE looks.swept_through IS NULL OR looks.swept_through <= excluded.swept_through`, resource, p.through, p.cursor)
	if err != nil {
		return fmt.Errorf("commit the progress of the look: %w", err)
	}
	l.commits.Add(1)
	return nil
}

// marked is an object at Stripe whose markers name a bill of ours.
type marked struct {
	Found
	bill bill
}

// adopt compares a page with the log and takes over what the log does not
// know. Ongoing: rows under a live claim are left to their workers.
func (l *Look) adopt(ctx context.Context, page []Found, ongoing bool) error {
	var found []marked
	var ids []domain.CustomerID
	for _, f := range page {
		customer, err1 := domain.ParseCustomerID(f.CustomerID)
		period, err2 := domain.ParsePeriod(f.Period)
		if err1 != nil || err2 != nil || f.BillingKey != string(domain.ChargeKey(customer, period, 1)) {
			continue // not ours: somebody else's use of the account
		}
		found = append(found, marked{f, bill{customer, period}})
		ids = append(ids, customer)
	}
	if len(found) == 0 {
		return nil
	}
	customers, broken, err := l.c.d.Customers(ctx, l.c.pool, ids)
	if err != nil {
		return err
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
	if len(news) == 0 {
		return nil
	}
	if ongoing {
		if news, err = l.unclaimed(ctx, news); err != nil || len(news) == 0 {
			return err
		}
	}
	orphans, err := l.take(ctx, news)
	if err != nil {
		return err
	}
	for _, o := range orphans {
		if err := l.cancelOrphan(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// unknownTo reports whether the object says something that the bill's facts do
// not.
func (m marked) unknownTo(b domain.Bill) bool {
	switch {
	case m.Succeeded:
		return b.Status != domain.BillPaid || m.ChargeID != "" && b.ChargeID != m.ChargeID
	case m.IntentID == "" || m.ID != m.IntentID || m.Status == "canceled":
		return false // a failed charge, or an intent that can take nothing
	}
	return b.IntentID != m.IntentID
}

// unclaimed leaves out bills that a worker holds at this moment.
func (l *Look) unclaimed(ctx context.Context, news []marked) ([]marked, error) {
	bills := make([]bill, len(news))
	for i, m := range news {
		bills[i] = m.bill
	}
	rows := &pgx.Batch{}
	queueRecordsUnlocked(rows, bills, `state = 'sending' AND lease_until > clock_timestamp()`)
	results := l.c.pool.SendBatch(ctx, rows)
	defer results.Close()
	held, err := results.Query()
	if err != nil {
		return nil, fmt.Errorf("read claims: %w", err)
	}
	records, err := scanRecords(held)
	if err != nil {
		return nil, fmt.Errorf("read claims: %w", err)
	}
	claimed := map[bill]bool{}
	for _, r := range records {
		claimed[r.bill()] = true
	}
	rest := news[:0]
	for _, m := range news {
		if !claimed[m.bill] {
			rest = append(rest, m)
		}
	}
	return rest, nil
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
		for i := len(news) - 1; i >= 0; i-- {
			m := news[i]
			b, _ := unit.Customer(m.bill.customer).Bill(m.bill.period)
			if m.Succeeded != succeeded || !m.unknownTo(b) {
				continue
			}
			if !succeeded && crashpoint.Broken(crashpoint.Adopt) {
				continue
			}
			if !succeeded && (b.IntentID != "" || b.Status.Final()) {
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
			if m.Succeeded {
				settle(r, b, domain.Outcome{Class: domain.Paid, ChargeID: m.ChargeID, IntentID: m.IntentID, Money: m.Amount, Source: domain.SourceLook})
			} else {
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
	if m.Succeeded {
		return commands.Of(commands.NewRecordChargeOutcome(m.bill.customer, m.bill.period, max(b.Attempt, 1), b.Start, domain.Outcome{
			Class: domain.Paid, ChargeID: m.ChargeID, IntentID: m.IntentID, Money: m.Amount, Source: domain.SourceLook, Recovered: b.Attempt == 0,
			Evidence: m.ID + " " + m.Status,
		}))
	}
	return commands.Of(commands.CommitIntent{CustomerID: m.bill.customer, BillingPeriod: m.bill.period, IntentID: m.IntentID, Adopted: true})
}

// cancelOrphan cancels an open intent of a bill that has another committed, or
// has ended. A success that it meets is recorded.
func (l *Look) cancelOrphan(ctx context.Context, m marked) error {
	o := Order{CustomerID: m.bill.customer, Period: m.bill.period, Attempt: 1, Amount: m.Amount, StripeCustomerID: m.StripeCustomerID,
		IntentNo: 1, IntentID: m.IntentID, LatestCharge: m.ChargeID}
	f := cancelOrFind(ctx, l.c.gateway, o, "duplicate")
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
