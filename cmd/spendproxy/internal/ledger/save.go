package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// save queues everything that the page changed in the books.
func (p *page) save(b *pgx.Batch) error {
	p.saveKeys(b)
	p.saveAnswers(b)
	if err := p.saveSubjects(b); err != nil {
		return err
	}
	p.saveObjects(b)
	p.saveBooks(b)
	p.saveObligations(b)
	return nil
}

// commit writes the page and commits, in one round trip.
func (p *page) commit(ctx context.Context, conn *pgx.Conn) error {
	b := &pgx.Batch{}
	if err := p.save(b); err != nil {
		return err
	}
	p.wrote = b.Len() > 0
	b.Queue(`COMMIT`)
	return conn.SendBatch(ctx, b).Close()
}

// flushSQL commits something that says nothing, where there is nothing to tell.
const flushSQL = `SELECT pg_logical_emit_message(true, 'spendproxy', '')`

// tell writes the audit's rows, and waits until they and the page, committed
// before them, are on the disk, and with the standbys that must have them.
func (p *page) tell(ctx context.Context, conn *pgx.Conn) error {
	b := &pgx.Batch{}
	switch {
	case len(p.audit) > 0:
		queueAudit(b, p.audit)
	case p.wrote:
		b.Queue(flushSQL)
	default:
		return nil
	}
	return conn.SendBatch(ctx, b).Close()
}

func (p *page) saveKeys(b *pgx.Batch) {
	n := len(p.newKeys)
	if n == 0 {
		return
	}
	keys, vaults, rules, subjects := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	fingerprints, sent := make([][]byte, n), make([]time.Time, n)
	for i, k := range p.newKeys {
		keys[i], vaults[i], rules[i], subjects[i] = k.key, k.vault, string(k.rule), k.subject
		fingerprints[i], sent[i] = k.fingerprint[:], k.firstSent
	}
	b.Queue(`INSERT INTO spendproxy.keys (idempotency_key, fingerprint, vault_key, rule, subject, first_sent_at)
		SELECT * FROM unnest($1::text[], $2::bytea[], $3::text[], $4::text[], $5::text[], $6::timestamptz[])`,
		keys, fingerprints, vaults, rules, subjects, sent)
}

func (p *page) saveAnswers(b *pgx.Batch) {
	n := len(p.newAnswers)
	if n == 0 {
		return
	}
	statuses, types, requests, bodies := make([]int16, n), make([]string, n), make([]string, n), make([][]byte, n)
	for i, key := range p.newAnswers {
		a := p.answers[key]
		statuses[i], types[i], requests[i], bodies[i] = int16(a.Status), a.ContentType, a.RequestID, a.Body
		if a.Body == nil {
			bodies[i] = []byte{}
		}
	}
	b.Queue(`INSERT INTO spendproxy.answers (idempotency_key, status, content_type, request_id, body)
		SELECT * FROM unnest($1::text[], $2::smallint[], $3::text[], $4::text[], $5::bytea[])
		ON CONFLICT (idempotency_key) DO NOTHING`, p.newAnswers, statuses, types, requests, bodies)
}

func (p *page) saveSubjects(b *pgx.Batch) error {
	var ids, vaults, days, currencies, states, settledIn, intents, objects, customers, periods, stripes, sends []string
	var refunds []bool
	var amounts, settled []int64
	var since, quiet, ask []time.Time
	for _, s := range p.subjects {
		if !s.changed {
			continue
		}
		if s.sends == nil {
			s.sends = []send{}
		}
		text, err := json.Marshal(s.sends)
		if err != nil {
			return fmt.Errorf("write the sends of %s: %w", s.id, err)
		}
		customer, period := columnsOf(s.bill)
		ids, vaults, days = append(ids, s.id), append(vaults, s.vault), append(days, s.day)
		refunds, states, sends = append(refunds, s.refund), append(states, s.state), append(sends, string(text))
		amounts, currencies = append(amounts, s.amount.Minor), append(currencies, string(s.amount.Currency))
		settled, settledIn = append(settled, s.settled.Minor), append(settledIn, string(s.settled.Currency))
		intents, objects = append(intents, s.intent), append(objects, s.object)
		customers, periods, stripes = append(customers, customer), append(periods, period), append(stripes, s.customer)
		since, quiet, ask = append(since, s.since), append(quiet, s.quietUntil), append(ask, s.askAt)
	}
	if len(ids) == 0 {
		return nil
	}
	b.Queue(`INSERT INTO spendproxy.subjects AS s (id, refund, vault_key, day, amount_minor, currency, state, settled_minor, settled_in, intent, object,
			customer_id, billing_period, stripe_customer, sends, since, quiet_until, ask_at)
		SELECT id, refund, vault_key, day, amount_minor, currency, state, settled_minor, settled_in, intent, object,
			customer_id, billing_period, stripe_customer, sends::json, since, quiet_until, ask_at
		FROM unnest($1::text[], $2::bool[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::text[], $11::text[],
			$12::text[], $13::text[], $14::text[], $15::text[], $16::timestamptz[], $17::timestamptz[], $18::timestamptz[])
			AS n(id, refund, vault_key, day, amount_minor, currency, state, settled_minor, settled_in, intent, object,
				customer_id, billing_period, stripe_customer, sends, since, quiet_until, ask_at)
		ON CONFLICT (id) DO UPDATE SET refund = excluded.refund, vault_key = excluded.vault_key, day = excluded.day,
			amount_minor = excluded.amount_minor, currency = excluded.currency, state = excluded.state,
			settled_minor = excluded.settled_minor, settled_in = excluded.settled_in, intent = excluded.intent, object = excluded.object,
			customer_id = excluded.customer_id, billing_period = excluded.billing_period, stripe_customer = excluded.stripe_customer,
			sends = excluded.sends, since = excluded.since, quiet_until = excluded.quiet_until, ask_at = excluded.ask_at`,
		ids, refunds, vaults, days, amounts, currencies, states, settled, settledIn, intents, objects,
		customers, periods, stripes, sends, since, quiet, ask)
	return nil
}

func (p *page) saveObjects(b *pgx.Batch) {
	var ids, intents, states, currencies, customers, periods, stripes, latest, answers []string
	var amounts, received []int64
	var raws [][]byte
	var seen []time.Time
	for _, o := range p.objects {
		if !o.changed {
			continue
		}
		if o.answerKey != "" {
			o.Raw = nil // the same is among the answers
		}
		customer, period := columnsOf(o.Bill)
		ids, intents, states, currencies = append(ids, o.Object), append(intents, o.Intent), append(states, string(o.State)), append(currencies, string(o.Amount.Currency))
		customers, periods, stripes = append(customers, customer), append(periods, period), append(stripes, o.StripeCustomer)
		latest, answers = append(latest, o.LatestCharge), append(answers, o.answerKey)
		amounts, received = append(amounts, o.Amount.Minor), append(received, o.Received)
		raws, seen = append(raws, o.Raw), append(seen, o.seen)
	}
	if len(ids) == 0 {
		return
	}
	b.Queue(`INSERT INTO spendproxy.objects (`+objectColumns+`)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::text[],
			$10::text[], $11::bytea[], $12::text[], $13::timestamptz[])
		ON CONFLICT (id) DO UPDATE SET intent = excluded.intent, state = excluded.state, amount_minor = excluded.amount_minor,
			currency = excluded.currency, received_minor = excluded.received_minor, customer_id = excluded.customer_id,
			billing_period = excluded.billing_period, stripe_customer = excluded.stripe_customer, latest_charge = excluded.latest_charge,
			raw = excluded.raw, answer_key = excluded.answer_key, seen_at = excluded.seen_at`,
		ids, intents, states, amounts, currencies, received, customers, periods, stripes, latest, raws, answers, seen)
}

// saveBooks adds to the sums; what overflows stays at the largest number, which
// has no room.
func (p *page) saveBooks(b *pgx.Batch) {
	var vaults, currencies, days []string
	var held, spent, charges []int64
	fresh := false
	for id, here := range p.books {
		if here.addHeld == 0 && here.addSpent == 0 && here.addCharges == 0 {
			continue
		}
		vaults, currencies, days = append(vaults, id.vault), append(currencies, string(id.currency)), append(days, id.day)
		held, spent, charges = append(held, here.addHeld), append(spent, here.addSpent), append(charges, here.addCharges)
		fresh = fresh || !here.stored && here.addHeld >= 0 // what is taken off was once put there
	}
	if len(vaults) == 0 {
		return
	}
	if fresh {
		b.Queue(`INSERT INTO spendproxy.books (vault_key, currency, day, held_minor, spent_minor, charges)
			SELECT vault_key, currency, day, 0, 0, 0 FROM unnest($1::text[], $2::text[], $3::text[]) AS n(vault_key, currency, day)
			ON CONFLICT (vault_key, currency, day) DO NOTHING`, vaults, currencies, days)
	}
	b.Queue(`UPDATE spendproxy.books b SET held_minor = b.held_minor + n.held,
			spent_minor = least(b.spent_minor::numeric + n.spent, 9223372036854775807)::bigint, charges = b.charges + n.charges
		FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) AS n(vault_key, currency, day, held, spent, charges)
		WHERE b.vault_key = n.vault_key AND b.currency = n.currency AND b.day = n.day`, vaults, currencies, days, held, spent, charges)
}

func (p *page) saveObligations(b *pgx.Batch) {
	var customers, periods []string
	for bill, o := range p.bills {
		if o.changed {
			customer, period := columnsOf(bill)
			customers, periods = append(customers, customer), append(periods, period)
		}
	}
	if len(customers) > 0 {
		b.Queue(`UPDATE spendproxy.obligations o SET fixed = true FROM unnest($1::text[], $2::text[]) AS n(customer_id, billing_period)
			WHERE o.customer_id = n.customer_id AND o.billing_period = n.billing_period`, customers, periods)
	}
	if len(p.paid) == 0 {
		return
	}
	customers, periods = nil, nil
	var by []string
	for bill, object := range p.paid {
		customer, period := columnsOf(bill)
		customers, periods, by = append(customers, customer), append(periods, period), append(by, object)
	}
	b.Queue(`UPDATE spendproxy.obligations o SET paid = n.paid FROM unnest($1::text[], $2::text[], $3::text[]) AS n(customer_id, billing_period, paid)
		WHERE o.customer_id = n.customer_id AND o.billing_period = n.billing_period AND o.paid = ''`, customers, periods, by)
}
