package cli

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/console"
)

// runsCommand is about runs: everything that falls due under one period label.
type runsCommand struct {
	Show   runCommand `cmd:"" help:"Print how far a billing period has come."`
	Start  startRun   `cmd:"" help:"Declare at once what is due, instead of at the next look."`
	Pause  pauseRun   `cmd:"" help:"Stop the collection of a run's bills; what is in flight is finished."`
	Resume resumeRun  `cmd:"" help:"Let a run's bills be collected again; what was held is tried at once."`
	Close  closeRun   `cmd:"" help:"Compare a run with Stripe and close it, or print why it is not over."`
	Report reportRun  `cmd:"" help:"Print what became of a run, as of its closing."`
}

type (
	pauseRun struct {
		Period         string `arg:"" help:"Billing period: 2026-11, 2026-Q3 or 2026."`
		Reason         string `required:"" help:"Why, for whoever reads the record later." placeholder:"TEXT"`
		IdempotencyKey string `help:"The same again is answered by the same receipt; not given: one of its own." placeholder:"KEY"`
	}
	resumeRun struct {
		Period         string `arg:"" help:"Billing period: 2026-11, 2026-Q3 or 2026."`
		Reason         string `help:"What was done about what stood in the way." placeholder:"TEXT"`
		IdempotencyKey string `help:"The same again is answered by the same receipt; not given: one of its own." placeholder:"KEY"`
	}
)

// Run pauses the run.
func (p pauseRun) Run(s *shell) error {
	return s.decideRun("pause-run", p.Period, p.Reason, p.IdempotencyKey)
}

// Run resumes the run.
func (r resumeRun) Run(s *shell) error {
	return s.decideRun("resume-run", r.Period, r.Reason, r.IdempotencyKey)
}

// decideRun sends a command about a run. Each is a decision of its own, so that
// it gets a key of its own, unless one is given.
func (s *shell) decideRun(command, period, reason, key string) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	if key == "" {
		key = rand.Text()
	}
	fields := map[string]any{"billing_period": period}
	if reason != "" {
		fields["reason"] = reason
	}
	return s.decide(c, command, key, fields)
}

type runCommand struct {
	Period string `arg:"" help:"Billing period: 2026-11, 2026-Q3 or 2026."`
	Follow bool   `short:"f" help:"Wait until nothing is left to be collected, with a bar, the rate and the time left on standard error."`
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
	Progress      struct {
		Expected    int64   `json:"expected"`
		Ended       int64   `json:"ended"`
		Remaining   int64   `json:"remaining"`
		Rate        float64 `json:"bills_per_second"`
		SecondsLeft *int64  `json:"seconds_left"`
	} `json:"progress"`
	Statuses []struct {
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
	Manifest []struct {
		Currency   string `json:"currency"`
		Bills      int64  `json:"bills"`
		Expected   amount `json:"expected"`
		Fixed      int64  `json:"fixed"`
		Registered int64  `json:"registered"`
		Refused    int64  `json:"refused"`
	} `json:"manifest"`
	Control struct {
		Paused    bool       `json:"paused"`
		Reason    string     `json:"reason"`
		PausedBy  string     `json:"paused_by"`
		PausedAt  *time.Time `json:"paused_at"`
		VaultKey  string     `json:"vault_key"`
		ExpiresAt *time.Time `json:"vault_key_expires_at"`
		Finding   string     `json:"finding"`
	} `json:"control"`
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
	path := "/v1/runs/" + url.PathEscape(r.Period)
	if r.Follow {
		if err := s.followRun(c, r.Period, path); err != nil {
			return err
		}
	}
	document, err := c.Get(s.ctx, path, nil)
	if err != nil {
		return err
	}
	return show(s, document, func(v run) error {
		if err := s.printf("%s: %s bills, %s paid, %s open, %s closed (as of %s)\n", v.BillingPeriod, console.Count(int(v.Bills)),
			console.Count(int(v.Paid)), console.Count(int(v.Open)), console.Count(int(v.Closed)), v.AsOf.Position); err != nil {
			return err
		}
		if err := v.pace(s); err != nil {
			return err
		}
		if err := v.hold(s); err != nil {
			return err
		}
		totals := console.NewTable("currency", "bills#", "expected#", "paid#", "taken at Stripe#", "open#", "closed#")
		for _, t := range v.Totals {
			totals.Row(t.Currency, t.Bills, t.Expected.Display, t.Paid.Display, t.Taken.Display, t.Open.Display, t.Closed.Display)
		}
		if err := totals.Write(s.Out, ""); err != nil {
			return err
		}
		manifest := console.NewTable("expected of", "bills#", "amount#", "fixed#", "known to the proxy#", "refused by it#")
		for _, t := range v.Manifest {
			manifest.Row(t.Currency, t.Bills, t.Expected.Display, t.Fixed, t.Registered, t.Refused)
		}
		if !manifest.Empty() {
			if err := s.printf("\n"); err != nil {
				return err
			}
			if err := manifest.Write(s.Out, ""); err != nil {
				return err
			}
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

// followRun shows a run on its way until nothing is left to be collected.
func (s *shell) followRun(c *client.Client, period, path string) error {
	bar := s.progress().Start(period, "bills", 0)
	defer bar.End()
	for {
		var v run
		err := c.Read(s.ctx, path, nil, &v)
		if p, ok := errors.AsType[*client.Problem](err); ok && p.Passes() {
			err = nil // the service restarts; another instance goes on
			v.Progress.Remaining = 1
		}
		if err != nil {
			return err
		}
		if v.Bills > 0 {
			bar.Of(int(v.Progress.Ended), int(v.Progress.Ended+v.Progress.Remaining))
		}
		if v.Progress.Remaining == 0 {
			return nil
		}
		if !pause(s.ctx, askEvery) {
			return s.ctx.Err()
		}
	}
}

// pace prints how far the run is, and how long it goes on at this rate.
func (r run) pace(s *shell) error {
	p := r.Progress
	if p.Expected == 0 {
		return nil
	}
	line := fmt.Sprintf("%d %% of %s expected bills have ended", p.Ended*100/p.Expected, console.Count(int(p.Expected)))
	if p.Rate > 0 {
		line += fmt.Sprintf("; %.1f bills/s", p.Rate)
	}
	if p.SecondsLeft != nil {
		line += fmt.Sprintf("; %s left", time.Duration(*p.SecondsLeft)*time.Second)
	}
	return s.printf("%s\n", line)
}

// hold prints what holds the run back, and its key.
func (r run) hold(s *shell) error {
	c := r.Control
	if c.Paused {
		if err := s.printf("paused since %s by %s: %s\n", moment(c.PausedAt), c.PausedBy, c.Reason); err != nil {
			return err
		}
	}
	if c.Finding != "" {
		if err := s.printf("finding: %s\n", c.Finding); err != nil {
			return err
		}
	}
	if c.VaultKey != "" {
		if err := s.printf("vault key %s, good until %s\n", c.VaultKey, moment(c.ExpiresAt)); err != nil {
			return err
		}
	}
	return s.printf("\n")
}
