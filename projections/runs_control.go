package projections

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
)

// RunControl is what holds a run back, or lets it go: not from the log's
// projection, but as the collector sees it now.
type RunControl struct {
	Paused    bool               `json:"paused"`              // nothing new is collected
	Reason    string             `json:"reason,omitempty"`    // why it is paused
	Refusal   *domain.RunRefusal `json:"refusal,omitempty"`   // what the spend proxy said, if that is why
	PausedBy  string             `json:"paused_by,omitempty"` // a token's name, or the collector
	PausedAt  *time.Time         `json:"paused_at,omitempty"` // business time
	VaultKey  string             `json:"vault_key,omitempty"` // public id of the run's key at the proxy
	ExpiresAt *time.Time         `json:"vault_key_expires_at,omitempty"`
	Finding   string             `json:"finding,omitempty"` // what the proxy does not take of the manifest
}

// ManifestTotal is what a run is expected to take in one currency, from
// subscriptions and from charges that were asked for. What is withdrawn does not
// count.
type ManifestTotal struct {
	Currency   domain.Currency `json:"currency"`
	Bills      int64           `json:"bills"`
	Expected   Money           `json:"expected"`
	Fixed      int64           `json:"fixed"`      // bills whose due is declared, or whose charge was asked for
	Registered int64           `json:"registered"` // bills that the proxy lets pass
	Refused    int64           `json:"refused"`    // bills that the proxy does not take
}

// controls reads what holds back each of some runs, in their order, and which
// of them are known at all.
func controls(ctx context.Context, tx pgx.Tx, labels []string) (found []RunControl, known []bool, err error) {
	found, known = make([]RunControl, len(labels)), make([]bool, len(labels))
	rows, err := tx.Query(ctx, `SELECT billing_period, paused, reason, refusal, paused_by, paused_at, coalesce(vault_key, ''), expires_at, coalesce(finding, '')
		FROM billing_runs WHERE billing_period = ANY ($1)`, labels)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var label string
		var c RunControl
		var refusal []byte
		if err := rows.Scan(&label, &c.Paused, &c.Reason, &refusal, &c.PausedBy, &c.PausedAt, &c.VaultKey, &c.ExpiresAt, &c.Finding); err != nil {
			return nil, nil, err
		}
		c.PausedAt, c.ExpiresAt = inUTC(c.PausedAt), inUTC(c.ExpiresAt)
		if !c.Paused {
			c.Reason, c.PausedBy, c.PausedAt, refusal = "", "", nil, nil
		}
		if refusal != nil {
			if err := json.Unmarshal(refusal, &c.Refusal); err != nil {
				return nil, nil, err
			}
		}
		i := slices.Index(labels, label)
		found[i], known[i] = c, true
	}
	return found, known, rows.Err()
}

// manifestOf adds up what a run is expected to take.
func manifestOf(ctx context.Context, tx pgx.Tx, label string) ([]ManifestTotal, error) {
	rows, err := tx.Query(ctx, `SELECT currency, count(*), sum(amount_minor)::bigint, count(*) FILTER (WHERE fixed), count(*) FILTER (WHERE registered), count(refused)
		FROM run_manifest WHERE billing_period = $1 AND NOT withdrawn GROUP BY currency ORDER BY currency`, label)
	if err != nil {
		return nil, err
	}
	return pgx.AppendRows([]ManifestTotal{}, rows, func(row pgx.CollectableRow) (t ManifestTotal, err error) {
		var minor int64
		err = row.Scan(&t.Currency, &t.Bills, &minor, &t.Fixed, &t.Registered, &t.Refused)
		t.Expected = money(minor, string(t.Currency))
		return t, err
	})
}
