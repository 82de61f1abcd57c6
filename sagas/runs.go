package sagas

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
)

// RunTrouble is a run that is not collected, or not all of it, until somebody
// does something.
type RunTrouble struct {
	Period   domain.Period      `json:"billing_period"`
	Paused   bool               `json:"paused"`
	Reason   string             `json:"reason,omitempty"` // of the pause
	By       string             `json:"paused_by,omitempty"`
	At       *time.Time         `json:"paused_at,omitempty"` // business time
	Refusal  *domain.RunRefusal `json:"refusal,omitempty"`
	Finding  string             `json:"finding,omitempty"` // what the proxy does not take of the manifest
	VaultKey string             `json:"vault_key,omitempty"`
	Held     []HeldBills        `json:"held"` // per currency
}

// HeldBills are the bills of a run that rest in held.
type HeldBills struct {
	Currency domain.Currency `json:"currency"`
	Bills    int64           `json:"bills"`
	Minor    int64           `json:"amount_minor"`
}

// String says it in a sentence, with figures.
func (t RunTrouble) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s ", t.Period)
	if t.Paused {
		fmt.Fprintf(&b, "is paused: %s", t.Reason)
	} else {
		b.WriteString("is not collected in full: " + t.Finding)
	}
	for _, h := range t.Held {
		fmt.Fprintf(&b, "; %d bills held, %s", h.Bills, domain.Money{Minor: h.Minor, Currency: h.Currency})
	}
	return b.String()
}

// RunTroubles lists runs that wait for somebody, oldest label first.
func RunTroubles(ctx context.Context, pool *pgxpool.Pool) ([]RunTrouble, error) {
	rows, err := pool.Query(ctx, `SELECT r.billing_period, r.paused, r.reason, r.paused_by, r.paused_at, r.refusal, coalesce(r.finding, ''), coalesce(r.vault_key, ''),
			(SELECT coalesce(json_agg(h ORDER BY h.currency), '[]') FROM (
				SELECT b.currency, count(*) AS bills, sum(b.amount)::bigint AS amount_minor FROM billing_records b
				WHERE b.billing_period = r.billing_period AND b.state = 'held' GROUP BY b.currency) h)
		FROM billing_runs r WHERE r.paused OR r.finding IS NOT NULL ORDER BY r.billing_period`)
	if err != nil {
		return nil, fmt.Errorf("read runs that wait: %w", err)
	}
	troubles, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t RunTrouble, err error) {
		var label string
		var refusal, held []byte
		if err := row.Scan(&label, &t.Paused, &t.Reason, &t.By, &t.At, &refusal, &t.Finding, &t.VaultKey, &held); err != nil {
			return t, err
		}
		if t.At != nil {
			*t.At = t.At.UTC()
		}
		if !t.Paused {
			t.Reason, t.By, t.At, refusal = "", "", nil, nil
		}
		if refusal != nil {
			if err := json.Unmarshal(refusal, &t.Refusal); err != nil {
				return t, err
			}
		}
		if err := json.Unmarshal(held, &t.Held); err != nil {
			return t, err
		}
		t.Period, err = domain.ParsePeriod(label)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read runs that wait: %w", err)
	}
	return troubles, nil
}
