package stripegateway

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// intent is what this package reads of a PaymentIntent. stripe-go's own type
// has every field there is, and reading it costs several times as much.
type intent struct {
	ID             string            `json:"id"`
	Status         string            `json:"status"`
	Amount         int64             `json:"amount"`
	AmountReceived int64             `json:"amount_received"`
	Currency       string            `json:"currency"`
	Customer       ref               `json:"customer"`
	CaptureMethod  string            `json:"capture_method"`
	CancelReason   string            `json:"cancellation_reason"`
	LatestCharge   *charge           `json:"latest_charge"`
	LastError      *lastError        `json:"last_payment_error"`
	Metadata       map[string]string `json:"metadata"`
	Created        int64             `json:"created"`
}

// intentAnswer is an answer that should be an intent. Whatever else Stripe, or
// somebody else, answers has an empty or foreign id, which no check lets pass.
type intentAnswer struct {
	stripe.APIResource
	intent
}

// lastError is why the intent's last attempt failed.
type lastError struct {
	Code        string `json:"code"`
	DeclineCode string `json:"decline_code"`
	Charge      ref    `json:"charge"`
}

// charge is what this package reads of a Charge; not expanded it is an ID alone.
type charge struct {
	ID          string            `json:"id"`
	Status      string            `json:"status"`
	Paid        bool              `json:"paid"`
	Captured    bool              `json:"captured"`
	Refunded    bool              `json:"refunded"`
	Amount      int64             `json:"amount"`
	Currency    string            `json:"currency"`
	Customer    ref               `json:"customer"`
	Intent      ref               `json:"payment_intent"`
	FailureCode string            `json:"failure_code"`
	Outcome     *chargeVerdict    `json:"outcome"`
	Metadata    map[string]string `json:"metadata"`
	Created     int64             `json:"created"`
}

type chargeVerdict struct {
	Reason string `json:"reason"`
}

// UnmarshalJSON reads a charge or its id.
func (c *charge) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &c.ID)
	}
	return json.Unmarshal(data, (*chargeMembers)(c))
}

// chargeMembers is a charge that is not a bare id.
type chargeMembers charge

// ref is an object's id, whether the object is expanded or not; null is empty.
type ref string

// UnmarshalJSON reads an id, an object with an id, or null.
func (r *ref) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		var object struct {
			ID string `json:"id"`
		}
		err := json.Unmarshal(data, &object)
		*r = ref(object.ID)
		return err
	}
	if bytes.Equal(data, []byte("null")) {
		return nil
	}
	return json.Unmarshal(data, (*string)(r))
}

// embedded takes over the intent inside an error.
func embedded(p *stripe.PaymentIntent) *intent {
	if p == nil {
		return nil
	}
	in := &intent{
		ID: p.ID, Status: string(p.Status), Amount: p.Amount, AmountReceived: p.AmountReceived,
		Currency: string(p.Currency), CaptureMethod: string(p.CaptureMethod), Metadata: p.Metadata,
	}
	if p.Customer != nil {
		in.Customer = ref(p.Customer.ID)
	}
	if p.LatestCharge != nil {
		in.LatestCharge = &charge{ID: p.LatestCharge.ID}
	}
	return in
}

// chargeID is the id of the latest charge, if there is one.
func (in *intent) chargeID() string {
	if in.LatestCharge == nil {
		return ""
	}
	return chargeID(in.LatestCharge.ID)
}

// declineCodes are the codes of the latest charge's failure.
func (in *intent) declineCodes() (code, declineCode string) {
	ch := in.LatestCharge
	if e := in.LastError; e != nil && string(e.Charge) == ch.ID {
		return plain(e.Code), plain(e.DeclineCode)
	}
	return ch.failureCodes()
}

// contradictions names the fields in which the intent is not the one that the
// order asks for. An empty answer means that it may be used.
func (in *intent) contradictions(o sagas.Order) []string {
	var wrong []string
	if in.Amount != o.Amount.Minor {
		wrong = append(wrong, "amount")
	}
	if in.Currency != string(o.Amount.Currency) {
		wrong = append(wrong, "currency")
	}
	if string(in.Customer) != o.StripeCustomerID {
		wrong = append(wrong, "customer")
	}
	if in.Status == statusSucceeded && in.AmountReceived != o.Amount.Minor {
		wrong = append(wrong, "amount_received")
	}
	return wrong
}

// contradictionsFresh is contradictions for an intent that has just been
// created: it has our metadata and nothing has happened to it.
func (in *intent) contradictionsFresh(o sagas.Order) []string {
	wrong := in.contradictions(o)
	if !maps.Equal(in.Metadata, o.Markers()) {
		wrong = append(wrong, "metadata")
	}
	if in.CaptureMethod == "manual" {
		wrong = append(wrong, "capture_method")
	}
	if in.Status != statusNeedsMethod && in.Status != statusNeedsConfirmation {
		wrong = append(wrong, "status")
	}
	return wrong
}

// received is what the intent has taken.
func (in *intent) received() domain.Money {
	return domain.Money{Minor: in.AmountReceived, Currency: domain.Currency(in.Currency)}
}

// Statuses of a PaymentIntent (https://docs.stripe.com/payments/paymentintents/lifecycle).
const (
	statusNeedsMethod       = string(stripe.PaymentIntentStatusRequiresPaymentMethod)
	statusNeedsConfirmation = string(stripe.PaymentIntentStatusRequiresConfirmation)
	statusNeedsAction       = string(stripe.PaymentIntentStatusRequiresAction)
	statusProcessing        = string(stripe.PaymentIntentStatusProcessing)
	statusNeedsCapture      = string(stripe.PaymentIntentStatusRequiresCapture)
	statusCancelled         = string(stripe.PaymentIntentStatusCanceled)
	statusSucceeded         = string(stripe.PaymentIntentStatusSucceeded)
)

// intentID and chargeID return s if it can be such an id, else nothing. A
// client secret begins like an id and is none.
func intentID(s string) string { return idWith(s, "pi_") }

func chargeID(s string) string {
	if id := idWith(s, "ch_"); id != "" {
		return id
	}
	return idWith(s, "py_") // a payment that is not a card's
}

func idWith(s, prefix string) string {
	if len(s) <= len(prefix) || !strings.HasPrefix(s, prefix) || strings.Contains(s, "_secret") {
		return ""
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		default:
			return ""
		}
	}
	return plain(s)
}
