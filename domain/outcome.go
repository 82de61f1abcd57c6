package domain

// OutcomeClass is what is known after a call that may have moved money.
type OutcomeClass string

// The classes. Unknown is the default: whatever is not proven to be another
// class is unknown.
const (
	Paid           OutcomeClass = "paid"
	Declined       OutcomeClass = "declined"        // ends the attempt
	ActionRequired OutcomeClass = "action_required" // the customer must act
	Rejected       OutcomeClass = "rejected"        // ends the attempt: the request itself was refused
	RetrySameKey   OutcomeClass = "retry_same_key"  // proven: this send executed nothing
	Held           OutcomeClass = "held"            // proven: this send executed nothing; configuration or policy stands in the way
	Unknown        OutcomeClass = "unknown"
	NeedsReview    OutcomeClass = "needs_review" // the evidence contradicts itself
)

// Outcome is the result of one start of a charge.
type Outcome struct {
	Class       OutcomeClass `json:"class"`
	ChargeID    string       `json:"charge_id,omitempty"`
	IntentID    string       `json:"intent_id,omitempty"`
	Money       Money        `json:"money"` // what was really taken, if paid
	Code        string       `json:"code,omitempty"`
	DeclineCode string       `json:"decline_code,omitempty"`
	Source      Source       `json:"source,omitempty"`
	Recovered   bool         `json:"recovered,omitempty"`
	Reason      string       `json:"reason,omitempty"`
	Evidence    string       `json:"evidence,omitempty"`
	// QuietSeconds is how long an unknown outcome must rest before the bill's
	// intent may be confirmed under another key (a stored 500 may be rolled
	// forward for a day).
	QuietSeconds int `json:"quiet_seconds,omitempty"`
	// RetryAfterSeconds asks for a longer back-off than the usual one.
	RetryAfterSeconds int `json:"retry_after_seconds,omitempty"`
}
