package stripegateway

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// Charge reads one charge by its id.
func (g *Gateway) Charge(ctx context.Context, id string) (f sagas.Found, there bool, err error) {
	if chargeID(id) == "" {
		return f, false, errors.New("read charge: the id is none")
	}
	var v chargeAnswer
	a := g.send(ctx, get("/v1/charges/"+id, maxAnswer), &stripe.ChargeParams{}, &v)
	g.logCall(ctx, "read charge", "", "", a, "")
	switch {
	case isMissing(a):
		return f, false, nil
	case a.fault != noFault || a.status < 200 || a.status >= 300:
		return f, false, fmt.Errorf("read charge: %s (%s)", refusal(a).Reason, a.evidence(nil))
	}
	if f, there = foundCharge(&v.charge); !there || f.ID != id {
		return sagas.Found{}, false, errors.New("read charge: the answer shows something else")
	}
	return f, true, nil
}

var errListing = errors.New("a listing asks for payment_intents or charges, 1 to 100 at a time, after or before an object")

// List reads one page in one call. The library's iterators are not used: they
// show an error as an empty or a short list. Here a page is whole, or there is
// an error.
func (g *Gateway) List(ctx context.Context, l sagas.Listing) (sagas.Page, error) {
	if l.PageSize < 1 || l.PageSize > 100 || (l.After != "" && l.Before != "") {
		return sagas.Page{}, fmt.Errorf("list %s: %w", plain(l.Resource), errListing)
	}
	common := stripe.ListParams{Limit: stripe.Int64(int64(l.PageSize))}
	if l.After != "" {
		common.StartingAfter = stripe.String(l.After)
	}
	if l.Before != "" {
		common.EndingBefore = stripe.String(l.Before)
	}
	var since *stripe.RangeQueryParams
	if !l.Since.IsZero() {
		since = &stripe.RangeQueryParams{GreaterThanOrEqual: l.Since.Unix()}
	}

	c := get("/v1/"+l.Resource, maxPage)
	var page sagas.Page
	var err error
	switch l.Resource {
	case "payment_intents":
		page.Found, page.More, _, err = readPage(ctx, g, c, &stripe.PaymentIntentListParams{ListParams: common, CreatedRange: since}, foundIntent)
	case "charges":
		page.Found, page.More, _, err = readPage(ctx, g, c, &stripe.ChargeListParams{ListParams: common, CreatedRange: since}, func(c *chargeMembers) (sagas.Found, bool) { return foundCharge((*charge)(c)) })
	default:
		err = fmt.Errorf("list %s: %w", plain(l.Resource), errListing)
	}
	return page, err
}

// pageAnswer is an answer that should be a page.
type pageAnswer[T any] struct {
	stripe.APIResource
	Object string `json:"object"`
	Data   []T    `json:"data"`
	More   *bool  `json:"has_more"`
}

// readPage makes the call; see turns an object into what was found, or says
// that it is none. The answer is returned for what it says about a failure.
func readPage[T, F any](ctx context.Context, g *Gateway, c *call, p stripe.ParamsContainer, see func(*T) (F, bool)) (found []F, more bool, a answer, err error) {
	var list pageAnswer[T]
	c.keep = membersOf(reflect.TypeOf(list))
	a = g.send(ctx, c, p, &list)
	found, fault := pageOf(&list, a, see)
	if fault != "" {
		g.logCall(ctx, "list", "", "", a, fault)
		err := fmt.Errorf("list %s: %s (%s)", c.path, fault, a.evidence(nil))
		if a.fault == noFault && a.code == "resource_missing" && (a.param == "ending_before" || a.param == "starting_after") {
			err = fmt.Errorf("%w: %w", sagas.ErrPlaceGone, err)
		}
		return nil, false, a, err
	}
	g.logCall(ctx, "list", "", "", a, "read")
	return found, *list.More, a, nil
}

// pageOf turns an answer into what a page holds, or says why it is none. An
// answer without the marks of a list is not an empty page.
func pageOf[T, F any](list *pageAnswer[T], a answer, see func(*T) (F, bool)) (found []F, fault string) {
	switch {
	case a.fault != noFault || a.status < 200 || a.status >= 300:
		return nil, refusal(a).Reason
	case list.Object != "list" || list.Data == nil || list.More == nil:
		return nil, "the answer is not a page"
	case *list.More && len(list.Data) == 0:
		return nil, "the page is empty and says that there is more"
	}
	found = make([]F, 0, len(list.Data))
	for i := range list.Data {
		f, ok := see(&list.Data[i])
		if !ok {
			return nil, "the page holds something else"
		}
		found = append(found, f)
	}
	return found, ""
}

func foundIntent(in *intent) (sagas.Found, bool) {
	f := sagas.Found{
		ID: plain(in.ID), IntentID: plain(in.ID), ChargeID: in.chargeID(), Status: plain(in.Status),
		Succeeded:        in.Status == statusSucceeded,
		Amount:           domain.Money{Minor: in.Amount, Currency: domain.Currency(in.Currency)},
		StripeCustomerID: string(in.Customer), CancellationReason: plain(in.CancelReason),
	}
	return marked(f, in.Metadata, in.Created)
}

func foundCharge(c *charge) (sagas.Found, bool) {
	f := sagas.Found{
		ID: plain(c.ID), IntentID: plain(string(c.Intent)), ChargeID: plain(c.ID), Status: plain(c.Status),
		Succeeded:        c.Status == "succeeded" && c.Paid && c.Captured,
		Refunded:         c.Refunded,
		Amount:           domain.Money{Minor: c.Amount, Currency: domain.Currency(c.Currency)},
		StripeCustomerID: string(c.Customer),
	}
	return marked(f, c.Metadata, c.Created)
}

// marked adds the markers. An object without an id, a status or a time of
// creation is not one.
func marked(f sagas.Found, metadata map[string]string, created int64) (sagas.Found, bool) {
	f.CustomerID, f.Period, f.BillingKey = metadata["customer_id"], metadata["billing_period"], metadata["billing_key"]
	f.Created = time.Unix(created, 0).UTC()
	return f, f.ID != "" && f.Status != "" && created > 0
}
