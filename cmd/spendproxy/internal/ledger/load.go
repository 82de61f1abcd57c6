package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// wanted names what pieces of work need of the books.
type wanted struct {
	vaults, keys, objects, subjects map[string]bool
	bills                           map[policy.BillID]bool
	derived                         map[derivedKey]bool
}

func newWanted() *wanted {
	return &wanted{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[policy.BillID]bool{}, map[derivedKey]bool{}}
}

func (w *wanted) bill(b policy.BillID) {
	if !b.IsZero() {
		w.bills[b] = true
	}
}

func (w *wanted) object(ids ...string) {
	for _, id := range ids {
		if id != "" {
			w.objects[id] = true
		}
	}
}

func (w *wanted) evidence(e *policy.Evidence) {
	w.object(e.Object, e.Intent)
	w.bill(e.Bill)
	if e.Key != "" {
		w.subjects[keySubject(e.Key)] = true
	}
}

func (w *wanted) call(c policy.Call) {
	w.keys[c.Key] = true
	w.object(c.Object, c.Charge, c.Intent)
	w.subjects[keySubject(c.Key)] = true
	w.bill(c.Bill)
}

// derivedKey is a charge key in the hands of a vault key.
type derivedKey struct{ vault, charge string }

// owner asks which bill an idempotency key belongs to; of a vault key with a
// manifest the bill itself is judged.
func (w *wanted) owner(vault, key string) {
	if charge := policy.ChargeKeyIn(key); charge != "" {
		w.derived[derivedKey{vault, charge}] = true
	}
}

func list(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// lockSQL begins every transaction that changes the books: one of them is at
// work at a time, over all proxies, so that a decision sees all that was decided
// before. Callers share transactions, which is what bounds the rate, not the
// lock. A frozen proxy gives it up with its session. The plans are made
// once and kept, since making one takes longer than executing it, and are held to
// the indexes, since they are made while the tables may still be empty.
const (
	lockSQL = plansSQL + `, set_config('lock_timeout', '10s', true), set_config('idle_in_transaction_session_timeout', '10s', true),
	pg_advisory_xact_lock(7311, 1)`
	plansSQL = `SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`
)

// queueLock queues the lock, and the reading of the clock behind it.
func (p *page) queueLock(b *pgx.Batch) {
	b.Queue(lockSQL + `, set_config('synchronous_commit', 'off', true)`) // transact waits for the disk later
	b.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error {
		var now time.Time
		err := row.Scan(&now)
		if p.now.IsZero() {
			p.now = now.UTC()
		}
		return err
	})
}

// load reads what is wanted, in two rounds: the second depends on what the first
// one found.
func (p *page) load(ctx context.Context, conn *pgx.Conn, w *wanted) error {
	first := &pgx.Batch{}
	first.Queue(`BEGIN`)
	p.queueLock(first)
	if len(w.vaults) > 0 {
		p.queueVaults(first, list(w.vaults))
	}
	if len(w.keys) > 0 {
		p.queueKeys(first, list(w.keys))
	}
	if len(w.objects) > 0 {
		p.queueObjects(first, list(w.objects))
	}
	if err := conn.SendBatch(ctx, first).Close(); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	second := &pgx.Batch{}
	if len(w.vaults) > 0 {
		p.queueBooks(second, list(w.vaults))
	}
	var answers []string
	for _, o := range p.objects {
		w.bill(o.Bill)
		if o.answerKey != "" && p.answers[o.answerKey] == nil {
			answers = append(answers, o.answerKey)
		}
	}
	if len(answers) > 0 {
		p.queueAnswers(second, answers)
	}
	for _, k := range p.keys {
		if k.subject != "" {
			w.subjects[k.subject] = true
		}
	}
	p.queueSubjects(second, w)
	if len(w.bills) > 0 {
		p.queueObligations(second, w.bills)
	}
	p.queueOwners(second, w.derived)
	if second.Len() == 0 {
		return nil
	}
	if err := conn.SendBatch(ctx, second).Close(); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return p.loadMade(ctx, conn)
}

// loadMade reads what keys made that succeeded without an answer: rarely any.
func (p *page) loadMade(ctx context.Context, conn *pgx.Conn) error {
	var ids []string
	for _, s := range p.subjects {
		if id := s.made(); s.state == stateSettled && id != "" && id != s.id && p.objects[id] == nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	p.queueObjects(b, ids)
	p.queueAnswersWhere(b, `JOIN spendproxy.objects o ON o.answer_key = a.idempotency_key WHERE o.id = ANY($1)`, ids)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

// each scans the rows of a queued query.
func each(q *pgx.QueuedQuery, scan func(pgx.Rows) error) {
	q.Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

func (p *page) queueVaults(b *pgx.Batch, ids []string) {
	each(b.Queue(`SELECT id, mode, cap_window, manifest, count_cap, expires_at, revoked_at IS NOT NULL FROM spendproxy.vault_keys WHERE id = ANY($1)`, ids),
		func(rows pgx.Rows) error {
			v := &vault{caps: map[domain.Currency]Cap{}}
			var expires *time.Time
			err := rows.Scan(&v.id, &v.grant.Mode, &v.grant.Window, &v.grant.Manifest, &v.countCap, &expires, &v.revoked)
			v.grant.Expires = timeOf(expires)
			p.vaults[v.id] = v
			return err
		})
	each(b.Queue(`SELECT vault_key, currency, cap_minor, ceiling_minor FROM spendproxy.caps WHERE vault_key = ANY($1)`, ids),
		func(rows pgx.Rows) error {
			var id string
			var c Cap
			err := rows.Scan(&id, &c.Currency, &c.Minor, &c.Ceiling)
			if v := p.vaults[id]; v != nil {
				v.caps[c.Currency] = c
			}
			return err
		})
	each(b.Queue(raisesNowSQL, ids), func(rows pgx.Rows) error {
		var id string
		var currency domain.Currency
		var more int64
		var ends time.Time
		err := rows.Scan(&id, &currency, &more, &ends)
		if v := p.vaults[id]; v != nil && p.now.Before(ends) {
			c := v.caps[currency]
			c.Minor = max(plus(c.Minor, more), 0)
			v.caps[currency] = c
		}
		return err
	})
}

// raisesNowSQL lists what holds for a time, unless it has run out.
const raisesNowSQL = `SELECT vault_key, currency, to_minor - from_minor, ends_at FROM spendproxy.raises
	WHERE vault_key = ANY($1) AND what = 'raise' AND ends_at IS NOT NULL AND ended_at IS NULL ORDER BY id`

func (p *page) queueBooks(b *pgx.Batch, ids []string) {
	each(b.Queue(`SELECT vault_key, currency, day, held_minor, spent_minor, charges FROM spendproxy.books WHERE vault_key = ANY($1) AND day IN ('', $2)`, ids, dayOf(p.now)),
		func(rows pgx.Rows) error {
			var id bookID
			here := book{stored: true}
			err := rows.Scan(&id.vault, &id.currency, &id.day, &here.held, &here.spent, &here.charges)
			p.books[id] = &here
			return err
		})
}

func (p *page) queueKeys(b *pgx.Batch, keys []string) {
	each(b.Queue(`SELECT idempotency_key, fingerprint, vault_key, rule, subject, first_sent_at FROM spendproxy.keys WHERE idempotency_key = ANY($1)`, keys),
		func(rows pgx.Rows) error {
			k := &sentKey{}
			var fingerprint []byte
			err := rows.Scan(&k.key, &fingerprint, &k.vault, &k.rule, &k.subject, &k.firstSent)
			copy(k.fingerprint[:], fingerprint)
			p.keys[k.key] = k
			return err
		})
	p.queueAnswers(b, keys)
}

func (p *page) queueAnswers(b *pgx.Batch, keys []string) {
	p.queueAnswersWhere(b, `WHERE a.idempotency_key = ANY($1)`, keys)
}

func (p *page) queueAnswersWhere(b *pgx.Batch, which string, args ...any) {
	each(b.Queue(`SELECT a.idempotency_key, a.status, a.content_type, a.request_id, a.body FROM spendproxy.answers a `+which, args...),
		func(rows pgx.Rows) error {
			var key string
			a := &Answer{}
			err := rows.Scan(&key, &a.Status, &a.ContentType, &a.RequestID, &a.Body)
			p.answers[key] = a
			return err
		})
}

const objectColumns = `id, intent, state, amount_minor, currency, received_minor, customer_id, billing_period, stripe_customer, latest_charge, raw, answer_key, seen_at`

func (p *page) queueObjects(b *pgx.Batch, ids []string) {
	each(b.Queue(`SELECT `+objectColumns+` FROM spendproxy.objects WHERE id = ANY($1)`, ids),
		func(rows pgx.Rows) error {
			o, err := scanObject(rows)
			p.objects[o.Object] = o
			return err
		})
}

func scanObject(rows pgx.Rows) (*object, error) {
	o := &object{}
	var customer, period string
	err := rows.Scan(&o.Object, &o.Intent, &o.State, &o.Amount.Minor, &o.Amount.Currency, &o.Received, &customer, &period,
		&o.StripeCustomer, &o.LatestCharge, &o.Raw, &o.answerKey, &o.seen)
	o.Bill = billOf(customer, period)
	return o, err
}

// billOf reads a bill out of its columns. One that cannot be read is none.
func billOf(customer, period string) policy.BillID {
	if customer == "" {
		return policy.BillID{}
	}
	p, err := domain.ParsePeriod(period)
	if err != nil {
		return policy.BillID{}
	}
	return policy.BillID{Customer: domain.CustomerID(customer), Period: p}
}

const subjectColumns = `s.id, refund, vault_key, day, amount_minor, currency, state, settled_minor, settled_in, intent, object,
	s.customer_id, s.billing_period, stripe_customer, sends, since, quiet_until, ask_at`

func (p *page) queueSubjects(b *pgx.Batch, w *wanted) {
	scan := func(rows pgx.Rows) error {
		s := &subject{}
		var customer, period string
		var sends []byte
		err := rows.Scan(&s.id, &s.refund, &s.vault, &s.day, &s.amount.Minor, &s.amount.Currency, &s.state, &s.settled.Minor, &s.settled.Currency,
			&s.intent, &s.object, &customer, &period, &s.customer, &sends, &s.since, &s.quietUntil, &s.askAt)
		if err != nil {
			return err
		}
		s.bill = billOf(customer, period)
		p.subjects[s.id] = s
		return json.Unmarshal(sends, &s.sends)
	}
	const from = `SELECT ` + subjectColumns + ` FROM spendproxy.subjects s `
	objects := list(w.objects)
	if ids := append(list(w.subjects), objects...); len(ids) > 0 {
		each(b.Queue(from+`WHERE s.id = ANY($1)`, ids), scan)
	}
	if len(objects) > 0 {
		each(b.Queue(from+`WHERE intent <> '' AND intent <> s.id AND intent = ANY($1)`, objects), scan)
		each(b.Queue(from+`WHERE object <> '' AND object = ANY($1)`, objects), scan)
	}
	if len(w.bills) > 0 {
		customers, periods := billColumns(w.bills)
		each(b.Queue(from+`JOIN unnest($1::text[], $2::text[]) AS b(customer_id, billing_period)
			ON s.customer_id = b.customer_id AND s.billing_period = b.billing_period AND s.customer_id <> ''`, customers, periods), scan)
	}
}

func billColumns(bills map[policy.BillID]bool) (customers, periods []string) {
	for b := range bills {
		customers, periods = append(customers, string(b.Customer)), append(periods, b.Period.String())
	}
	return customers, periods
}

func (p *page) queueObligations(b *pgx.Batch, bills map[policy.BillID]bool) {
	customers, periods := billColumns(bills)
	each(b.Queue(`SELECT o.customer_id, o.billing_period, vault_key, amount_minor, currency, stripe_customer, fixed, paid
		FROM unnest($1::text[], $2::text[]) AS b(customer_id, billing_period)
		JOIN spendproxy.obligations o ON o.customer_id = b.customer_id AND o.billing_period = b.billing_period`, customers, periods),
		func(rows pgx.Rows) error {
			o := &obligation{}
			var customer, period string
			err := rows.Scan(&customer, &period, &o.vault, &o.Amount.Minor, &o.Amount.Currency, &o.StripeCustomer, &o.Fixed, &o.Paid)
			o.Bill = billOf(customer, period)
			p.bills[o.Bill] = o
			return err
		})
}

// queueOwners reads the bills that charge keys belong to: by their beginning,
// which the tables hold, and then by the whole.
func (p *page) queueOwners(b *pgx.Batch, derived map[derivedKey]bool) {
	var beginnings []string
	for k := range derived {
		if v := p.vaults[k.vault]; v != nil && !v.grant.Manifest {
			beginnings = append(beginnings, k.charge[:16])
		}
	}
	if len(beginnings) == 0 {
		return
	}
	each(b.Queue(`SELECT customer_id, billing_period FROM spendproxy.obligations WHERE spendproxy.charge_keys(customer_id, billing_period) && $1`, beginnings),
		func(rows pgx.Rows) error {
			var customer, period string
			if err := rows.Scan(&customer, &period); err != nil {
				return err
			}
			bill := billOf(customer, period)
			for attempt := 1; attempt <= indexedAttempts; attempt++ {
				p.owners[string(domain.ChargeKey(bill.Customer, bill.Period, attempt))] = bill
			}
			return nil
		})
}

// indexedAttempts are those of spendproxy.charge_keys.
const indexedAttempts = 8

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func nullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
