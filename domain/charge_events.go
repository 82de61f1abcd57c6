package domain

// ChargeRequested asks for one attempt to collect a bill. Everything the call
// to Stripe needs is frozen here.
type ChargeRequested struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Attempt       int        `json:"attempt"` // from 1
	Key           Key        `json:"key"`
	Money
	StripeCustomerID string `json:"stripe_customer_id"`
	PaymentMethodID  string `json:"payment_method_id"`
}

// ChargeAttemptStarted is written before a call may leave the house. Start
// counts the starts of this attempt, from 1. ResolveOnly: the start may find
// out what happened, and may not send a confirm.
type ChargeAttemptStarted struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Attempt       int        `json:"attempt"`
	Start         int        `json:"start"`
	ResolveOnly   bool       `json:"resolve_only,omitempty"`
}

// ChargeIntentCommitted fixes the one PaymentIntent that may take the bill's
// money. A higher IntentNo exists only after Stripe showed the former intent
// cancelled. Adopted: it was found at Stripe, not created by this attempt.
type ChargeIntentCommitted struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	IntentID      string     `json:"intent_id"`
	IntentNo      int        `json:"intent_no"` // from 1
	Adopted       bool       `json:"adopted,omitempty"`
}

// Source is where the news of a payment came from.
type Source string

// The sources.
const (
	SourceAnswer    Source = "answer"    // the answer to our own call
	SourceFind      Source = "find"      // a read of the committed intent
	SourceLook      Source = "look"      // a sweep of what Stripe holds
	SourceCancel    Source = "cancel"    // a cancel that met a success
	SourceWebhook   Source = "webhook"   // an event that Stripe delivered
	SourceEvents    Source = "events"    // an event read from Stripe's list
	SourceReconcile Source = "reconcile" // a comparison of all three books
	SourceOperator  Source = "operator"  // a person's word
	SourceImport    Source = "import"    // the history of another system
)

// CustomerBilled says that a bill is paid, by which charge. It beats every
// other fact about the bill. Recovered: the bill's own flight did not learn of
// the charge. Either the log had not asked for it, or somebody who compared the
// log with Stripe (the look, the reconciler) found it there.
type CustomerBilled struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Attempt       int        `json:"attempt"`
	ChargeID      string     `json:"charge_id"`
	IntentID      string     `json:"intent_id,omitempty"`
	Money
	Source    Source `json:"source"`
	Recovered bool   `json:"recovered,omitempty"`
}

// ChargeDeclined ends an attempt: the issuer or Stripe said no.
type ChargeDeclined struct {
	fact
	CustomerID    CustomerID   `json:"customer_id"`
	BillingPeriod Period       `json:"billing_period"`
	Attempt       int          `json:"attempt"`
	ChargeID      string       `json:"charge_id,omitempty"`
	Code          string       `json:"code"`
	DeclineCode   string       `json:"decline_code,omitempty"`
	Class         DeclineClass `json:"class"`
}

// ChargeReport is what the facts about an undecided or refused start share.
type ChargeReport struct {
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Attempt       int        `json:"attempt"`
	Start         int        `json:"start"`
	Reason        string     `json:"reason"`
	Evidence      string     `json:"evidence,omitempty"` // ids, statuses, request ids; never a body or a secret
}

// ChargeActionRequired: the customer must authenticate; the flight goes on.
type ChargeActionRequired struct {
	fact
	ChargeReport
}

// ChargeRejected ends an attempt: Stripe refused the request itself.
type ChargeRejected struct {
	fact
	ChargeReport
}

// ChargeHeld ends a flight without a verdict about the customer: keys,
// permissions or a policy stand in the way. The same key goes on after repair.
type ChargeHeld struct {
	fact
	ChargeReport
}

// ChargeNotSent: this start provably executed nothing (rate limit, no
// connection). The same key goes on after a back-off.
type ChargeNotSent struct {
	fact
	ChargeReport
}

// ChargeUnknown: it is not known whether money moved. The flight goes on.
type ChargeUnknown struct {
	fact
	ChargeReport
}

// ChargeNeedsReview: the evidence contradicts itself; a person must look.
type ChargeNeedsReview struct {
	fact
	ChargeReport
}

// ChargeOutcomeSurprise records news that contradicts what is recorded. It
// changes nothing by itself and is there to be reconciled.
type ChargeOutcomeSurprise struct {
	fact
	ChargeReport
}

// ChargeWaiting: no call is made until something happens. The claim found the
// subscription paused; or, with [ReasonPerhapsSettled], Stripe shows an intent
// that a closing had cancelled while the log does not know of the closing.
type ChargeWaiting struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Attempt       int        `json:"attempt"`
	Reason        string     `json:"reason"`
}

// ReasonPerhapsSettled is the reason of a ChargeWaiting that only an operator
// ends: by settling the bill, writing it off, or releasing it.
const ReasonPerhapsSettled = "settled before a restore?"

// ChargeReleased: a bill that may have been settled before a restore was not,
// as an operator says, or what stood against a bill that needs review is
// repaired. It is collected on; of one that needed review Stripe is read first.
type ChargeReleased struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Reason        string     `json:"reason"`
}

// ChargeVoided: the bill ends without money, and no call can take it any more.
type ChargeVoided struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Attempt       int        `json:"attempt"`
	Reason        string     `json:"reason"`
}

// ClosingMode is what a closing bill becomes once Stripe has cancelled its intent.
type ClosingMode string

// The modes.
const (
	ClosingSettled    ClosingMode = "settled"
	ClosingWrittenOff ClosingMode = "written_off"
	ClosingVoid       ClosingMode = "void"
)

// BillClosing blocks further attempts while the bill's intent is cancelled at
// Stripe. If the intent succeeded meanwhile, CustomerBilled follows and the
// closing is off.
type BillClosing struct {
	fact
	CustomerID    CustomerID  `json:"customer_id"`
	BillingPeriod Period      `json:"billing_period"`
	Mode          ClosingMode `json:"mode"`
	Reference     string      `json:"reference,omitempty"`
	Reason        string      `json:"reason,omitempty"`
}

// BillSettled: paid outside Stripe; Reference says how.
type BillSettled struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Reference     string     `json:"reference"`
}

// BillWrittenOff: the company gives the bill up.
type BillWrittenOff struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Reason        string     `json:"reason"`
}

// EventName implements Event.
func (ChargeRequested) EventName() string       { return "charge.requested.v1" }
func (ChargeAttemptStarted) EventName() string  { return "charge.attempt_started.v1" }
func (ChargeIntentCommitted) EventName() string { return "charge.intent_committed.v1" }
func (CustomerBilled) EventName() string        { return "customer.billed.v1" }
func (ChargeDeclined) EventName() string        { return "charge.declined.v1" }
func (ChargeActionRequired) EventName() string  { return "charge.action_required.v1" }
func (ChargeRejected) EventName() string        { return "charge.rejected.v1" }
func (ChargeHeld) EventName() string            { return "charge.held.v1" }
func (ChargeNotSent) EventName() string         { return "charge.not_sent.v1" }
func (ChargeUnknown) EventName() string         { return "charge.unknown.v1" }
func (ChargeNeedsReview) EventName() string     { return "charge.needs_review.v1" }
func (ChargeOutcomeSurprise) EventName() string { return "charge.outcome_surprise.v1" }
func (ChargeWaiting) EventName() string         { return "charge.waiting.v1" }
func (ChargeReleased) EventName() string        { return "charge.released.v1" }
func (ChargeVoided) EventName() string          { return "charge.voided.v1" }
func (BillClosing) EventName() string           { return "bill.closing.v1" }
func (BillSettled) EventName() string           { return "bill.settled.v1" }
func (BillWrittenOff) EventName() string        { return "bill.written_off.v1" }
