package sagas

import (
	"context"
	"time"

	"github.com/billonce/billonce/domain"
)

// Refunder is the road by which money goes back. Like [Gateway] it takes no
// decisions, never retries by itself, and returns within its time-out.
type Refunder interface {
	// Refund asks for o under its key. The same order gives the same parameters,
	// so a lost answer is asked for again.
	Refund(ctx context.Context, o RefundOrder) domain.RefundOutcome
	// FindRefund reads the refund by its Stripe id if o has one, else from the
	// list of the charge's refunds by the marker refund_id. State is
	// RefundStateRequested if Stripe's list, read to its end, does not hold it.
	FindRefund(ctx context.Context, o RefundOrder) domain.RefundOutcome
}

// RefundOrder is everything that a refund's calls need, as frozen in its fact.
type RefundOrder struct {
	CustomerID     domain.CustomerID
	Period         domain.Period
	RefundID       string // the caller's
	ChargeID       string
	Amount         domain.Money
	StripeRefundID string // empty until known
}

// Key is the refund's idempotency key at Stripe.
func (o RefundOrder) Key() domain.Key { return domain.RefundKey(o.CustomerID, o.Period, o.RefundID) }

// Markers is the metadata of the refund: customer_id, billing_period and refund_id.
func (o RefundOrder) Markers() map[string]string {
	return map[string]string{"customer_id": string(o.CustomerID), "billing_period": o.Period.String(), "refund_id": o.RefundID}
}

// Newsstand is where Stripe's events are read (GET /v1/events) and whose
// account it is.
type Newsstand interface {
	// Events reads one page of Stripe's events, newest first. Stripe keeps them
	// for 30 days (https://docs.stripe.com/api/events).
	Events(ctx context.Context, l EventListing) (EventPage, error)
	// Account is the id of the Stripe account that the key belongs to.
	Account(ctx context.Context) (id string, err error)
}

// EventListing asks for a page of events.
type EventListing struct {
	Since    time.Time // created at or after, in Stripe's time; zero: no bound
	After    string    // starting_after: the page of older events behind this id
	Before   string    // ending_before: the page of newer events in front of this id
	PageSize int       // 1 to 100
}

// EventPage is one page of events, newest first.
type EventPage struct {
	News []News
	More bool // has_more
}

// News is one Stripe event, from a webhook or from the list, reduced to what
// Billonce acts on. The payload itself is kept in the inbox, never in a fact.
type News struct {
	EventID        string
	Type           string // such as payment_intent.succeeded
	APIVersion     string
	Live           bool
	Created        time.Time // Stripe's time
	ObjectID       string
	IdempotencyKey string // of the request that caused it, if there was one
	// At most one of these is set; none for a type that Billonce does not know.
	Charge  *Found        // charge.* or payment_intent.*; Found.Succeeded tells which way it went
	Refund  *FoundRefund  // refund.*, charge.refund.updated
	Dispute *FoundDispute // charge.dispute.*
}

// FoundRefund is a refund as Stripe shows it.
type FoundRefund struct {
	ID       string
	ChargeID string
	IntentID string
	Status   string // Stripe's own word
	Amount   domain.Money
	Reason   string // failure_reason
	RefundID string // marker, as it stands there; empty: not made by Billonce
	Created  time.Time
}

// FoundDispute is a dispute as Stripe shows it.
type FoundDispute struct {
	ID       string
	ChargeID string
	IntentID string
	Status   string // Stripe's own word
	Reason   string
	Amount   domain.Money
	Created  time.Time
}
