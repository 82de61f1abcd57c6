package cli

import (
	"net/url"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
)

// runsCommand is about runs: everything that falls due under one period label.
type runsCommand struct {
	Show   runCommand `cmd:"" help:"Print how far a billing period has come."`
	Pause  planned    `cmd:"" hidden:"" passthrough:""`
	Resume planned    `cmd:"" hidden:"" passthrough:""`
	Close  planned    `cmd:"" hidden:"" passthrough:""`
}

type runCommand struct {
	Period string `arg:"" help:"Billing period: 2026-11, 2026-Q3 or 2026."`
}

// amount is money as the service shows it.
type amount struct {
	Minor    int64  `json:"minor"`
	Currency string `json:"currency"`
	Display  string `json:"display"`
}

// run is what is shown of a run.
type run struct {
	BillingPeriod string `json:"billing_period"`
	Bills         int64  `json:"bills"`
	Paid          int64  `json:"paid"`
	Open          int64  `json:"open"`
	Closed        int64  `json:"closed"`
	Statuses      []struct {
		Status string `json:"status"`
		Bills  int64  `json:"bills"`
	} `json:"statuses"`
	Totals []struct {
		Currency string `json:"currency"`
		Bills    int64  `json:"bills"`
		Expected amount `json:"expected"`
		Paid     amount `json:"paid"`
		Taken    amount `json:"taken"`
		Open     amount `json:"open"`
		Closed   amount `json:"closed"`
	} `json:"totals"`
	AsOf struct {
		Position string `json:"position"`
	} `json:"as_of"`
}

// Run prints the run.
func (r runCommand) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	document, err := c.Get(s.ctx, "/v1/runs/"+url.PathEscape(r.Period), nil)
	if err != nil {
		return err
	}
	return show(s, document, func(v run) error {
		if err := s.printf("%s: %s bills, %s paid, %s open, %s closed (as of %s)\n\n", v.BillingPeriod, console.Count(int(v.Bills)),
			console.Count(int(v.Paid)), console.Count(int(v.Open)), console.Count(int(v.Closed)), v.AsOf.Position); err != nil {
			return err
		}
		totals := console.NewTable("currency", "bills#", "expected#", "paid#", "taken at Stripe#", "open#", "closed#")
		for _, t := range v.Totals {
			totals.Row(t.Currency, t.Bills, t.Expected.Display, t.Paid.Display, t.Taken.Display, t.Open.Display, t.Closed.Display)
		}
		if err := totals.Write(s.Out, ""); err != nil {
			return err
		}
		statuses := console.NewTable("status", "bills#")
		for _, t := range v.Statuses {
			statuses.Row(t.Status, t.Bills)
		}
		if err := s.printf("\n"); err != nil {
			return err
		}
		return statuses.Write(s.Out, "")
	})
}
