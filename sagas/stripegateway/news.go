package stripegateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

var _ sagas.Newsstand = (*Gateway)(nil)

// What can be wrong with a payload.
var (
	// ErrNotAnEvent: the payload is no event of Stripe's v1 API.
	ErrNotAnEvent = errors.New("not a Stripe event")
	// ErrEventObject: the event is one, and what it tells of cannot be read.
	// The News that comes with the error names the event.
	ErrEventObject = errors.New("the event's object cannot be read")
)

var errEventListing = errors.New("a listing asks for 1 to 100 events, after or before one")

// event is what this package reads of an Event. The object has the shape of
// the endpoint's API version (https://docs.stripe.com/webhooks/versioning), not
// of ours; only fields that keep their meaning from version to version are read.
type event struct {
	ID         string       `json:"id"`
	Object     string       `json:"object"`
	Type       string       `json:"type"`
	APIVersion string       `json:"api_version"`
	Live       bool         `json:"livemode"`
	Created    int64        `json:"created"`
	Request    eventRequest `json:"request"`
	Data       struct {
		Object json.RawMessage `json:"object"`
	} `json:"data"`
}

// eventRequest is the request that caused an event.
type eventRequest struct{ Key string }

// UnmarshalJSON reads the request, null, or the bare id that versions before
// 2017-05-25 give.
func (r *eventRequest) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '{' {
		return nil
	}
	var object struct {
		Key string `json:"idempotency_key"`
	}
	err := json.Unmarshal(data, &object)
	r.Key = object.Key
	return err
}

// ParseNews reads an event, delivered or listed. An event of another API
// version than [APIVersion] is read all the same; News.APIVersion says so. A
// type that Billonce does not act on has no object. The errors are
// ErrNotAnEvent and ErrEventObject.
func ParseNews(payload []byte) (sagas.News, error) {
	var e event
	if err := json.Unmarshal(payload, &e); err != nil {
		return sagas.News{}, fmt.Errorf("read event: %w", ErrNotAnEvent) // the cause may quote the payload
	}
	return e.news()
}

// lastSecond is the last that a time can be written of, in the year 9999.
const lastSecond = 253402300799

func (e *event) news() (sagas.News, error) {
	if e.Object != "event" || idWith(e.ID, "evt_") == "" || plain(e.Type) == "" || e.Created <= 0 || e.Created > lastSecond {
		return sagas.News{}, fmt.Errorf("read event: %w", ErrNotAnEvent)
	}
	n := sagas.News{
		EventID: e.ID, Type: e.Type, APIVersion: plain(e.APIVersion), Live: e.Live,
		Created: time.Unix(e.Created, 0).UTC(), IdempotencyKey: printable(e.Request.Key),
	}
	var about struct {
		ID     string `json:"id"`
		Object string `json:"object"`
	}
	if err := json.Unmarshal(e.Data.Object, &about); err != nil {
		return n, fmt.Errorf("read %s of type %s: %w", n.EventID, n.Type, ErrEventObject)
	}
	n.ObjectID = plain(about.ID)
	known := e.see(about.Object, &n)
	if !known {
		return n, fmt.Errorf("read %s of type %s: %w", n.EventID, n.Type, ErrEventObject)
	}
	return n, nil
}

// see reads the object of a type that Billonce acts on; it reports false if
// there should be one and cannot be read.
func (e *event) see(object string, n *sagas.News) bool {
	family, _, _ := strings.Cut(e.Type, ".")
	if family != "charge" && family != "payment_intent" && family != "refund" {
		return true
	}
	switch object {
	case "charge":
		return sight(e.Data.Object, foundCharge, &n.Charge)
	case "payment_intent":
		return sight(e.Data.Object, foundIntent, &n.Charge)
	case "refund":
		return sight(e.Data.Object, foundRefund, &n.Refund)
	case "dispute":
		return sight(e.Data.Object, foundDispute, &n.Dispute)
	}
	return true
}

func sight[T, F any](data []byte, see func(*T) (F, bool), into **F) bool {
	var object T
	if json.Unmarshal(data, &object) != nil {
		return false
	}
	f, ok := see(&object)
	if ok {
		*into = &f
	}
	return ok
}

func foundRefund(r *refund) (sagas.FoundRefund, bool) {
	f := sagas.FoundRefund{
		ID: refundID(r.ID), ChargeID: chargeID(string(r.Charge)), IntentID: intentID(string(r.Intent)), Status: plain(r.Status),
		Amount: domain.Money{Minor: r.Amount, Currency: domain.Currency(r.Currency)},
		Reason: plain(r.FailureReason), RefundID: r.Metadata["refund_id"], Created: time.Unix(r.Created, 0).UTC(),
	}
	return f, f.ID != "" && f.Status != "" && r.Created > 0
}

// dispute is what this package reads of a Dispute.
type dispute struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Reason   string `json:"reason"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Charge   ref    `json:"charge"`
	Intent   ref    `json:"payment_intent"`
	Created  int64  `json:"created"`
}

func foundDispute(d *dispute) (sagas.FoundDispute, bool) {
	f := sagas.FoundDispute{
		ID: plain(d.ID), ChargeID: chargeID(string(d.Charge)), IntentID: intentID(string(d.Intent)), Status: plain(d.Status), Reason: plain(d.Reason),
		Amount: domain.Money{Minor: d.Amount, Currency: domain.Currency(d.Currency)}, Created: time.Unix(d.Created, 0).UTC(),
	}
	return f, f.ID != "" && f.Status != "" && f.ChargeID != "" && d.Created > 0
}

// printable returns s if it can be an idempotency key, else nothing.
func printable(s string) string {
	if key, err := domain.ParseKey(s); err == nil {
		return string(key)
	}
	return ""
}

// Events reads one page of Stripe's events in one call. An event whose object
// cannot be read is listed without it; a page that holds something else than
// events is an error.
func (g *Gateway) Events(ctx context.Context, l sagas.EventListing) (sagas.EventPage, error) {
	if l.PageSize < 1 || l.PageSize > 100 || (l.After != "" && l.Before != "") {
		return sagas.EventPage{}, fmt.Errorf("list events: %w", errEventListing)
	}
	p := &stripe.EventListParams{ListParams: pageParams(l.After)}
	p.Limit = stripe.Int64(int64(l.PageSize))
	if l.Before != "" {
		p.EndingBefore = stripe.String(l.Before)
	}
	if !l.Since.IsZero() {
		p.CreatedRange = &stripe.RangeQueryParams{GreaterThanOrEqual: l.Since.Unix()}
	}
	news, more, _, err := readPage(ctx, g, get("/v1/events", maxPage), p, func(e *event) (sagas.News, bool) {
		n, err := e.news()
		return n, !errors.Is(err, ErrNotAnEvent)
	})
	return sagas.EventPage{News: news, More: more}, err
}

// accountAnswer is an answer that should be an account.
type accountAnswer struct {
	stripe.APIResource
	ID     string `json:"id"`
	Object string `json:"object"`
}

// Account reads the id of the account that the key belongs to.
func (g *Gateway) Account(ctx context.Context) (string, error) {
	var v accountAnswer
	a := g.send(ctx, get("/v1/account", maxAnswer), &stripe.AccountParams{}, &v)
	fault := ""
	switch id := idWith(v.ID, "acct_"); {
	case a.fault != noFault || a.status < 200 || a.status >= 300:
		fault = refusal(a).Reason
	case v.Object != "account" || id == "":
		fault = "the answer shows no account"
	default:
		g.logCall(ctx, "read account", "", "", a, "read")
		return id, nil
	}
	g.logCall(ctx, "read account", "", "", a, fault)
	return "", fmt.Errorf("read the Stripe account: %s (%s)", fault, a.evidence(nil))
}
