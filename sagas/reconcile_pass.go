package sagas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// pass is one reconciliation under way. Everything is read in pages; the ids of
// the charges that were seen are kept in a table of this connection alone.
type pass struct {
	*Reconciler
	id    int64
	scope Scope
	conn  *pgxpool.Conn // holds the lock, and the table of what was seen

	phase                           string
	objects, charges, bills, events int64
	noted                           time.Time
	deferred                        bool // there is news of which the bill is not known
}

// Limits of a pass.
const (
	passPage   = 100 // Stripe's most
	passRows   = 500
	passReads  = 8 // intents read at once
	passTries  = 6 // of one read from Stripe
	passNoting = 500 * time.Millisecond
)

func (p *pass) run(ctx context.Context) error {
	if _, err := p.conn.Exec(ctx, `CREATE TEMPORARY TABLE IF NOT EXISTS reconcile_seen (charge text PRIMARY KEY)`); err != nil {
		return fmt.Errorf("keep what was seen: %w", err)
	}
	if _, err := p.conn.Exec(ctx, `TRUNCATE reconcile_seen`); err != nil {
		return fmt.Errorf("keep what was seen: %w", err)
	}
	if err := p.pool.QueryRow(ctx, `UPDATE reconciliations SET state = 'running', started_at = coalesce(started_at, clock_timestamp()),
			events = 0, objects = 0, charges = 0, bills = 0, expected = (SELECT count(*) FROM billing_records WHERE `+inScope+`)
		WHERE id = $3 RETURNING EXISTS (SELECT FROM webhook_inbox WHERE state = 'deferred')`, p.period(), p.since(), p.id).Scan(&p.deferred); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	for _, step := range []struct {
		phase string
		do    func(context.Context) error
	}{
		{"charges", p.sweepBoth},
		{"bills", p.compareRows},
		{"bills", p.compareRowless},
		{"events", p.catchUp},
	} {
		p.phase, p.noted = step.phase, time.Time{}
		if err := p.note(ctx); err != nil {
			return err
		}
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	p.noted = time.Time{}
	return p.note(ctx)
}

// inScope is the condition over rows of billing_records.
const inScope = `($1 = '' OR billing_period = $1) AND created_at >= coalesce($2::timestamptz, '-infinity')`

func (p *pass) period() string {
	if p.scope.Period.IsZero() {
		return ""
	}
	return p.scope.Period.String()
}

func (p *pass) since() *time.Time {
	if p.scope.Since.IsZero() {
		return nil
	}
	return &p.scope.Since
}

// note shows how far the pass has come.
func (p *pass) note(ctx context.Context) error {
	if time.Since(p.noted) < passNoting {
		return nil
	}
	p.noted = time.Now()
	_, err := p.pool.Exec(ctx, `UPDATE reconciliations SET phase = $2, events = $3, objects = $4, charges = $5, bills = $6 WHERE id = $1`,
		p.id, p.phase, p.events, p.objects, p.charges, p.bills)
	if err != nil {
		return fmt.Errorf("note the progress: %w", err)
	}
	return nil
}

// read calls Stripe within the rate, and again if that fails.
func read[T any](ctx context.Context, p *pass, call func(context.Context) (T, error)) (v T, err error) {
	for n, wait := 1, 250*time.Millisecond; ; n, wait = n+1, min(2*wait, 5*time.Second) {
		if err := p.limit.Wait(ctx); err != nil {
			return v, err
		}
		if v, err = call(ctx); err == nil || n == passTries || ctx.Err() != nil {
			return v, err
		}
		p.log.Warn("Stripe cannot be read; trying again", "error", err)
		pause(ctx, jitter(wait))
	}
}

// sweepBoth reads both lists, intents first: of several successes of a bill the
// one of an intent is its own rather than one that somebody made by hand.
func (p *pass) sweepBoth(ctx context.Context) error {
	for _, resource := range lookResources {
		group, ctx := errgroup.WithContext(ctx)
		pages := make(chan []Found, 2) // one is read while the one before is compared
		group.Go(func() error {
			defer close(pages)
			listing := Listing{Resource: resource, Since: p.scope.sweptSince(), PageSize: passPage}
			for {
				page, err := read(ctx, p, func(ctx context.Context) (Page, error) { return p.gateway.List(ctx, listing) })
				if err != nil {
					return fmt.Errorf("sweep %s: %w", resource, err)
				}
				select {
				case pages <- page.Found:
				case <-ctx.Done():
					return ctx.Err()
				}
				if !page.More || len(page.Found) == 0 {
					return nil
				}
				listing.After = page.Found[len(page.Found)-1].ID
			}
		})
		group.Go(func() error {
			for page := range pages {
				if err := p.compare(ctx, page, resource == "charges"); err != nil {
					return fmt.Errorf("compare %s: %w", resource, err)
				}
			}
			return nil
		})
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// compare judges a page of what Stripe holds.
func (p *pass) compare(ctx context.Context, page []Found, counted bool) error {
	var seen []string
	var ours []success
	var strangers []Found
	for _, f := range page {
		p.objects++
		if !f.Succeeded {
			continue
		}
		b, marked := billOf(f)
		if marked && !p.scope.Period.IsZero() && b.period != p.scope.Period {
			continue
		}
		if counted {
			p.charges++
		}
		seen = append(seen, f.ChargeID)
		if marked {
			ours = append(ours, p.success(b, f))
		} else {
			strangers = append(strangers, f)
		}
	}
	named, err := p.byIntent(ctx, strangers)
	if err != nil {
		return err
	}
	for _, f := range strangers {
		switch b, known := named[f.IntentID]; {
		case known && f.IntentID != "":
			ours = append(ours, p.success(b, f))
		case counted && !f.Refunded: // the list of charges tells what of it has gone back
			finding := differenceOf(DifferenceOrphan, bill{}, f)
			finding.Detail, finding.Action = "it has no markers of ours", "find out who made it; refund it at Stripe if nobody should have"
			if f.CustomerID != "" || f.BillingKey != "" {
				finding.Detail = "its markers do not belong together"
			}
			if err := p.keep(ctx, p.pool, finding); err != nil {
				return err
			}
		}
	}
	if len(seen) > 0 {
		if _, err := p.conn.Exec(ctx, `INSERT INTO reconcile_seen SELECT unnest($1::text[]) ON CONFLICT DO NOTHING`, seen); err != nil {
			return fmt.Errorf("keep what was seen: %w", err)
		}
	}
	if err := p.judge(ctx, ours, counted); err != nil {
		return err
	}
	if err := p.match(ctx, ours); err != nil {
		return err
	}
	return p.note(ctx)
}

func (p *pass) success(b bill, f Found) success {
	return success{bill: b, found: f, source: domain.SourceReconcile, recovered: true, evidence: f.ID + " " + f.Status}
}

// byIntent names the bills whose committed intents are given.
func (p *pass) byIntent(ctx context.Context, all []Found) (map[string]bill, error) {
	if len(all) == 0 {
		return nil, nil
	}
	intents := make([]string, len(all))
	for i, f := range all {
		intents[i] = f.IntentID
	}
	rows, err := p.pool.Query(ctx, `SELECT intent_id, customer_id, billing_period FROM billing_records WHERE intent_id = ANY($1)`, intents)
	if err != nil {
		return nil, fmt.Errorf("find bills by intent: %w", err)
	}
	defer rows.Close()
	named := map[string]bill{}
	for rows.Next() {
		var intent, customer, period string
		if err := rows.Scan(&intent, &customer, &period); err != nil {
			return nil, fmt.Errorf("find bills by intent: %w", err)
		}
		if q, err := domain.ParsePeriod(period); err == nil {
			named[intent] = bill{domain.CustomerID(customer), q}
		}
	}
	return named, rows.Err()
}

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
			finding := differenceOf(DifferenceMismatch, s.bill, s.found)
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
	bills := make([]bill, len(news))
	for i, s := range news {
		bills[i] = s.bill
	}
	statements := &pgx.Batch{}
	queueRecordsUnlocked(statements, bills, `state = 'sending' AND lease_until > clock_timestamp()`)
	claimed, err := p.records(ctx, statements)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(news, func(s success) bool {
		return slices.ContainsFunc(claimed, func(r *record) bool { return r.bill() == s.bill })
	}), nil
}

func (p *pass) records(ctx context.Context, statements *pgx.Batch) ([]*record, error) {
	results := p.pool.SendBatch(ctx, statements)
	defer results.Close()
	rows, err := results.Query()
	if err != nil {
		return nil, fmt.Errorf("read rows: %w", err)
	}
	return scanRecords(rows)
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

// catchUp reads Stripe's list of events from where it was last read, less an
// hour, and puts into the inbox what nothing has told so far.
func (p *pass) catchUp(ctx context.Context) error {
	if p.news == nil {
		return p.inbox.drain(ctx)
	}
	var through *time.Time
	err := p.pool.QueryRow(ctx, `SELECT through FROM news_catch_up`).Scan(&through)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("read how far events were read: %w", err)
	}
	listing := EventListing{PageSize: passPage}
	if through != nil {
		listing.Since = through.Add(-lookOverlap)
	}
	var newest News
	group, reading := errgroup.WithContext(ctx)
	pages := make(chan []News, 2) // one is read while the one before is compared
	group.Go(func() error {
		defer close(pages)
		for {
			page, err := read(reading, p, func(ctx context.Context) (EventPage, error) { return p.news.Events(ctx, listing) })
			if err != nil {
				return fmt.Errorf("read Stripe's events: %w", err)
			}
			select {
			case pages <- page.News:
			case <-reading.Done():
				return reading.Err()
			}
			if !page.More || len(page.News) == 0 {
				return nil
			}
			listing.After = page.News[len(page.News)-1].EventID
		}
	})
	group.Go(func() error {
		for page := range pages {
			if newest.EventID == "" && len(page) > 0 {
				newest = page[0]
			}
			p.events += int64(len(page))
			if err := p.untold(reading, page); err != nil {
				return err
			}
			if err := p.note(reading); err != nil {
				return err
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := p.inbox.drain(ctx); err != nil || newest.EventID == "" {
		return err
	}
	_, err = p.pool.Exec(ctx, `INSERT INTO news_catch_up (through, event_id) VALUES ($1, $2)
		ON CONFLICT (only_row) DO UPDATE SET through = excluded.through, event_id = excluded.event_id, updated_at = clock_timestamp()
		WHERE news_catch_up.through <= excluded.through`, newest.Created, newest.EventID)
	if err != nil {
		return fmt.Errorf("keep how far events were read: %w", err)
	}
	return nil
}

// untold stores events that say something which the log does not have. A
// failure says nothing that a read of its intent would not say.
func (p *pass) untold(ctx context.Context, page []News) error {
	var ids []domain.CustomerID
	for _, n := range page {
		if n.Charge != nil && n.Charge.Succeeded {
			if b, ok := billOf(*n.Charge); ok {
				ids = append(ids, b.customer)
			}
		}
	}
	customers, _, err := p.d.Customers(ctx, p.pool, ids)
	if err != nil {
		return err
	}
	var fresh []News
	for _, n := range page {
		switch {
		case !n.known(), n.Charge != nil && !n.Charge.Succeeded:
			continue
		case n.Charge != nil:
			b, marked := billOf(*n.Charge)
			state, _ := customers[b.customer].Bill(b.period)
			if !marked || p.success(b, *n.Charge).knownTo(state) {
				continue // a charge that nobody knows is a finding of the sweep
			}
		}
		fresh = append(fresh, n)
	}
	if len(fresh) == 0 {
		return nil
	}
	_, err = p.inbox.store(ctx, domain.SourceEvents, nil, fresh...)
	return err
}

// drain applies what is due until nothing is.
func (in *Inbox) drain(ctx context.Context) error {
	for {
		n, err := in.batch(ctx, "")
		switch {
		case err != nil && eventstore.Transient(err):
			return err
		case err != nil:
			return in.oneByOne(ctx)
		case n == 0:
			return nil
		}
	}
}
