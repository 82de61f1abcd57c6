package stripegateway

import (
	"strings"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// Quiet periods of unknown outcomes, in seconds. A 500 is stored under its key,
// which brings back nothing better for a day, and Stripe may roll it forward
// later (https://docs.stripe.com/error-low-level#server-errors).
const (
	quiet       = 15 * 60
	quietStored = 24 * 60 * 60
)

// unwillingBackOff is the least back-off, in seconds, where Stripe says that
// an immediate repeat is pointless (Stripe-Should-Retry: false).
const unwillingBackOff = 10

// noUsableMethod is the decline table's own code, given where Stripe refuses a
// method without one that the table knows.
const noUsableMethod = "payment_method_missing"

// unexpectedState is the code with which an intent refuses what its status does
// not allow. The error shows the intent.
const unexpectedState = string(stripe.ErrorCodePaymentIntentUnexpectedState)

// takeOutcome is the outcome table for a confirm; the package comment shows
// it. It speaks of this send alone: that an earlier send of the attempt may
// still be unresolved is the aggregate's to know.
func takeOutcome(o sagas.Order, a answer) domain.Outcome {
	switch {
	case a.fault != noFault:
		return refusal(a)
	case a.status >= 200 && a.status < 300:
		return shown(o, a.intent, a)
	case (a.status == 400 || a.status == 402) && a.intent != nil && a.kind != "idempotency_error":
		// The state of the object beats the words of the error.
		out := shown(o, a.intent, a)
		open := out.Class == domain.Unknown && a.intent.Status != statusProcessing && a.intent.Status != statusSucceeded
		if !open || a.code == unexpectedState {
			return out
		}
	}
	return refusal(a)
}

// shown is the outcome that the state of an intent tells: of the answer, or of
// the intent inside an error.
func shown(o sagas.Order, in *intent, a answer) domain.Outcome {
	if in == nil || intentID(in.ID) == "" {
		return unknown("the answer shows no intent", quiet, a, nil)
	}
	if in.ID != o.IntentID {
		return review("the answer shows another intent", a, in)
	}
	if in.Status == statusCancelled { // takes no money, whatever else it says
		return unknown("the intent is cancelled", quiet, a, in)
	}
	if wrong := in.contradictions(o); len(wrong) > 0 {
		return review("the intent differs from the order: "+strings.Join(wrong, ", "), a, in)
	}
	switch in.Status {
	case statusSucceeded:
		if in.chargeID() == "" {
			return unknown("the intent succeeded and shows no charge", quiet, a, in)
		}
		return domain.Outcome{
			Class: domain.Paid, ChargeID: in.chargeID(), IntentID: in.ID, Money: in.received(),
			Source: domain.SourceAnswer, Evidence: a.evidence(in),
		}
	case statusNeedsAction:
		return domain.Outcome{
			Class: domain.ActionRequired, IntentID: in.ID, ChargeID: in.chargeID(),
			Code: a.code, DeclineCode: a.declineCode,
			Reason: "the customer must authenticate the payment", Evidence: a.evidence(in),
		}
	case statusNeedsCapture:
		return review("the payment is authorised and was not captured", a, in)
	case statusProcessing:
		return unknown("the payment is being processed", quiet, a, in)
	case statusNeedsMethod, statusNeedsConfirmation:
		return unknown("the intent is open", quiet, a, in)
	}
	return unknown("the intent is in an unlisted state", quiet, a, in)
}

// refusal is the part of the table that does not depend on an intent: faults
// of the way and Stripe's errors. Anything that is not listed is unknown.
func refusal(a answer) domain.Outcome {
	switch a.fault {
	case violated:
		return held("not sent: "+a.why, a)
	case unsent:
		if a.code == vaultKeyInvalid {
			return held("not sent: "+a.why, a)
		}
		return retry("not sent: "+a.why, a)
	case lost:
		if a.status == 500 {
			return unknown(a.why, quietStored, a, nil)
		}
		return unknown(a.why, quiet, a, nil)
	case noFault, unreadable: // the status may tell
	}
	switch {
	case a.status == 500:
		return unknown("Stripe failed; it may still complete or undo the request", quietStored, a, nil)
	case a.status >= 300 && a.status < 400:
		return unknown("a redirect, which is not followed", quiet, a, nil)
	case a.fault == unreadable:
		return unknown(a.why, quiet, a, nil)
	case a.kind == "idempotency_error":
		return review("the key was used with other parameters", a, a.intent)
	case (a.status == 400 || a.status == 402) && a.noMethod:
		return declined(a)
	case a.status == 402 && a.kind == "card_error":
		return declined(a)
	case a.status == 400 && a.code == unexpectedState:
		return unknown("the intent's state does not allow it", quiet, a, nil)
	case a.status == 400 && a.code == "idempotency_key_in_use", a.status == 409:
		return unknown("a request with this key or object is in progress", quiet, a, nil)
	case a.status == 400 && a.kind == "invalid_request_error":
		return domain.Outcome{Class: domain.Rejected, Code: a.code, Reason: "Stripe refused the request", Evidence: a.evidence(nil)}
	case a.replayed:
		// What follows should not be stored under a key. Where it is, it comes
		// back as long as the key is remembered: only another key ends it.
		return unknown("a refusal was replayed that should not be stored", quietStored, a, nil)
	case a.status == 401:
		return held("the key is not accepted", a)
	case a.status == 403:
		return held("the key or a policy does not permit the request", a)
	case a.status == 404:
		return held("there is no such object under this key", a)
	case a.status == 429 && a.code == "spend_cap_exceeded":
		return held("the spend cap is reached", a)
	case a.status == 429 && a.code == "charge_cap_exceeded":
		return held("the cap of the number of charges is reached", a)
	case a.status == 429 && a.code == "rate_limit":
		return retry("rate limit", a)
	case a.status == 429 && a.code == "lock_timeout":
		return retry("the object is locked by another request", a)
	case a.status == 503 && a.code == "ledger_unavailable": // the spend proxy's own word for "nothing was forwarded"
		return retry("the spend proxy's books are away", a)
	case a.status > 500:
		return unknown("Stripe or a gateway in front of it failed", quiet, a, nil)
	}
	return unknown("an answer that proves nothing", quiet, a, nil)
}

func declined(a answer) domain.Outcome {
	out := domain.Outcome{
		Class: domain.Declined, ChargeID: a.chargeID, Code: a.code, DeclineCode: a.declineCode,
		Reason: "the payment was declined", Evidence: a.evidence(a.intent),
	}
	if a.intent != nil {
		out.IntentID = intentID(a.intent.ID)
	}
	if a.noMethod {
		out.Reason = "there is no usable payment method"
		if domain.ClassifyDecline(a.code, a.declineCode) != domain.MethodMissing {
			out.Code, out.DeclineCode = noUsableMethod, ""
		}
	}
	return out
}

func unknown(reason string, quietSeconds int, a answer, in *intent) domain.Outcome {
	return domain.Outcome{
		Class: domain.Unknown, Code: a.code, Reason: reason, Evidence: a.evidence(in),
		QuietSeconds: quietSeconds, RetryAfterSeconds: a.retryAfter,
	}
}

func review(reason string, a answer, in *intent) domain.Outcome {
	return domain.Outcome{Class: domain.NeedsReview, Code: a.code, Reason: reason, Evidence: a.evidence(in)}
}

func held(reason string, a answer) domain.Outcome {
	return domain.Outcome{Class: domain.Held, Code: a.code, Reason: reason, Evidence: a.evidence(nil), RetryAfterSeconds: a.retryAfter}
}

func retry(reason string, a answer) domain.Outcome {
	out := domain.Outcome{Class: domain.RetrySameKey, Code: a.code, Reason: reason, Evidence: a.evidence(nil), RetryAfterSeconds: a.retryAfter}
	if a.shouldTry == "false" {
		out.RetryAfterSeconds = max(out.RetryAfterSeconds, unwillingBackOff)
	}
	return out
}

// prepared is the table for a create. The intent is used only if it is ours in
// every field; an answer that differs is kept as evidence.
func prepared(o sagas.Order, a answer) sagas.Prepared {
	if a.fault != noFault || a.status < 200 || a.status >= 300 {
		return sagas.Prepared{Outcome: refusal(a)}
	}
	in := a.intent
	if in == nil || intentID(in.ID) == "" {
		return sagas.Prepared{Outcome: unknown("the answer shows no intent", quiet, a, nil)}
	}
	if wrong := in.contradictionsFresh(o); len(wrong) > 0 {
		return sagas.Prepared{Outcome: review("the new intent differs from the order: "+strings.Join(wrong, ", "), a, in)}
	}
	return sagas.Prepared{IntentID: in.ID, LatestCharge: in.chargeID()}
}

// found is the table for a read of the committed intent.
func found(o sagas.Order, a answer) sagas.Finding {
	switch {
	case isMissing(a):
		return missing(a)
	case a.fault != noFault || a.status < 200 || a.status >= 300:
		return unreachable(a)
	}
	f, ok := readState(o, a.intent, a, domain.SourceFind)
	if ok {
		return f
	}
	in, latest := a.intent, a.intent.chargeID()
	f.LatestCharge = latest
	switch {
	case latest == o.LatestCharge:
		f.State = sagas.IntentUnchanged
		f.Outcome = unknown("nothing has happened to the intent", quiet, a, in)
	case latest == "":
		f.State = sagas.IntentUnreachable
		f.Outcome = unknown("the intent no longer shows its former charge", quiet, a, in)
	default:
		f = attempted(in, a)
	}
	return f
}

// readState is the finding that the intent's status alone decides; ok is false
// for an intent that is open for a (further) confirm.
func readState(o sagas.Order, in *intent, a answer, source domain.Source) (f sagas.Finding, ok bool) {
	f.Outcome = shown(o, in, a)
	switch f.Outcome.Class {
	case domain.Paid:
		f.Outcome.Source = source
		f.State = sagas.IntentDecided
	case domain.NeedsReview:
		f.State = sagas.IntentDecided
	case domain.ActionRequired:
		f.State = sagas.IntentAction
	default: // the status tells
	}
	if in == nil || in.ID != o.IntentID {
		if f.State == "" {
			f.State = sagas.IntentUnreachable
		}
		return f, true
	}
	f.LatestCharge = in.chargeID()
	if f.State != "" {
		return f, true
	}
	switch in.Status {
	case statusProcessing:
		f.State = sagas.IntentProcessing
	case statusCancelled:
		f.State = sagas.IntentCancelled
	case statusNeedsMethod, statusNeedsConfirmation:
		return f, false
	default:
		f.State = sagas.IntentUnreachable
	}
	return f, true
}

// attempted reads the charge that an open intent has got since the order's
// confirm.
func attempted(in *intent, a answer) sagas.Finding {
	f := sagas.Finding{LatestCharge: in.chargeID()}
	switch in.LatestCharge.Status {
	case "failed":
		a.code, a.declineCode = in.declineCodes()
		f.State = sagas.IntentDecided
		f.Outcome = domain.Outcome{
			Class: domain.Declined, ChargeID: in.chargeID(), IntentID: in.ID, Code: a.code, DeclineCode: a.declineCode,
			Source: domain.SourceFind, Reason: "the payment was declined", Evidence: a.evidence(in),
		}
	case "pending":
		f.State = sagas.IntentProcessing
		f.Outcome = unknown("the charge is pending", quiet, a, in)
	case "succeeded":
		f.State = sagas.IntentDecided
		f.Outcome = review("the charge succeeded and its intent is open", a, in)
	default:
		f.State = sagas.IntentUnreachable
		f.Outcome = unknown("the charge's state was not shown", quiet, a, in)
	}
	return f
}

// cancelled is the table for a cancel.
func cancelled(o sagas.Order, a answer) sagas.Finding {
	succeeded := a.fault == noFault && a.status >= 200 && a.status < 300
	refused := a.fault == noFault && a.status == 400 && a.code == unexpectedState && a.intent != nil
	switch {
	case isMissing(a):
		return missing(a)
	case !succeeded && !refused:
		return unreachable(a)
	}
	f, ok := readState(o, a.intent, a, domain.SourceCancel)
	if !ok { // open after all
		f.State = sagas.IntentUnreachable
	}
	return f
}

// isMissing tells whether Stripe says that there is no such object. Another 404
// says something about the address.
func isMissing(a answer) bool {
	return a.fault == noFault && a.status == 404 && a.code == "resource_missing"
}

func missing(a answer) sagas.Finding {
	return sagas.Finding{State: sagas.IntentMissing, Outcome: review("Stripe knows no such intent", a, nil)}
}

// unreachable: the call showed nothing about the intent. The outcome says why.
func unreachable(a answer) sagas.Finding {
	out := refusal(a)
	if out.Class != domain.NeedsReview {
		out = unknown(out.Reason, max(out.QuietSeconds, quiet), a, nil)
	}
	return sagas.Finding{State: sagas.IntentUnreachable, Outcome: out}
}
