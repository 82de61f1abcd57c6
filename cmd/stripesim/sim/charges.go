package sim

import "encoding/hex"

// charge is one attempt to move money, of an intent or on its own. Once put on
// its shelf it is never changed: a change puts a copy.
type charge struct {
	ID                  string   `json:"id"`
	Made                int64    `json:"c"`
	Amount              int64    `json:"a"`
	Currency            string   `json:"cy"`
	Customer            string   `json:"cu,omitempty"`
	Intent              string   `json:"pi,omitempty"`
	Status              string   `json:"st"` // succeeded, pending, failed
	Captured            bool     `json:"cp,omitempty"`
	Taken               int64    `json:"ta,omitempty"` // captured amount
	Refunded            int64    `json:"rf,omitempty"`
	Metadata            metadata `json:"md,omitempty"`
	Description         string   `json:"de,omitempty"`
	ReceiptEmail        string   `json:"re,omitempty"`
	StatementDescriptor string   `json:"sd,omitempty"`
	StatementSuffix     string   `json:"ss,omitempty"`
	TransferGroup       string   `json:"tg,omitempty"`
	Method              string   `json:"pm,omitempty"`
	Brand               string   `json:"br,omitempty"`
	FailureCode         string   `json:"fc,omitempty"`
	FailureMessage      string   `json:"fm,omitempty"`
	DeclineCode         string   `json:"dc,omitempty"`
	Dispute             string   `json:"dp,omitempty"`
	SettleAt            int64    `json:"sa,omitempty"` // pending, without an intent: when it ends, nanoseconds
	SettleCode          string   `json:"sc,omitempty"` // … with which decline; empty: success

	// What the ledger knows and the API does not show.
	Key         string `json:"k,omitempty"`
	Request     string `json:"rq,omitempty"`
	Fingerprint string `json:"fp,omitempty"`
	Planted     bool   `json:"pl,omitempty"`
	When        int64  `json:"w"` // nanoseconds

	Changed int64   `json:"ts"` // nanoseconds
	former  *charge // the version before, until search has forgotten it
}

func (c *charge) id() string         { return c.ID }
func (c *charge) created() int64     { return c.Made }
func (c *charge) customerID() string { return c.Customer }
func (c *charge) intentID() string   { return c.Intent }

// newCharge starts a charge that this request is to blame for.
func (t *tx) newCharge(amount int64, currency, customer string) *charge {
	return &charge{
		ID: newID("ch_", 24), Made: t.seconds(), When: t.now.UnixNano(),
		Amount: amount, Currency: currency, Customer: customer,
		Key: t.c.key, Request: t.c.id, Fingerprint: hex.EncodeToString(t.c.fingerprint[:16]),
	}
}

// fail marks the charge as refused for the reason e, and names it in e.
func (c *charge) fail(e *apiError) {
	c.Status, c.FailureCode, c.FailureMessage, c.DeclineCode = "failed", e.code, e.message, e.declineCode
	e.charge = c.ID
}

var chargeExpansions = []string{"customer", "payment_intent"}

var createChargeShapes = shapes{
	"amount": integer, "currency": text, "customer": text, "source": text, "description": clearable,
	"metadata": hash, "receipt_email": clearable, "statement_descriptor": clearable,
	"statement_descriptor_suffix": clearable, "transfer_group": clearable, "expand": list,
}

func checkCreateCharge(c *call) *apiError {
	p := c.params
	if e := p.require("amount", "currency"); e != nil {
		return e
	}
	if e := checkAmount(p.integer("amount"), lower(p.get("currency"))); e != nil {
		return e
	}
	if !p.has("customer") && !p.has("source") {
		return invalid("", "parameter_missing", "Must provide source or customer.")
	}
	if e := checkGetCharge(c); e != nil {
		return e
	}
	return p.checkMetadata()
}

// createCharge is the older way to take money: one call, no state to ask later.
func createCharge(t *tx) response {
	c := t.c.params
	customer := c.get("customer")
	if e := t.knownCustomer(customer); e != nil {
		return e.response()
	}
	m, e := t.source(c.get("source"), customer)
	if e != nil {
		return e.response()
	}
	ch := t.newCharge(c.integer("amount"), lower(c.get("currency")), customer)
	ch.Metadata, ch.Description, ch.Method, ch.Brand = c.metadata(nil), c.get("description"), m.ID, m.card().brand
	ch.ReceiptEmail, ch.TransferGroup = c.get("receipt_email"), c.get("transfer_group")
	ch.StatementDescriptor, ch.StatementSuffix = c.get("statement_descriptor"), c.get("statement_descriptor_suffix")
	t.s.counters.Creates++

	behaviour := t.behaviourOf(m, customer)
	outcome, code := behaviour.decide(t.attemptsOf(customer, m)+1, t.now)
	switch outcome {
	case approved:
		t.takeCharge(ch)
	case processing:
		ch.Status, ch.SettleAt, ch.SettleCode = "pending", t.now.Add(behaviour.takes).UnixNano(), code
		t.putCharge(ch)
		t.s.schedule(ch.SettleAt, ch.ID, nil)
		t.tell(chargePending, ch)
	default:
		return t.refuseCharge(ch, decline(code)).response()
	}
	return t.showCharge(ch)
}

// takeCharge takes the money of a legacy charge, which the caller owns.
func (t *tx) takeCharge(ch *charge) {
	ch.Status, ch.Captured, ch.Taken = succeeded, true, ch.Amount
	t.putCharge(ch)
	t.tell(chargeSucceeded, ch)
}

// refuseCharge ends a legacy charge, which the caller owns, as declined.
func (t *tx) refuseCharge(ch *charge, e *apiError) *apiError {
	t.s.counters.Declines++
	ch.fail(e)
	t.putCharge(ch)
	t.tell(chargeFailed, ch)
	return e
}

// finishCharge ends the wait of a pending legacy charge.
func (t *tx) finishCharge(id string) {
	old, ok := t.s.charges.get(id)
	if !ok || old.SettleAt == 0 {
		return
	}
	ch := *old
	ch.SettleAt, ch.SettleCode = 0, ""
	if old.SettleCode != "" {
		t.refuseCharge(&ch, decline(old.SettleCode))
		return
	}
	t.takeCharge(&ch)
}

// source resolves what a legacy charge is paid with: a test token, a payment
// method, or the customer's default, which is a working visa.
func (t *tx) source(id, customer string) (*paymentMethod, *apiError) {
	if id == "" {
		if cu, ok := t.s.customers.get(customer); ok && cu.Method != "" {
			return t.usable(cu.Method, customer)
		}
		if t.s.overrides[customer].Detached {
			return nil, &apiError{status: 402, kind: cardError, code: "missing", message: "Cannot charge a customer that has no active card"}
		}
		return &paymentMethod{ID: newID("card_", 24), Made: t.seconds(), Alias: "visa"}, nil
	}
	if len(id) > 4 && id[:4] == "tok_" {
		if _, ok := aliases[id[4:]]; !ok {
			return nil, missingParam("token", "source", id)
		}
		return &paymentMethod{ID: newID("card_", 24), Made: t.seconds(), Alias: id[4:]}, nil
	}
	return t.usable(id, customer)
}

// attemptsOf counts the legacy charges of a customer with one method.
func (t *tx) attemptsOf(customer string, m *paymentMethod) int {
	if m.card().behaviour != declinesUntilAttempt {
		return 0
	}
	n := 0
	for _, place := range t.s.charges.byCustomer[customer] {
		if place.object.Method == m.ID && place.object.Intent == "" {
			n++
		}
	}
	return n
}

var updateChargeShapes = shapes{
	"customer": text, "description": clearable, "metadata": hash, "receipt_email": clearable, "transfer_group": clearable, "expand": list,
}

func checkUpdateCharge(c *call) *apiError {
	if e := checkGetCharge(c); e != nil {
		return e
	}
	return c.params.checkMetadata()
}

// updateCharge changes what no money depends on. A customer can be named where
// there was none.
func updateCharge(t *tx) response {
	old, ok := t.s.charges.get(t.c.object)
	if !ok {
		return missing("charge", "id", t.c.object).response()
	}
	c := t.c.params
	ch := *old
	if ch.Metadata = c.metadata(old.Metadata); len(ch.Metadata)/2 > maxMetadataKeys {
		return invalid("metadata", "", "You can have up to 50 metadata keys.").response()
	}
	if id := c.get("customer"); id != "" && id != old.Customer {
		if old.Customer != "" {
			return invalid("customer", "", "You cannot update `customer` on a charge that already has one.").response()
		}
		if e := t.knownCustomer(id); e != nil {
			return e.response()
		}
		ch.Customer = id
	}
	for name, field := range map[string]*string{
		"description": &ch.Description, "receipt_email": &ch.ReceiptEmail, "transfer_group": &ch.TransferGroup,
	} {
		if c.has(name) {
			*field = c.get(name)
		}
	}
	t.putCharge(&ch)
	t.tell(chargeUpdated, &ch)
	return t.showCharge(&ch)
}

func checkGetCharge(c *call) *apiError {
	_, e := c.params.expansion(c.s, "", chargeExpansions...)
	return e
}

func getCharge(t *tx) response {
	ch, ok := t.s.charges.get(t.c.object)
	if !ok {
		return missing("charge", "id", t.c.object).response()
	}
	return t.showCharge(ch)
}

func (t *tx) showCharge(ch *charge) response {
	x, _ := t.c.params.expansion(t.s, "", chargeExpansions...)
	o := make(out, 0, 1600)
	ch.render(&o, x)
	return response{status: 200, body: o}
}
