package policy

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/billonce/billonce/domain"
)

// ReadEvidence reads what an answer of Stripe shows about intents, charges and
// refunds: the object that it is, the objects of a list, the intent inside an
// error, or that the object asked for does not exist. Events are snapshots of
// former times, so that only what is final in them counts. Other answers, and
// those that cannot be read, show nothing.
//
// An answer that replays (Idempotent-Replayed) is a snapshot too: only Succeeded
// and Cancelled still hold.
func ReadEvidence(c Call, status int, body []byte) []Evidence {
	switch {
	case status >= 200 && status < 300:
		return shown(c, body)
	case status == http.StatusBadRequest || status == http.StatusPaymentRequired:
		e, ok := readError(body)
		if !ok || e.Intent == nil || e.Kind == "idempotency_error" {
			return nil
		}
		if seen, ok := e.Intent.evidence(); ok && (c.Object == "" || c.Object == seen.Object) {
			return []Evidence{seen}
		}
	case status == http.StatusNotFound && c.Method == http.MethodGet && c.Object != "":
		if e, ok := readError(body); ok && e.Code == "resource_missing" && holdsMoney(c.Object) {
			return []Evidence{{Object: c.Object, State: Absent}}
		}
	}
	return nil
}

func holdsMoney(id string) bool {
	return IntentID(id) != "" || ChargeID(id) != "" || RefundID(id) != ""
}

// shown reads an answer of success.
func shown(c Call, body []byte) []Evidence {
	if !c.List {
		var o object
		if json.Unmarshal(body, &o) != nil {
			return nil
		}
		e, ok := o.seen()
		if !ok || o.Kind == "event" {
			return evidences(e, ok)
		}
		if c.Object != "" && e.Object != c.Object {
			return nil // not what was asked for
		}
		e.Raw = body
		return []Evidence{e}
	}
	var page struct {
		Kind string   `json:"object"`
		Data []object `json:"data"`
	}
	if json.Unmarshal(body, &page) != nil || page.Kind != "list" {
		return nil
	}
	var all []Evidence
	for i := range page.Data {
		if e, ok := page.Data[i].seen(); ok {
			all = append(all, e)
		}
	}
	return all
}

func evidences(e Evidence, ok bool) []Evidence {
	if !ok {
		return nil
	}
	return []Evidence{e}
}

// object is what is read of any of Stripe's objects that tell about money.
type object struct {
	ID       string          `json:"id"`
	Kind     string          `json:"object"`
	Status   string          `json:"status"`
	Amount   int64           `json:"amount"`
	Currency string          `json:"currency"`
	Customer ref             `json:"customer"`
	Metadata json.RawMessage `json:"metadata"`
	Created  int64           `json:"created"`

	Received     int64   `json:"amount_received"` // of an intent
	LatestCharge *latest `json:"latest_charge"`

	Paid           bool   `json:"paid"` // of a charge
	Captured       bool   `json:"captured"`
	AmountCaptured *int64 `json:"amount_captured"`
	Refunded       bool   `json:"refunded"`
	Intent         ref    `json:"payment_intent"`
	Charge         ref    `json:"charge"` // of a refund

	Request eventRequest    `json:"request"` // of an event
	Data    json.RawMessage `json:"data"`
}

// seen is the evidence of an object, or of the one that an event tells about.
func (o *object) seen() (Evidence, bool) {
	if o.Kind != "event" {
		return o.evidence()
	}
	var data struct {
		Object object `json:"object"`
	}
	if json.Unmarshal(o.Data, &data) != nil {
		return Evidence{}, false
	}
	e, ok := data.Object.evidence()
	e.Key = o.Request.Key
	return e, ok && (e.State == Succeeded || e.State == Cancelled)
}

func (o *object) evidence() (Evidence, bool) {
	e := Evidence{
		Object: o.ID, Amount: domain.Money{Minor: o.Amount, Currency: domain.Currency(o.Currency)},
		StripeCustomer: string(o.Customer), Bill: markersOf(o.Metadata), Created: time.Unix(o.Created, 0).UTC(),
	}
	switch {
	case o.Kind == "payment_intent" && IntentID(o.ID) != "":
		e.State, e.LatestCharge, e.Received = o.intentState(), o.LatestCharge.id(), o.Received
	case o.Kind == "charge" && ChargeID(o.ID) != "":
		e.Intent, e.Refunded, e.State = IntentID(string(o.Intent)), o.Refunded, o.chargeState()
		if e.State == Succeeded {
			e.Received = o.Amount
			if o.AmountCaptured != nil {
				e.Received = *o.AmountCaptured
			}
		}
	case o.Kind == "refund" && RefundID(o.ID) != "":
		e.Intent, e.State, e.LatestCharge = IntentID(string(o.Intent)), o.refundState(), ChargeID(string(o.Charge))
		if e.State == Succeeded {
			e.Received = o.Amount
		}
	default:
		return Evidence{}, false
	}
	return e, true
}

// intentState reads a status (https://docs.stripe.com/payments/paymentintents/lifecycle).
// An open intent whose latest charge has not failed may still take money.
func (o *object) intentState() ObjectState {
	switch o.Status {
	case "succeeded":
		return Succeeded
	case "canceled":
		return Cancelled
	case "requires_action", "requires_capture":
		return Action
	case "requires_payment_method", "requires_confirmation":
		if o.LatestCharge != nil && (o.LatestCharge.Status == "succeeded" || o.LatestCharge.Status == "pending") {
			return Processing
		}
		return Unpaid
	}
	return Processing // and what is not known may take money
}

func (o *object) chargeState() ObjectState {
	switch {
	case o.Status == "succeeded" && o.Paid && o.Captured:
		return Succeeded
	case o.Status == "succeeded" && o.Paid:
		return Action // authorised; a capture takes it
	case o.Status == "failed":
		return Unpaid
	}
	return Processing
}

func (o *object) refundState() ObjectState {
	switch o.Status {
	case "succeeded":
		return Succeeded
	case "failed":
		return Unpaid
	case "canceled":
		return Cancelled
	case "requires_action":
		return Action
	}
	return Processing
}

// ref is an id, whether Stripe shows it alone or expanded.
type ref string

// UnmarshalJSON reads an id, an object with one, or null.
func (r *ref) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '{' {
		return json.Unmarshal(data, (*string)(r))
	}
	var o struct {
		ID string `json:"id"`
	}
	err := json.Unmarshal(data, &o)
	*r = ref(o.ID)
	return err
}

// latest is an intent's latest charge, of which only an expanded one shows a
// status.
type latest struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

// UnmarshalJSON reads an id or an object.
func (l *latest) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '{' {
		return json.Unmarshal(data, &l.ID)
	}
	type plain latest
	return json.Unmarshal(data, (*plain)(l))
}

func (l *latest) id() string {
	if l == nil {
		return ""
	}
	return ChargeID(l.ID)
}

// eventRequest is the request that caused an event: an object, a bare id in old
// versions, or null.
type eventRequest struct{ Key string }

// UnmarshalJSON reads the key, where there is one.
func (r *eventRequest) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '{' {
		return nil
	}
	var o struct {
		Key string `json:"idempotency_key"`
	}
	err := json.Unmarshal(data, &o)
	r.Key = o.Key
	return err
}

func markersOf(metadata json.RawMessage) BillID {
	if !bytes.Contains(metadata, []byte("customer_id")) {
		return BillID{}
	}
	var m map[string]string
	if json.Unmarshal(metadata, &m) != nil {
		return BillID{}
	}
	return billOf(m["customer_id"], m["billing_period"])
}
