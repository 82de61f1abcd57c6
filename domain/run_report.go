package domain

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// RunReport is what became of a run, by the facts up to some place in the log.
// It is a function of these facts alone, so it can be made again at any time,
// and is the same to the byte.
type RunReport struct {
	BillingPeriod Period             `json:"billing_period"`
	AsOf          string             `json:"as_of"` // the place in every partition, opaque
	Bills         int64              `json:"bills"`
	Open          int64              `json:"open"` // bills that have not ended
	Statuses      []RunReportStatus  `json:"statuses"`
	Totals        []RunReportTotal   `json:"totals"`
	Attempts      int64              `json:"attempts"` // of all bills, each counted once however often it was sent
	Declines      []RunReportDecline `json:"declines"`
	Disputes      int64              `json:"disputes"`
	Facts         int64              `json:"facts"`        // of the streams of the run's customers
	FactsSHA256   string             `json:"facts_sha256"` // over their digests, stream by stream, in order
	BillsSHA256   string             `json:"bills_sha256"` // of the list of bills, as CSV
}

// RunReportStatus is how many bills stand at a status.
type RunReportStatus struct {
	Status BillStatus `json:"status"`
	Bills  int64      `json:"bills"`
}

// RunReportTotal is the run in one currency, in minor units. Expected is Paid,
// Closed and Open together.
type RunReportTotal struct {
	Currency Currency `json:"currency"`
	Bills    int64    `json:"bills"`
	Expected int64    `json:"expected_minor"` // frozen amounts of all bills
	Paid     int64    `json:"paid_minor"`     // frozen amounts of what is paid
	Closed   int64    `json:"closed_minor"`   // settled outside Stripe, written off or void
	Open     int64    `json:"open_minor"`
	Taken    int64    `json:"taken_minor"`    // by the charges that paid the bills
	Surplus  int64    `json:"surplus_minor"`  // by further charges of the same bills, which were proposed for refund
	Refunded int64    `json:"refunded_minor"` // of all of these
	Refunds  int64    `json:"refunds"`
}

// RunReportDecline is how often a run's attempts were declined for one reason.
type RunReportDecline struct {
	Code        string       `json:"code"`
	DeclineCode string       `json:"decline_code,omitempty"`
	Class       DeclineClass `json:"class"`
	Declines    int64        `json:"declines"`
}

// Digest is the SHA-256 of the report's JSON as it is answered, in hexadecimal:
// compact, with a line feed at its end.
func (r RunReport) Digest() string {
	sum := sha256.New()
	document := json.NewEncoder(sum)
	document.SetEscapeHTML(false)
	if err := document.Encode(r); err != nil {
		panic(err) // strings and integers
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Add counts a bill and what went back of it. It returns ErrOverflow.
func (r *RunReport) Add(b Bill, back MoneyBack) error {
	r.Bills++
	r.Attempts += int64(b.Attempt)
	r.Disputes += int64(len(back.Disputes))
	i, known := slices.BinarySearchFunc(r.Statuses, b.Status, func(s RunReportStatus, status BillStatus) int { return cmp.Compare(s.Status, status) })
	if !known {
		r.Statuses = slices.Insert(r.Statuses, i, RunReportStatus{Status: b.Status})
	}
	r.Statuses[i].Bills++
	total := r.total(b.Amount.Currency)
	total.Bills++
	share := &total.Open
	switch {
	case b.Status == BillPaid:
		share = &total.Paid
	case b.Status.Final():
		share = &total.Closed
	default:
		r.Open++
	}
	var err error
	add := func(to *int64, minor int64) {
		sum, overflow := Money{Minor: *to}.Add(Money{Minor: minor})
		*to, err = sum.Minor, cmp.Or(err, overflow)
	}
	add(share, b.Amount.Minor)
	add(&total.Expected, b.Amount.Minor)
	if b.Status == BillPaid {
		add(&r.total(back.Taken.Currency).Taken, back.Taken.Minor)
	}
	for _, p := range back.Proposals {
		if p.ChargeID != back.ChargeID {
			add(&r.total(p.Amount.Currency).Surplus, p.Amount.Minor)
		}
	}
	for _, refund := range back.Refunds {
		if refund.State.Counts() {
			total := r.total(refund.Amount.Currency)
			total.Refunds++
			add(&total.Refunded, refund.Amount.Minor)
		}
	}
	return err
}

// Decline counts a decline.
func (r *RunReport) Decline(e ChargeDeclined) {
	d := RunReportDecline{Code: e.Code, DeclineCode: e.DeclineCode, Class: e.Class}
	i, known := slices.BinarySearchFunc(r.Declines, d, func(a, b RunReportDecline) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.DeclineCode, b.DeclineCode), cmp.Compare(a.Class, b.Class))
	})
	if !known {
		r.Declines = slices.Insert(r.Declines, i, d)
	}
	r.Declines[i].Declines++
}

func (r *RunReport) total(c Currency) *RunReportTotal {
	i, known := slices.BinarySearchFunc(r.Totals, c, func(t RunReportTotal, c Currency) int { return cmp.Compare(t.Currency, c) })
	if !known {
		r.Totals = slices.Insert(r.Totals, i, RunReportTotal{Currency: c})
	}
	return &r.Totals[i]
}
