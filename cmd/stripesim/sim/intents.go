package sim

import (
	"fmt"
	"maps"
)

// intent is a PaymentIntent. Once put on its shelf it is never changed: a
// change puts a copy, and the former version stays behind it for search.
type intent struct {
	ID                  string   `json:"id"`
	Made                int64    `json:"c"`
	Amount              int64    `json:"a"`
	Currency            string   `json:"cy"`
	Customer            string   `json:"cu,omitempty"`
	Status              string   `json:"st"`
	Metadata            metadata `json:"md,omitempty"`
	Description         string   `json:"de,omitempty"`
	ReceiptEmail        string   `json:"re,omitempty"`
	StatementDescriptor string   `json:"sd,omitempty"`
	StatementSuffix     string   `json:"ss,omitempty"`
	TransferGroup       string   `json:"tg,omitempty"`
	SetupFutureUsage    string   `json:"sf,omitempty"`
	Manual              bool     `json:"ma,omitempty"`
	MethodTypes         []string `json:"mt,omitempty"` // empty: automatic payment methods
	AllowRedirects      string   `json:"ar,omitempty"`
	ReturnURL           string   `json:"ru,omitempty"`
	Method              string   `json:"pm,omitempty"`
	Secret              string   `json:"se"`
	Received            int64    `json:"rc,omitempty"`
	Capturable          int64    `json:"cp,omitempty"`
	LatestCharge        string   `json:"lc,omitempty"`
	LastError           *failure `json:"le,omitempty"`
	CanceledAt          int64    `json:"ca,omitempty"`
	CancelReason        string   `json:"cr,omitempty"`
	Attempts            int      `json:"at,omitempty"`
	SettleAt            int64    `json:"sa,omitempty"` // processing: when it ends, nanoseconds
	SettleCode          string   `json:"sc,omitempty"` // … with which decline; empty: success

	Changed int64   `json:"ts"` // nanoseconds
	former  *intent // the version before, until search has forgotten it
}

// failure is why the last attempt failed.
type failure struct {
	Kind        string         `json:"k"`
	Code        string         `json:"c"`
	DeclineCode string         `json:"d,omitempty"`
	Message     string         `json:"m"`
	Charge      string         `json:"ch,omitempty"`
	Method      *paymentMethod `json:"pm,omitempty"`
}

// Statuses of an intent.
const (
	needsMethod       = "requires_payment_method"
	needsConfirmation = "requires_confirmation"
	needsAction       = "requires_action"
	needsCapture      = "requires_capture"
	inProcessing      = "processing"
	succeeded         = "succeeded"
	canceled          = "canceled"
)

func (p *intent) id() string         { return p.ID }
func (p *intent) created() int64     { return p.Made }
func (p *intent) customerID() string { return p.Customer }
func (p *intent) intentID() string   { return "" }

func (p *intent) automatic() bool { return len(p.MethodTypes) == 0 }

// Parameters of the routes on intents.
var (
	intentShapes = shapes{
		"amount": integer, "currency": text, "customer": text, "payment_method": text,
		"payment_method_types": list, "description": clearable, "metadata": hash, "receipt_email": clearable,
		"statement_descriptor": clearable, "statement_descriptor_suffix": clearable, "transfer_group": clearable,
		"setup_future_usage": clearable, "expand": list,
	}
	createIntentShapes = intentShapes.and(shapes{
		"automatic_payment_methods[enabled]": boolean, "automatic_payment_methods[allow_redirects]": text,
		"capture_method": text, "confirmation_method": text, "confirm": boolean, "off_session": text,
		"error_on_requires_action": boolean, "return_url": text,
	})
	confirmShapes = shapes{
		"payment_method": text, "off_session": text, "error_on_requires_action": boolean, "return_url": text,
		"receipt_email": clearable, "setup_future_usage": clearable, "expand": list,
	}
	cancelShapes  = shapes{"cancellation_reason": text, "expand": list}
	captureShapes = shapes{
		"amount_to_capture": integer, "statement_descriptor": clearable, "statement_descriptor_suffix": clearable,
		"metadata": hash, "expand": list,
	}
	getShapes = shapes{"expand": list}
)

// and returns both sets together.
func (s shapes) and(more shapes) shapes {
	all := make(shapes, len(s)+len(more))
	maps.Copy(all, s)
	maps.Copy(all, more)
	return all
}

var intentExpansions = []string{"latest_charge", "customer", "payment_method"}

// checkIntent validates what create and update share.
func checkIntent(c *call) *apiError {
	p := c.params
	if _, e := p.expansion(c.s, "", intentExpansions...); e != nil {
		return e
	}
	if e := p.checkMetadata(); e != nil {
		return e
	}
	for _, kind := range p.list("payment_method_types") {
		if kind != "card" && kind != "link" {
			return invalid("payment_method_types", "", fmt.Sprintf("The payment method type %q is invalid: this stand-in has cards only.", kind))
		}
	}
	if p.get("setup_future_usage") != "" {
		return p.oneOf("setup_future_usage", "off_session", "on_session")
	}
	return nil
}

func checkCreateIntent(c *call) *apiError {
	p := c.params
	if e := p.require("amount", "currency"); e != nil {
		return e
	}
	if e := checkAmount(p.integer("amount"), lower(p.get("currency"))); e != nil {
		return e
	}
	if e := checkIntent(c); e != nil {
		return e
	}
	if e := p.oneOf("capture_method", "automatic", "manual"); e != nil {
		return e
	}
	if e := p.oneOf("confirmation_method", "automatic"); e != nil {
		return e
	}
	if e := p.oneOf("automatic_payment_methods[allow_redirects]", "always", "never"); e != nil {
		return e
	}
	if p.flag("automatic_payment_methods[enabled]") && len(p.list("payment_method_types")) > 0 {
		return invalid("payment_method_types", "parameters_exclusive", "You may only specify one of these parameters: automatic_payment_methods, payment_method_types.")
	}
	if !p.flag("confirm") {
		for _, name := range []string{"off_session", "error_on_requires_action", "return_url"} {
			if p.has(name) {
				return invalid(name, "", fmt.Sprintf("The parameter %s can be used only together with confirm=true.", name))
			}
		}
		return nil
	}
	if !p.has("payment_method") {
		e := unexpectedState(nil, noMethod)
		e.param = "payment_method"
		return e
	}
	return p.oneOf("off_session", "true", "false", "one_off", "recurring")
}

func createIntent(t *tx) response {
	c := t.c.params
	if e := t.knownCustomer(c.get("customer")); e != nil {
		return e.response()
	}
	p := &intent{
		ID: newID("pi_", 24), Made: t.seconds(),
		Amount: c.integer("amount"), Currency: lower(c.get("currency")), Customer: c.get("customer"),
		Metadata: c.metadata(nil), Description: c.get("description"), ReceiptEmail: c.get("receipt_email"),
		StatementDescriptor: c.get("statement_descriptor"), StatementSuffix: c.get("statement_descriptor_suffix"),
		TransferGroup: c.get("transfer_group"), SetupFutureUsage: c.get("setup_future_usage"),
		Manual: c.get("capture_method") == "manual", MethodTypes: c.list("payment_method_types"),
		AllowRedirects: c.get("automatic_payment_methods[allow_redirects]"), ReturnURL: c.get("return_url"),
		Status: needsMethod,
	}
	p.Secret = newID(p.ID+"_secret_", 25)
	var m *paymentMethod
	if id := c.get("payment_method"); id != "" {
		var e *apiError
		if m, e = t.usable(id, p.Customer); e != nil {
			return e.response()
		}
		p.Method, p.Status = m.ID, needsConfirmation
	}
	t.s.counters.Creates++
	if c.flag("confirm") {
		return t.confirm(p, m)
	}
	t.putIntent(p)
	t.tell(intentCreated, p)
	return t.showIntent(p)
}

func getIntent(t *tx) response {
	p, ok := t.s.intents.get(t.c.object)
	if !ok {
		return missing("payment_intent", "intent", t.c.object).response()
	}
	return t.showIntent(p)
}

func checkGetIntent(c *call) *apiError {
	_, e := c.params.expansion(c.s, "", intentExpansions...)
	return e
}

// showIntent renders the answer with what the caller wants expanded.
func (t *tx) showIntent(p *intent) response {
	x, _ := t.c.params.expansion(t.s, "", intentExpansions...)
	o := make(out, 0, 1600)
	p.render(&o, x)
	return response{status: 200, body: o}
}

func checkUpdateIntent(c *call) *apiError {
	if c.params.has("currency") && currencies[lower(c.params.get("currency"))] == (currency{}) {
		return invalid("currency", "", "Invalid currency: "+c.params.get("currency")+".")
	}
	return checkIntent(c)
}

// updateIntent changes an intent. What money depends on can change only while
// no attempt has succeeded or is under way.
func updateIntent(t *tx) response {
	old, ok := t.s.intents.get(t.c.object)
	if !ok {
		return missing("payment_intent", "intent", t.c.object).response()
	}
	c := t.c.params
	p := *old
	p.Metadata = c.metadata(old.Metadata)
	if len(p.Metadata)/2 > maxMetadataKeys {
		return invalid("metadata", "", "You can have up to 50 metadata keys.").response()
	}
	if c.has("description") {
		p.Description = c.get("description")
	}
	if c.has("receipt_email") {
		p.ReceiptEmail = c.get("receipt_email")
	}
	for _, name := range []string{"amount", "currency", "customer", "payment_method", "payment_method_types[0]", "setup_future_usage", "statement_descriptor", "statement_descriptor_suffix", "transfer_group"} {
		if !c.has(name) {
			continue
		}
		switch old.Status {
		case needsMethod, needsConfirmation, needsAction:
		default:
			return unexpectedState(old, fmt.Sprintf("This PaymentIntent's %s could not be updated because it has a status of %s.", name, old.Status)).response()
		}
	}
	if c.has("amount") {
		p.Amount = c.integer("amount")
	}
	if c.has("currency") {
		p.Currency = lower(c.get("currency"))
	}
	if c.has("amount") || c.has("currency") {
		if e := checkAmount(p.Amount, p.Currency); e != nil {
			return e.response()
		}
	}
	if id := c.get("customer"); id != "" {
		if e := t.knownCustomer(id); e != nil {
			return e.response()
		}
		if old.Customer != "" && old.Customer != id {
			return invalid("customer", "", "You cannot modify `customer` on a PaymentIntent once it already has been set. To fulfill a payment with a different Customer, cancel this PaymentIntent and create a new one.").response()
		}
		p.Customer = id
	}
	if types := c.list("payment_method_types"); len(types) > 0 {
		p.MethodTypes = types
	}
	for name, field := range map[string]*string{
		"setup_future_usage": &p.SetupFutureUsage, "statement_descriptor": &p.StatementDescriptor,
		"statement_descriptor_suffix": &p.StatementSuffix, "transfer_group": &p.TransferGroup,
	} {
		if c.has(name) {
			*field = c.get(name)
		}
	}
	if id := c.get("payment_method"); id != "" {
		m, e := t.usable(id, p.Customer)
		if e != nil {
			return e.response()
		}
		p.Method, p.Status = m.ID, needsConfirmation
	}
	t.putIntent(&p)
	return t.showIntent(&p)
}
