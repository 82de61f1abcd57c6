package sim

import (
	"fmt"
	"slices"
)

// dispute is a cardholder's claim. Once put on its shelf it is never changed: a
// change puts a copy.
type dispute struct {
	ID       string `json:"id"`
	Made     int64  `json:"c"`
	Amount   int64  `json:"a"`
	Currency string `json:"cy"`
	Charge   string `json:"ch"`
	Intent   string `json:"pi,omitempty"`
	Reason   string `json:"re"`
	Status   string `json:"st"`
}

func (d *dispute) id() string         { return d.ID }
func (d *dispute) created() int64     { return d.Made }
func (d *dispute) customerID() string { return "" }
func (d *dispute) intentID() string   { return d.Intent }

// closed tells whether the bank has decided.
func (d *dispute) closed() bool {
	return slices.Contains([]string{"won", "lost", "warning_closed"}, d.Status)
}

var (
	disputeStatuses = []string{"warning_needs_response", "warning_under_review", "warning_closed", "needs_response", "under_review", "won", "lost"}
	disputeReasons  = []string{
		"bank_cannot_process", "check_returned", "credit_not_processed", "customer_initiated", "debit_not_authorized",
		"duplicate", "fraudulent", "general", "incorrect_account_details", "insufficient_funds",
		"product_not_received", "product_unacceptable", "subscription_canceled", "unrecognized",
	}
	disputeExpansions = []string{"charge", "payment_intent"}
	listDisputeShapes = listShapes.and(shapes{"charge": text, "payment_intent": text})
)

func listDisputes(t *tx) response {
	x, _ := t.c.params.expansion(t.s, "data.", disputeExpansions...)
	q := t.c.params.page()
	q.intent = t.c.params.get("payment_intent")
	keep := all[*dispute]
	if id := t.c.params.get("charge"); id != "" {
		keep = func(d *dispute) bool { return d.Charge == id }
	}
	return listing(t, t.s.disputes, q, "dispute", "/v1/disputes", keep, func(o *out, d *dispute) { d.render(o, x) })
}

func checkGetDispute(c *call) *apiError {
	_, e := c.params.expansion(c.s, "", disputeExpansions...)
	return e
}

func getDispute(t *tx) response {
	d, ok := t.s.disputes.get(t.c.object)
	if !ok {
		return missing("dispute", "id", t.c.object).response()
	}
	x, _ := t.c.params.expansion(t.s, "", disputeExpansions...)
	o := make(out, 0, 900)
	d.render(&o, x)
	return response{status: 200, body: o}
}

func (d *dispute) render(o *out, x expansion) {
	o.lit(`{"id":`).str(d.ID)
	o.lit(`,"object":"dispute","amount":`).num(d.Amount)
	o.lit(`,"balance_transactions":[],"charge":`)
	x.chargeOrID(o, d.Charge, x.charge)
	o.lit(`,"created":`).num(d.Made)
	o.lit(`,"currency":`).str(d.Currency)
	o.lit(`,"evidence":{},"evidence_details":{"due_by":`).num(d.Made + 7*24*3600)
	o.lit(`,"has_evidence":false,"past_due":false,"submission_count":0},"is_charge_refundable":`).boolean(!d.withdrawn())
	o.lit(`,"livemode":false,"metadata":{},"network_reason_code":null,"payment_intent":`)
	x.intentOrID(o, d.Intent, x.paymentIntent)
	o.lit(`,"payment_method_details":{"card":{"brand":"visa","network_reason_code":null},"type":"card"},"reason":`).str(d.Reason)
	o.lit(`,"status":`).str(d.Status).lit(`}`)
}

// Dispute is a dispute as control shows it.
type Dispute struct {
	ID       string `json:"dispute"`
	Charge   string `json:"charge"`
	Amount   int64  `json:"amount"` // minor units
	Currency string `json:"currency"`
	Reason   string `json:"reason"`
	Status   string `json:"status"`
}

func (d *dispute) shown() Dispute {
	return Dispute{ID: d.ID, Charge: d.Charge, Amount: d.Amount, Currency: d.Currency, Reason: d.Reason, Status: d.Status}
}

// OpenDispute plays a cardholder who disputes a charge. No amount is all of it,
// no reason is fraudulent, no status is needs_response.
func (s *Sim) OpenDispute(o Dispute) (Dispute, error) {
	defaultTo(&o.Reason, "fraudulent")
	defaultTo(&o.Status, "needs_response")
	var opened *dispute
	err := s.change(func(t *tx) error {
		ch, ok := s.charges.get(o.Charge)
		switch {
		case !ok:
			return fmt.Errorf("open dispute of %s: %w", o.Charge, ErrNoSuchObject)
		case ch.Status != succeeded || !ch.Captured:
			return fmt.Errorf("open dispute of %s: no money was taken", o.Charge)
		case ch.Dispute != "":
			return fmt.Errorf("open dispute of %s: it has dispute %s", o.Charge, ch.Dispute)
		case o.Amount < 0 || o.Amount > ch.Amount:
			return fmt.Errorf("open dispute of %s: amount %d is not within the charge's %d", o.Charge, o.Amount, ch.Amount)
		case !slices.Contains(disputeReasons, o.Reason):
			return fmt.Errorf("open dispute of %s: reason %q is none of %v", o.Charge, o.Reason, disputeReasons)
		case !slices.Contains(disputeStatuses, o.Status):
			return fmt.Errorf("open dispute of %s: status %q is none of %v", o.Charge, o.Status, disputeStatuses)
		}
		opened = &dispute{
			ID: newID("dp_1", 23), Made: t.seconds(), Amount: o.Amount, Currency: ch.Currency,
			Charge: ch.ID, Intent: ch.Intent, Reason: o.Reason, Status: o.Status,
		}
		if opened.Amount == 0 {
			opened.Amount = ch.Amount
		}
		disputed := *ch
		disputed.Dispute = opened.ID
		t.putCharge(&disputed)
		t.putDispute(opened)
		t.tell(disputeCreated, opened)
		t.tell(chargeUpdated, &disputed)
		if opened.withdrawn() {
			t.tell(disputeWithdrawn, opened)
		}
		if opened.closed() {
			t.tell(disputeClosed, opened)
		}
		return nil
	})
	if err != nil {
		return Dispute{}, err
	}
	return opened.shown(), nil
}

// withdrawn tells whether the disputed money was taken back from the account,
// which cannot refund it then; an inquiry leaves it there.
func (d *dispute) withdrawn() bool {
	return slices.Contains([]string{"needs_response", "under_review", "lost"}, d.Status)
}

// MoveDispute gives a dispute another status. A closed one stays as it is.
func (s *Sim) MoveDispute(id, status string) (Dispute, error) {
	if !slices.Contains(disputeStatuses, status) {
		return Dispute{}, fmt.Errorf("move dispute %s: status %q is none of %v", id, status, disputeStatuses)
	}
	var moved dispute
	err := s.change(func(t *tx) error {
		old, ok := s.disputes.get(id)
		switch {
		case !ok:
			return fmt.Errorf("move dispute %s: %w", id, ErrNoSuchObject)
		case old.closed():
			return fmt.Errorf("move dispute %s: it is closed as %s", id, old.Status)
		case old.Status == status:
			return fmt.Errorf("move dispute %s: its status is %s already", id, status)
		}
		moved = *old
		moved.Status = status
		t.putDispute(&moved)
		if moved.closed() {
			t.tell(disputeClosed, &moved)
		} else {
			t.tell(disputeUpdated, &moved)
		}
		switch {
		case old.withdrawn() && !moved.withdrawn():
			t.tell(disputeReinstated, &moved)
		case !old.withdrawn() && moved.withdrawn():
			t.tell(disputeWithdrawn, &moved)
		}
		return nil
	})
	return moved.shown(), err
}

// Disputes returns every dispute, oldest first.
func (s *Sim) Disputes() []Dispute {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []Dispute{}
	for d := range s.disputes.oldestFirst {
		found = append(found, d.shown())
	}
	return found
}
