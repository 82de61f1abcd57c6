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
	plansSQL = `SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_material', 'off', true)`
)

// queueLock queues the lock, and the reading of the clock behind it.
func (p *page) queueLock(b *pgx.Batch) {
	// transact waits for the disk later.
	each(b.Queue(lockSQL+`, set_config('synchronous_commit', 'off', true), clock_timestamp()`), func(rows pgx.Rows) error {
		var now time.Time
		columns := make([]any, len(rows.FieldDescriptions())) // the last alone is read
		columns[len(columns)-1] = &now
		err := rows.Scan(columns...)
		if p.now.IsZero() {
			p.now = now.UTC()
		}
		return err
	})
}

// load reads what is wanted in one round trip, under the lock: what depends on
// what else is found is joined.
func (p *page) load(ctx context.Context, conn *pgx.Conn, w *wanted) error {
	b := &pgx.Batch{}
	b.Queue(`BEGIN`)
	p.queueLock(b)
	if len(w.vaults) > 0 {
		vaults := list(w.vaults)
		p.queueVaults(b, vaults)
		p.queueBooks(b, vaults)
	}
	if len(w.keys) > 0 {
		p.queueKeys(b, list(w.keys))
	}
	if len(w.objects) > 0 {
		p.queueObjects(b, list(w.objects))
	}
	p.queueSubjects(b, w)
	p.queueObligations(b, w)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("lock and read: %w", err)
	}
	return p.loadRest(ctx, conn, w)
}

// loadRest reads what is rarely wanted: the bills whose keys a vault key without
// a manifest uses, and what keys made that succeeded without an answer.
func (p *page) loadRest(ctx context.Context, conn *pgx.Conn, w *wanted) error {
	b := &pgx.Batch{}
	p.queueOwners(b, w.derived)
	var made []string
	for _, s := range p.subjects {
		if id := s.made(); s.state == stateSettled && id != "" && id != s.id && p.objects[id] == nil {
			made = append(made, id)
		}
	}
	if len(made) > 0 {
		p.queueObjects(b, made)
	}
	if b.Len() == 0 {
		return nil
	}
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
	each(b.Queue(`SELECT id, mode, cap_window, manifest, count_cap, expires_at, revoked_at IS NOT NULL, currency, cap_minor, ceiling_minor
		FROM spendproxy.vault_keys LEFT JOIN spendproxy.caps ON vault_key = id WHERE id = ANY($1)`, ids),
		func(rows pgx.Rows) error {
			var v vault
			var expires *time.Time
			var currency *string
			var minor, ceiling *int64
			if err := rows.Scan(&v.id, &v.grant.Mode, &v.grant.Window, &v.grant.Manifest, &v.countCap, &expires, &v.revoked, &currency, &minor, &ceiling); err != nil {
				return err
			}
			if p.vaults[v.id] == nil {
				v.grant.Expires, v.caps = timeOf(expires), map[domain.Currency]Cap{}
				p.vaults[v.id] = &v
			}
			if currency != nil {
				c := domain.Currency(*currency)
				p.vaults[v.id].caps[c] = Cap{Currency: c, Minor: *minor, Ceiling: *ceiling}
			}
			return nil
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

// queueBooks queues the sums of the vault keys' lives and of the day. By the
// database's clock it may become another one while the lock is waited for.
func (p *page) queueBooks(b *pgx.Batch, ids []string) {
	days := []string{"", dayOf(p.now)}
	which := `day = ANY($2)`
	if p.now.IsZero() {
		days, which = days[:1], `day = ANY($2 || ARRAY[to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD'), to_char((now() + interval '1 day') AT TIME ZONE 'UTC', 'YYYY-MM-DD')])`
	}
	each(b.Queue(`SELECT vault_key, currency, day, held_minor, spent_minor, charges FROM spendproxy.books WHERE vault_key = ANY($1) AND `+which, ids, days),
		func(rows pgx.Rows) error {
			var id bookID
			here := book{stored: true}
			err := rows.Scan(&id.vault, &id.currency, &id.day, &here.held, &here.spent, &here.charges)
			p.books[id] = &here
			return err
		})
}

// storedAnswer is an answer that a join may have found.
type storedAnswer struct {
	status        *int
	kind, request *string
	body          []byte
}

func (a *storedAnswer) columns() []any { return []any{&a.status, &a.kind, &a.request, &a.body} }

func (p *page) answered(key string, a storedAnswer) {
	if a.status != nil {
		p.answers[key] = &Answer{Status: *a.status, ContentType: *a.kind, RequestID: *a.request, Body: a.body}
	}
}

func (p *page) queueKeys(b *pgx.Batch, keys []string) {
	each(b.Queue(`SELECT k.idempotency_key, fingerprint, vault_key, rule, subject, first_sent_at, status, content_type, request_id, body
		FROM spendproxy.keys k LEFT JOIN spendproxy.answers a ON a.idempotency_key = k.idempotency_key WHERE k.idempotency_key = ANY($1)`, keys),
		func(rows pgx.Rows) error {
			k := &sentKey{}
			var fingerprint []byte
			var a storedAnswer
			err := rows.Scan(append([]any{&k.key, &fingerprint, &k.vault, &k.rule, &k.subject, &k.firstSent}, a.columns()...)...)
			copy(k.fingerprint[:], fingerprint)
			p.keys[k.key] = k
			p.answered(k.key, a)
			return err
		})
}

const objectColumns = `id, intent, state, amount_minor, currency, received_minor, customer_id, billing_period, stripe_customer, latest_charge, raw, answer_key, seen_at`

func (p *page) queueObjects(b *pgx.Batch, ids []string) {
	each(b.Queue(`SELECT `+objectColumns+`, status, content_type, request_id, body
		FROM spendproxy.objects LEFT JOIN spendproxy.answers ON idempotency_key = answer_key WHERE id = ANY($1)`, ids),
		func(rows pgx.Rows) error {
			o := &object{}
			var customer, period string
			var a storedAnswer
			err := rows.Scan(append([]any{&o.Object, &o.Intent, &o.State, &o.Amount.Minor, &o.Amount.Currency, &o.Received, &customer, &period,
				&o.StripeCustomer, &o.LatestCharge, &o.Raw, &o.answerKey, &o.seen}, a.columns()...)...)
			o.Bill = billOf(customer, period)
			p.objects[o.Object] = o
			p.answered(o.answerKey, a)
			return err
		})
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

const subjectColumns = `s.id, s.refund, s.vault_key, s.day, s.amount_minor, s.currency, s.state, s.settled_minor, s.settled_in, s.intent, s.object,
	s.customer_id, s.billing_period, s.stripe_customer, s.sends, s.since, s.quiet_until, s.ask_at`

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
	objects, keys := list(w.objects), list(w.keys)
	ids := append(list(w.subjects), objects...)
	if len(ids)+len(keys)+len(w.bills) == 0 {
		return
	}
	customers, periods := billColumns(w.bills)
	each(b.Queue(subjectsSQL, ids, keys, objects, customers, periods), scan)
}

// subjectsSQL finds subjects by their ids, by idempotency keys that were sent for
// them, by the objects that they made, and by bills, be it those of objects. Some
// are found in several ways.
const (
	subjectsFrom = `SELECT ` + subjectColumns + ` FROM spendproxy.subjects s `
	subjectsSQL  = subjectsFrom + `WHERE s.id = ANY($1)
		UNION ALL SELECT ` + subjectColumns + ` FROM spendproxy.keys k JOIN spendproxy.subjects s ON s.id = k.subject WHERE k.idempotency_key = ANY($2) AND k.subject <> ''
		UNION ALL ` + subjectsFrom + `WHERE intent <> '' AND intent <> s.id AND intent = ANY($3)
		UNION ALL ` + subjectsFrom + `WHERE object <> '' AND object = ANY($3)
		UNION ALL SELECT ` + subjectColumns + ` FROM unnest($4::text[], $5::text[]) AS b(customer_id, billing_period)
			JOIN spendproxy.subjects s ON s.customer_id = b.customer_id AND s.billing_period = b.billing_period AND s.customer_id <> ''
		UNION ALL SELECT ` + subjectColumns + ` FROM unnest($3::text[]) AS n(wanted) CROSS JOIN LATERAL (SELECT * FROM spendproxy.objects WHERE id = wanted OFFSET 0) AS b
			JOIN spendproxy.subjects s ON s.customer_id = b.customer_id AND s.billing_period = b.billing_period AND s.customer_id <> ''`
)

func billColumns(bills map[policy.BillID]bool) (customers, periods []string) {
	for b := range bills {
		customers, periods = append(customers, string(b.Customer)), append(periods, b.Period.String())
	}
	return customers, periods
}

// queueObligations queues the manifests' entries of bills, be it those of objects.
func (p *page) queueObligations(b *pgx.Batch, w *wanted) {
	objects := list(w.objects)
	if len(objects)+len(w.bills) == 0 {
		return
	}
	customers, periods := billColumns(w.bills)
	each(b.Queue(`SELECT o.customer_id, o.billing_period, o.vault_key, o.amount_minor, o.currency, o.stripe_customer, o.fixed, o.paid
		FROM (SELECT * FROM unnest($1::text[], $2::text[]) AS n(customer_id, billing_period)
			UNION ALL SELECT customer_id, billing_period FROM unnest($3::text[]) AS n(wanted)
				CROSS JOIN LATERAL (SELECT * FROM spendproxy.objects WHERE id = wanted OFFSET 0) AS o WHERE customer_id <> '') AS b
		JOIN spendproxy.obligations o ON o.customer_id = b.customer_id AND o.billing_period = b.billing_period`, customers, periods, objects),
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
