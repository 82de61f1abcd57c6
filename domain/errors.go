package domain

import (
	"errors"
	"fmt"
)

// Kind says what the caller should make of a refusal. The edge translates it
// once: Invalid 400, NotFound 404, Conflict 409, Refused 422.
type Kind int

// The kinds of refusal.
const (
	Invalid  Kind = iota + 1 // the request cannot be read as asked
	NotFound                 // it names something that does not exist
	Conflict                 // it clashes with what was recorded or is in flight
	Refused                  // it is understood, and the state of the business forbids it
)

// String names the kind as it appears in logs and metrics.
func (k Kind) String() string {
	switch k {
	case Invalid:
		return "invalid"
	case NotFound:
		return "not_found"
	case Conflict:
		return "conflict"
	case Refused:
		return "refused"
	}
	return "internal"
}

// Error is a refusal: a stable code for programs, a sentence for people and,
// for bad input, the fields that are wrong.
type Error struct {
	Kind   Kind
	Code   string // snake_case, part of the public contract
	Msg    string
	Fields []FieldError
}

// FieldError says what is wrong with one field of the input.
type FieldError struct {
	Field string `json:"field"`
	Msg   string `json:"message"`
}

func (e *Error) Error() string {
	s := e.Code + ": " + e.Msg
	for _, f := range e.Fields {
		s += fmt.Sprintf("; %s: %s", f.Field, f.Msg)
	}
	return s
}

// Is reports whether target is a refusal with the same code, so that
// errors.Is works against the values below however they were worded.
func (e *Error) Is(target error) bool {
	t, ok := errors.AsType[*Error](target)
	return ok && t.Code == e.Code
}

// With returns the same refusal with its sentence replaced by a more exact one.
func (e *Error) With(format string, args ...any) *Error {
	c := *e
	c.Msg = fmt.Sprintf(format, args...)
	return &c
}

// InvalidField is the refusal of one field.
func InvalidField(field, format string, args ...any) *Error {
	return InvalidFields(FieldError{field, fmt.Sprintf(format, args...)})
}

// InvalidFields is the refusal of several fields at once.
func InvalidFields(fields ...FieldError) *Error {
	return &Error{Kind: Invalid, Code: "invalid_input", Msg: "the request has fields that cannot be accepted", Fields: fields}
}

// The refusals of decisions.
var (
	ErrInvalidInput         = &Error{Kind: Invalid, Code: "invalid_input", Msg: "the request has fields that cannot be accepted"}
	ErrUnknownCustomer      = &Error{Kind: NotFound, Code: "unknown_customer", Msg: "no such customer is registered"}
	ErrUnknownBill          = &Error{Kind: NotFound, Code: "unknown_bill", Msg: "the customer has no bill for this period"}
	ErrAlreadyRegistered    = &Error{Kind: Conflict, Code: "already_registered", Msg: "the customer is registered with other data"}
	ErrSubscriptionExists   = &Error{Kind: Conflict, Code: "subscription_exists", Msg: "the customer has a subscription already"}
	ErrNoSubscription       = &Error{Kind: Refused, Code: "no_subscription", Msg: "the customer has no subscription"}
	ErrSubscriptionState    = &Error{Kind: Refused, Code: "subscription_state", Msg: "the subscription is not in a state that allows this"}
	ErrCancelled            = &Error{Kind: Refused, Code: "subscription_cancelled", Msg: "the subscription is cancelled"}
	ErrPeriodOverlaps       = &Error{Kind: Refused, Code: "period_overlaps", Msg: "the period overlaps one that is requested, billed or closed"}
	ErrPeriodCadence        = &Error{Kind: Refused, Code: "period_cadence", Msg: "the period does not fit the subscription's cadence"}
	ErrPeriodOutside        = &Error{Kind: Refused, Code: "period_outside_subscription", Msg: "the period lies outside the subscription"}
	ErrPeriodFrozen         = &Error{Kind: Conflict, Code: "period_frozen", Msg: "the period has fallen due and stays as it is"}
	ErrAmountConflict       = &Error{Kind: Conflict, Code: "amount_conflict", Msg: "the bill is frozen at another amount"}
	ErrChargeInFlight       = &Error{Kind: Conflict, Code: "charge_in_flight", Msg: "a charge for this bill is in flight; its outcome is not yet known"}
	ErrAlreadyBilled        = &Error{Kind: Refused, Code: "already_billed", Msg: "the bill is paid"}
	ErrBilledBefore         = &Error{Kind: Refused, Code: "billed_before", Msg: "another system has billed the period"}
	ErrHistoryLate          = &Error{Kind: Refused, Code: "history_too_late", Msg: "history comes before the subscription and its bills"}
	ErrNotHistory           = &Error{Kind: Refused, Code: "not_history", Msg: "the period is not part of the history that was imported"}
	ErrBillClosed           = &Error{Kind: Refused, Code: "bill_closed", Msg: "the bill is settled, written off, void or being closed"}
	ErrNotWaiting           = &Error{Kind: Refused, Code: "not_waiting", Msg: "the bill waits for nobody's word: it neither needs review nor may have been settled before a restore"}
	ErrNotDeclined          = &Error{Kind: Refused, Code: "nothing_to_retry", Msg: "the last attempt has not been declined or rejected"}
	ErrAttemptOrder         = &Error{Kind: Refused, Code: "attempt_out_of_order", Msg: "the attempt is not the next one"}
	ErrCurrencyMismatch     = &Error{Kind: Refused, Code: "currency_mismatch", Msg: "the currency is not the subscription's"}
	ErrNotPaid              = &Error{Kind: Refused, Code: "not_billed", Msg: "the bill is not paid, so nothing can go back"}
	ErrRefundExceeds        = &Error{Kind: Refused, Code: "refund_exceeds_charge", Msg: "more would go back than the charge took"}
	ErrRefundExists         = &Error{Kind: Conflict, Code: "refund_exists", Msg: "the refund id stands for another refund"}
	ErrUnknownCharge        = &Error{Kind: NotFound, Code: "unknown_charge", Msg: "neither the bill nor a proposal names this charge"}
	ErrNoProposal           = &Error{Kind: NotFound, Code: "no_refund_proposal", Msg: "no refund of this charge waits for a decision"}
	ErrNoReview             = &Error{Kind: Refused, Code: "not_in_review", Msg: "it needs nobody's word"}
	ErrRunNotOver           = &Error{Kind: Refused, Code: "run_not_over", Msg: "the run cannot be closed yet"}
	ErrKeyReused            = &Error{Kind: Conflict, Code: "key_reused", Msg: "the key was used before for something else"}
	ErrIdempotencyKeyNeeded = &Error{Kind: Invalid, Code: "idempotency_key_required", Msg: "this command needs an Idempotency-Key header of 1 to 255 characters",
		Fields: []FieldError{{"Idempotency-Key", "is required"}}}
	ErrUnknownCommand = &Error{Kind: NotFound, Code: "unknown_command", Msg: "no such command"}
	ErrInternal       = &Error{Kind: Refused, Code: "internal_command", Msg: "this command is sent by the service itself"}
	ErrAheadOfLog     = &Error{Kind: Conflict, Code: "ahead_of_log", Msg: "the cursor names what this log does not have: it is of another log, or the log was restored without that"}
	ErrOverflow       = &Error{Kind: Invalid, Code: "overflow", Msg: "the amount is too large to add"}
)
