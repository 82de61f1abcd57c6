package sagas

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// Manifest keeps what each run is expected to take, from subscriptions and not
// from dues, and whether the run is paused. Registered is called when the proxy
// may have to be told something, wake when there may be rows to claim.
//
// It writes keyed rows alone and skips what it has seen, so that it may read the
// log again from the beginning at any time.
func Manifest(registered, wake func()) tracking.Processor {
	return tracking.Processor{
		Name: "manifest", Kind: tracking.Effectful, Start: tracking.Beginning,
		Events: []string{
			domain.CustomerRegistered{}.EventName(),
			domain.SubscriptionActivated{}.EventName(), domain.SubscriptionAmountChanged{}.EventName(), domain.SubscriptionScheduleChanged{}.EventName(),
			domain.SubscriptionPaused{}.EventName(), domain.SubscriptionResumed{}.EventName(), domain.SubscriptionCancelled{}.EventName(),
			domain.MonthlyBillingDue{}.EventName(), domain.ChargeRequested{}.EventName(),
			domain.RunPaused{}.EventName(), domain.RunResumed{}.EventName(),
		},
		PageSize: manifestPage, Partitions: eventstore.Partitions, Pace: sagaPace,
		Handler: tracking.HandlerFunc(manifest),
		AfterCommit: func(*tracking.Page) {
			registered()
			wake()
		},
	}
}

const manifestPage = 512

func manifest(ctx context.Context, p *tracking.Page) error {
	var ids []string
	for _, r := range p.Events {
		if _, ok := runOf(r.Event); !ok {
			ids = append(ids, r.SequenceKey)
		}
	}
	payers, err := loadPayers(ctx, p.Tx, ids)
	if err != nil {
		return err
	}
	writes := &pgx.Batch{}
	entries := entries{}
	for _, r := range p.Events {
		if _, ok := runOf(r.Event); ok {
			queueRunFact(writes, r)
			continue
		}
		id := domain.CustomerID(r.SequenceKey)
		if payers[id] == nil {
			payers[id] = &payer{customer: id}
		}
		payers[id].apply(r, entries)
	}
	queuePayers(writes, payers)
	entries.queue(writes)
	if writes.Len() == 0 {
		return nil
	}
	if err := p.Tx.SendBatch(ctx, writes).Close(); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	return nil
}

// runOf is the run that a fact is about as a whole.
func runOf(e domain.Event) (domain.Period, bool) {
	switch e := e.(type) {
	case domain.RunPaused:
		return e.BillingPeriod, true
	case domain.RunResumed:
		return e.BillingPeriod, true
	}
	return domain.Period{}, false
}

// payer is a row of run_subscriptions.
type payer struct {
	customer domain.CustomerID
	stripe   string
	sub      domain.Subscription
	next     domain.Period // the first that is not due yet; zero: none
	open     domain.Period // whose entry may still change; zero: none
	last     eventstore.Mark
	changed  bool
}

// apply evolves the payer by a fact, and the entries that follow from it.
func (y *payer) apply(r eventstore.Recorded, to entries) {
	if y.last.Covers(r) {
		return
	}
	switch e := r.Event.(type) {
	case domain.CustomerRegistered:
		y.stripe = e.StripeCustomerID
	case domain.MonthlyBillingDue:
		y.fix(e.BillingPeriod, e.Money, y.stripe, r.Position, to)
	case domain.ChargeRequested:
		if e.Attempt > 1 || e.BillingPeriod.Before(y.next) {
			// Most are of a due. Its entry is fixed, and the payer stays as it is.
			if e.Attempt == 1 {
				to.put(expected(y.customer, e.BillingPeriod, e.Money, e.StripeCustomerID, r.Position, true))
			}
			return
		}
		y.fix(e.BillingPeriod, e.Money, e.StripeCustomerID, r.Position, to)
	default:
		y.sub = y.sub.Evolve(e)
		if _, ok := e.(domain.SubscriptionActivated); ok {
			y.next = y.sub.First()
		}
		y.advance()
	}
	y.reopen(r.Position, to)
	y.last.Move(r)
	y.changed = true
}

// fix enters a bill for good, and moves the payer on to the period after it.
func (y *payer) fix(p domain.Period, m domain.Money, stripe string, at int64, to entries) {
	to.put(expected(y.customer, p, m, stripe, at, true))
	if y.open == p {
		y.open = domain.Period{}
	}
	if !y.next.IsZero() && !p.Before(y.next) {
		y.next = p.Next()
		y.advance()
	}
}

// advance passes over periods that are not billed because of a pause.
func (y *payer) advance() {
	if next := y.sub.Next(y.next); y.next.Before(next) {
		y.next = next
	}
}

// reopen makes the one entry that may still change what the subscription says
// now.
func (y *payer) reopen(at int64, to entries) {
	owed := !y.next.IsZero() && y.sub.Bills(y.next)
	if !y.open.IsZero() && (!owed || y.open != y.next) {
		gone := expected(y.customer, y.open, y.sub.AmountFor(y.open), y.stripe, at, false)
		gone.withdrawn = true
		to.put(gone)
		y.open = domain.Period{}
	}
	if owed {
		to.put(expected(y.customer, y.next, y.sub.AmountFor(y.next), y.stripe, at, false))
		y.open = y.next
	}
}

// manifestEntry is a row of run_manifest.
type manifestEntry struct {
	bill
	amount           domain.Money
	stripe           string
	fixed, withdrawn bool
	version          int64
}

func expected(c domain.CustomerID, p domain.Period, m domain.Money, stripe string, at int64, fixed bool) manifestEntry {
	return manifestEntry{bill: bill{c, p}, amount: m, stripe: stripe, version: at, fixed: fixed}
}

// entries are what a page leads to, the newest of each bill; one that is fixed
// stays.
type entries map[bill]manifestEntry

func (m entries) put(e manifestEntry) {
	if !m[e.bill].fixed {
		m[e.bill] = e
	}
}

// queue writes the entries in one statement. What is fixed in the table stays
// as it is, and so does what is newer. A bill whose amount is the same is as good
// as registered while the proxy is told that it is fixed now.
func (m entries) queue(writes *pgx.Batch) {
	if len(m) == 0 {
		return
	}
	all := make([]manifestEntry, 0, len(m))
	for _, e := range m {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b manifestEntry) int {
		return cmp.Or(cmp.Compare(a.period.String(), b.period.String()), cmp.Compare(a.customer, b.customer))
	})
	n := len(all)
	periods, customers, currencies, stripes := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	amounts, versions := make([]int64, n), make([]int64, n)
	fixed, withdrawn := make([]bool, n), make([]bool, n)
	for i, e := range all {
		periods[i], customers[i], amounts[i], currencies[i], stripes[i] = e.period.String(), string(e.customer), e.amount.Minor, string(e.amount.Currency), e.stripe
		fixed[i], withdrawn[i], versions[i] = e.fixed, e.withdrawn, e.version
	}
	writes.Queue(`INSERT INTO run_manifest AS m (billing_period, customer_id, amount_minor, currency, stripe_customer_id, fixed, withdrawn, version)
		SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bool[], $7::bool[], $8::bigint[])
		ON CONFLICT (billing_period, customer_id) DO UPDATE SET
			amount_minor = excluded.amount_minor, currency = excluded.currency, stripe_customer_id = excluded.stripe_customer_id,
			fixed = excluded.fixed, withdrawn = excluded.withdrawn, version = excluded.version, pending = true, refused = NULL,
			registered = m.registered AND NOT excluded.withdrawn
				AND (m.amount_minor, m.currency, m.stripe_customer_id) = (excluded.amount_minor, excluded.currency, excluded.stripe_customer_id)
		WHERE NOT m.fixed AND m.version < excluded.version
			AND (m.amount_minor, m.currency, m.stripe_customer_id, m.fixed, m.withdrawn)
				<> (excluded.amount_minor, excluded.currency, excluded.stripe_customer_id, excluded.fixed, excluded.withdrawn)`,
		periods, customers, amounts, currencies, stripes, fixed, withdrawn, versions)
}

func loadPayers(ctx context.Context, tx pgx.Tx, ids []string) (map[domain.CustomerID]*payer, error) {
	payers := make(map[domain.CustomerID]*payer, len(ids))
	if len(ids) == 0 {
		return payers, nil
	}
	rows, err := tx.Query(ctx, `SELECT customer_id, stripe_customer_id, subscription, next_period, open_period, last_position
		FROM run_subscriptions WHERE customer_id = ANY ($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("manifest: load: %w", err)
	}
	var id, next, open string
	var stripe string
	var sub []byte
	var last int64
	_, err = pgx.ForEachRow(rows, []any{&id, &stripe, &sub, &next, &open, &last}, func() error {
		y := &payer{customer: domain.CustomerID(id), stripe: stripe, last: eventstore.Mark{Position: last}}
		payers[y.customer] = y
		if err := json.Unmarshal(sub, &y.sub); err != nil {
			return err
		}
		if err := y.next.UnmarshalText([]byte(next)); err != nil {
			return err
		}
		return y.open.UnmarshalText([]byte(open))
	})
	if err != nil {
		return nil, fmt.Errorf("manifest: load: %w", err)
	}
	return payers, nil
}

func queuePayers(writes *pgx.Batch, payers map[domain.CustomerID]*payer) {
	var ids, stripes, subs, nexts, opens []string
	var lasts []int64
	for _, y := range payers {
		if !y.changed {
			continue
		}
		sub := []byte("null")
		if y.sub.Status != "" {
			sub, _ = json.Marshal(y.sub) // a value of texts and numbers
		}
		ids, stripes, subs = append(ids, string(y.customer)), append(stripes, y.stripe), append(subs, string(sub))
		nexts, opens, lasts = append(nexts, y.next.String()), append(opens, y.open.String()), append(lasts, y.last.Position)
	}
	if len(ids) == 0 {
		return
	}
	writes.Queue(`INSERT INTO run_subscriptions (customer_id, stripe_customer_id, subscription, next_period, open_period, last_position)
		SELECT id, stripe, sub::json, next, open, last
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[]) AS u(id, stripe, sub, next, open, last)
		ON CONFLICT (customer_id) DO UPDATE SET stripe_customer_id = excluded.stripe_customer_id, subscription = excluded.subscription,
			next_period = excluded.next_period, open_period = excluded.open_period, last_position = excluded.last_position`,
		ids, stripes, subs, nexts, opens, lasts)
}

// queueRunFact keeps a run's pause. A resumption lets what was held be claimed
// at once.
func queueRunFact(writes *pgx.Batch, r eventstore.Recorded) {
	var meta eventstore.Meta
	_ = json.Unmarshal(r.Metadata, &meta) // written by ourselves; without it nobody is named
	switch e := r.Event.(type) {
	case domain.RunPaused:
		var refusal []byte
		if e.Refusal != nil {
			refusal, _ = json.Marshal(e.Refusal)
		}
		writes.Queue(`INSERT INTO billing_runs AS r (billing_period, paused, reason, refusal, paused_by, paused_at, last_position)
			VALUES ($1, true, $2, $3::json, $4, $5, $6)
			ON CONFLICT (billing_period) DO UPDATE SET paused = true, reason = excluded.reason, refusal = excluded.refusal, paused_by = excluded.paused_by,
				paused_at = excluded.paused_at, last_position = excluded.last_position, updated_at = clock_timestamp()
			WHERE r.last_position < excluded.last_position`,
			e.BillingPeriod.String(), e.Reason, refusal, meta.Actor, e.At, r.Position)
	case domain.RunResumed:
		writes.Queue(`WITH resumed AS (
				INSERT INTO billing_runs AS r (billing_period, turn, last_position) VALUES ($1, 1, $2)
				ON CONFLICT (billing_period) DO UPDATE SET paused = false, turn = r.turn + 1, last_position = excluded.last_position, updated_at = clock_timestamp()
				WHERE r.last_position < excluded.last_position
				RETURNING billing_period)
			UPDATE billing_records SET next_try_at = NULL, updated_at = clock_timestamp()
			WHERE state = 'held' AND billing_period IN (SELECT billing_period FROM resumed)`, e.BillingPeriod.String(), r.Position)
	}
}
