package sim

import "strings"

// paymentMethod is a stored payment method. Once put on its shelf it is never
// changed: a change puts a copy.
type paymentMethod struct {
	ID       string   `json:"id"`
	Made     int64    `json:"c"`
	Customer string   `json:"cu,omitempty"`
	Alias    string   `json:"al,omitempty"` // how it behaves: a key of aliases, or a pm_sim_ id
	Detached bool     `json:"de,omitempty"`
	Metadata metadata `json:"md,omitempty"`
}

func (m *paymentMethod) id() string         { return m.ID }
func (m *paymentMethod) created() int64     { return m.Made }
func (m *paymentMethod) customerID() string { return m.Customer }
func (m *paymentMethod) intentID() string   { return "" }

// card is the behaviour behind the method.
func (m *paymentMethod) card() card {
	if c, ok := aliases[m.Alias]; ok {
		return c
	}
	c, _ := simCard(m.Alias)
	return c
}

func (m *paymentMethod) render(o *out) {
	brand := m.card().brand
	if brand == "" {
		brand = "visa"
	}
	o.lit(`{"id":`).str(m.ID)
	o.lit(`,"object":"payment_method","billing_details":{"address":{"city":null,"country":null,"line1":null,"line2":null,"postal_code":null,"state":null},"email":null,"name":null,"phone":null},"card":`)
	renderCard(o, brand)
	o.lit(`,"created":`).num(m.Made)
	o.lit(`,"customer":`).strOrNull(m.Customer)
	o.lit(`,"livemode":false,"metadata":`).metadata(m.Metadata)
	o.lit(`,"type":"card"}`)
}

func renderCard(o *out, brand string) {
	o.lit(`{"brand":`).str(brand)
	o.lit(`,"checks":{"address_line1_check":null,"address_postal_code_check":null,"cvc_check":"pass"},"country":"US","exp_month":12,"exp_year":2040,"fingerprint":"SimFingerprint01","funding":"credit","last4":"4242","network":"visa","three_d_secure":null,"wallet":null}`)
}

// spent is Stripe's refusal of a method that was detached.
func spent() *apiError {
	return &apiError{
		status: 400, kind: invalidRequest, code: "payment_method_unexpected_state",
		message: "The provided PaymentMethod was previously used with a PaymentIntent without Customer attachment, shared with a connected account without Customer attachment, or was detached from a Customer. It may not be used again. To use a PaymentMethod multiple times, you must attach it to a Customer first.",
	}
}

// findMethod resolves a payment method id: a stored one, one of our own test
// methods, or an unknown pm_ id, which is a working visa of whoever uses it. An
// alias of Stripe's yields a new method each time; kept says whether it has to
// be stored, which a plain working one need not.
func (t *tx) findMethod(id, param string) (m *paymentMethod, kept bool, e *apiError) {
	if m, ok := t.s.methods.get(id); ok {
		return m, false, nil
	}
	if alias, ok := strings.CutPrefix(id, "pm_card_"); ok {
		c, known := aliases[alias]
		if !known {
			return nil, false, missingParam("PaymentMethod", param, id)
		}
		m := &paymentMethod{ID: newID("pm_", 24), Made: t.seconds(), Alias: alias}
		return m, c.behaviour != approves, nil
	}
	if strings.HasPrefix(id, "pm_sim_") {
		if _, ok := simCard(id); !ok {
			return nil, false, missingParam("PaymentMethod", param, id)
		}
		return &paymentMethod{ID: id, Made: t.s.epoch, Alias: id}, false, nil
	}
	if !strings.HasPrefix(id, "pm_") || len(id) == len("pm_") {
		return nil, false, missingParam("PaymentMethod", param, id)
	}
	return &paymentMethod{ID: id, Made: t.s.epoch, Alias: "visa"}, false, nil
}

// usable resolves the method with which customer is to be charged and refuses
// one that is detached or somebody else's.
func (t *tx) usable(id, customer string) (*paymentMethod, *apiError) {
	m, kept, e := t.findMethod(id, "payment_method")
	switch {
	case e != nil:
		return nil, e
	case m.Detached, t.s.overrides[customer].Detached:
		return nil, spent()
	case m.Customer != "" && customer == "":
		return nil, &apiError{
			status: 400, kind: invalidRequest, param: "payment_method",
			message: "The provided PaymentMethod " + m.ID + " is attached to a Customer. Provide that Customer to use it.",
		}
	case m.Customer != "" && m.Customer != customer:
		return nil, &apiError{
			status: 400, kind: invalidRequest, param: "payment_method",
			message: "The customer does not have a payment method with the ID " + m.ID + ". The payment method must be attached to the customer.",
		}
	}
	if kept {
		t.putMethod(m)
	}
	return m, nil
}

func getMethod(t *tx) response {
	m, _, e := t.findMethod(t.c.object, "payment_method")
	if e != nil {
		return missing("PaymentMethod", "payment_method", t.c.object).response()
	}
	return t.showMethod(m)
}

func (t *tx) showMethod(m *paymentMethod) response {
	o := make(out, 0, 700)
	m.render(&o)
	return response{status: 200, body: o}
}

func attachMethod(t *tx) response {
	customer := t.c.params.get("customer")
	if e := t.knownCustomer(customer); e != nil {
		return e.response()
	}
	m, e := t.attach(t.c.object, customer)
	if e != nil {
		return e.response()
	}
	return t.showMethod(m)
}

// attach gives a method to a customer. Stripe checks a card when it is
// attached, so the plainly declining ones never get that far.
func (t *tx) attach(id, customer string) (*paymentMethod, *apiError) {
	m, _, e := t.findMethod(id, "payment_method")
	if e != nil {
		return nil, missing("PaymentMethod", "payment_method", id)
	}
	switch c := m.card(); {
	case m.Detached:
		return nil, spent()
	case m.Customer == customer:
		return m, nil
	case m.Customer != "":
		return nil, &apiError{
			status: 400, kind: invalidRequest, code: "payment_method_unexpected_state",
			message: "The payment method you provided has already been attached to a customer.",
		}
	case c.unusable:
		refusal := decline(c.code)
		refusal.method = m
		return nil, refusal
	}
	attached := *m
	attached.Customer = customer
	t.putMethod(&attached)
	return &attached, nil
}

func detachMethod(t *tx) response {
	m, _, e := t.findMethod(t.c.object, "payment_method")
	if e != nil {
		return missing("PaymentMethod", "payment_method", t.c.object).response()
	}
	if m.Customer == "" && (m.Detached || t.stored(m)) {
		return (&apiError{
			status: 400, kind: invalidRequest, param: "payment_method",
			message: "The payment method you provided is not attached to a customer so detachment is impossible.",
		}).response()
	}
	detached := *m
	detached.Customer, detached.Detached = "", true
	t.putMethod(&detached)
	return t.showMethod(&detached)
}

// stored tells whether the method is on the shelf, as opposed to one that exists
// because nobody said otherwise.
func (t *tx) stored(m *paymentMethod) bool {
	_, ok := t.s.methods.get(m.ID)
	return ok
}
