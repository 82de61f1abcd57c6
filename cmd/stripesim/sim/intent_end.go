package sim

import "fmt"

func checkCancelIntent(c *call) *apiError {
	if e := checkGetIntent(c); e != nil {
		return e
	}
	return c.params.oneOf("cancellation_reason", "duplicate", "fraudulent", "requested_by_customer", "abandoned")
}

func cancelIntent(t *tx) response {
	old, ok := t.s.intents.get(t.c.object)
	if !ok {
		return missing("payment_intent", "intent", t.c.object).response()
	}
	switch old.Status {
	case needsMethod, needsConfirmation, needsAction, needsCapture:
	default:
		return unexpectedState(old, fmt.Sprintf("You cannot cancel this PaymentIntent because it has a status of %s. Only a PaymentIntent with one of the following statuses may be canceled: requires_payment_method, requires_capture, requires_confirmation, requires_action.", old.Status)).response()
	}
	p := t.cancel(old, t.c.params.get("cancellation_reason"))
	return t.showIntent(p)
}

// cancel ends an intent for ever and gives an authorised amount back.
func (t *tx) cancel(old *intent, reason string) *intent {
	p := *old
	p.Status, p.CanceledAt, p.CancelReason, p.Capturable = canceled, t.seconds(), reason, 0
	if old.Status == needsCapture {
		if ch, ok := t.s.charges.get(old.LatestCharge); ok {
			released := *ch
			released.Refunded = ch.Amount
			t.putCharge(&released)
			t.tell(chargeRefunded, &released)
		}
	}
	t.s.counters.Cancels++
	t.putIntent(&p)
	t.tell(intentCanceled, &p)
	return &p
}

func checkCaptureIntent(c *call) *apiError {
	if e := checkGetIntent(c); e != nil {
		return e
	}
	if c.params.has("amount_to_capture") && c.params.integer("amount_to_capture") < 1 {
		return invalid("amount_to_capture", "parameter_invalid_integer", "This value must be greater than or equal to 1.")
	}
	return c.params.checkMetadata()
}

func captureIntent(t *tx) response {
	old, ok := t.s.intents.get(t.c.object)
	if !ok {
		return missing("payment_intent", "intent", t.c.object).response()
	}
	if old.Status != needsCapture {
		return unexpectedState(old, fmt.Sprintf("This PaymentIntent could not be captured because it has a status of %s. Only a PaymentIntent with one of the following statuses may be captured: requires_capture.", old.Status)).response()
	}
	amount := old.Capturable
	if t.c.params.has("amount_to_capture") {
		amount = t.c.params.integer("amount_to_capture")
	}
	if amount > old.Capturable {
		return invalid("amount_to_capture", "amount_too_large", fmt.Sprintf("The amount to capture is greater than the amount you can capture: %d.", old.Capturable)).response()
	}
	p := *old
	p.Status, p.Received, p.Capturable = succeeded, amount, 0
	p.Metadata = t.c.params.metadata(old.Metadata)
	if ch, ok := t.s.charges.get(old.LatestCharge); ok {
		taken := *ch
		taken.Captured, taken.Taken, taken.Refunded = true, amount, ch.Amount-amount
		t.putCharge(&taken)
		t.tell(chargeCaptured, &taken)
	}
	t.putIntent(&p)
	t.tell(intentSucceeded, &p)
	return t.showIntent(&p)
}
