package stripegateway

import (
	"context"
	"strings"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// The road of legacy Charges: one POST takes the money, and no object is there
// before it that could be asked later. What stands in an intent's place is a
// name for the charge that is to be made, derived from the bill; it is committed
// as an intent's id is, so that a bill's road is chosen once, and what a read
// finds is found by the markers in the charge's metadata.

// chargePrefix begins the name. No id of Stripe's does, since they hold no
// hyphen.
const chargePrefix = "charge-"

// chargeName is the name of the bill's charge.
func chargeName(o sagas.Order) string { return chargePrefix + o.Markers()["billing_key"] }

// byCharge tells whether the bill's committed road is that of legacy Charges,
// whatever the configuration has become since.
func byCharge(o sagas.Order) bool { return strings.HasPrefix(o.IntentID, chargePrefix) }

// chargeAnswer is an answer that should be a charge.
type chargeAnswer struct {
	stripe.APIResource
	charge
}

// prepareCharge names the charge. There is nothing to create, so no call is
// made and no money can move.
func (g *Gateway) prepareCharge(o sagas.Order) sagas.Prepared {
	return sagas.Prepared{IntentID: chargeName(o)}
}

// takeCharge makes the charge, under the attempt's key.
func (g *Gateway) takeCharge(ctx context.Context, o sagas.Order) domain.Outcome {
	switch {
	case o.IntentID != chargeName(o), !chargeable(o):
		return refusal(answer{fault: violated, why: "the order is not that of the committed charge"})
	case o.PaymentMethodID == "":
		return domain.Outcome{Class: domain.Declined, Code: noUsableMethod, Reason: "the order names no payment method"}
	}
	var v chargeAnswer
	a := g.sendFor(ctx, o.Period, post("/v1/charges", o.ConfirmKey()), &stripe.ChargeParams{
		Amount:   stripe.Int64(o.Amount.Minor),
		Currency: stripe.String(string(o.Amount.Currency)),
		Customer: stripe.String(o.StripeCustomerID),
		Source:   &stripe.PaymentSourceSourceParams{Token: stripe.String(o.PaymentMethodID)},
		Metadata: o.Markers(),
	}, &v)
	out := chargeOutcome(o, a, &v.charge)
	g.logCall(ctx, "create charge", o.ConfirmKey(), o.IntentID, a, string(out.Class))
	return out
}

// findCharge reads all charges of the customer and says what those with the
// bill's markers tell: legacy ones, and one of an intent if it took the bill's
// money, whoever made it. A charge that is not listed was not made, or is still
// being made: the state is unchanged then, which is no proof.
func (g *Gateway) findCharge(ctx context.Context, o sagas.Order) sagas.Finding {
	if o.IntentID != chargeName(o) || o.StripeCustomerID == "" {
		return unreachable(answer{fault: violated, why: "the order is not that of the committed charge"})
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	var made []*charge
	var last answer
	err := allPages(func(after string) (ids []string, more bool, err error) {
		p := &stripe.ChargeListParams{Customer: stripe.String(o.StripeCustomerID), ListParams: pageParams(after)}
		found, more, a, err := readPage(ctx, g, get("/v1/charges", maxPage), p, func(c *charge) (*charge, bool) {
			return c, chargeID(c.ID) != "" && c.Status != "" && c.Created > 0
		})
		last = a
		for _, c := range found {
			if ids = append(ids, c.ID); c.markedFor(o) && (c.Intent == "" || c.Status == statusSucceeded) {
				made = append(made, c)
			}
		}
		return ids, more, err
	})
	f := unreachable(last)
	if err == nil {
		f = foundCharges(o, made, last)
	}
	g.logCall(ctx, "find charge", "", o.IntentID, last, string(f.State))
	return f
}

// cancelCharge ends a bill's charge that was never made, or failed. There is
// nothing to cancel at Stripe, so the answer is a read's: cancelled says that
// no charge of the bill has succeeded or is pending. It is proof only where
// nothing can be running, which is the caller's to know: a bill is closed when it
// is not in flight, or after the quiet period.
func (g *Gateway) cancelCharge(ctx context.Context, o sagas.Order) sagas.Finding {
	f := g.findCharge(ctx, o)
	switch {
	case f.State == sagas.IntentDecided && f.Outcome.Class == domain.Paid:
		f.Outcome.Source = domain.SourceCancel
	case f.State == sagas.IntentUnchanged, f.State == sagas.IntentDecided && f.Outcome.Class == domain.Declined:
		f.State, f.Outcome = sagas.IntentCancelled, domain.Outcome{Class: domain.Unknown, Reason: "no charge of the bill has taken money", Evidence: f.Outcome.Evidence}
	}
	return f
}
