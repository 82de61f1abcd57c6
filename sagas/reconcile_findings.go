package sagas

import (
	"context"
	"fmt"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// DifferenceKind is how the books differ.
type DifferenceKind string

// The kinds.
const (
	DifferenceMissing    DifferenceKind = "missing"    // the log says paid; Stripe does not have the charge
	DifferenceOrphan     DifferenceKind = "orphan"     // a charge that the log has not asked for, with or without our markers
	DifferenceUnrecorded DifferenceKind = "unrecorded" // a charge of a bill that the log did not know to be paid
	DifferenceMismatch   DifferenceKind = "mismatch"   // another amount or currency than the bill's
	DifferenceDuplicate  DifferenceKind = "duplicate"  // a further success of a bill that is paid
	DifferenceRow        DifferenceKind = "row"        // the pre-flight row contradicts the log
)

// Difference is one finding.
type Difference struct {
	Kind          DifferenceKind
	Subject       string // the charge; of a row, its bill
	CustomerID    string
	BillingPeriod string
	ChargeID      string
	IntentID      string
	Amount        domain.Money // at Stripe, if it has the charge
	Detail        string
	Repaired      bool
	Action        string // what was done, or what is proposed
	FoundAt       time.Time
}

// differenceOf is a finding about a charge at Stripe.
func differenceOf(kind DifferenceKind, b bill, f Found) Difference {
	v := Difference{Kind: kind, Subject: f.ChargeID, ChargeID: f.ChargeID, IntentID: f.IntentID, Amount: f.Amount, CustomerID: f.CustomerID, BillingPeriod: f.Period}
	if v.Subject == "" {
		v.Subject = f.ID
	}
	if b != (bill{}) {
		v.CustomerID, v.BillingPeriod = string(b.customer), b.period.String()
	}
	return v
}

// keep writes findings; one that is there already stays as it is.
func (p *pass) keep(ctx context.Context, q eventstore.Querier, all ...Difference) error {
	for _, f := range all { // few
		_, err := q.Exec(ctx, `INSERT INTO reconcile_findings (reconciliation_id, kind, subject, customer_id, billing_period, charge_id, intent_id,
				amount, currency, detail, repaired, action) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
			ON CONFLICT (reconciliation_id, kind, subject) DO NOTHING`,
			p.id, f.Kind, f.Subject, f.CustomerID, f.BillingPeriod, f.ChargeID, f.IntentID, f.Amount.Minor, f.Amount.Currency, f.Detail, f.Repaired, f.Action)
		if err != nil {
			return fmt.Errorf("keep a finding: %w", err)
		}
		p.log.Warn("the books differ", "reconciliation", p.id, "kind", f.Kind, "customer", f.CustomerID, "period", f.BillingPeriod,
			"charge", f.ChargeID, "detail", f.Detail, "repaired", f.Repaired, "action", f.Action)
	}
	return nil
}

// Findings reads up to limit findings of a reconciliation, ordered by kind and
// subject, after the one named (both empty: from the first).
func (r *Reconciler) Findings(ctx context.Context, id int64, afterKind, afterSubject string, limit int) ([]Difference, error) {
	rows, err := r.pool.Query(ctx, `SELECT kind, subject, customer_id, billing_period, charge_id, intent_id, amount, currency, detail, repaired, action, found_at
		FROM reconcile_findings WHERE reconciliation_id = $1 AND (kind, subject) > ($2, $3) ORDER BY kind, subject LIMIT $4`, id, afterKind, afterSubject, limit)
	if err != nil {
		return nil, fmt.Errorf("read findings: %w", err)
	}
	defer rows.Close()
	all := []Difference{}
	for rows.Next() {
		var f Difference
		if err := rows.Scan(&f.Kind, &f.Subject, &f.CustomerID, &f.BillingPeriod, &f.ChargeID, &f.IntentID, &f.Amount.Minor, &f.Amount.Currency,
			&f.Detail, &f.Repaired, &f.Action, &f.FoundAt); err != nil {
			return nil, fmt.Errorf("read findings: %w", err)
		}
		all = append(all, f)
	}
	return all, rows.Err()
}
