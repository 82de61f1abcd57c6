package commands

import "github.com/billonce/billonce/domain"

// AcceptRefund says that what Stripe gave back under a refund's name stands for
// the refund, although another amount, or another charge's money, was asked for.
// From there on it is a refund as any other, and Stripe tells how it ends. What
// is still missing, or too much, is a matter of its own.
type AcceptRefund struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	RefundID      string            `json:"refund_id"`
	Reason        string            `json:"reason"`
}

// NewAcceptRefund builds the command; id is the caller's key.
func NewAcceptRefund(c domain.CustomerID, p domain.Period, refundID, reason string, id domain.Key) AcceptRefund {
	return AcceptRefund{domain.KeyOf("accept-refund", string(c), p.String(), string(id)), c, p, refundID, reason}
}

func (AcceptRefund) Name() string              { return "accept-refund" }
func (c AcceptRefund) Key() domain.Key         { return c.key }
func (c AcceptRefund) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c AcceptRefund) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	r, ok := s.MoneyBack(c.BillingPeriod).InReview(c.RefundID)
	if !ok {
		return nil, domain.ErrNoReview.With("no refund %s of the bill for %s needs anybody's word", c.RefundID, c.BillingPeriod)
	}
	state := domain.RefundStatePending // it is read until Stripe says how it ends
	if r.AtStripe == domain.RefundStateSucceeded {
		state = r.AtStripe
	}
	return one(domain.RefundRecorded{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, RefundID: c.RefundID, RefundOutcome: domain.RefundOutcome{
		State: state, StripeRefundID: r.StripeRefundID, ChargeID: r.ChargeID, Money: r.Amount,
		Reason: "accepted as it is: " + c.Reason, Source: domain.SourceOperator,
	}}), nil
}

type acceptRefundBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	RefundID      string `json:"refund_id" doc:"The refund that needs review." example:"r-1001"`
	Reason        string `json:"reason" doc:"Why it may stand as it is; no personal data." maxLength:"500" example:"agreed with the customer on the phone"`
}

func (b acceptRefundBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	refund := check(&v, b.RefundID, domain.ParseRefundID)
	reason := checkText(&v, "reason", b.Reason, true)
	return v.request(Of(NewAcceptRefund(id, period, refund, reason, in.Key)))
}
