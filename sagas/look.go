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
)

// Look reads what Stripe already holds, so that nothing is created over it: a
// charge that another road made, an intent that a lost transaction had
// created, everything that a restored database has forgotten.
//
// A start sweeps both lists, charges and payment intents, from what was last
// committed less an hour; the first start from LookSince, default everything.
// While the collector creates, the look goes on by cursor, one read about
// every hundred creates and at least once a minute. Progress is kept in
// Stripe's own time, so that a restore takes it back too.
//
// On a database that has gone back, or that lies elsewhere than it did, a look
// is taken anew before an operator adopts it. It rebuilds facts and changes
// nothing at Stripe: what it would cancel, and how far it has read, it keeps
// until the adoption.
type Look struct {
	c         *Collector
	completed atomic.Int64 // the database's epoch for which it is complete; 0: none
	looked    atomic.Int64 // … for which both lists were swept
	creates   atomic.Int64 // since the last read
	commits   atomic.Int64
	adopted   atomic.Int64
	spent     atomic.Int64 // nanoseconds
	ask       chan struct{}

	// Of the look that Run is taking.
	epoch   int64
	orphans []marked // open intents that their bills do not use, to be cancelled
	swept   []sweep
}

// sweep is a list that was read to its end.
type sweep struct {
	resource string
	from, to progress
}

// Limits of the look.
const (
	lookPage    = 100 // Stripe's most
	lookOverlap = time.Hour
	lookCreates = 100
	lookEvery   = time.Minute
)

// lookResources are the lists in the order of a sweep: what has succeeded is
// known before an open intent is adopted.
var lookResources = [...]string{"charges", "payment_intents"}

func newLook(c *Collector) *Look { return &Look{c: c, ask: make(chan struct{}, 1)} }

// Completed reports whether nothing that Stripe holds stands against creating.
func (l *Look) Completed() bool { return l.completed.Load() != 0 }

// Adopted counts the objects at Stripe that the log did not know of.
func (l *Look) Adopted() int64 { return l.adopted.Load() }

// Spent is how long the look has been reading and comparing.
func (l *Look) Spent() time.Duration { return time.Duration(l.spent.Load()) }

// timed adds what f takes to Spent.
func (l *Look) timed(f func() error) error {
	began := time.Now()
	defer func() { l.spent.Add(int64(time.Since(began))) }()
	return f()
}

// created counts a create; enough of them ask for the next read.
func (l *Look) created() {
	if l.creates.Add(1) >= lookCreates {
		select {
		case l.ask <- struct{}{}:
		default:
		}
	}
}

// begin forgets the look that was taken for another epoch.
func (l *Look) begin(epoch int64) {
	l.completed.Store(0)
	l.looked.Store(0)
	l.epoch, l.orphans, l.swept = epoch, nil, nil
}

// ahead sweeps both lists to their ends, once, and only reads.
func (l *Look) ahead(ctx context.Context) error {
	if l.looked.Load() == l.epoch {
		return nil
	}
	began := time.Now()
	l.orphans, l.swept = nil, nil
	seen := 0
	err := l.timed(func() error {
		for _, resource := range lookResources {
			n, err := l.sweep(ctx, resource)
			if err != nil {
				return fmt.Errorf("look at %s: %w", resource, err)
			}
			seen += n
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.looked.Store(l.epoch)
	l.c.log.Info("both lists are swept", "objects", seen, "adopted", l.adopted.Load(), "orphans", len(l.orphans), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// complete sweeps both lists if that is still to be done, cancels what no bill
// uses, and reads on to where the lists end by now. An intent that Stripe is
// still processing keeps the look open.
func (l *Look) complete(ctx context.Context) error {
	if err := l.ahead(ctx); err != nil {
		return err
	}
	for len(l.orphans) > 0 {
		if err := l.cancelOrphan(ctx, l.orphans[0]); err != nil {
			return err
		}
		l.orphans = l.orphans[1:]
	}
	for _, s := range l.swept {
		if _, err := l.commit(ctx, s.resource, s.from, s.to); err != nil {
			return err
		}
	}
	l.swept = nil
	for _, resource := range lookResources {
		if err := l.goOn(ctx, resource); err != nil {
			return fmt.Errorf("look at %s: %w", resource, err)
		}
	}
	l.completed.Store(l.epoch)
	l.c.log.Info("look complete", "adopted", l.adopted.Load())
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
		if !l.Completed() || l.creates.Swap(0) == 0 {
			continue
		}
		for _, resource := range lookResources {
			err := l.timed(func() error { return l.goOn(ctx, resource) })
			if err != nil && ctx.Err() == nil {
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
// stood, less an hour, and takes over what it finds. What is newer than the
// sweep's first page is left to the next read by cursor.
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
	var open []marked
	for {
		page, err := l.page(ctx, listing)
		if err != nil {
			return seen, err
		}
		news, err := l.news(ctx, page.Found)
		if err != nil {
			return seen, err
		}
		// Successes at once. Which open intent of a bill is the oldest is known
		// only at the list's end.
		decided := news[:0]
		for _, m := range news {
			if m.open() {
				open = append(open, m)
			} else {
				decided = append(decided, m)
			}
		}
		if err := l.takeAll(ctx, decided); err != nil {
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
	for n := len(open); n > 0; n = len(open) { // the oldest first
		last := max(0, n-lookPage)
		if err := l.takeAll(ctx, open[last:]); err != nil {
			return seen, err
		}
		open = open[:last]
	}
	if newest.cursor != "" { // an empty list says nothing about how far it was read
		l.swept = append(l.swept, sweep{resource, at, newest})
	}
	return seen, nil
}

// takeAll takes over a part of what a sweep found, and keeps the orphans.
func (l *Look) takeAll(ctx context.Context, news []marked) error {
	if len(news) == 0 {
		return nil
	}
	orphans, err := l.take(ctx, news)
	l.orphans = append(l.orphans, orphans...)
	return err
}

// goOn reads what is newer than the cursor. Rows under a live claim are left to
// their workers.
func (l *Look) goOn(ctx context.Context, resource string) error {
	for {
		at, err := l.progress(ctx, resource)
		if err != nil {
			return fmt.Errorf("read its progress: %w", err)
		}
		if at.cursor == "" {
			return l.goOnFromNothing(ctx, resource, at)
		}
		page, err := l.page(ctx, Listing{Resource: resource, Before: at.cursor, PageSize: lookPage})
		if err != nil {
			return err
		}
		if len(page.Found) == 0 {
			return nil
		}
		if err := l.takeOngoing(ctx, page.Found); err != nil {
			return err
		}
		ours, err := l.commit(ctx, resource, at, progress{&page.Found[0].Created, page.Found[0].ID})
		if err != nil {
			return err
		}
		if ours && !page.More {
			return nil
		}
	}
}

// goOnFromNothing reads a list that was empty when it was swept.
func (l *Look) goOnFromNothing(ctx context.Context, resource string, at progress) error {
	listing := Listing{Resource: resource, Since: l.c.config.LookSince, PageSize: lookPage}
	var newest progress
	for {
		page, err := l.page(ctx, listing)
		if err != nil {
			return err
		}
		if err := l.takeOngoing(ctx, page.Found); err != nil {
			return err
		}
		if newest.cursor == "" && len(page.Found) > 0 {
			newest = progress{&page.Found[0].Created, page.Found[0].ID}
		}
		if !page.More || len(page.Found) == 0 {
			break
		}
		listing.After = page.Found[len(page.Found)-1].ID
	}
	if newest.cursor == "" {
		return nil
	}
	_, err := l.commit(ctx, resource, at, newest)
	return err
}

func (l *Look) takeOngoing(ctx context.Context, page []Found) error {
	news, err := l.news(ctx, page)
	if err != nil || len(news) == 0 {
		return err
	}
	if news, err = l.unclaimed(ctx, news); err != nil || len(news) == 0 {
		return err
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

func (l *Look) page(ctx context.Context, listing Listing) (Page, error) {
	if err := l.c.limit.Wait(ctx); err != nil {
		return Page{}, err
	}
	return l.c.gateway.List(ctx, listing)
}

// commit keeps the progress if it is still where it was read: another replica
// may have gone on, and a restored database knows of neither.
func (l *Look) commit(ctx context.Context, resource string, from, to progress) (ours bool, err error) {
	tag, err := l.c.pool.Exec(ctx, `
		INSERT INTO looks (resource, swept_through, cursor) VALUES ($1, $2, $3)
		ON CONFLICT (resource) DO UPDATE SET swept_through = excluded.swept_through, cursor = excluded.cursor, updated_at = clock_timestamp()
		WHERE coalesce(looks.cursor, '') = $4`, resource, to.through, to.cursor, from.cursor)
	if err != nil {
		return false, fmt.Errorf("commit the progress of the look: %w", err)
	}
	l.commits.Add(1)
	return tag.RowsAffected() == 1, nil
}

// marked is an object at Stripe whose markers name a bill of ours.
type marked struct {
	Found
	bill bill
}

// open reports whether the object is an intent that has taken nothing and
// still may.
func (m marked) open() bool { return !m.Succeeded && m.Status != "canceled" }

// news is what of a page is ours and unknown to the log.
func (l *Look) news(ctx context.Context, page []Found) ([]marked, error) {
	var found []marked
	for _, f := range page {
		customer, err1 := domain.ParseCustomerID(f.CustomerID)
		period, err2 := domain.ParsePeriod(f.Period)
		if err1 != nil || err2 != nil || f.BillingKey != string(domain.ChargeKey(customer, period, 1)) {
			continue // not ours: somebody else's use of the account
		}
		if m := (marked{f, bill{customer, period}}); m.tells() {
			found = append(found, m)
		}
	}
	found, err := l.unrecorded(ctx, found)
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
func (l *Look) unrecorded(ctx context.Context, found []marked) ([]marked, error) {
	if len(found) == 0 {
		return nil, nil
	}
	customers, periods := make([]string, len(found)), make([]string, len(found))
	for i, m := range found {
		customers[i], periods[i] = string(m.bill.customer), m.bill.period.String()
	}
	rows, err := l.c.pool.Query(ctx, `
		SELECT customer_id, billing_period, coalesce(intent_id, ''), CASE WHEN state = 'succeeded' THEN coalesce(outcome->>'charge_id', '') ELSE '' END
		FROM billing_records WHERE (customer_id, billing_period) IN (SELECT * FROM unnest($1::text[], $2::text[]))`, customers, periods)
	if err != nil {
		return nil, fmt.Errorf("read the rows of what was found: %w", err)
	}
	type recorded struct{ intent, charge string }
	known := make(map[[2]string]recorded, len(found))
	var customer, period string
	var k recorded
	if _, err := pgx.ForEachRow(rows, []any{&customer, &period, &k.intent, &k.charge}, func() error {
		known[[2]string{customer, period}] = k
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the rows of what was found: %w", err)
	}
	rest := found[:0]
	for i, m := range found {
		k := known[[2]string{customers[i], periods[i]}]
		if m.Succeeded && m.ChargeID != "" && m.ChargeID == k.charge || m.open() && m.IntentID == k.intent {
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
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
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
