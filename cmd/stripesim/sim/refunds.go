package sim

import "fmt"

// refund gives money back. Once put on its shelf it is never changed: a change
// puts a copy.
type refund struct {
	ID       string   `json:"id"`
	Made     int64    `json:"c"`
	Amount   int64    `json:"a"`
	Currency string   `json:"cy"`
	Charge   string   `json:"ch"`
	Intent   string   `json:"pi,omitempty"`
	Reason   string   `json:"re,omitempty"`
	Metadata metadata `json:"md,omitempty"`
	Key      string   `json:"k,omitempty"`

	Status        string `json:"st,omitempty"` // "": succeeded
	FailureReason string `json:"fr,omitempty"`
}

func (r *refund) state() string {
	if r.Status == "" {
		return "succeeded"
	}
	return r.Status
}

func (r *refund) id() string         { return r.ID }
func (r *refund) created() int64     { return r.Made }
func (r *refund) customerID() string { return "" }
func (r *refund) intentID() string   { return r.Intent }

var (
	refundExpansions   = []string{"charge", "payment_intent"}
	createRefundShapes = shapes{
		"charge": text, "payment_intent": text, "amount": integer, "reason": text, "metadata": hash, "expand": list,
	}
	listRefundShapes = listShapes.and(shapes{"charge": text, "payment_intent": text})
)

func checkCreateRefund(c *call) *apiError {
	p := c.params
	if p.has("charge") == p.has("payment_intent") {
		return invalid("", "parameter_missing", "One of the following params should be provided for this request: payment_intent or charge.")
	}
	if p.has("amount") && p.integer("amount") < 1 {
		return invalid("amount", "parameter_invalid_integer", "This value must be greater than or equal to 1.")
	}
	if e := p.oneOf("reason", "duplicate", "fraudulent", "requested_by_customer"); e != nil {
		return e
	}
	if e := checkGetRefund(c); e != nil {
		return e
	}
	return p.checkMetadata()
}

func createRefund(t *tx) response {
	c := t.c.params
	id := c.get("charge")
	if intentID := c.get("payment_intent"); intentID != "" {
		p, ok := t.s.intents.get(intentID)
		if !ok {
			return missingParam("payment_intent", "payment_intent", intentID).response()
		}
		if p.Status != succeeded {
			return (&apiError{status: 400, kind: invalidRequest, message: "This PaymentIntent (" + p.ID + ") does not have a successful charge to refund."}).response()
		}
		id = p.LatestCharge
	}
	ch, ok := t.s.charges.get(id)
	switch {
	case !ok:
		return missingParam("charge", "charge", id).response()
	case ch.Status != succeeded:
		return (&apiError{status: 400, kind: invalidRequest, code: "charge_not_refundable", message: "Charge " + ch.ID + " has not succeeded and cannot be refunded."}).response()
	case t.chargedBack(ch):
		return (&apiError{status: 400, kind: invalidRequest, code: "charge_disputed", message: "Charge " + ch.ID + " has been charged back; cannot issue a refund."}).response()
	case ch.Refunded == ch.Amount:
		return (&apiError{status: 400, kind: invalidRequest, code: "charge_already_refunded", message: "Charge " + ch.ID + " has already been refunded."}).response()
	}
	left := ch.Amount - ch.Refunded
	amount := left
	if c.has("amount") {
		amount = c.integer("amount")
	}
	if amount > left {
		return invalid("amount", "", fmt.Sprintf("Refund amount (%d) is greater than unrefunded amount on charge (%d)", amount, left)).response()
	}
	if step := currencies[ch.Currency].step; amount%step != 0 {
		return invalid("amount", "parameter_invalid_integer", fmt.Sprintf("Invalid amount: must be a multiple of %d in %s", step, ch.Currency)).response()
	}
	status := "succeeded"
	if t.s.settings.RefundsPending {
		status = "pending"
	}
	return t.showRefund(t.refund(ch, amount, status, c.get("reason"), c.metadata(nil)))
}

// chargedBack tells whether a dispute has taken the charge's money.
func (t *tx) chargedBack(ch *charge) bool {
	d, ok := t.s.disputes.get(ch.Dispute)
	return ok && d.withdrawn()
}

// refund gives money of a charge back. It counts as refunded from now on, also
// while the refund is pending.
func (t *tx) refund(ch *charge, amount int64, status, reason string, m metadata) *refund {
	r := &refund{
		ID: newID("re_", 24), Made: t.seconds(), Amount: amount, Currency: ch.Currency, Charge: ch.ID,
		Intent: ch.Intent, Reason: reason, Metadata: m, Key: t.c.key, Status: status,
	}
	back := *ch
	back.Refunded += amount
	t.putCharge(&back)
	t.putRefund(r)
	t.tell(chargeRefunded, &back)
	t.tell(refundCreated, r)
	return r
}

func checkGetRefund(c *call) *apiError {
	_, e := c.params.expansion(c.s, "", refundExpansions...)
	return e
}

var updateRefundShapes = shapes{"metadata": hash, "expand": list}

func checkUpdateRefund(c *call) *apiError {
	if e := checkGetRefund(c); e != nil {
		return e
	}
	return c.params.checkMetadata()
}

func updateRefund(t *tx) response {
	old, ok := t.s.refunds.get(t.c.object)
	if !ok {
		return missing("refund", "id", t.c.object).response()
	}
	r := *old
	if r.Metadata = t.c.params.metadata(old.Metadata); len(r.Metadata)/2 > maxMetadataKeys {
		return invalid("metadata", "", "You can have up to 50 metadata keys.").response()
	}
	t.putRefund(&r)
	t.tell(refundUpdated, &r)
	t.tell(chargeRefundEdited, &r)
	return t.showRefund(&r)
}

func getRefund(t *tx) response {
	r, ok := t.s.refunds.get(t.c.object)
	if !ok {
		return missing("refund", "id", t.c.object).response()
	}
	return t.showRefund(r)
}

func (t *tx) showRefund(r *refund) response {
	x, _ := t.c.params.expansion(t.s, "", refundExpansions...)
	o := make(out, 0, 700)
	r.render(&o, x)
	return response{status: 200, body: o}
}

func (r *refund) render(o *out, x expansion) {
	o.lit(`{"id":`).str(r.ID)
	o.lit(`,"object":"refund","amount":`).num(r.Amount)
	if r.FailureReason != "" {
		o.lit(`,"failure_balance_transaction":`).str("txn_f" + r.ID[len("re_"):]).lit(`,"failure_reason":`).str(r.FailureReason)
	}
	o.lit(`,"balance_transaction":`).str("txn_" + r.ID[len("re_"):])
	o.lit(`,"charge":`)
	x.chargeOrID(o, r.Charge, x.charge)
	o.lit(`,"created":`).num(r.Made)
	o.lit(`,"currency":`).str(r.Currency)
	o.lit(`,"metadata":`).metadata(r.Metadata)
	o.lit(`,"payment_intent":`)
	x.intentOrID(o, r.Intent, x.paymentIntent)
	o.lit(`,"reason":`).strOrNull(r.Reason)
	o.lit(`,"receipt_number":null,"source_transfer_reversal":null,"status":`).str(r.state()).lit(`,"transfer_reversal":null}`)
}
