package cli

import (
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/console"
)

// refundsCommand is about money that goes back. The service proposes a refund
// where a charge has taken what is not owed; whether it is made, a person says.
type refundsCommand struct {
	List     listRefunds   `cmd:"" help:"Print refunds and proposals of which something may still come."`
	CarryOut carryOut      `cmd:"" help:"Make the refund that is proposed for a charge."`
	Dismiss  dismissRefund `cmd:"" help:"Decide that the money of a proposal stays."`
	Accept   acceptRefund  `cmd:"" help:"Let a refund stand that needs review, as Stripe has it."`
}

// Help is what refunds --help says beyond its commands.
func (refundsCommand) Help() string {
	return "Whoever decides needs a token with the scope operate. A refund needs review if Stripe holds another one under its name: another amount, or of another charge."
}

type (
	listRefunds struct {
		All      bool   `help:"Those too that are over."`
		Status   string `help:"One status alone, such as proposed or failed." placeholder:"STATUS" xor:"which"`
		Period   string `help:"One billing period alone." placeholder:"PERIOD"`
		Customer string `help:"One customer alone." placeholder:"ID"`
	}
	carryOut struct {
		Charge string `arg:"" help:"The charge at Stripe, as refunds list shows it."`
	}
	dismissRefund struct {
		Charge string `arg:"" help:"The charge at Stripe, as refunds list shows it."`
		Reason string `required:"" help:"Why the money stays, for whoever reads the record later; no personal data." placeholder:"TEXT"`
	}
	acceptRefund struct {
		Customer string `arg:"" help:"Customer id."`
		Period   string `arg:"" help:"Billing period."`
		Refund   string `arg:"" help:"The refund's name, as refunds list shows it."`
		Reason   string `required:"" help:"Why it may stand as it is, for whoever reads the record later; no personal data." placeholder:"TEXT"`
	}
)

// refund is what is shown of a refund, or of a proposal.
type refund struct {
	CustomerID     string `json:"customer_id"`
	BillingPeriod  string `json:"billing_period"`
	Status         string `json:"status"`
	RefundID       string `json:"refund_id"`
	StripeRefundID string `json:"stripe_refund_id"`
	ChargeID       string `json:"charge_id"`
	Amount         amount `json:"amount"`
	Reason         string `json:"reason"`
	Dismissed      string `json:"dismissed"`
}

type refundPage struct {
	Items      []refund `json:"items"`
	NextCursor string   `json:"next_cursor"`
}

// Run prints the list.
func (l listRefunds) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	query := url.Values{"limit": {"500"}}
	if !l.All {
		query.Set("status", "open")
	}
	for name, value := range map[string]string{"status": l.Status, "period": l.Period, "customer": l.Customer} {
		if value != "" {
			query.Set(name, value)
		}
	}
	document, err := c.Get(s.ctx, "/v1/refunds", query)
	if err != nil {
		return err
	}
	return show(s, document, func(p refundPage) error {
		if len(p.Items) == 0 {
			return s.printf("no refunds\n")
		}
		table := console.NewTable("customer", "period", "status", "amount#", "charge", "refund", "at Stripe", "why")
		for _, r := range p.Items {
			why := r.Reason
			if r.Dismissed != "" {
				why = r.Dismissed
			}
			table.Row(r.CustomerID, r.BillingPeriod, r.Status, r.Amount.Display, r.ChargeID, r.RefundID, r.StripeRefundID, short(why, 80))
		}
		if err := table.Write(s.Out, ""); err != nil {
			return err
		}
		if p.NextCursor != "" {
			return s.printf("and more: narrow the list down by --status, --period or --customer\n")
		}
		return nil
	})
}

// Run asks for the refund. Its name is the charge's, so that it is made once
// however often it is asked for.
func (r carryOut) Run(s *shell) error {
	c, proposal, err := s.proposal(r.Charge)
	if err != nil {
		return err
	}
	return s.decide(c, "refund-charge", "", map[string]any{
		"customer_id": proposal.CustomerID, "billing_period": proposal.BillingPeriod, "charge_id": proposal.ChargeID,
		"refund_id": "surplus-" + proposal.ChargeID, "amount_minor": proposal.Amount.Minor,
	})
}

// Run dismisses the proposal.
func (d dismissRefund) Run(s *shell) error {
	c, proposal, err := s.proposal(d.Charge)
	if err != nil {
		return err
	}
	return s.decide(c, "dismiss-refund-proposal", "surplus-"+proposal.ChargeID, map[string]any{
		"customer_id": proposal.CustomerID, "billing_period": proposal.BillingPeriod, "charge_id": proposal.ChargeID, "reason": d.Reason,
	})
}

// Run lets the refund stand.
func (a acceptRefund) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	return s.decide(c, "accept-refund", "accept-"+a.Refund, map[string]any{
		"customer_id": a.Customer, "billing_period": a.Period, "refund_id": a.Refund, "reason": a.Reason,
	})
}

// proposal is what was proposed for a charge, whatever became of it.
func (s *shell) proposal(charge string) (*client.Client, refund, error) {
	c, err := s.client()
	if err != nil {
		return nil, refund{}, err
	}
	var page refundPage
	if err := c.Read(s.ctx, "/v1/refunds", url.Values{"charge": {charge}, "limit": {"500"}}, &page); err != nil {
		return nil, refund{}, err
	}
	for _, r := range page.Items {
		switch r.Status {
		case "proposed", "answered", "dismissed":
			return c, r, nil
		}
	}
	return nil, refund{}, fmt.Errorf("no refund of %s was proposed", charge)
}

func (s *shell) decide(c *client.Client, command, key string, fields map[string]any) error {
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	document, final, err := c.Command(s.ctx, command, key, "", body)
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return show(s, document, func(r receipt) error { return r.write(s, final) })
}
