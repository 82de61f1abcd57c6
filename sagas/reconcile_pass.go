package sagas

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/billonce/billonce/domain"
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
	taken                           map[domain.Currency]int64
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
	if _, err := p.conn.Exec(ctx, `CREATE TEMPORARY TABLE IF NOT EXISTS reconcile_seen (charge text PRIMARY KEY, ours boolean, refunded boolean,
			intent text, customer text, amount bigint, currency text, created timestamptz, marked_customer text, marked_period text, detail text)`); err != nil {
		return fmt.Errorf("keep what was seen: %w", err)
	}
	if _, err := p.conn.Exec(ctx, `TRUNCATE reconcile_seen`); err != nil {
		return fmt.Errorf("keep what was seen: %w", err)
	}
	if err := p.pool.QueryRow(ctx, `UPDATE reconciliations SET state = 'running', started_at = coalesce(started_at, clock_timestamp()),
			events = 0, objects = 0, charges = 0, bills = 0, taken = NULL, expected = (SELECT count(*) FROM billing_records WHERE `+inScope+`)
		WHERE id = $3 RETURNING EXISTS (SELECT FROM webhook_inbox WHERE state = 'deferred')`, p.period(), p.since(), p.id).Scan(&p.deferred); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	for _, step := range []struct {
		phase string
		do    func(context.Context) error
	}{
		{"charges", p.sweepBoth},
		{"charges", p.judgeStrangers},
		{"bills", p.compareRows},
		{"bills", p.compareRowless},
		{"bills", p.compareRefunds},
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
	if err := p.note(ctx); err != nil || p.scope.Period.IsZero() {
		return err
	}
	if _, err := p.pool.Exec(ctx, `UPDATE reconciliations SET taken = $2 WHERE id = $1`, p.id, p.taken); err != nil {
		return fmt.Errorf("note what was taken: %w", err)
	}
	return nil
}

// took counts a success of a bill in scope, once.
func (p *pass) took(m domain.Money) {
	if p.taken == nil {
		p.taken = map[domain.Currency]int64{}
	}
	p.taken[m.Currency] += m.Minor
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
		if err := p.config.Allowance.Calls(ctx, 1); err != nil {
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

// compare judges a page of what Stripe holds. Charges that are not ours are
// judged when all are seen.
func (p *pass) compare(ctx context.Context, page []Found, counted bool) error {
	var seen []sighting
	var ours []success
	var strangers []Found
	for _, f := range page {
		p.objects++
		if !f.Succeeded {
			continue
		}
		b, marked := billOf(f)
		switch {
		case !marked:
			strangers = append(strangers, f)
		case p.scope.Period.IsZero() || b.period == p.scope.Period:
			ours = append(ours, p.success(b, f))
			seen = append(seen, sighting{f, true, ""})
			if counted {
				p.took(f.Amount)
			}
		default: // another period's, and yet one that a stranger may be a double of
			seen = append(seen, sighting{f, true, ""})
			continue
		}
		if counted {
			p.charges++
		}
	}
	named, err := p.named(ctx, strangers)
	if err != nil {
		return err
	}
	for i, f := range strangers {
		b, known := named[i]
		if known {
			ours = append(ours, p.success(b, f))
			if counted && b.period == p.scope.Period {
				p.took(f.Amount)
			}
		}
		detail := "it has no markers of ours"
		if f.CustomerID != "" || f.BillingKey != "" {
			detail = "its markers do not belong together"
		}
		seen = append(seen, sighting{f, known, detail})
	}
	if err := p.see(ctx, seen, counted); err != nil {
		return err
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

// named are the bills, by index, of those whose intents were committed or whose
// charges were imported.
func (p *pass) named(ctx context.Context, all []Found) (map[int]bill, error) {
	if len(all) == 0 {
		return nil, nil
	}
	intents, charges := make([]string, len(all)), make([]string, len(all))
	for i, f := range all {
		intents[i], charges[i] = f.IntentID, f.ChargeID
	}
	rows, err := p.pool.Query(ctx, `
		SELECT n - 1, r.customer_id, r.billing_period FROM unnest($1::text[]) WITH ORDINALITY AS u(intent, n) JOIN billing_records r ON r.intent_id = u.intent
		WHERE u.intent <> ''
		UNION ALL
		SELECT n - 1, i.customer_id, i.billing_period FROM unnest($2::text[]) WITH ORDINALITY AS u(charge, n) JOIN imported_charges i ON i.charge_id = u.charge`,
		intents, charges)
	if err != nil {
		return nil, fmt.Errorf("find bills by intent and charge: %w", err)
	}
	defer rows.Close()
	named := map[int]bill{}
	for rows.Next() {
		var i int
		var customer, period string
		if err := rows.Scan(&i, &customer, &period); err != nil {
			return nil, fmt.Errorf("find bills by intent and charge: %w", err)
		}
		if q, err := domain.ParsePeriod(period); err == nil {
			named[i] = bill{domain.CustomerID(customer), q}
		}
	}
	return named, rows.Err()
}
