package sim

import "strings"

// customer is a stored customer. Once put on its shelf it is never changed: a
// change puts a copy.
type customer struct {
	ID          string   `json:"id"`
	Made        int64    `json:"c"`
	Email       string   `json:"em,omitempty"`
	Name        string   `json:"na,omitempty"`
	Phone       string   `json:"ph,omitempty"`
	Description string   `json:"de,omitempty"`
	Metadata    metadata `json:"md,omitempty"`
	Method      string   `json:"pm,omitempty"` // default for legacy charges
	Deleted     bool     `json:"dl,omitempty"`
}

func (c *customer) id() string         { return c.ID }
func (c *customer) created() int64     { return c.Made }
func (c *customer) customerID() string { return "" }
func (c *customer) intentID() string   { return "" }

// override is what control decided about a customer, beside what the API says.
type override struct {
	ID       string `json:"id"`
	Card     string `json:"ca,omitempty"` // "", cardGood or a decline code
	Detached bool   `json:"de,omitempty"`
	Deleted  bool   `json:"dl,omitempty"`
}

// cardGood makes every attempt of a customer succeed, whatever the method says.
const cardGood = "good"

var (
	customerShapes = shapes{
		"email": clearable, "name": clearable, "phone": clearable, "description": clearable, "metadata": hash,
		"source": text,
	}
	createCustomerShapes = customerShapes.and(shapes{"payment_method": text})
	listCustomerShapes   = listShapes.and(shapes{"email": text})
)

func checkCreateCustomer(c *call) *apiError { return c.params.checkMetadata() }

func createCustomer(t *tx) response {
	c := t.c.params
	cu := &customer{
		ID: newID("cus_", 14), Made: t.seconds(), Email: c.get("email"), Name: c.get("name"),
		Phone: c.get("phone"), Description: c.get("description"), Metadata: c.metadata(nil),
	}
	if id := c.get("payment_method"); id != "" {
		m, e := t.attach(id, cu.ID)
		if e != nil {
			return e.response()
		}
		cu.Method = m.ID
	}
	if e := t.takeSource(cu); e != nil {
		return e.response()
	}
	t.putCustomer(cu)
	return t.showCustomer(cu)
}

// takeSource makes the source parameter, a test token, the card that the
// customer's legacy charges are paid with.
func (t *tx) takeSource(cu *customer) *apiError {
	id := t.c.params.get("source")
	if id == "" {
		return nil
	}
	m, e := t.source(id, cu.ID)
	switch {
	case e != nil:
		return e
	case m.card().unusable:
		return decline(m.card().code)
	}
	attached := *m
	attached.Customer = cu.ID
	t.putMethod(&attached)
	cu.Method = attached.ID
	return nil
}

func updateCustomer(t *tx) response {
	old, ok := t.findCustomer(t.c.object)
	if !ok || old.Deleted {
		return missing("customer", "id", t.c.object).response()
	}
	c := t.c.params
	cu := *old
	if cu.Metadata = c.metadata(old.Metadata); len(cu.Metadata)/2 > maxMetadataKeys {
		return invalid("metadata", "", "You can have up to 50 metadata keys.").response()
	}
	for name, field := range map[string]*string{"email": &cu.Email, "name": &cu.Name, "phone": &cu.Phone, "description": &cu.Description} {
		if c.has(name) {
			*field = c.get(name)
		}
	}
	if e := t.takeSource(&cu); e != nil {
		return e.response()
	}
	t.putCustomer(&cu)
	return t.showCustomer(&cu)
}

func getCustomer(t *tx) response {
	cu, ok := t.findCustomer(t.c.object)
	if !ok {
		return missing("customer", "id", t.c.object).response()
	}
	return t.showCustomer(cu)
}

func deleteCustomer(t *tx) response {
	cu, ok := t.findCustomer(t.c.object)
	if !ok || cu.Deleted {
		return missing("customer", "id", t.c.object).response()
	}
	gone := *cu
	gone.Deleted = true
	t.putCustomer(&gone)
	return t.showCustomer(&gone)
}

// findCustomer resolves a customer id: a stored one or, unless the settings say
// otherwise, any id that looks like one.
func (t *tx) findCustomer(id string) (*customer, bool) {
	if cu, ok := t.s.customers.get(id); ok {
		if t.s.overrides[id].Deleted {
			gone := *cu
			gone.Deleted = true
			return &gone, true
		}
		return cu, true
	}
	if !t.s.assumed(id) {
		return nil, false
	}
	return &customer{ID: id, Made: t.s.epoch, Deleted: t.s.overrides[id].Deleted}, true
}

// knownCustomer refuses a customer parameter that names nobody, or somebody who
// was deleted. No customer at all is fine.
func (t *tx) knownCustomer(id string) *apiError {
	if id == "" {
		return nil
	}
	cu, stored := t.s.customers.get(id)
	if stored && cu.Deleted || !stored && !t.s.assumed(id) || t.s.overrides[id].Deleted {
		return missingParam("customer", "customer", id)
	}
	return nil
}

// assumed tells whether a customer that nobody created exists all the same.
func (s *Sim) assumed(id string) bool {
	return !s.settings.RefuseUnknownCustomers && strings.HasPrefix(id, "cus_") && len(id) > len("cus_")
}

func (t *tx) showCustomer(cu *customer) response {
	o := make(out, 0, 700)
	cu.render(&o)
	return response{status: 200, body: o}
}

func (c *customer) render(o *out) {
	o.lit(`{"id":`).str(c.ID).lit(`,"object":"customer"`)
	if c.Deleted {
		o.lit(`,"deleted":true}`)
		return
	}
	o.lit(`,"address":null,"balance":0,"created":`).num(c.Made)
	o.lit(`,"currency":null,"default_source":`)
	if strings.HasPrefix(c.Method, "card_") {
		o.str(c.Method)
	} else {
		o.lit(`null`)
	}
	o.lit(`,"delinquent":false,"description":`).strOrNull(c.Description)
	o.lit(`,"discount":null,"email":`).strOrNull(c.Email)
	o.lit(`,"invoice_prefix":"SIM","invoice_settings":{"custom_fields":null,"default_payment_method":null,"footer":null,"rendering_options":null},"livemode":false,"metadata":`).metadata(c.Metadata)
	o.lit(`,"name":`).strOrNull(c.Name)
	o.lit(`,"next_invoice_sequence":1,"phone":`).strOrNull(c.Phone)
	o.lit(`,"preferred_locales":[],"shipping":null,"tax_exempt":"none","test_clock":null}`)
}

// getAccount answers who the keys belong to.
func getAccount(t *tx) response {
	o := make(out, 0, 700)
	o.lit(`{"id":`).str(t.s.account)
	o.lit(`,"object":"account","business_profile":{"mcc":null,"name":"Stripe stand-in","product_description":null,"support_address":null,"support_email":null,"support_phone":null,"support_url":null,"url":null},"business_type":"company","capabilities":{"card_payments":"active","transfers":"active"},"charges_enabled":true,"controller":{"type":"account"},"country":"US","created":`).num(t.s.epoch)
	o.lit(`,"default_currency":"usd","details_submitted":true,"email":null,"metadata":{},"payouts_enabled":false,"settings":{"dashboard":{"display_name":"Stripe stand-in","timezone":"Etc/UTC"}},"type":"standard"}`)
	return response{status: 200, body: o}
}
