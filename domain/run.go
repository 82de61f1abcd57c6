package domain

import "time"

// Run is what a decision may know of a run: everything that falls due under one
// period label. It is a value rebuilt from the run's own stream, which holds
// what was decided about the run as a whole; its bills are their customers'.
type Run struct {
	period Period
	pause  RunPaused // the last one
	paused bool
	turn   int
	close  RunClosed // the last one
	closed bool
}

var _ State[Run] = Run{}

const runStream = "run/"

// RunStream is the stream of the run of p. Its sequence key holds a slash, so
// that it is never a customer's.
func (p Period) RunStream() StreamID { return StreamID(runStream + p.String()) }

// Paused reports whether nothing new is collected, and by which decision.
func (r Run) Paused() (RunPaused, bool) { return r.pause, r.paused }

// Turn counts the run's resumptions. What was seen in an earlier turn says
// nothing about this one.
func (r Run) Turn() int { return r.turn }

// Closed is the last closing, if there was one.
func (r Run) Closed() (RunClosed, bool) { return r.close, r.closed }

// Evolve is the run after e.
func (r Run) Evolve(e Event) Run {
	switch e := e.(type) {
	case RunPaused:
		r.period, r.pause, r.paused = e.BillingPeriod, e, true
	case RunResumed:
		r.period, r.paused = e.BillingPeriod, false
		r.turn++
	case RunClosed:
		r.period, r.close, r.closed = e.BillingPeriod, e, true
	}
	return r
}

// RunPaused stops the collection of a run's bills. What is in flight is
// finished; nothing is declined, nothing is dropped.
type RunPaused struct {
	fact
	BillingPeriod Period    `json:"billing_period"`
	At            time.Time `json:"at"` // UTC, business time
	Reason        string    `json:"reason"`
	// Refusal is what the spend proxy said; not set if a person paused the run.
	Refusal *RunRefusal `json:"refusal,omitempty"`
}

// RunRefusal is a refusal of the spend proxy that stands in the way of a run:
// the first that was met, and the vault key's figures at that time.
type RunRefusal struct {
	Code     string   `json:"code"` // the proxy's, such as spend_cap_exceeded
	Currency Currency `json:"currency"`
	// Asked is what the refused bill would have taken, minor units.
	AskedMinor int64  `json:"asked_minor"`
	VaultKey   string `json:"vault_key,omitempty"` // its public id; empty: the proxy did not tell
	// Cap and what was left of it, minor units; not set if the proxy did not tell.
	CapMinor  *int64 `json:"cap_minor,omitempty"`
	LeftMinor *int64 `json:"left_minor,omitempty"`
}

// RunResumed lets a run's bills be collected again.
type RunResumed struct {
	fact
	BillingPeriod Period    `json:"billing_period"`
	At            time.Time `json:"at"` // UTC, business time
	Reason        string    `json:"reason,omitempty"`
}

// RunClosed says that a run was over: every bill had ended, and the books were
// equal to Stripe's to the minor unit. It names the report of that moment by its
// digest, and the place in the log from which the report can be made again. What
// happens to the run's bills afterwards, such as a refund, does not change it;
// closing the run once more is another fact.
type RunClosed struct {
	fact
	BillingPeriod    Period           `json:"billing_period"`
	At               time.Time        `json:"at"`                // UTC, business time
	ReconciliationID int64            `json:"reconciliation_id"` // the comparison with Stripe that was relied on
	AsOf             string           `json:"as_of"`             // the report's place in every partition
	ReportSHA256     string           `json:"report_sha256"`     // see RunReport.Digest
	BillsSHA256      string           `json:"bills_sha256"`      // of the list of bills
	Totals           []RunReportTotal `json:"totals"`
}

// EventName implements Event.
func (RunPaused) EventName() string  { return "run.paused.v1" }
func (RunResumed) EventName() string { return "run.resumed.v1" }
func (RunClosed) EventName() string  { return "run.closed.v1" }
