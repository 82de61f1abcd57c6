package sim

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// apiVersion is the API version whose shapes all answers and events have.
const apiVersion = "2023-10-16"

// eventLife is how long Stripe shows an event
// (https://docs.stripe.com/api/events).
const eventLife = 30 * 24 * time.Hour

// Types of events.
const (
	intentCreated      = "payment_intent.created"
	intentSucceeded    = "payment_intent.succeeded"
	intentFailed       = "payment_intent.payment_failed"
	intentProcessing   = "payment_intent.processing"
	intentCanceled     = "payment_intent.canceled"
	intentNeedsAction  = "payment_intent.requires_action"
	intentAuthorised   = "payment_intent.amount_capturable_updated"
	chargeSucceeded    = "charge.succeeded"
	chargeFailed       = "charge.failed"
	chargePending      = "charge.pending"
	chargeCaptured     = "charge.captured"
	chargeUpdated      = "charge.updated"
	chargeRefunded     = "charge.refunded"
	chargeRefundEdited = "charge.refund.updated"
	refundCreated      = "refund.created"
	refundUpdated      = "refund.updated"
	refundFailed       = "refund.failed"
	setupCreated       = "setup_intent.created"
	setupSucceeded     = "setup_intent.succeeded"
	setupFailed        = "setup_intent.setup_failed"
	setupCanceled      = "setup_intent.canceled"
	setupNeedsAction   = "setup_intent.requires_action"
	disputeCreated     = "charge.dispute.created"
	disputeUpdated     = "charge.dispute.updated"
	disputeClosed      = "charge.dispute.closed"
	disputeWithdrawn   = "charge.dispute.funds_withdrawn"
	disputeReinstated  = "charge.dispute.funds_reinstated"
)

// EventTypes lists the types of events that the stand-in makes.
func EventTypes() []string {
	return []string{
		chargeCaptured, disputeClosed, disputeCreated, disputeReinstated, disputeWithdrawn, disputeUpdated,
		chargeFailed, chargePending, chargeRefundEdited, chargeRefunded, chargeSucceeded, chargeUpdated,
		intentAuthorised, intentCanceled, intentCreated, intentFailed, intentProcessing, intentNeedsAction, intentSucceeded,
		refundCreated, refundFailed, refundUpdated,
		setupCanceled, setupCreated, setupNeedsAction, setupFailed, setupSucceeded,
	}
}

// event is what Stripe tells of a change. Its object is the version that the
// change made. Versions are never changed, so an event holds no copy.
type event struct {
	ID      string
	Type    string
	When    int64  // nanoseconds
	Request string // empty: no request caused it
	Key     string // of that request
	Owed    bool   // it is still to be delivered
	Missed  bool   // its delivery was dropped or given up
	of      subject
}

// subject is the object of an event.
type subject interface {
	id() string
	render(*out, expansion)
}

func (e *event) id() string         { return e.ID }
func (e *event) created() int64     { return e.When / int64(time.Second) }
func (e *event) customerID() string { return "" }
func (e *event) intentID() string   { return "" }

// eventRecord is an event in the journal. Its object is the n-th of its kind in
// the same record or, in a snapshot, stands in it.
type eventRecord struct {
	ID      string       `json:"id"`
	Type    string       `json:"y"`
	N       int          `json:"n,omitempty"`
	When    int64        `json:"w,omitempty"` // 0: the record's
	By      *cause       `json:"by,omitempty"`
	Owed    bool         `json:"q,omitempty"`
	Missed  bool         `json:"m,omitempty"`
	Intent  *intent      `json:"pi,omitempty"`
	Charge  *charge      `json:"ch,omitempty"`
	Refund  *refund      `json:"re,omitempty"`
	Dispute *dispute     `json:"dp,omitempty"`
	Setup   *setupIntent `json:"si,omitempty"`
}

// cause is the request that an event comes from.
type cause struct {
	Request string `json:"r"`
	Key     string `json:"k,omitempty"`
}

// tell makes the event that a change of an object gives. The object must have
// been put by this transaction.
func (t *tx) tell(kind string, of subject) { t.tellAt(kind, of, t.now.UnixNano()) }

func (t *tx) tellAt(kind string, of subject, when int64) {
	e := &event{Type: kind, When: when, of: of}
	if !t.c.inner {
		e.Request = t.c.id
		if t.c.keyed {
			e.Key = t.c.key
		}
	}
	ids := 1
	if len(t.s.hooks.rules) > 0 && t.s.twins(e) {
		ids = 2
	}
	for range ids {
		e := *e
		e.ID = newID("evt_1", 23)
		t.s.events.put(&e)
		t.announce(&e)
		r := eventRecord{ID: e.ID, Type: e.Type, N: t.rec.indexOf(of), Owed: e.Owed, Missed: e.Missed}
		if when != t.now.UnixNano() {
			r.When = when
		}
		if e.Request != "" && t.rec.By == nil {
			t.rec.By = &cause{e.Request, e.Key}
		}
		t.rec.Events = append(t.rec.Events, r)
	}
	t.changed = true
}

// indexOf is the place of an object among those of its kind in the record.
func (r *record) indexOf(of subject) int {
	switch of := of.(type) {
	case *intent:
		return slices.Index(r.Intents, of)
	case *charge:
		return slices.Index(r.Charges, of)
	case *refund:
		return slices.Index(r.Refunds, of)
	case *dispute:
		return slices.Index(r.Disputes, of)
	case *setupIntent:
		return slices.Index(r.Setups, of)
	}
	return -1
}

// event brings an event back from the journal.
func (r *record) event(e eventRecord) (*event, error) {
	back := &event{ID: e.ID, Type: e.Type, When: e.When, Owed: e.Owed, Missed: e.Missed}
	if back.When == 0 {
		back.When = r.At
	}
	by := r.By
	if e.By != nil {
		by = e.By
	}
	if by != nil {
		back.Request, back.Key = by.Request, by.Key
	}
	switch {
	case e.Intent != nil:
		back.of = e.Intent
	case e.Charge != nil:
		back.of = e.Charge
	case e.Refund != nil:
		back.of = e.Refund
	case e.Dispute != nil:
		back.of = e.Dispute
	case e.Setup != nil:
		back.of = e.Setup
	case strings.HasPrefix(e.Type, "payment_intent."):
		back.of = nth(r.Intents, e.N)
	case strings.HasPrefix(e.Type, "setup_intent."):
		back.of = nth(r.Setups, e.N)
	case strings.HasPrefix(e.Type, "charge.dispute."):
		back.of = nth(r.Disputes, e.N)
	case strings.HasPrefix(e.Type, "refund."), e.Type == chargeRefundEdited:
		back.of = nth(r.Refunds, e.N)
	default:
		back.of = nth(r.Charges, e.N)
	}
	if back.of == nil {
		return nil, fmt.Errorf("event %s has no object", e.ID)
	}
	return back, nil
}

func nth[T subject](all []T, n int) subject {
	if n < 0 || n >= len(all) {
		return nil
	}
	return all[n]
}

// telling is how an event is shown: to an endpoint that was made with another
// API version or for another account, or as it is.
type telling struct {
	version, account string
	pending          int64
}

func (e *event) render(o *out, x telling) {
	if x.version == "" {
		x.version = apiVersion
	}
	o.lit(`{"id":`).str(e.ID).lit(`,"object":"event",`)
	if x.account != "" {
		o.lit(`"account":`).str(x.account).lit(`,`)
	}
	o.lit(`"api_version":`).str(x.version)
	o.lit(`,"created":`).num(e.created())
	o.lit(`,"data":{"object":`)
	e.of.render(o, expansion{})
	o.lit(`},"livemode":false,"pending_webhooks":`).num(x.pending)
	o.lit(`,"request":{"id":`).strOrNull(e.Request)
	o.lit(`,"idempotency_key":`).strOrNull(e.Key)
	o.lit(`},"type":`).str(e.Type).lit(`}`)
}

// shown is an event as the API shows it.
func (e *event) shown() telling {
	if e.Owed {
		return telling{pending: 1}
	}
	return telling{}
}

var listEventShapes = listShapes.and(shapes{"type": text, "types": list, "delivery_success": boolean})

func checkListEvents(c *call) *apiError {
	p := c.params
	if p.has("type") && len(p.list("types")) > 0 {
		return invalid("", "parameters_exclusive", "You may only specify one of these parameters: type, types.")
	}
	if len(p.list("types")) > 20 {
		return invalid("types", "", "Array exceeded maximum 20 allowed elements.")
	}
	if _, err := path.Match(p.get("type"), ""); err != nil {
		return invalid("type", "", "Invalid type.")
	}
	return checkList(c)
}

func listEvents(t *tx) response {
	p := t.c.params
	types := p.list("types")
	if kind := p.get("type"); kind != "" {
		types = []string{kind}
	}
	q := p.page()
	q.bounded, q.after = true, max(q.after, t.now.Add(-eventLife).Unix())
	keep := func(e *event) bool {
		if p.has("delivery_success") && p.flag("delivery_success") == (e.Owed || e.Missed) {
			return false
		}
		return len(types) == 0 || slices.ContainsFunc(types, func(pattern string) bool { return isType(pattern, e.Type) })
	}
	return listing(t, t.s.events, q, "event", "/v1/events", keep, func(o *out, e *event) { e.render(o, e.shown()) })
}

// isType matches a type against a pattern in which * stands for anything.
func isType(pattern, kind string) bool {
	ok, _ := path.Match(pattern, kind)
	return ok
}

func getEvent(t *tx) response {
	e, ok := t.s.events.get(t.c.object)
	if !ok || e.When < t.now.Add(-eventLife).UnixNano() {
		return missing("event", "id", t.c.object).response()
	}
	o := make(out, 0, 2200)
	e.render(&o, e.shown())
	return response{status: 200, body: o}
}

// Event is an event in short, for tests.
type Event struct {
	ID, Type       string
	Object         string // id
	Request        string // id of the request that caused it; empty: none did
	IdempotencyKey string
	Created        time.Time
}

// Events returns the events whose type matches a pattern of path.Match, oldest
// first, also those that are too old for the API. An empty pattern matches all.
func (s *Sim) Events(pattern string) []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(s.clock.now())
	found := []Event{}
	for e := range s.events.oldestFirst {
		if pattern == "" || isType(pattern, e.Type) {
			found = append(found, Event{e.ID, e.Type, e.of.id(), e.Request, e.Key, at(e.When)})
		}
	}
	return found
}
