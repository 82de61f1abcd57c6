package domain

import (
	"slices"
	"sort"
	"time"
)

// BillStatus is where a bill stands, by its facts.
type BillStatus string

// The statuses. See the picture in the package documentation.
const (
	BillFound               BillStatus = "found" // Stripe holds an intent, a refund or a dispute of it that no fact asked for
	BillDue                 BillStatus = "due"   // declared, no charge requested yet
	BillRequested           BillStatus = "requested"
	BillStarted             BillStatus = "started"
	BillUnknown             BillStatus = "unknown"
	BillActionRequired      BillStatus = "action_required"
	BillDeclined            BillStatus = "declined"
	BillRejected            BillStatus = "rejected"
	BillHeld                BillStatus = "held"
	BillNeedsReview         BillStatus = "needs_review"
	BillWaiting             BillStatus = "waiting"
	BillClosingStatus       BillStatus = "closing"
	BillPaid                BillStatus = "paid"
	BillSettledStatus       BillStatus = "settled"
	BillWrittenOffStatus    BillStatus = "written_off"
	BillVoid                BillStatus = "void"
	BillUncollectibleStatus BillStatus = "uncollectible"
)

// Final reports whether nothing more will be collected for the bill by itself.
func (s BillStatus) Final() bool { return s.Ended() || s == BillUncollectibleStatus }

// Ended reports whether the bill is over. One that is uncollectible is final,
// and not over: it is still owed, and a person may have it tried again, settle
// it or write it off.
func (s BillStatus) Ended() bool {
	switch s {
	case BillPaid, BillSettledStatus, BillWrittenOffStatus, BillVoid:
		return true
	}
	return false
}

// Known reports whether the log has asked for the bill: it fell due, or its
// charge was requested.
func (s BillStatus) Known() bool { return s != "" && s != BillFound }

// Bill is the one obligation of a customer for a period.
type Bill struct {
	Period           Period
	Status           BillStatus
	Amount           Money // frozen when due or requested
	HasDue           bool  // it fell due by a subscription
	DueAt            time.Time
	Attempt          int // 0: no charge requested
	Start            int // starts of this attempt
	Key              Key
	StripeCustomerID string
	PaymentMethodID  string
	IntentID         string
	IntentNo         int
	ChargeID         string
	DeclineClass     DeclineClass
	Closing          ClosingMode
	Reference        string // of the settlement under way
	Reason           string
	// Unresolved: some earlier start of this attempt has no decisive answer, so
	// a later refusal proves nothing about the operation as a whole.
	Unresolved bool
	// PerhapsSettled: an intent of the bill was cancelled by a closing that the
	// log has lost. Nothing is collected until an operator has said what it was.
	PerhapsSettled bool
	// Released: an operator has said that it was not settled; no closing at
	// Stripe from before makes it wait again.
	Released bool
	// Reviewed: the evidence of this attempt has contradicted itself, or has run
	// out. What an operator decides from then on is decided in view of that.
	Reviewed bool
	// Cancelled: the subscription was cancelled with effect on this bill.
	Cancelled bool
	// Dunning is what was decided to follow its declines.
	Dunning Dunning
}

// InFlight reports whether a call may be under way or its result unknown.
func (b Bill) InFlight() bool {
	switch b.Status {
	case BillStarted, BillUnknown, BillActionRequired, BillNeedsReview:
		return true
	}
	return false
}

// MayBeSettled reports whether a closing at Stripe would be news: the bill is
// open as far as the log knows, and nothing under way closes it.
func (b Bill) MayBeSettled() bool {
	return !b.Status.Final() && b.Status != BillClosingStatus && !b.Cancelled && !b.PerhapsSettled && !b.Released
}

// Claim says what a collector that claims the bill's row may do.
type Claim string

// The claims.
const (
	ClaimSend    Claim = "send"    // start: create and confirm
	ClaimResolve Claim = "resolve" // start: find out what happened, send no confirm
	ClaimWait    Claim = "wait"    // the subscription is paused: no call
	ClaimVoid    Claim = "void"    // the bill has ended: no call
	ClaimClose   Claim = "close"   // cancel the intent
	ClaimNone    Claim = "none"    // nothing to do: paid, declined, or not this attempt any more
)

// bills is an ordered, persistent collection: with returns another one.
type bills []*Bill

func (bs bills) find(p Period) (int, bool) {
	i := sort.Search(len(bs), func(i int) bool { return !bs[i].Period.Before(p) })
	return i, i < len(bs) && bs[i].Period == p
}

func (bs bills) get(p Period) (Bill, bool) {
	if i, ok := bs.find(p); ok {
		return *bs[i], true
	}
	return Bill{Period: p, IntentNo: 1}, false
}

func (bs bills) with(b Bill) bills {
	i, ok := bs.find(b.Period)
	if !ok {
		return slices.Insert(slices.Clone(bs), i, &b)
	}
	next := slices.Clone(bs)
	next[i] = &b
	return next
}
