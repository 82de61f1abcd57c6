package domain

// RefundRequested asks Stripe for one refund. Everything the call needs is
// frozen here. RefundID is the caller's name for it.
type RefundRequested struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	RefundID      string     `json:"refund_id"`
	ChargeID      string     `json:"charge_id"`
	Key           Key        `json:"key"`
	Money
}

// RefundRecorded says in which state a refund is now, one fact a change.
// RefundID is empty for a refund that was made outside Billonce: its Stripe id
// says which one it is.
type RefundRecorded struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	RefundID      string     `json:"refund_id,omitempty"`
	RefundOutcome
}

// RefundProposed: a charge has taken money that is not owed. A person decides
// whether it goes back; it is proposed once a charge.
type RefundProposed struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	ChargeID      string     `json:"charge_id"`
	Money
	Reason string `json:"reason"`
}

// RefundProposalDismissed: a person decided that the money stays.
type RefundProposalDismissed struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	ChargeID      string     `json:"charge_id"`
	Reason        string     `json:"reason"`
}

// ChargeDisputed says where a dispute over a charge stands, one fact a change.
// Status and Reason are Stripe's own words
// (https://docs.stripe.com/api/disputes/object).
type ChargeDisputed struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	DisputeID     string     `json:"dispute_id"`
	ChargeID      string     `json:"charge_id"`
	Money
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
	Source Source `json:"source,omitempty"`
}

// EventName implements Event.
func (RefundRequested) EventName() string         { return "refund.requested.v1" }
func (RefundRecorded) EventName() string          { return "refund.recorded.v1" }
func (RefundProposed) EventName() string          { return "refund.proposed.v1" }
func (RefundProposalDismissed) EventName() string { return "refund.proposal_dismissed.v1" }
func (ChargeDisputed) EventName() string          { return "charge.disputed.v1" }
