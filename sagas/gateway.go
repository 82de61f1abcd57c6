package sagas

import (
	"context"
	"errors"
	"time"

	"github.com/billonce/billonce/domain"
)

// Gateway is the only way to Stripe. It takes no decisions: each call says
// what came back, in one of the three answers charged, not charged, unknown.
// No method is called while a transaction is open. Every method returns within
// the gateway's time-out; none retries by itself.
type Gateway interface {
	// Prepare creates the bill's PaymentIntent, unconfirmed and without a
	// payment method: no money can move. The same order gives the same
	// parameters on every attempt. If Prepared.IntentID is empty, Outcome says
	// why; a lost answer is harmless, the same order may be prepared again.
	Prepare(ctx context.Context, o Order) Prepared
	// Take confirms exactly o.IntentID, off-session, with o.PaymentMethodID,
	// under o.ConfirmKey().
	Take(ctx context.Context, o Order) domain.Outcome
	// Find reads o.IntentID and says what became of it.
	Find(ctx context.Context, o Order) Finding
	// Cancel cancels o.IntentID with the given Stripe cancellation reason.
	// State is IntentCancelled only after Stripe answered canceled; an intent
	// that has succeeded gives a paid Outcome instead. Two cancels with different
	// reasons clash under one key; read the intent then.
	Cancel(ctx context.Context, o Order, reason string) Finding
	// Mutex reports whether o's committed object succeeds once, ever, under
	// whatever keys it is sent: an intent does. What it is not true of, a legacy
	// charge, is never sent under another key for the same attempt, and only while
	// its key is sure to be remembered.
	Mutex(o Order) bool
	// Charge reads one charge by its id; there says whether Stripe has it. With an
	// error nothing is known.
	Charge(ctx context.Context, id string) (f Found, there bool, err error)
	// List reads one page of what Stripe holds, newest first. The error is
	// [ErrPlaceGone] if Stripe does not know the object that the page begins at.
	List(ctx context.Context, l Listing) (Page, error)
}

// ErrPlaceGone says that an object which marked a place in a list is not there
// any more, as when the data of a test account were deleted.
var ErrPlaceGone = errors.New("the object at which the page begins is unknown to Stripe")

// Order is everything a call needs to know about one attempt of a bill, as
// frozen in the pre-flight row.
type Order struct {
	CustomerID       domain.CustomerID
	Period           domain.Period
	Attempt          int
	Amount           domain.Money
	StripeCustomerID string
	PaymentMethodID  string
	IntentNo         int    // which intent of the bill, from 1
	CreateAgain      int    // creates that were answered by a stored 500
	Again            int    // confirms after a quiet period
	IntentID         string // the committed intent; empty before Prepare
	LatestCharge     string // the intent's latest_charge before this attempt's confirm; empty: none
}

// CreateKey is the idempotency key of the create.
func (o Order) CreateKey() domain.Key {
	return domain.CreateKey(o.CustomerID, o.Period, o.IntentNo, o.CreateAgain)
}

// ConfirmKey is the idempotency key of the confirm.
func (o Order) ConfirmKey() domain.Key {
	return domain.ConfirmKey(o.CustomerID, o.Period, o.Attempt, o.IntentNo, o.Again)
}

// Markers is the metadata that every intent and charge of the bill carries:
// customer_id, billing_period and billing_key (attempt 1's), nothing else.
func (o Order) Markers() map[string]string {
	return map[string]string{
		"customer_id":    string(o.CustomerID),
		"billing_period": o.Period.String(),
		"billing_key":    string(domain.ChargeKey(o.CustomerID, o.Period, 1)),
	}
}

// Prepared is the answer to Prepare.
type Prepared struct {
	IntentID     string
	LatestCharge string         // of the intent as answered; empty: none
	Outcome      domain.Outcome // only if IntentID is empty: any class but paid and action_required
}

// IntentState is what a read of an intent shows.
type IntentState string

// The states.
const (
	IntentUnreachable IntentState = "unreachable" // the read failed: nothing is known
	IntentMissing     IntentState = "missing"     // Stripe says there is no such intent
	IntentUnchanged   IntentState = "unchanged"   // no charge since o.LatestCharge: not executed, or still running
	IntentProcessing  IntentState = "processing"
	IntentAction      IntentState = "action" // the customer must act
	IntentCancelled   IntentState = "cancelled"
	IntentDecided     IntentState = "decided" // Outcome is paid, declined, or needs_review: not the intent that was frozen
)

// Finding is what a read (or a cancel) of an intent shows.
type Finding struct {
	State        IntentState
	LatestCharge string         // the intent's latest_charge as read
	Outcome      domain.Outcome // meaningful if State is IntentDecided; else why the read says so
}

// Listing asks for a page of PaymentIntents or Charges.
type Listing struct {
	Resource string    // "payment_intents" or "charges"
	Since    time.Time // created at or after, in Stripe's time; zero: no bound
	After    string    // starting_after: the page of older objects behind this id
	Before   string    // ending_before: the page of newer objects in front of this id
	PageSize int       // 1 to 100
}

// Page is one page of a list, newest first, as Stripe gives it.
type Page struct {
	Found []Found
	More  bool // has_more
}

// Found is an object at Stripe, seen through the markers in its metadata.
type Found struct {
	ID               string
	IntentID         string // the intent itself, or the one the charge belongs to; empty for a legacy charge
	ChargeID         string // the charge itself, or the intent's latest_charge
	Status           string // Stripe's own word
	Succeeded        bool   // an intent that succeeded, or a charge that is paid and captured
	Refunded         bool   // a charge that was fully refunded
	Amount           domain.Money
	StripeCustomerID string
	CustomerID       string // marker, as it stands there
	Period           string // marker
	BillingKey       string // marker
	Created          time.Time
	// CancellationReason is why an intent was cancelled, in Stripe's word.
	CancellationReason string
}
