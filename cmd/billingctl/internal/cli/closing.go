package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/domain"
)

type (
	closeRun struct {
		Period string `arg:"" help:"Billing period: 2026-11, 2026-Q3 or 2026."`
	}
	reportRun struct {
		Period string `arg:"" help:"Billing period: 2026-11, 2026-Q3 or 2026."`
		CSV    string `name:"csv" help:"Write the run's bills there as well, a line each; - prints them alone." placeholder:"FILE"`
	}
)

// Help is what runs close --help says beyond the flags.
func (closeRun) Help() string {
	return `A run is over when all of its bills have ended, nothing more falls due under its label, nobody of it waits in the dead letters, and the log has what Stripe took for it, to the minor unit. It is compared with Stripe first, as reconcile --period does.

What became of it is then written into the log with its digest: runs report prints it, at any time, and verify makes it again and compares. The last line:

    close: period=2026-11 bills=1000 report_sha256=…

Exit status 1 if it is not over; every reason is printed.`
}

// closing is what is shown of the end of a run.
type closing struct {
	At               time.Time `json:"at"`
	By               string    `json:"by"`
	ReconciliationID int64     `json:"reconciliation_id"`
	ReportSHA256     string    `json:"report_sha256"`
}

// Run closes the run.
func (r closeRun) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	v, _, err := s.reconcile(c, map[string]string{"period": r.Period})
	if err != nil {
		return err
	}
	if v.State != "done" {
		return fmt.Errorf("reconciliation %d failed: %s", v.ID, v.Error)
	}
	relyOn, err := json.Marshal(map[string]int64{"reconciliation_id": v.ID})
	if err != nil {
		return err
	}
	document, err := c.Post(s.ctx, "/v1/runs/"+url.PathEscape(r.Period)+"/close", relyOn)
	if err != nil {
		return err
	}
	var done struct {
		Closing closing          `json:"closing"`
		Report  domain.RunReport `json:"report"`
	}
	if err := json.Unmarshal(document, &done); err != nil {
		return fmt.Errorf("read the answer of billingd: %w", err)
	}
	if s.asJSON() {
		return console.JSON(s.Out, document)
	}
	if err := writeReport(s, done.Report); err != nil {
		return err
	}
	return s.printf("\nclose: period=%s bills=%d report_sha256=%s\n", done.Report.BillingPeriod, done.Report.Bills, done.Closing.ReportSHA256)
}

// Run prints the report.
func (r reportRun) Run(s *shell) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	path := "/v1/runs/" + url.PathEscape(r.Period) + "/report"
	list := func(w io.Writer) error { return c.Copy(s.ctx, path+".csv", w) }
	if r.CSV == "-" {
		return list(s.Out)
	}
	document, err := c.Get(s.ctx, path, nil)
	if err != nil {
		return err
	}
	if r.CSV != "" {
		if err := whole(r.CSV, list); err != nil {
			return err
		}
	}
	return show(s, document, func(v domain.RunReport) error { return writeReport(s, v) })
}

// writeReport prints a report as tables.
func writeReport(s *shell, v domain.RunReport) error {
	if err := s.printf("%s: %s bills, %s open, %s attempts, %s disputes\n\n", v.BillingPeriod, console.Count(int(v.Bills)), console.Count(int(v.Open)),
		console.Count(int(v.Attempts)), console.Count(int(v.Disputes))); err != nil {
		return err
	}
	totals := console.NewTable("currency", "bills#", "expected#", "paid#", "closed#", "open#", "taken#", "surplus#", "refunded#", "refunds#")
	for _, t := range v.Totals {
		of := func(minor int64) string { return domain.Money{Minor: minor, Currency: t.Currency}.String() }
		totals.Row(t.Currency, t.Bills, of(t.Expected), of(t.Paid), of(t.Closed), of(t.Open), of(t.Taken), of(t.Surplus), of(t.Refunded), t.Refunds)
	}
	statuses := console.NewTable("status", "bills#")
	for _, t := range v.Statuses {
		statuses.Row(t.Status, t.Bills)
	}
	declines := console.NewTable("declined with", "decline code", "class", "times#")
	for _, d := range v.Declines {
		declines.Row(d.Code, d.DeclineCode, d.Class, d.Declines)
	}
	if err := s.tables(totals, statuses, declines); err != nil {
		return err
	}
	return s.printf("\nfacts %s  %s\nbills %s  %s\n", console.Count(int(v.Facts)), v.FactsSHA256, console.Count(int(v.Bills)), v.BillsSHA256)
}
