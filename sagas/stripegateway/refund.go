package stripegateway

import (
	"context"
	"fmt"
	"strings"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

var _ sagas.Refunder = (*Gateway)(nil)

// refund is what this package reads of a Refund.
type refund struct {
	ID            string            `json:"id"`
	Status        string            `json:"status"`
	Amount        int64             `json:"amount"`
	Currency      string            `json:"currency"`
	Charge        ref               `json:"charge"`
	Intent        ref               `json:"payment_intent"`
	FailureReason string            `json:"failure_reason"`
	Metadata      map[string]string `json:"metadata"`
	Created       int64             `json:"created"`
}

// refundAnswer is an answer that should be a refund.
type refundAnswer struct {
	stripe.APIResource
	refund
}

// Codes of a refusal that Stripe tells in words alone, and of a refund that is
// not the one that was asked for.
const (
	refundTooLarge  = "refund_exceeds_charge"
	refundDiffers   = "refund_differs"
	wordsOfTooLarge = "is greater than unrefunded amount"
)

// Refund asks for the order's refund once, under its key, and says what came
// of this send. refused is as honest as the send is the first: after an earlier
// one whose answer was lost, "already refunded" may be the trace of that one,
// and [Gateway.FindRefund] decides.
func (g *Gateway) Refund(ctx context.Context, o sagas.RefundOrder) domain.RefundOutcome {
	if chargeID(o.ChargeID) == "" || o.Amount.Minor <= 0 || o.Amount.Currency == "" || o.RefundID == "" {
		return notRefunded(answer{fault: violated, why: "the order lacks a charge, an amount or its id"}, domain.SourceAnswer)
	}
	var v refundAnswer
	c := post("/v1/refunds", o.Key())
	c.secret = g.refunds
	a := g.send(ctx, c, &stripe.RefundParams{
		Charge:   stripe.String(o.ChargeID),
		Amount:   stripe.Int64(o.Amount.Minor),
		Metadata: o.Markers(),
	}, &v)
	out := refunded(o, a, &v.refund, domain.SourceAnswer)
	g.logCall(ctx, "refund charge", o.Key(), "", a, string(out.State))
	return out
}

// FindRefund reads the refund by its id, or looks for its marker among all the
// charge's refunds: the oldest that carries it, one that failed or was
// cancelled only if there is no other.
func (g *Gateway) FindRefund(ctx context.Context, o sagas.RefundOrder) domain.RefundOutcome {
	if o.StripeRefundID != "" {
		return g.readRefund(ctx, o)
	}
	if chargeID(o.ChargeID) == "" || o.RefundID == "" {
		return unfound(answer{fault: violated, why: "the order lacks a charge or its id"})
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	var best *refund
	var last answer
	err := allPages(func(after string) (ids []string, more bool, err error) {
		p := &stripe.RefundListParams{Charge: stripe.String(o.ChargeID), ListParams: pageParams(after)}
		found, more, a, err := readPage(ctx, g, get("/v1/refunds", maxPage), p, func(r *refund) (*refund, bool) { return r, refundID(r.ID) != "" })
		last = a
		for _, r := range found { // newest first
			if ids = append(ids, r.ID); r.markedFor(o) && (best == nil || !r.over() || best.over()) {
				best = r
			}
		}
		return ids, more, err
	})
	switch {
	case err != nil:
		return unfound(last)
	case best == nil:
		return domain.RefundOutcome{State: domain.RefundStateRequested, Reason: "Stripe has no such refund of the charge", Evidence: last.evidence(nil), Source: domain.SourceFind}
	}
	return refunded(o, last, best, domain.SourceFind)
}

func (g *Gateway) readRefund(ctx context.Context, o sagas.RefundOrder) domain.RefundOutcome {
	if refundID(o.StripeRefundID) == "" {
		return unfound(answer{fault: violated, why: "the order's refund id is none"})
	}
	var v refundAnswer
	a := g.send(ctx, get("/v1/refunds/"+o.StripeRefundID, maxAnswer), &stripe.RefundParams{}, &v)
	out := unfound(a)
	if a.fault == noFault && a.status >= 200 && a.status < 300 {
		out = refunded(o, a, &v.refund, domain.SourceFind)
	}
	g.logCall(ctx, "read refund", "", "", a, string(out.State))
	return out
}

// refunded is the outcome table for a refund, asked for or read.
func refunded(o sagas.RefundOrder, a answer, r *refund, source domain.Source) domain.RefundOutcome {
	if a.fault != noFault || a.status < 200 || a.status >= 300 {
		return notRefunded(a, source)
	}
	out := domain.RefundOutcome{State: domain.RefundStateUnknown, Source: source, Evidence: a.evidence(nil)}
	if refundID(r.ID) == "" {
		out.Reason = "the answer shows no refund"
		return out
	}
	out.StripeRefundID, out.ChargeID = r.ID, chargeID(string(r.Charge))
	out.Money = domain.Money{Minor: r.Amount, Currency: domain.Currency(r.Currency)}
	out.Evidence = strings.TrimSpace(out.Evidence + " refund=" + r.ID + " refund_status=" + plain(r.Status))
	if wrong := r.contradictions(o); len(wrong) > 0 {
		out.Code, out.Reason = refundDiffers, "the refund differs from the order: "+strings.Join(wrong, ", ")
		return out
	}
	switch r.Status {
	case "succeeded":
		out.State = domain.RefundStateSucceeded
	case "pending", "requires_action":
		out.State, out.Reason = domain.RefundStatePending, "the bank has not answered"
	case "failed":
		out.State, out.Code, out.Reason = domain.RefundStateFailed, plain(r.FailureReason), "the refund failed"
	case "canceled":
		out.State, out.Code, out.Reason = domain.RefundStateCancelled, plain(r.FailureReason), "the refund was cancelled"
	default:
		out.Reason = "the refund is in an unlisted state"
	}
	return out
}

// notRefunded is the table for answers without a refund. It follows that of a
// charge: what proves that this send executed nothing leaves the refund to be
// asked for again under its key, a refusal of the request ends it, and
// everything else is unknown.
func notRefunded(a answer, source domain.Source) domain.RefundOutcome {
	a.noMethod = false // a refund has no method
	from := refusal(a)
	out := domain.RefundOutcome{State: domain.RefundStateUnknown, Code: from.Code, Reason: from.Reason, Evidence: from.Evidence, Source: source}
	switch from.Class {
	case domain.Rejected, domain.Declined:
		out.State, out.Reason = domain.RefundStateRefused, "Stripe refused the refund"
		if a.tooLarge {
			out.Code = refundTooLarge
		}
	case domain.Held, domain.RetrySameKey:
		out.State = domain.RefundStateRequested
	case domain.NeedsReview, domain.Unknown, domain.Paid, domain.ActionRequired:
	}
	return out
}

// unfound: the read showed nothing about the refund.
func unfound(a answer) domain.RefundOutcome {
	out := notRefunded(a, domain.SourceFind)
	out.State = domain.RefundStateUnknown
	return out
}

// markedFor tells whether the refund is the one that the order asks for.
func (r *refund) markedFor(o sagas.RefundOrder) bool {
	for name, value := range o.Markers() {
		if r.Metadata[name] != value {
			return false
		}
	}
	return true
}

// over tells whether the refund has come to nothing.
func (r *refund) over() bool { return r.Status == "failed" || r.Status == "canceled" }

// contradictions names the fields in which the refund is not the order's.
func (r *refund) contradictions(o sagas.RefundOrder) []string {
	var wrong []string
	if r.Amount != o.Amount.Minor {
		wrong = append(wrong, "amount")
	}
	if r.Currency != string(o.Amount.Currency) {
		wrong = append(wrong, "currency")
	}
	if string(r.Charge) != o.ChargeID {
		wrong = append(wrong, "charge")
	}
	if o.StripeRefundID != "" && r.ID != o.StripeRefundID {
		wrong = append(wrong, "id")
	}
	if o.StripeRefundID == "" && !r.markedFor(o) {
		wrong = append(wrong, "metadata")
	}
	return wrong
}

func refundID(s string) string {
	if id := idWith(s, "re_"); id != "" {
		return id
	}
	return idWith(s, "pyr_") // of a payment that is not a card's
}

func pageParams(after string) stripe.ListParams {
	p := stripe.ListParams{Limit: stripe.Int64(100)}
	if after != "" {
		p.StartingAfter = stripe.String(after)
	}
	return p
}

// allPages reads a list to its end. An error on any page is an error of the
// whole: a short list is no proof of absence.
func allPages(read func(after string) (ids []string, more bool, err error)) error {
	for after := ""; ; {
		ids, more, err := read(after)
		switch {
		case err != nil:
			return err
		case !more:
			return nil
		case ids[len(ids)-1] == after:
			return fmt.Errorf("list: the page behind %s begins again", after)
		}
		after = ids[len(ids)-1]
	}
}
