package commands_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// over is a run of two bills, one paid and one settled, of which everything is
// known.
func over(t *testing.T) (domain.RunReport, commands.ClosingEvidence) {
	t.Helper()
	p := domain.PeriodOf(domain.Monthly, 2026, 11)
	usd := domain.Money{Minor: 4900, Currency: "usd"}
	report := domain.RunReport{BillingPeriod: p, AsOf: "Ae", BillsSHA256: "b1"}
	for status, back := range map[domain.BillStatus]domain.MoneyBack{
		domain.BillPaid: {ChargeID: "ch_1", Taken: usd, Proposals: []domain.RefundProposal{{ChargeID: "ch_2", Amount: usd}}}, domain.BillSettledStatus: {},
	} {
		if err := report.Add(domain.Bill{Period: p, Status: status, Amount: usd, Attempt: 1}, back); err != nil {
			t.Fatal(err)
		}
	}
	return report, commands.ClosingEvidence{ReconciliationID: 12, Compared: true, AtStripe: map[domain.Currency]int64{"usd": 9800}}
}

func TestCloseRunSaysWhyNot(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 9, 8, 0, 0, 0, time.UTC)
	p := domain.PeriodOf(domain.Monthly, 2026, 11)
	paused := domain.Run{}.Evolve(domain.RunPaused{BillingPeriod: p})
	for _, c := range []struct {
		why    string
		run    domain.Run
		change func(*domain.RunReport, *commands.ClosingEvidence)
	}{
		{"it is paused", paused, nil},
		{"it has no bills", domain.Run{}, func(r *domain.RunReport, e *commands.ClosingEvidence) {
			*r, e.AtStripe = domain.RunReport{BillingPeriod: p}, nil
		}},
		{"1 bill is unknown", domain.Run{}, func(r *domain.RunReport, _ *commands.ClosingEvidence) {
			r.Statuses = append(r.Statuses, domain.RunReportStatus{Status: domain.BillUnknown, Bills: 1})
		}},
		{"2 bills are held", domain.Run{}, func(r *domain.RunReport, _ *commands.ClosingEvidence) {
			r.Statuses = append(r.Statuses, domain.RunReportStatus{Status: domain.BillHeld, Bills: 2})
		}},
		{"3 subscriptions are still to fall due in it", domain.Run{}, func(_ *domain.RunReport, e *commands.ClosingEvidence) { e.FallingDue = 3 }},
		{"1 customer waits in the dead letters", domain.Run{}, func(_ *domain.RunReport, e *commands.ClosingEvidence) { e.Parked = 1 }},
		{"it has not been compared with Stripe", domain.Run{}, func(_ *domain.RunReport, e *commands.ClosingEvidence) { e.Compared = false }},
		{"1 thing has happened since it was compared with Stripe", domain.Run{}, func(_ *domain.RunReport, e *commands.ClosingEvidence) { e.Since = 1 }},
		{"reconciliation 12 has 2 differences", domain.Run{}, func(_ *domain.RunReport, e *commands.ClosingEvidence) { e.Differences = 2 }},
		{"the log has $98.00 taken, Stripe $98.01", domain.Run{}, func(_ *domain.RunReport, e *commands.ClosingEvidence) { e.AtStripe["usd"]++ }},
		{"the log has €0.00 taken, Stripe €1.00", domain.Run{}, func(_ *domain.RunReport, e *commands.ClosingEvidence) { e.AtStripe["eur"] = 100 }},
	} {
		report, evidence := over(t)
		if c.change != nil {
			c.change(&report, &evidence)
		}
		events, err := commands.NewCloseRun(report, evidence, at).Decide(c.run)
		if !errors.Is(err, domain.ErrRunNotOver) || !strings.HasPrefix(err.Error(), "run_not_over: run 2026-11 cannot be closed: "+c.why) || strings.Contains(strings.TrimPrefix(err.Error(), "run_not_over: "), "; ") && !strings.Contains(c.why, "compare") || events != nil {
			t.Errorf("%v %v, want %s alone", events, err, c.why)
		}
	}
}

func TestCloseRunOnce(t *testing.T) {
	t.Parallel()
	report, evidence := over(t)
	at := time.Date(2026, 12, 9, 8, 0, 0, 0, time.UTC)
	first := commands.NewCloseRun(report, evidence, at)
	events, err := first.Decide(domain.Run{})
	if err != nil || len(events) != 1 {
		t.Fatalf("%v, %v", events, err)
	}
	closed := events[0].(domain.RunClosed)
	if closed.ReportSHA256 != report.Digest() || closed.AsOf != "Ae" || closed.ReconciliationID != 12 || !closed.At.Equal(at) || closed.Totals[0].Taken != 4900 || closed.Totals[0].Surplus != 4900 {
		t.Errorf("it says %+v", closed)
	}
	run := domain.Run{}.Evolve(closed)
	report.AsOf = "Af" // somebody else's facts
	again := commands.NewCloseRun(report, evidence, at.Add(time.Hour))
	if events, err := again.Decide(run); len(events) != 0 || err != nil || again.Key() != first.Key() {
		t.Errorf("with the same bills: %v, %v, keys %s and %s", events, err, first.Key(), again.Key())
	}
	report.BillsSHA256 = "b2"
	if events, err := commands.NewCloseRun(report, evidence, at).Decide(run); len(events) != 1 || err != nil {
		t.Errorf("with other bills: %v, %v", events, err)
	}
}
