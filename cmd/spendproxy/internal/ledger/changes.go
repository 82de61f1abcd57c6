package ledger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
)

// Raise changes a cap, for good or for a time; it is written down with its
// reason. The errors are ErrNoKey, ErrRevoked, ErrExpired, and ErrInvalid, among
// others for a currency in which the key has no cap.
func (l *Ledger) Raise(ctx context.Context, r Raise) (key VaultKey, err error) {
	err = l.change(ctx, func(tx pgx.Tx, now time.Time) error {
		if err := r.check(now); err != nil {
			return err
		}
		if err := live(ctx, tx, r.Key); err != nil {
			return err
		}
		if err := r.apply(ctx, tx, now); err != nil {
			return err
		}
		key, err = readKey(ctx, tx, r.Key, now)
		return err
	})
	if err != nil {
		return VaultKey{}, fmt.Errorf("raise the cap: %w", err)
	}
	return key, nil
}

func (r *Raise) check(now time.Time) error {
	if err := checkCurrency(r.Currency); err != nil {
		return err
	}
	switch {
	case (r.To == nil) == (r.More == 0):
		return invalid("exactly one of the amount to which and the amount by which must be given")
	case r.To != nil && *r.To < 0:
		return invalid("a cap must not be negative")
	case r.More < 0:
		return invalid("the amount by which it is raised must be positive; to lower a cap, say to what")
	case !r.Until.IsZero() && !r.Until.After(now):
		return invalid("until must be in the future; it is %s", now.Format(time.RFC3339))
	case r.Reason == "":
		return invalid("a reason is needed")
	case len(r.Reason) > textMost || clean(r.Reason) != r.Reason:
		return invalid("the reason must be a text of at most %d bytes", textMost)
	}
	return nil
}

func (r *Raise) apply(ctx context.Context, tx pgx.Tx, now time.Time) error {
	base, err := r.cap(ctx, tx, now)
	if err != nil {
		return err
	}
	from := base
	if err := readCaps(ctx, tx, []string{r.Key}, now, func(_ string, currency domain.Currency, change func(*Cap)) {
		if currency == r.Currency {
			c := Cap{Minor: from}
			change(&c)
			from = c.Minor
		}
	}); err != nil {
		return err
	}
	forGood := r.Until.IsZero()
	if forGood && r.More > 0 {
		from = base // what holds for a time stays on top
	}
	to := r.More
	if r.To != nil {
		to = *r.To
	} else if to > math.MaxInt64-from {
		return invalid("the cap would be too large to count")
	} else {
		to += from
	}
	if forGood && r.To != nil {
		if _, err := tx.Exec(ctx, `UPDATE spendproxy.raises SET ended_at = $3 WHERE vault_key = $1 AND currency = $2 AND what = 'raise' AND ends_at IS NOT NULL AND ended_at IS NULL`,
			r.Key, string(r.Currency), now); err != nil {
			return err
		}
	}
	if forGood {
		base = to
	}
	if _, err := tx.Exec(ctx, `UPDATE spendproxy.caps SET cap_minor = $3, by_operator = by_operator OR $4 WHERE vault_key = $1 AND currency = $2`,
		r.Key, string(r.Currency), base, forGood); err != nil {
		return err
	}
	return note(ctx, tx, r.Key, Raised{What: "raise", Currency: r.Currency, From: from, To: to, Until: r.Until, Reason: r.Reason, By: r.By, At: now})
}

// cap is what the key may spend in the currency, without what holds for a time.
func (r *Raise) cap(ctx context.Context, tx pgx.Tx, now time.Time) (base int64, err error) {
	var expired bool
	var capped *int64
	var others string
	if err := tx.QueryRow(ctx, `SELECT coalesce(expires_at <= $3, false), (SELECT cap_minor FROM spendproxy.caps WHERE vault_key = id AND currency = $2),
			coalesce((SELECT string_agg(currency, ', ' ORDER BY currency) FROM spendproxy.caps WHERE vault_key = id), 'no currency')
		FROM spendproxy.vault_keys WHERE id = $1`, r.Key, string(r.Currency), now).Scan(&expired, &capped, &others); err != nil {
		return 0, err
	}
	switch {
	case expired:
		return 0, ErrExpired
	case capped == nil:
		return 0, invalid("currency: the vault key has no cap in %s to be raised; it has one in %s", r.Currency, others)
	}
	return *capped, nil
}

// note writes a change of a vault key down.
func note(ctx context.Context, tx pgx.Tx, id string, r Raised) error {
	_, err := tx.Exec(ctx, `INSERT INTO spendproxy.raises (vault_key, what, currency, from_minor, to_minor, ends_at, reason, made_by, made_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`, id, r.What, string(r.Currency), r.From, r.To, nullTime(r.Until), clean(r.Reason), clean(r.By), r.At)
	return err
}

// live says ErrNoKey or ErrRevoked of a key that cannot be changed any more.
func live(ctx context.Context, tx pgx.Tx, id string) error {
	var revoked bool
	err := tx.QueryRow(ctx, `SELECT revoked_at IS NOT NULL FROM spendproxy.vault_keys WHERE id = $1`, clean(id)).Scan(&revoked)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrNoKey
	case err == nil && revoked:
		return ErrRevoked
	}
	return err
}

// Raises lists all changes of a vault key, oldest first. The error is ErrNoKey.
func (l *Ledger) Raises(ctx context.Context, id string) ([]Raised, error) {
	rows, err := l.pool.Query(ctx, `SELECT r.what, r.currency, r.from_minor, r.to_minor, r.ends_at, r.reason, r.made_by, r.made_at
		FROM spendproxy.vault_keys k LEFT JOIN spendproxy.raises r ON r.vault_key = k.id WHERE k.id = $1 ORDER BY r.id`, clean(id))
	if err != nil {
		return nil, fmt.Errorf("list changes: %w", err)
	}
	var what, currency, reason, by *string
	var from, to *int64
	var ends, at *time.Time
	var all []Raised
	found := false
	_, err = pgx.ForEachRow(rows, []any{&what, &currency, &from, &to, &ends, &reason, &by, &at}, func() error {
		if found = true; what != nil {
			all = append(all, Raised{What: *what, Currency: domain.Currency(*currency), From: *from, To: *to, Until: timeOf(ends), Reason: *reason, By: *by, At: at.UTC()})
		}
		return nil
	})
	if err == nil && !found {
		err = ErrNoKey
	}
	if err != nil {
		return nil, fmt.Errorf("list changes: %w", err)
	}
	return all, nil
}

// Extend lets a vault key live until a later time; an earlier one changes
// nothing, so that replicas may ask for it in any order. The errors are ErrNoKey,
// ErrRevoked and ErrInvalid.
func (l *Ledger) Extend(ctx context.Context, id string, until time.Time, reason, by string) (key VaultKey, err error) {
	err = l.change(ctx, func(tx pgx.Tx, now time.Time) error {
		if err := live(ctx, tx, id); err != nil {
			return err
		}
		if !until.After(now) {
			return invalid("expires_at must be in the future; it is %s. To end a key, revoke it", now.Format(time.RFC3339))
		}
		tag, err := tx.Exec(ctx, `UPDATE spendproxy.vault_keys SET expires_at = $2 WHERE id = $1 AND expires_at < $2`, id, until)
		if err == nil && tag.RowsAffected() > 0 {
			err = note(ctx, tx, id, Raised{What: "extend", Until: until, Reason: reason, By: by, At: now})
		}
		if err == nil {
			key, err = readKey(ctx, tx, id, now)
		}
		return err
	})
	if err != nil {
		return VaultKey{}, fmt.Errorf("extend: %w", err)
	}
	return key, nil
}

// Rotate makes a new secret; those there were retire after grace, or before if
// they were to. The errors are ErrNoKey, ErrRevoked and ErrInvalid.
func (l *Ledger) Rotate(ctx context.Context, id string, grace time.Duration, by string) (secret string, err error) {
	if grace < 0 {
		return "", fmt.Errorf("rotate: %w", invalid("grace must not be negative"))
	}
	err = l.change(ctx, func(tx pgx.Tx, now time.Time) error {
		if err := live(ctx, tx, id); err != nil {
			return err
		}
		retires := now.Add(grace)
		if _, err := tx.Exec(ctx, `UPDATE spendproxy.secrets SET retires_at = least(retires_at, $2) WHERE vault_key = $1`, id, retires); err != nil {
			return err
		}
		if secret, err = addSecret(ctx, tx, id, by, now); err != nil {
			return err
		}
		return note(ctx, tx, id, Raised{What: "rotate", Until: retires, Reason: "older secrets retire", By: by, At: now})
	})
	if err != nil {
		return "", fmt.Errorf("rotate: %w", err)
	}
	return secret, nil
}

// Revoke ends a vault key, from the next request on, for good. To revoke it again
// changes nothing. The error is ErrNoKey.
func (l *Ledger) Revoke(ctx context.Context, id, reason, by string) error {
	err := l.change(ctx, func(tx pgx.Tx, now time.Time) error {
		switch err := live(ctx, tx, id); {
		case errors.Is(err, ErrRevoked):
			return nil
		case err != nil:
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE spendproxy.vault_keys SET revoked_at = $2, revoked_by = $3, revoked_reason = $4 WHERE id = $1`, id, now, clean(by), clean(reason)); err != nil {
			return err
		}
		return note(ctx, tx, id, Raised{What: "revoke", Reason: reason, By: by, At: now})
	})
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	return nil
}

// Books sums what was charged, a row a currency: what succeeded, and what is
// reserved or unknown. Refunds are counted beside it.
func (l *Ledger) Books(ctx context.Context, f BooksFilter) ([]Sum, error) {
	q := &where{}
	q.is("state IN ('reserved', 'held', 'settled')")
	q.equals("vault_key", f.VaultKey)
	if f.Run != "" {
		q.is("vault_key IN (SELECT id FROM spendproxy.vault_keys WHERE run = " + q.arg(f.Run) + ")")
	}
	rows, err := l.pool.Query(ctx, `SELECT CASE WHEN state = 'settled' THEN settled_in ELSE currency END AS c,
			coalesce(sum(settled_minor) FILTER (WHERE state = 'settled' AND NOT refund), 0)::bigint, count(*) FILTER (WHERE state = 'settled' AND NOT refund),
			coalesce(sum(amount_minor) FILTER (WHERE state <> 'settled' AND NOT refund), 0)::bigint, count(*) FILTER (WHERE state <> 'settled' AND NOT refund),
			coalesce(sum(settled_minor) FILTER (WHERE state = 'settled' AND refund), 0)::bigint, count(*) FILTER (WHERE state = 'settled' AND refund),
			coalesce(sum(amount_minor) FILTER (WHERE state <> 'settled' AND refund), 0)::bigint, count(*) FILTER (WHERE state <> 'settled' AND refund)
		FROM spendproxy.subjects`+q.text()+` GROUP BY c ORDER BY c`, q.args...)
	if err != nil {
		return nil, fmt.Errorf("sum the books: %w", err)
	}
	sums, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Sum, err error) {
		err = row.Scan(&s.Currency, &s.Settled, &s.SettledCount, &s.Held, &s.HeldCount, &s.Refunded, &s.RefundedCount, &s.RefundsHeld, &s.RefundsHeldCount)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("sum the books: %w", err)
	}
	return sums, nil
}
