package commands

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/billonce/billonce/domain"
)

// CloseRun says that a run is over. It carries what was found out about the run
// and is decided by that alone: with anything open, unknown or unequal the run
// stays as it is.
type CloseRun struct {
	key           domain.Key
	BillingPeriod domain.Period    `json:"billing_period"`
	BillsSHA256   string           `json:"bills_sha256"`
	Report        domain.RunReport `json:"-"`
	Evidence      ClosingEvidence  `json:"-"`
	At            time.Time        `json:"-"` // business time, UTC
}

// ClosingEvidence is what is known of a run beside its facts.
type ClosingEvidence struct {
	ReconciliationID int64
	// Compared reports whether that comparison with Stripe has ended well and was
	// of this run alone.
	Compared bool
	// Differences that it has found and that are neither repaired nor dismissed.
	Differences int64
	// AtStripe is what Stripe has taken for the run's bills, in minor units.
	AtStripe map[domain.Currency]int64
	// Since is how many facts of the run's customers are younger than the
	// comparison.
	Since int64
	// FallingDue is how many subscriptions are still to fall due under the label.
	FallingDue int64
	// Parked is how many of the run's customers wait in the dead letters.
	Parked int64
}

// NewCloseRun builds the command. The same bills, as they stand, close a run once.
func NewCloseRun(report domain.RunReport, evidence ClosingEvidence, at time.Time) CloseRun {
	p, bills := report.BillingPeriod, report.BillsSHA256
	return CloseRun{domain.KeyOf("close-run", p.String(), bills), p, bills, report, evidence, at.UTC()}
}

func (CloseRun) Name() string              { return "close-run" }
func (c CloseRun) Key() domain.Key         { return c.key }
func (c CloseRun) Stream() domain.StreamID { return c.BillingPeriod.RunStream() }

// Decide implements Command. It returns domain.ErrRunNotOver with every reason.
func (c CloseRun) Decide(r domain.Run) ([]domain.Event, error) {
	if last, closed := r.Closed(); closed && last.BillsSHA256 == c.BillsSHA256 {
		return nil, nil
	}
	if reasons := c.standing(r); len(reasons) > 0 {
		return nil, domain.ErrRunNotOver.With("run %s cannot be closed: %s", c.BillingPeriod, strings.Join(reasons, "; "))
	}
	return one(domain.RunClosed{BillingPeriod: c.BillingPeriod, At: c.At, ReconciliationID: c.Evidence.ReconciliationID,
		AsOf: c.Report.AsOf, ReportSHA256: c.Report.Digest(), BillsSHA256: c.BillsSHA256, Totals: c.Report.Totals}), nil
}

// standing is what stands in the way of closing.
func (c CloseRun) standing(r domain.Run) (reasons []string) {
	say := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	e := c.Evidence
	if _, paused := r.Paused(); paused {
		say("it is paused")
	}
	if c.Report.Bills == 0 {
		say("it has no bills")
	}
	for _, s := range c.Report.Statuses {
		if !s.Status.Final() {
			say("%s %s", plural(s.Bills, "bill is", "bills are"), s.Status)
		}
	}
	if e.FallingDue > 0 {
		say("%s still to fall due in it", plural(e.FallingDue, "subscription is", "subscriptions are"))
	}
	if e.Parked > 0 {
		say("%s in the dead letters", plural(e.Parked, "customer waits", "customers wait"))
	}
	switch {
	case !e.Compared:
		say("it has not been compared with Stripe")
	case e.Since > 0:
		say("%s happened since it was compared with Stripe; compare again", plural(e.Since, "thing has", "things have"))
	case e.Differences > 0:
		say("reconciliation %d has %s", e.ReconciliationID, plural(e.Differences, "difference that is neither repaired nor dismissed", "differences that are neither repaired nor dismissed"))
	default:
		reasons = append(reasons, c.unequal()...)
	}
	return reasons
}

// unequal compares what was taken with what Stripe says that it took.
func (c CloseRun) unequal() (reasons []string) {
	ours := map[domain.Currency]int64{}
	for _, t := range c.Report.Totals {
		ours[t.Currency] = t.Taken + t.Surplus
	}
	for currency := range c.Evidence.AtStripe {
		ours[currency] += 0
	}
	for _, currency := range slices.SortedFunc(maps.Keys(ours), cmp.Compare[domain.Currency]) {
		if theirs := c.Evidence.AtStripe[currency]; theirs != ours[currency] {
			reasons = append(reasons, fmt.Sprintf("the log has %s taken, Stripe %s",
				domain.Money{Minor: ours[currency], Currency: currency}, domain.Money{Minor: theirs, Currency: currency}))
		}
	}
	return reasons
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
