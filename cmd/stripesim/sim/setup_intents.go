package sim

import "fmt"

// setupIntent is a SetupIntent: a payment method on its way to a customer,
// without money. Once put on its shelf it is never changed: a change puts a copy.
type setupIntent struct {
	ID           string   `json:"id"`
	Made         int64    `json:"c"`
	Customer     string   `json:"cu,omitempty"`
	Status       string   `json:"st"` // as those of an intent
	Method       string   `json:"pm,omitempty"`
	MethodTypes  []string `json:"mt,omitempty"` // empty: automatic payment methods
	Usage        string   `json:"us"`
	Description  string   `json:"de,omitempty"`
	Metadata     metadata `json:"md,omitempty"`
	Secret       string   `json:"se"`
	CancelReason string   `json:"cr,omitempty"`
	LastError    *failure `json:"le,omitempty"`
}

func (si *setupIntent) id() string         { return si.ID }
func (si *setupIntent) created() int64     { return si.Made }
func (si *setupIntent) customerID() string { return si.Customer }
func (si *setupIntent) intentID() string   { return "" }

var (
	setupExpansions         = []string{"customer", "payment_method"}
	createSetupIntentShapes = shapes{
		"customer": text, "payment_method": text, "payment_method_types": list, "usage": text, "confirm": boolean,
		"automatic_payment_methods[enabled]": boolean, "automatic_payment_methods[allow_redirects]": text,
		"description": clearable, "metadata": hash, "return_url": text, "expand": list,
	}
	confirmSetupIntentShapes = shapes{"payment_method": text, "return_url": text, "expand": list}
	listSetupIntentShapes    = listShapes.and(shapes{"customer": text, "payment_method": text})
)

func checkGetSetupIntent(c *call) *apiError {
	_, e := c.params.expansion(c.s, "", setupExpansions...)
	return e
}

func checkCreateSetupIntent(c *call) *apiError {
	p := c.params
	for _, kind := range p.list("payment_method_types") {
		if kind != "card" && kind != "link" {
			return invalid("payment_method_types", "", fmt.Sprintf("The payment method type %q is invalid: this stand-in has cards only.", kind))
		}
	}
	if e := p.oneOf("usage", "off_session", "on_session"); e != nil {
		return e
	}
	if p.flag("confirm") && !p.has("payment_method") {
		return invalid("payment_method", "parameter_missing", "Missing required param: payment_method.")
	}
	if e := checkGetSetupIntent(c); e != nil {
		return e
	}
	return p.checkMetadata()
}

func createSetupIntent(t *tx) response {
	c := t.c.params
	if e := t.knownCustomer(c.get("customer")); e != nil {
		return e.response()
	}
	si := &setupIntent{
		ID: newID("seti_1", 23), Made: t.seconds(), Customer: c.get("customer"), Status: needsMethod, MethodTypes: c.list("payment_method_types"),
		Usage: c.get("usage"), Description: c.get("description"), Metadata: c.metadata(nil),
	}
	defaultTo(&si.Usage, "off_session")
	si.Secret = newID(si.ID+"_secret_", 25)
	if id := c.get("payment_method"); id != "" {
		m, e := t.usable(id, si.Customer)
		if e != nil {
			return e.response()
		}
		si.Method, si.Status = m.ID, needsConfirmation
		t.putSetupIntent(si)
		t.tell(setupCreated, si)
		if c.flag("confirm") {
			confirmed := *si
			return t.setUp(&confirmed, m)
		}
		return t.showSetupIntent(si)
	}
	t.putSetupIntent(si)
	t.tell(setupCreated, si)
	return t.showSetupIntent(si)
}

func confirmSetupIntent(t *tx) response {
	old, ok := t.s.setups.get(t.c.object)
	if !ok {
		return missing("setupintent", "intent", t.c.object).response()
	}
	switch old.Status {
	case needsMethod, needsConfirmation, needsAction:
	default:
		return setupState(old, "You cannot confirm this SetupIntent because it has a status of "+old.Status+".").response()
	}
	si := *old
	id := si.Method
	if t.c.params.has("payment_method") {
		id = t.c.params.get("payment_method")
	}
	if id == "" {
		return setupState(old, "You cannot confirm this SetupIntent because it's missing a payment method. Update the SetupIntent with a payment method and then confirm it again.").response()
	}
	m, e := t.usable(id, si.Customer)
	if e != nil {
		return e.response()
	}
	si.Method = m.ID
	return t.setUp(&si, m)
}

// setUp asks the bank about the method. The caller owns the intent.
func (t *tx) setUp(si *setupIntent, m *paymentMethod) response {
	si.LastError = nil
	switch c := m.card(); {
	case c.unusable:
		e := decline(c.code)
		t.failSetup(si, m, e)
		e.setup, e.method = si, m
		return e.response()
	case c.behaviour == needsAuthentication:
		si.Status = needsAction
		t.putSetupIntent(si)
		t.tell(setupNeedsAction, si)
	default:
		if e := t.finishSetup(si, m); e != nil {
			return e.response()
		}
	}
	return t.showSetupIntent(si)
}

// finishSetup gives the method to the customer, if there is one.
func (t *tx) finishSetup(si *setupIntent, m *paymentMethod) *apiError {
	if si.Customer != "" {
		attached, e := t.attach(m.ID, si.Customer)
		if e != nil {
			return e
		}
		si.Method = attached.ID
	}
	si.Status = succeeded
	t.putSetupIntent(si)
	t.tell(setupSucceeded, si)
	return nil
}

func (t *tx) failSetup(si *setupIntent, m *paymentMethod, e *apiError) {
	si.Status, si.Method = needsMethod, ""
	si.LastError = &failure{Kind: e.kind, Code: e.code, DeclineCode: e.declineCode, Message: e.message, Method: m}
	t.putSetupIntent(si)
	t.tell(setupFailed, si)
}

// authenticateSetup is the customer's answer to requires_action.
func (t *tx) authenticateSetup(old *setupIntent, passed bool) error {
	si := *old
	m, _, e := t.findMethod(si.Method, "payment_method")
	if e != nil {
		return e
	}
	if !passed {
		t.failSetup(&si, m, &apiError{
			kind: invalidRequest, code: "setup_intent_authentication_failure",
			message: "The latest attempt to set up the payment method has failed because authentication failed.",
		})
		return nil
	}
	if e := t.finishSetup(&si, m); e != nil {
		return e
	}
	return nil
}

func checkCancelSetupIntent(c *call) *apiError {
	if e := checkGetSetupIntent(c); e != nil {
		return e
	}
	return c.params.oneOf("cancellation_reason", "abandoned", "requested_by_customer", "duplicate")
}

func cancelSetupIntent(t *tx) response {
	old, ok := t.s.setups.get(t.c.object)
	if !ok {
		return missing("setupintent", "intent", t.c.object).response()
	}
	if old.Status == succeeded || old.Status == canceled {
		return setupState(old, "You cannot cancel this SetupIntent because it has a status of "+old.Status+".").response()
	}
	si := *old
	si.Status, si.CancelReason = canceled, t.c.params.get("cancellation_reason")
	t.putSetupIntent(&si)
	t.tell(setupCanceled, &si)
	return t.showSetupIntent(&si)
}

func getSetupIntent(t *tx) response {
	si, ok := t.s.setups.get(t.c.object)
	if !ok {
		return missing("setupintent", "intent", t.c.object).response()
	}
	return t.showSetupIntent(si)
}

func listSetupIntents(t *tx) response {
	x, _ := t.c.params.expansion(t.s, "data.", setupExpansions...)
	q := t.c.params.page()
	q.customer = t.c.params.get("customer")
	keep := all[*setupIntent]
	if id := t.c.params.get("payment_method"); id != "" {
		keep = func(si *setupIntent) bool { return si.Method == id }
	}
	return listing(t, t.s.setups, q, "setupintent", "/v1/setup_intents", keep, func(o *out, si *setupIntent) { si.render(o, x) })
}

// setupState refuses an action that the status does not allow.
func setupState(si *setupIntent, message string) *apiError {
	return &apiError{status: 400, kind: invalidRequest, code: "setup_intent_unexpected_state", message: message, setup: si}
}

func (t *tx) showSetupIntent(si *setupIntent) response {
	x, _ := t.c.params.expansion(t.s, "", setupExpansions...)
	o := make(out, 0, 900)
	si.render(&o, x)
	return response{status: 200, body: o}
}

func (si *setupIntent) render(o *out, x expansion) {
	o.lit(`{"id":`).str(si.ID)
	o.lit(`,"object":"setup_intent","application":null,"automatic_payment_methods":`)
	types := si.MethodTypes
	if len(types) == 0 {
		types = []string{"card"}
		o.lit(`{"allow_redirects":"always","enabled":true}`)
	} else {
		o.lit(`null`)
	}
	o.lit(`,"cancellation_reason":`).strOrNull(si.CancelReason)
	o.lit(`,"client_secret":`).str(si.Secret)
	o.lit(`,"created":`).num(si.Made)
	o.lit(`,"customer":`)
	x.customerOrID(o, si.Customer)
	o.lit(`,"description":`).strOrNull(si.Description)
	o.lit(`,"flow_directions":null,"last_setup_error":`)
	si.LastError.render(o)
	o.lit(`,"latest_attempt":null,"livemode":false,"mandate":null,"metadata":`).metadata(si.Metadata)
	o.lit(`,"next_action":`)
	if si.Status == needsAction {
		o.lit(`{"type":"use_stripe_sdk","use_stripe_sdk":{"type":"three_d_secure_redirect","stripe_js":""}}`)
	} else {
		o.lit(`null`)
	}
	o.lit(`,"on_behalf_of":null,"payment_method":`)
	x.methodOrID(o, si.Method)
	o.lit(`,"payment_method_configuration_details":null,"payment_method_options":{"card":{"mandate_options":null,"network":null,"request_three_d_secure":"automatic"}},"payment_method_types":`).strings(types)
	o.lit(`,"single_use_mandate":null,"status":`).str(si.Status)
	o.lit(`,"usage":`).str(si.Usage).lit(`}`)
}
