package domain

// RefundState is what is known of one refund at Stripe.
type RefundState string

// The states. RefundStateUnknown is the default: whatever is not proven to be
// another state is unknown, and is asked for again under the same key.
const (
	RefundStateRequested RefundState = "requested" // not sent yet, or proven not executed
	RefundStatePending   RefundState = "pending"   // Stripe has it; the bank has not answered
	RefundStateSucceeded RefundState = "succeeded"
	RefundStateFailed    RefundState = "failed" // also weeks after pending or succeeded (https://docs.stripe.com/refunds#failed-refunds)
	RefundStateCancelled RefundState = "cancelled"
	RefundStateRefused   RefundState = "refused" // Stripe refused the request itself; nothing moved
	RefundStateUnknown   RefundState = "unknown"
	// RefundStateReview: Stripe holds a refund under this name that is not the one
	// that was asked for. What it gave back counts, and an operator decides.
	RefundStateReview RefundState = "needs_review"
)

// RefundOutcome is what came of one send of a refund, or of a later read.
type RefundOutcome struct {
	State          RefundState `json:"state"`
	AtStripe       RefundState `json:"at_stripe,omitempty"` // of one that needs review: how it stands there
	StripeRefundID string      `json:"stripe_refund_id,omitempty"`
	ChargeID       string      `json:"charge_id,omitempty"`
	Money          Money       `json:"money,omitzero"` // as Stripe states it, if it has the refund
	Code           string      `json:"code,omitempty"`
	Reason         string      `json:"reason,omitempty"`
	Evidence       string      `json:"evidence,omitempty"` // ids, statuses, request ids; never a body or a secret
	Source         Source      `json:"source,omitempty"`
}
