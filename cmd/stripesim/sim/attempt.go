package sim

func checkConfirm(c *call) *apiError {
	if e := checkGetIntent(c); e != nil {
		return e
	}
	if e := c.params.oneOf("off_session", "true", "false", "one_off", "recurring"); e != nil {
		return e
	}
	if c.params.get("setup_future_usage") != "" {
		return c.params.oneOf("setup_future_usage", "off_session", "on_session")
	}
	return nil
}

func confirmIntent(t *tx) response {
	old, ok := t.s.intents.get(t.c.object)
	if !ok {
		return missing("payment_intent", "intent", t.c.object).response()
	}
	switch old.Status {
	case needsMethod, needsConfirmation, needsAction:
	case succeeded, needsCapture:
		return unexpectedState(old, "You cannot confirm this PaymentIntent because it has already succeeded after being previously confirmed.").response()
	default:
		return unexpectedState(old, "You cannot confirm this PaymentIntent because it has a status of "+old.Status+". Only a PaymentIntent with one of the following statuses may be confirmed: requires_confirmation, requires_action.").response()
	}
	p := *old
	c := t.c.params
	if c.has("receipt_email") {
		p.ReceiptEmail = c.get("receipt_email")
	}
	if c.has("setup_future_usage") {
		p.SetupFutureUsage = c.get("setup_future_usage")
	}
	if c.has("return_url") {
		p.ReturnURL = c.get("return_url")
	}
	id := p.Method
	if c.has("payment_method") {
		id = c.get("payment_method")
	}
	if id == "" {
		return unexpectedState(old, noMethod).response()
	}
	m, e := t.usable(id, p.Customer)
	if e != nil {
		return e.response()
	}
	p.Method = m.ID
	return t.confirm(&p, m)
}

const noMethod = "You cannot confirm this PaymentIntent because it's missing a payment method. You can either update the PaymentIntent with a payment method and then confirm it again, or confirm it again directly with a payment method or ConfirmationToken."

// confirm makes one attempt to collect the intent with a method that is usable.
// The caller owns the intent; it is put on its shelf whatever becomes of it.
func (t *tx) confirm(p *intent, m *paymentMethod) response {
	t.s.counters.Confirms++
	if p.automatic() && p.AllowRedirects != "never" && p.ReturnURL == "" {
		return invalid("return_url", "", "This PaymentIntent is configured to accept payment methods enabled in your Dashboard. Because some of these payment methods might redirect your customer off of your page, you must provide a `return_url`. If you don't want to accept redirect-based payment methods, set `automatic_payment_methods[enabled]` to `true` and `automatic_payment_methods[allow_redirects]` to `never` when creating Setup Intents and Payment Intents.").response()
	}
	if e := t.knownCustomer(p.Customer); e != nil {
		return e.response()
	}
	if p.Attempts >= t.s.settings.ConfirmLimit {
		p = t.cancel(p, "")
		return unexpectedState(p, "You cannot confirm this PaymentIntent because it has been confirmed too many times. It is now canceled.").response()
	}
	if _, known := t.s.intents.get(p.ID); !known { // created and confirmed in one: two changes
		begun := *p
		t.putIntent(&begun)
		t.tell(intentCreated, &begun)
	}
	p.Attempts++
	p.LastError = nil
	c := t.behaviourOf(m, p.Customer)
	outcome, code := c.decide(p.Attempts, t.now)
	offSession := t.c.params.has("off_session") && t.c.params.get("off_session") != "false"
	switch outcome {
	case approved:
		ch := t.chargeFor(p, m)
		take(p, ch)
		return t.attempted(p, ch)
	case processing:
		ch := t.chargeFor(p, m)
		ch.Status = "pending"
		p.Status, p.SettleAt, p.SettleCode = inProcessing, t.now.Add(c.takes).UnixNano(), code
		return t.attempted(p, ch)
	case actionNeeded:
		if !offSession && !t.c.params.flag("error_on_requires_action") {
			p.Status = needsAction
			t.putIntent(p)
			t.tell(intentNeedsAction, p)
			return t.showIntent(p)
		}
		if !offSession { // refused before the bank was asked: no charge
			return t.failed(p, nil, m, decline(code))
		}
	case declined:
	}
	return t.failed(p, t.chargeFor(p, m), m, decline(code))
}

// behaviourOf is how the attempt will go: a scripted decline of this request
// first, then what control decided about the customer's card, then the method
// itself.
func (t *tx) behaviourOf(m *paymentMethod, customer string) card {
	if h := t.c.hit; h.kind == Decline {
		return declining(h.fault.Code)
	}
	switch o := t.s.overrides[customer]; o.Card {
	case "":
		return m.card()
	case cardGood:
		return card{}
	default:
		return declining(o.Card)
	}
}

func declining(code string) card {
	if code == "authentication_required" {
		return card{behaviour: needsAuthentication}
	}
	return card{behaviour: declines, code: code}
}

// chargeFor makes the charge of an attempt: metadata is copied now, and what
// changes on the intent later does not reach it.
func (t *tx) chargeFor(p *intent, m *paymentMethod) *charge {
	ch := t.newCharge(p.Amount, p.Currency, p.Customer)
	ch.Intent, ch.Metadata, ch.Description, ch.Method = p.ID, p.Metadata, p.Description, m.ID
	ch.ReceiptEmail, ch.StatementDescriptor, ch.StatementSuffix = p.ReceiptEmail, p.StatementDescriptor, p.StatementSuffix
	ch.TransferGroup, ch.Brand = p.TransferGroup, m.card().brand
	p.LatestCharge = ch.ID
	return ch
}

// attempted records an attempt that was not refused.
func (t *tx) attempted(p *intent, ch *charge) response {
	t.putCharge(ch)
	t.putIntent(p)
	switch p.Status {
	case inProcessing:
		t.s.schedule(p.SettleAt, p.ID, nil)
		t.tell(chargePending, ch)
		t.tell(intentProcessing, p)
	case needsCapture:
		t.tell(chargeSucceeded, ch)
		t.tell(intentAuthorised, p)
	default:
		t.tell(chargeSucceeded, ch)
		t.tell(intentSucceeded, p)
	}
	return t.showIntent(p)
}

// failed records a refused attempt and answers with the error, which shows the
// intent and the method.
func (t *tx) failed(p *intent, ch *charge, m *paymentMethod, e *apiError) response {
	t.fail(p, ch, m, e)
	e.intent, e.method = p, m
	return e.response()
}

// fail records a refused attempt: a failed charge if the bank was asked, and the
// intent open for another method.
func (t *tx) fail(p *intent, ch *charge, m *paymentMethod, e *apiError) {
	t.s.counters.Declines++
	if ch != nil {
		ch.fail(e)
		t.putCharge(ch)
		t.tell(chargeFailed, ch)
	}
	p.Status, p.Method, p.SettleAt, p.SettleCode = needsMethod, "", 0, ""
	p.LastError = &failure{Kind: e.kind, Code: e.code, DeclineCode: e.declineCode, Message: e.message, Charge: e.charge, Method: m}
	t.putIntent(p)
	t.tell(intentFailed, p)
}

// finishProcessing ends the wait of an intent in processing.
func (t *tx) finishProcessing(id string) {
	old, ok := t.s.intents.get(id)
	if !ok || old.Status != inProcessing {
		return
	}
	pending, ok := t.s.charges.get(old.LatestCharge)
	if !ok {
		return
	}
	p, ch := *old, *pending
	if old.SettleCode != "" {
		t.fail(&p, &ch, t.methodOf(old), decline(old.SettleCode))
		return
	}
	p.SettleAt = 0
	take(&p, &ch)
	t.attempted(&p, &ch)
}

// authenticate is the customer's answer to requires_action.
func (t *tx) authenticate(old *intent, passed bool) {
	p, m := *old, t.methodOf(old)
	if !passed {
		t.fail(&p, nil, m, &apiError{
			kind: invalidRequest, code: "payment_intent_authentication_failure",
			message: "The provided PaymentMethod has failed authentication. You can provide payment_method_data or a new PaymentMethod to attempt to fulfill this PaymentIntent again.",
		})
		return
	}
	ch := t.chargeFor(&p, m)
	take(&p, ch)
	t.attempted(&p, ch)
}

// take marks the money of an attempt as taken, or as authorised where it is to be
// captured by hand.
func take(p *intent, ch *charge) {
	ch.Status = succeeded
	if p.Manual {
		p.Status, p.Capturable = needsCapture, p.Amount
		return
	}
	ch.Captured, ch.Taken = true, p.Amount
	p.Status, p.Received = succeeded, p.Amount
}

// methodOf is the method an intent was last tried with.
func (t *tx) methodOf(p *intent) *paymentMethod {
	if m, _, e := t.findMethod(p.Method, "payment_method"); e == nil {
		return m
	}
	return &paymentMethod{ID: p.Method, Made: p.Made, Alias: "visa"}
}
