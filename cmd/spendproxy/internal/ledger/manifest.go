package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// Limits of a manifest. A chunk is written under the ledger's lock, so that it
// is small enough for money calls to wait for.
const (
	chunkMost   = 2000
	refusedMost = 100
)

// tally is the change of what a vault key's manifest holds in a currency.
type tally struct{ bills, minor int64 }

type tallyID struct {
	vault    string
	currency domain.Currency
}

// manifest is a registration under way.
type manifest struct {
	l        *Ledger
	id       string
	chunk    []Entry
	lines    []int
	in       map[policy.BillID]bool
	line     int
	done     Registered
	affected map[string]bool
}

// Register writes entries into the manifest of a vault key, a chunk at a time,
// as they come; 100,000 take seconds. To repeat it is harmless: it says what is
// new, changed and the same. An entry that is fixed (its due is declared, a create
// has passed, or it is paid) is never changed or withdrawn again; a bill of
// another key moves to the newer of the two. The caps of a run's key follow:
// expected x 1.10, rounded up, unless an operator has set them.
//
// Entries that are not taken are listed, and the others are taken all the same.
// The errors are ErrNoKey, ErrRevoked, ErrInvalid for a key without a manifest,
// and those that entries yields, which ends the registration where it is.
func (l *Ledger) Register(ctx context.Context, keyID string, entries iter.Seq2[Entry, error]) (Registered, error) {
	m := &manifest{l: l, id: keyID, in: map[policy.BillID]bool{}, affected: map[string]bool{keyID: true}}
	for e, err := range entries {
		if err == nil {
			err = m.add(ctx, e)
		}
		if err != nil {
			return m.done, fmt.Errorf("register: %w", err)
		}
	}
	err := m.flush(ctx) // also an empty one: it says whether the key takes a manifest
	if err == nil {
		err = m.follow(ctx)
	}
	if err != nil {
		return m.done, fmt.Errorf("register: %w", err)
	}
	return m.done, nil
}

func (m *manifest) add(ctx context.Context, e Entry) error {
	m.line++
	m.done.Received++
	if why := e.invalid(); why != "" {
		m.refuse(m.line, e, "invalid_entry", why)
		return nil
	}
	if m.in[e.Bill] || len(m.chunk) == chunkMost { // a bill that comes again is another word
		if err := m.flush(ctx); err != nil {
			return err
		}
	}
	m.chunk, m.lines = append(m.chunk, e), append(m.lines, m.line)
	m.in[e.Bill] = true
	return nil
}

func (e *Entry) invalid() string {
	if _, err := domain.ParseCustomerID(string(e.Bill.Customer)); err != nil {
		return err.Error()
	}
	if e.Bill.Period.IsZero() {
		return "the billing period is missing"
	}
	if _, err := domain.ParseMoney(e.Amount.Minor, string(e.Amount.Currency)); err != nil && !e.Withdrawn {
		return err.Error()
	}
	if len(e.StripeCustomer) > 255 || clean(e.StripeCustomer) != e.StripeCustomer {
		return "the Stripe customer cannot be one"
	}
	return ""
}

func (m *manifest) refuse(line int, e Entry, code, message string) {
	m.done.RefusedCount++
	if len(m.done.Refused) < refusedMost {
		m.done.Refused = append(m.done.Refused, RefusedEntry{Line: line, Bill: e.Bill, Code: code, Message: message})
	}
}

// flush writes the chunk. What it counts is kept only with its commit.
func (m *manifest) flush(ctx context.Context) error {
	before, affected := m.done, map[string]bool{}
	err := m.l.change(ctx, func(tx pgx.Tx, _ time.Time) error { return m.merge(ctx, tx, affected) })
	if err != nil {
		m.done = before
		return err
	}
	for id := range affected {
		m.affected[id] = true
	}
	m.chunk, m.lines = m.chunk[:0], m.lines[:0]
	clear(m.in)
	return nil
}

// merge decides entry by entry against what is there, and writes what changes.
func (m *manifest) merge(ctx context.Context, tx pgx.Tx, affected map[string]bool) error {
	var takes bool
	var created time.Time
	if err := live(ctx, tx, m.id); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, `SELECT manifest, created_at FROM spendproxy.vault_keys WHERE id = $1`, m.id).Scan(&takes, &created); err != nil {
		return err
	}
	if !takes {
		return invalid("the vault key has no manifest")
	}
	p, err := m.l.newPage(ctx)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	w := newWanted()
	w.bills = m.in
	p.queueObligations(b, w)
	ages := map[string]time.Time{m.id: created}
	each(b.Queue(`SELECT id, created_at FROM spendproxy.vault_keys WHERE manifest`), func(rows pgx.Rows) error {
		var id string
		var at time.Time
		err := rows.Scan(&id, &at)
		ages[id] = at
		return err
	})
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	tallies := map[tallyID]tally{}
	count := func(vault string, money domain.Money, sign int64) {
		id := tallyID{vault, money.Currency}
		t := tallies[id]
		tallies[id] = tally{t.bills + sign, t.minor + sign*money.Minor}
		affected[vault] = true
	}
	var put, gone []Entry
	for i, e := range m.chunk {
		o := p.bills[e.Bill]
		fixed := o != nil && (o.Fixed || o.Paid != "")
		equal := o != nil && o.Amount == e.Amount && o.StripeCustomer == e.StripeCustomer
		ours := o != nil && o.vault == m.id
		switch {
		case e.Withdrawn && !ours:
			m.done.Unchanged++
		case e.Withdrawn && fixed:
			m.refuse(m.lines[i], e, "entry_fixed", "the bill is due already and stays in the manifest")
		case e.Withdrawn:
			gone = append(gone, e)
			count(m.id, o.Amount, -1)
			m.done.Withdrawn++
		case o == nil:
			put = append(put, e)
			count(m.id, e.Amount, 1)
			m.done.New++
		case !ours && ages[o.vault].After(created):
			m.refuse(m.lines[i], e, "entry_moved", "a newer vault key holds the bill")
		case fixed && !equal:
			m.refuse(m.lines[i], e, "entry_fixed", fmt.Sprintf("the bill is fixed at %d %s", o.Amount.Minor, o.Amount.Currency))
		case ours && equal && (o.Fixed || !e.Fixed):
			m.done.Unchanged++
		default:
			e.Fixed = e.Fixed || o.Fixed
			put = append(put, e)
			count(o.vault, o.Amount, -1)
			count(m.id, e.Amount, 1)
			m.done.Changed++
		}
	}
	return m.write(ctx, tx, put, gone, tallies)
}

func (m *manifest) write(ctx context.Context, tx pgx.Tx, put, gone []Entry, tallies map[tallyID]tally) error {
	b := &pgx.Batch{}
	if n := len(put); n > 0 {
		customers, periods, currencies, stripes := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		amounts, fixed := make([]int64, n), make([]bool, n)
		for i, e := range put {
			customers[i], periods[i] = columnsOf(e.Bill)
			amounts[i], currencies[i], stripes[i], fixed[i] = e.Amount.Minor, string(e.Amount.Currency), e.StripeCustomer, e.Fixed
		}
		// A success that was seen before the bill was known pays it too.
		b.Queue(`INSERT INTO spendproxy.obligations AS o (customer_id, billing_period, vault_key, amount_minor, currency, stripe_customer, fixed, paid)
			SELECT n.*, coalesce((SELECT coalesce(nullif(s.intent, ''), s.id) FROM spendproxy.objects s
				WHERE s.customer_id = n.customer_id AND s.billing_period = n.billing_period AND s.customer_id <> '' AND s.state = 'succeeded'
					AND s.id NOT LIKE 're\_%' AND s.id NOT LIKE 'pyr\_%' ORDER BY s.seen_at, s.id LIMIT 1), '')
			FROM (SELECT customer_id, billing_period, $1::text, amount_minor, currency, stripe_customer, fixed
				FROM unnest($2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bool[])
					AS e(customer_id, billing_period, amount_minor, currency, stripe_customer, fixed)) n
			ON CONFLICT (customer_id, billing_period) DO UPDATE SET vault_key = excluded.vault_key, amount_minor = excluded.amount_minor,
				currency = excluded.currency, stripe_customer = excluded.stripe_customer, fixed = excluded.fixed`,
			m.id, customers, periods, amounts, currencies, stripes, fixed)
	}
	if len(gone) > 0 {
		bills := map[policy.BillID]bool{}
		for _, e := range gone {
			bills[e.Bill] = true
		}
		customers, periods := billColumns(bills)
		b.Queue(`DELETE FROM spendproxy.obligations o USING unnest($1::text[], $2::text[]) AS e(customer_id, billing_period)
			WHERE o.customer_id = e.customer_id AND o.billing_period = e.billing_period AND NOT o.fixed AND o.paid = ''`, customers, periods)
	}
	for id, t := range tallies {
		if t == (tally{}) {
			continue
		}
		b.Queue(`INSERT INTO spendproxy.caps (vault_key, currency, cap_minor, ceiling_minor, by_operator) VALUES ($1, $2, 0, 0, false) ON CONFLICT DO NOTHING`,
			id.vault, string(id.currency))
		b.Queue(`UPDATE spendproxy.caps SET bills = bills + $3, expected_minor = expected_minor + $4 WHERE vault_key = $1 AND currency = $2`,
			id.vault, string(id.currency), t.bills, t.minor)
	}
	if b.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, b).Close()
}

// follow sets the caps of runs' keys after their manifests, and reads what the
// key's own manifest expects.
func (m *manifest) follow(ctx context.Context) error {
	return m.l.change(ctx, func(tx pgx.Tx, now time.Time) error {
		rows, err := tx.Query(ctx, `SELECT c.vault_key, c.currency, c.bills, c.expected_minor, c.cap_minor, k.run <> '' AND k.manifest AND NOT c.by_operator
			FROM spendproxy.caps c JOIN spendproxy.vault_keys k ON k.id = c.vault_key WHERE c.vault_key = ANY($1)`, list(m.affected))
		if err != nil {
			return err
		}
		type row struct {
			vault string
			Expected
			follows bool
		}
		found, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (one row, err error) {
			err = r.Scan(&one.vault, &one.Currency, &one.Bills, &one.Minor, &one.Cap, &one.follows)
			return one, err
		})
		if err != nil {
			return err
		}
		var expected []Expected
		for _, one := range found {
			if want, err := capFor(one.Minor); one.follows && err != nil {
				return err
			} else if one.follows && want != one.Cap {
				if _, err := tx.Exec(ctx, `UPDATE spendproxy.caps SET cap_minor = $3 WHERE vault_key = $1 AND currency = $2`, one.vault, string(one.Currency), want); err != nil {
					return err
				}
				change := Raised{
					What: "manifest", Currency: one.Currency, From: one.Cap, To: want, By: "manifest", At: now,
					Reason: fmt.Sprintf("%d bills of %d minor units are expected", one.Bills, one.Minor),
				}
				if err := note(ctx, tx, one.vault, change); err != nil {
					return err
				}
				one.Cap = want
			}
			if one.vault == m.id && (one.Bills > 0 || one.Cap > 0) {
				expected = append(expected, one.Expected)
			}
		}
		slices.SortFunc(expected, func(a, b Expected) int { return strings.Compare(string(a.Currency), string(b.Currency)) })
		m.done.Expected = expected
		return nil
	})
}

var errTooLarge = errors.New("the manifest's sum is too large to count")

// capFor is 1.10 times what is expected, rounded up.
func capFor(expected int64) (int64, error) {
	tenth := expected / 10
	if expected%10 > 0 {
		tenth++
	}
	if expected > math.MaxInt64-tenth {
		return 0, errTooLarge
	}
	return expected + tenth, nil
}
