package sim

import "math"

var (
	listShapes = shapes{
		"limit": integer, "starting_after": text, "ending_before": text, "expand": list,
		"created": integer, "created[gt]": integer, "created[gte]": integer, "created[lt]": integer, "created[lte]": integer,
	}
	listIntentShapes = listShapes.and(shapes{"customer": text})
	listChargeShapes = listShapes.and(shapes{"customer": text, "payment_intent": text, "transfer_group": text})
)

// checkList validates what all lists share.
func checkList(c *call, expandable ...string) *apiError {
	p := c.params
	if e := checkLimit(p); e != nil {
		return e
	}
	if p.has("starting_after") && p.has("ending_before") {
		return invalid("", "parameters_exclusive", "You may only specify one of these parameters: ending_before, starting_after.")
	}
	_, e := p.expansion(c.s, "data.", expandable...)
	return e
}

func checkLimit(p params) *apiError {
	if !p.has("limit") {
		return nil
	}
	switch n := p.integer("limit"); {
	case n < 1:
		return invalid("limit", "parameter_invalid_integer", "This value must be greater than or equal to 1.")
	case n > 100:
		return invalid("limit", "parameter_invalid_integer", "This value must be less than or equal to 100 (it currently is '"+p.get("limit")+"').")
	}
	return nil
}

// page reads the paging parameters of a list request that passed checkList.
func (p params) page() page {
	q := page{limit: 10, startAfter: p.get("starting_after"), endBefore: p.get("ending_before"), after: 0, before: math.MaxInt64}
	if p.has("limit") {
		q.limit = int(p.integer("limit"))
	}
	narrow := func(name string, after bool, shift int64) {
		if !p.has(name) {
			return
		}
		q.bounded = true
		if bound := p.integer(name) + shift; after {
			q.after = max(q.after, bound)
		} else {
			q.before = min(q.before, bound)
		}
	}
	narrow("created", true, 0)
	narrow("created", false, 0)
	narrow("created[gt]", true, 1)
	narrow("created[gte]", true, 0)
	narrow("created[lt]", false, -1)
	narrow("created[lte]", false, 0)
	return q
}

// listing answers a list request from a shelf.
func listing[T entry](t *tx, all *shelf[T], q page, noun, url string, keep func(T) bool, render func(*out, T)) response {
	if q.customer != "" {
		if _, ok := t.findCustomer(q.customer); !ok {
			return missingParam("customer", "customer", q.customer).response()
		}
	}
	found, more, unknown := all.list(q, keep)
	if unknown != "" {
		param := "starting_after"
		if q.endBefore == unknown {
			param = "ending_before"
		}
		return missingParam(noun, param, unknown).response()
	}
	o := make(out, 0, 256+1600*len(found))
	o.lit(`{"object":"list","data":[`)
	for i, object := range found {
		if i > 0 {
			o.lit(`,`)
		}
		render(&o, object)
	}
	o.lit(`],"has_more":`).boolean(more)
	o.lit(`,"url":`).str(url).lit(`}`)
	return response{status: 200, body: o}
}

func all[T any](T) bool { return true }

func listIntents(t *tx) response {
	x, _ := t.c.params.expansion(t.s, "data.", intentExpansions...)
	q := t.c.params.page()
	q.customer = t.c.params.get("customer")
	return listing(t, t.s.intents, q, "payment_intent", "/v1/payment_intents", all[*intent], func(o *out, p *intent) { p.render(o, x) })
}

func listCharges(t *tx) response {
	x, _ := t.c.params.expansion(t.s, "data.", chargeExpansions...)
	q := t.c.params.page()
	q.customer, q.intent = t.c.params.get("customer"), t.c.params.get("payment_intent")
	keep := all[*charge]
	if group := t.c.params.get("transfer_group"); group != "" {
		keep = func(c *charge) bool { return c.TransferGroup == group }
	}
	return listing(t, t.s.charges, q, "charge", "/v1/charges", keep, func(o *out, c *charge) { c.render(o, x) })
}

func listRefunds(t *tx) response {
	x, _ := t.c.params.expansion(t.s, "data.", refundExpansions...)
	q := t.c.params.page()
	q.intent = t.c.params.get("payment_intent")
	keep := all[*refund]
	if id := t.c.params.get("charge"); id != "" {
		keep = func(r *refund) bool { return r.Charge == id }
	}
	return listing(t, t.s.refunds, q, "refund", "/v1/refunds", keep, func(o *out, r *refund) { r.render(o, x) })
}

func listCustomers(t *tx) response {
	email := t.c.params.get("email")
	keep := func(c *customer) bool { return !c.Deleted && (email == "" || c.Email == email) }
	return listing(t, t.s.customers, t.c.params.page(), "customer", "/v1/customers", keep, func(o *out, c *customer) { c.render(o) })
}
