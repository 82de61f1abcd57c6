package sagas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// DifferenceKind is how the books differ.
type DifferenceKind string

// The kinds.
const (
	DifferenceMissing    DifferenceKind = "missing"            // the log says paid; Stripe does not have the charge
	DifferenceOrphan     DifferenceKind = "orphan"             // a charge that the log has not asked for, with or without our markers
	DifferenceUnrecorded DifferenceKind = "unrecorded"         // a charge of a bill that the log did not know to be paid
	DifferenceMismatch   DifferenceKind = "mismatch"           // another amount or currency than the bill's
	DifferenceDuplicate  DifferenceKind = "duplicate"          // a further success of a bill that is paid
	DifferencePossible   DifferenceKind = "possible_duplicate" // a charge without markers beside one that paid a bill: the same customer, amount and day
	DifferenceRow        DifferenceKind = "row"                // the pre-flight row contradicts the log, or that cannot be read
	DifferenceRefund     DifferenceKind = "refund"             // Stripe's refund under our name is not the one that was asked for
)

// dismissible are the kinds of which the object at Stripe stays as it is, so that
// looking into it once is enough. A duplicate is decided by its refund proposal,
// a refund by accept-refund, and a row that contradicts the log is a fault.
var dismissible = []DifferenceKind{DifferenceMissing, DifferenceOrphan, DifferenceMismatch, DifferencePossible}

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
	Dismissed     *Dismissal // an operator has looked into it and leaves it as it is
}

// Dismissal is an operator's word that a finding is left as it is. It holds for
// the object, in every reconciliation before and after.
type Dismissal struct {
	Kind        DifferenceKind `json:"kind"`
	Subject     string         `json:"subject"`
	Reason      string         `json:"reason"`
	DismissedBy string         `json:"dismissed_by"`
	DismissedAt time.Time      `json:"dismissed_at"`
}

// Refusals of a dismissal.
var (
	ErrNoFinding        = &domain.Error{Kind: domain.NotFound, Code: "finding_not_found", Msg: "no reconciliation has found this and left it unrepaired"}
	ErrNotDismissible   = &domain.Error{Kind: domain.Refused, Code: "finding_not_dismissible", Msg: "missing, orphan, mismatch and possible_duplicate are dismissed; other findings are repaired or decided"}
	ErrFindingDismissed = &domain.Error{Kind: domain.Conflict, Code: "finding_dismissed", Msg: "the finding is dismissed for another reason"}
)

// Dismiss leaves a finding as it is, in an operator's name. Said again it
// changes nothing. The error wraps [ErrNotDismissible], [ErrNoFinding] or
// [ErrFindingDismissed].
func (r *Reconciler) Dismiss(ctx context.Context, kind DifferenceKind, subject, reason, by string) (d Dismissal, err error) {
	if !slices.Contains(dismissible, kind) {
		return d, ErrNotDismissible
	}
	tag, err := r.pool.Exec(ctx, `INSERT INTO reconcile_dismissals (kind, subject, reason, dismissed_by)
		SELECT $1, $2, $3, $4 WHERE EXISTS (SELECT FROM reconcile_findings WHERE kind = $1 AND subject = $2 AND NOT repaired)
		ON CONFLICT (kind, subject) DO NOTHING`, kind, subject, reason, by)
	if err != nil {
		return d, fmt.Errorf("dismiss a finding: %w", err)
	}
	err = r.pool.QueryRow(ctx, `SELECT kind, subject, reason, dismissed_by, dismissed_at FROM reconcile_dismissals WHERE kind = $1 AND subject = $2`, kind, subject).
		Scan(&d.Kind, &d.Subject, &d.Reason, &d.DismissedBy, &d.DismissedAt)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return d, ErrNoFinding
	case err != nil:
		return d, fmt.Errorf("dismiss a finding: %w", err)
	case d.Reason != reason:
		return d, ErrFindingDismissed.With("%s dismissed it: %s", d.DismissedBy, d.Reason)
	}
	if tag.RowsAffected() == 1 {
		r.log.Warn("a finding is dismissed", "kind", kind, "subject", subject, "by", by, "reason", reason)
	}
	return d, nil
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
		var dismissed bool
		err := q.QueryRow(ctx, `WITH kept AS (INSERT INTO reconcile_findings (reconciliation_id, kind, subject, customer_id, billing_period, charge_id, intent_id,
				amount, currency, detail, repaired, action) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
			ON CONFLICT (reconciliation_id, kind, subject) DO NOTHING)
			SELECT EXISTS (SELECT FROM reconcile_dismissals WHERE kind = $2 AND subject = $3)`,
			p.id, f.Kind, f.Subject, f.CustomerID, f.BillingPeriod, f.ChargeID, f.IntentID, f.Amount.Minor, f.Amount.Currency, f.Detail, f.Repaired, f.Action).Scan(&dismissed)
		if err != nil {
			return fmt.Errorf("keep a finding: %w", err)
		}
		if dismissed {
			continue // it is shown, and said to nobody again
		}
		p.log.Warn("the books differ", "reconciliation", p.id, "kind", f.Kind, "customer", f.CustomerID, "period", f.BillingPeriod,
			"charge", f.ChargeID, "detail", f.Detail, "repaired", f.Repaired, "action", f.Action)
	}
	return nil
}

// Findings reads up to limit findings of a reconciliation, ordered by kind and
// subject, after the one named (both empty: from the first).
func (r *Reconciler) Findings(ctx context.Context, id int64, afterKind, afterSubject string, limit int) ([]Difference, error) {
	rows, err := r.pool.Query(ctx, `SELECT kind, subject, customer_id, billing_period, charge_id, intent_id, amount, currency, detail, repaired, action, found_at,
			coalesce(d.reason, ''), coalesce(d.dismissed_by, ''), d.dismissed_at
		FROM reconcile_findings f LEFT JOIN reconcile_dismissals d USING (kind, subject)
		WHERE reconciliation_id = $1 AND (kind, subject) > ($2, $3) ORDER BY kind, subject LIMIT $4`, id, afterKind, afterSubject, limit)
	if err != nil {
		return nil, fmt.Errorf("read findings: %w", err)
	}
	defer rows.Close()
	all := []Difference{}
	for rows.Next() {
		var f Difference
		var d Dismissal
		var at *time.Time
		if err := rows.Scan(&f.Kind, &f.Subject, &f.CustomerID, &f.BillingPeriod, &f.ChargeID, &f.IntentID, &f.Amount.Minor, &f.Amount.Currency,
			&f.Detail, &f.Repaired, &f.Action, &f.FoundAt, &d.Reason, &d.DismissedBy, &at); err != nil {
			return nil, fmt.Errorf("read findings: %w", err)
		}
		if at != nil {
			d.Kind, d.Subject, d.DismissedAt = f.Kind, f.Subject, *at
			f.Dismissed = &d
		}
		all = append(all, f)
	}
	return all, rows.Err()
}
