package commands

import "github.com/billonce/billonce/domain"

// DismissRefundProposal says that a surplus charge's money stays, and why.
type DismissRefundProposal struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	ChargeID      string            `json:"charge_id"`
	Reason        string            `json:"reason"`
}

// NewDismissRefundProposal builds the command; id is the caller's key.
func NewDismissRefundProposal(c domain.CustomerID, p domain.Period, chargeID, reason string, id domain.Key) DismissRefundProposal {
	return DismissRefundProposal{domain.KeyOf("dismiss-refund-proposal", string(c), p.String(), string(id)), c, p, chargeID, reason}
}

func (DismissRefundProposal) Name() string              { return "dismiss-refund-proposal" }
func (c DismissRefundProposal) Key() domain.Key         { return c.key }
func (c DismissRefundProposal) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c DismissRefundProposal) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	back := s.MoneyBack(c.BillingPeriod)
	p, ok := back.Proposal(c.ChargeID)
	switch {
	case !ok:
		return nil, domain.ErrNoProposal.With("no refund of %s was proposed", c.ChargeID)
	case p.Dismissed == c.Reason:
		return nil, nil
	case p.Dismissed != "":
		return nil, domain.ErrNoProposal.With("the proposal to refund %s was dismissed: %s", c.ChargeID, p.Dismissed)
	case !back.Open(p):
		return nil, domain.ErrNoProposal.With("%s is refunded, or about to be", c.ChargeID)
	}
	return one(domain.RefundProposalDismissed{CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, ChargeID: c.ChargeID, Reason: c.Reason}), nil
}

type dismissRefundProposalBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	ChargeID      string `json:"charge_id" doc:"The charge of the proposal." example:"ch_3NvXyz"`
	Reason        string `json:"reason" doc:"Why the money stays; no personal data." maxLength:"500" example:"it paid an older invoice"`
}

func (b dismissRefundProposalBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	charge := checkCharge(&v, b.ChargeID)
	reason := checkText(&v, "reason", b.Reason, true)
	return v.request(Of(NewDismissRefundProposal(id, period, charge, reason, in.Key)))
}
