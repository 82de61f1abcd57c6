package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// change runs f under the ledger's lock, in one transaction, so that every
// decision of later calls sees what it did.
func (l *Ledger) change(ctx context.Context, f func(tx pgx.Tx, now time.Time) error) error {
	now, err := l.now(ctx)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL); err != nil {
			return err
		}
		if now.IsZero() {
			if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
				return err
			}
		}
		return f(tx, now.UTC())
	})
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// check says what is wrong with an issue.
func (i *Issue) check() error {
	if i.Grant.Mode == "" {
		i.Grant.Mode = policy.Enforce
	}
	if i.Grant.Window == "" {
		i.Grant.Window = policy.Total
	}
	switch i.Grant.Mode {
	case policy.Open, policy.Report, policy.Enforce:
	default:
		return invalid("mode must be open, report or enforce")
	}
	switch {
	case i.Grant.Window != policy.Total && i.Grant.Window != policy.Day:
		return invalid("window must be total or day")
	case i.CountCap < 0:
		return invalid("count_cap must not be negative")
	case i.Grant.Manifest && i.Grant.Mode != policy.Enforce:
		return invalid("mode: a key with a manifest is always enforced")
	}
	for _, text := range []string{i.Label, i.Environment, i.Run, i.By} {
		if len(text) > 200 || clean(text) != text {
			return invalid("label, environment, run and who did it are texts of at most 200 bytes")
		}
	}
	seen := map[domain.Currency]bool{}
	for _, c := range i.Caps {
		if err := checkCurrency(c.Currency); err != nil {
			return err
		}
		if c.Minor < 0 || c.Ceiling < 0 {
			return invalid("caps: %s must not be negative", c.Currency)
		}
		if seen[c.Currency] {
			return invalid("caps: %s is there twice", c.Currency)
		}
		seen[c.Currency] = true
	}
	return nil
}

func checkCurrency(c domain.Currency) error {
	if _, err := domain.ParseCurrency(string(c)); err != nil {
		return invalid("currency %q", c)
	}
	return nil
}

// Issue makes a vault key and a secret of it, which is shown this once. For a run
// that has a key in its environment it makes one more secret of that key, which
// stays as it is: any number of replicas spend from one cap. The errors are
// ErrInvalid, and ErrRevoked for a run whose key was revoked.
func (l *Ledger) Issue(ctx context.Context, i Issue) (key VaultKey, secret string, existed bool, err error) {
	if err := i.check(); err != nil {
		return VaultKey{}, "", false, fmt.Errorf("issue: %w", err)
	}
	err = l.change(ctx, func(tx pgx.Tx, now time.Time) error {
		id := ""
		existed = false
		if i.Run != "" {
			var revoked bool
			err := tx.QueryRow(ctx, `SELECT id, revoked_at IS NOT NULL FROM spendproxy.vault_keys WHERE environment = $1 AND run = $2 AND run <> ''`, i.Environment, i.Run).Scan(&id, &revoked)
			switch {
			case err == nil && revoked:
				return ErrRevoked
			case err == nil:
				existed = true
			case !errors.Is(err, pgx.ErrNoRows):
				return err
			}
		}
		if id == "" {
			if !i.Grant.Expires.IsZero() && !i.Grant.Expires.After(now) {
				return invalid("expires_at must be in the future; it is %s", now.Format(time.RFC3339))
			}
			id = newID()
			if err := insertKey(ctx, tx, id, i, now); err != nil {
				return err
			}
		}
		if secret, err = addSecret(ctx, tx, id, i.By, now); err != nil {
			return err
		}
		key, err = readKey(ctx, tx, id, now)
		return err
	})
	if err != nil {
		return VaultKey{}, "", false, fmt.Errorf("issue: %w", err)
	}
	return key, secret, existed, nil
}

func insertKey(ctx context.Context, tx pgx.Tx, id string, i Issue, now time.Time) error {
	rules := []string{}
	for _, r := range i.Grant.Rules {
		rules = append(rules, string(r))
	}
	_, err := tx.Exec(ctx, `INSERT INTO spendproxy.vault_keys (id, label, environment, run, rules, mode, cap_window, manifest, count_cap, expires_at, created_at, created_by)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		id, i.Label, i.Environment, i.Run, rules, string(i.Grant.Mode), string(i.Grant.Window), i.Grant.Manifest, i.CountCap, nullTime(i.Grant.Expires), now, i.By)
	if err != nil {
		return err
	}
	for _, c := range i.Caps {
		_, err := tx.Exec(ctx, `INSERT INTO spendproxy.caps (vault_key, currency, cap_minor, ceiling_minor, by_operator) VALUES ($1, $2, $3, $4, true)`,
			id, string(c.Currency), c.Minor, c.Ceiling)
		if err != nil {
			return err
		}
	}
	return nil
}

func addSecret(ctx context.Context, tx pgx.Tx, id, by string, now time.Time) (string, error) {
	secret := newSecret(id)
	_, err := tx.Exec(ctx, `INSERT INTO spendproxy.secrets (vault_key, hash, last4, created_at, created_by) VALUES ($1, $2, $3, $4, $5)`,
		id, hashOf(secret), secret[len(secret)-4:], now, by)
	return secret, err
}

// Keys lists vault keys in the order of their issuing, with their books.
func (l *Ledger) Keys(ctx context.Context, f KeyFilter) ([]VaultKey, error) {
	now, err := l.Clock(ctx)
	if err != nil {
		return nil, fmt.Errorf("list vault keys: %w", err)
	}
	if f.After != "" {
		var known bool
		if err := l.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM spendproxy.vault_keys WHERE id = $1)`, f.After).Scan(&known); err != nil {
			return nil, fmt.Errorf("list vault keys: %w", err)
		}
		if !known {
			return nil, fmt.Errorf("list vault keys: %w", invalid("after is no vault key's id"))
		}
	}
	q := &where{}
	q.equals("run", f.Run)
	q.equals("label", f.Label)
	if f.Live {
		q.is("revoked_at IS NULL AND (expires_at IS NULL OR expires_at > " + q.arg(now) + ")")
	}
	if f.After != "" {
		q.is("(created_at, id) > (SELECT created_at, id FROM spendproxy.vault_keys WHERE id = " + q.arg(f.After) + ")")
	}
	keys, err := readKeys(ctx, l.pool, q.text()+` ORDER BY created_at, id LIMIT `+q.arg(limitOf(f.Limit)), q.args, now)
	if err != nil {
		return nil, fmt.Errorf("list vault keys: %w", err)
	}
	return keys, nil
}

// Key is one vault key with its books. The error is ErrNoKey.
func (l *Ledger) Key(ctx context.Context, id string) (VaultKey, error) {
	now, err := l.Clock(ctx)
	if err != nil {
		return VaultKey{}, fmt.Errorf("show vault key: %w", err)
	}
	k, err := readKey(ctx, l.pool, id, now)
	if err != nil {
		return VaultKey{}, fmt.Errorf("show vault key: %w", err)
	}
	return k, nil
}

func readKey(ctx context.Context, q querier, id string, now time.Time) (VaultKey, error) {
	keys, err := readKeys(ctx, q, ` WHERE id = $1`, []any{clean(id)}, now)
	if err == nil && len(keys) == 0 {
		err = ErrNoKey
	}
	if err != nil {
		return VaultKey{}, err
	}
	return keys[0], nil
}

// readKeys reads keys, and what belongs to them.
func readKeys(ctx context.Context, q querier, which string, args []any, now time.Time) ([]VaultKey, error) {
	rows, err := q.Query(ctx, `SELECT `+keyColumns+` FROM spendproxy.vault_keys`+which, args...)
	if err != nil {
		return nil, err
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (VaultKey, error) { return scanKey(row) })
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	ids := make([]string, len(keys))
	for i, k := range keys {
		ids[i] = k.ID
	}
	caps := map[string]map[domain.Currency]Cap{}
	cap := func(id string, currency domain.Currency, change func(*Cap)) {
		if caps[id] == nil {
			caps[id] = map[domain.Currency]Cap{}
		}
		c := caps[id][currency]
		c.Currency = currency
		change(&c)
		caps[id][currency] = c
	}
	if err := readCaps(ctx, q, ids, now, cap); err != nil {
		return nil, err
	}
	secrets, err := readSecrets(ctx, q, ids)
	if err != nil {
		return nil, err
	}
	for i := range keys {
		k := &keys[i]
		k.Secrets = secrets[k.ID]
		k.Caps = slices.SortedFunc(maps.Values(caps[k.ID]), func(a, b Cap) int { return strings.Compare(string(a.Currency), string(b.Currency)) })
	}
	return keys, nil
}

// readCaps reads the caps with what holds for a time, and what is used of them in
// the window of now.
func readCaps(ctx context.Context, q querier, ids []string, now time.Time, cap func(id string, currency domain.Currency, change func(*Cap))) error {
	var id string
	var currency domain.Currency
	rows, err := q.Query(ctx, `SELECT vault_key, currency, cap_minor, ceiling_minor, by_operator FROM spendproxy.caps WHERE vault_key = ANY($1)`, ids)
	if err != nil {
		return err
	}
	var amount, ceiling int64
	var byOperator bool
	_, err = pgx.ForEachRow(rows, []any{&id, &currency, &amount, &ceiling, &byOperator}, func() error {
		cap(id, currency, func(c *Cap) { c.Minor, c.Ceiling, c.ByOperator = amount, ceiling, byOperator })
		return nil
	})
	if err != nil {
		return err
	}
	if rows, err = q.Query(ctx, raisesNowSQL, ids); err != nil {
		return err
	}
	var more int64
	var ends time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &currency, &more, &ends}, func() error {
		if now.Before(ends) {
			cap(id, currency, func(c *Cap) { c.Minor = max(plus(c.Minor, more), 0) })
		}
		return nil
	})
	if err != nil {
		return err
	}
	rows, err = q.Query(ctx, `SELECT b.vault_key, b.currency, b.held_minor, b.spent_minor, b.charges FROM spendproxy.books b JOIN spendproxy.vault_keys k ON k.id = b.vault_key
		WHERE b.vault_key = ANY($1) AND b.day = CASE WHEN k.cap_window = 'day' THEN $2 ELSE '' END`, ids, dayOf(now))
	if err != nil {
		return err
	}
	var held, spent, charges int64
	_, err = pgx.ForEachRow(rows, []any{&id, &currency, &held, &spent, &charges}, func() error {
		cap(id, currency, func(c *Cap) { c.Held, c.Spent, c.Charges = held, spent, charges })
		return nil
	})
	return err
}

func readSecrets(ctx context.Context, q querier, ids []string) (map[string][]Secret, error) {
	rows, err := q.Query(ctx, `SELECT vault_key, last4, created_at, retires_at FROM spendproxy.secrets WHERE vault_key = ANY($1) ORDER BY retires_at NULLS LAST, created_at, last4`, ids)
	if err != nil {
		return nil, err
	}
	secrets := map[string][]Secret{}
	var id, last4 string
	var created time.Time
	var retires *time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &last4, &created, &retires}, func() error {
		secrets[id] = append(secrets[id], Secret{Last4: last4, CreatedAt: created.UTC(), RetiresAt: timeOf(retires)})
		return nil
	})
	return secrets, err
}
