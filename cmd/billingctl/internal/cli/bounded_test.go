package cli

import (
	"strings"
	"testing"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// A read model that is sent back runs to a position, holds what the log held
// then, and goes on from there when it is resumed.
func TestProcessorRunsToAPosition(t *testing.T) {
	log := projectiontest.New(t)
	t.Setenv("DATABASE_URL", pgtest.DSN(t))
	aMonth(t, log, 3) // three events a customer: registered, requested, billed
	deliver(t, log, projections.Bills.Processor())
	live := dump(t, log, projections.Bills)
	paid := func() (n int) {
		t.Helper()
		if err := log.Pool.QueryRow(t.Context(), `SELECT count(*) FROM bills WHERE status = 'paid'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	status := func() tracking.ProcessorStatus {
		t.Helper()
		s, err := statusOf(t.Context(), log.Pool, "bills")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, step := range []struct {
		line string
		code int
		want string
		paid int
	}{
		{"processors run bills --stop-at 6 --reason x", exitFailed, "past_position", 3},
		{"processors run nobody --stop-at 6 --reason x", exitFailed, "unknown_processor", 3},
		{"processors run bills --stop-at soon --reason x", exitUsage, "--stop-at must be a position", 3},
		{"processors run bills --stop-at 6", exitUsage, "--reason", 3},
		{"processors pause bills --reason look", exitOK, "bills is paused\n", 3},
		{"processors reset bills --reason look", exitOK, "bills is empty", 0},
		{"processors run bills --stop-at 6 --reason look", exitOK, "bills has stopped at 6; ", 2},
		{"processors run bills --stop-at 17-8 --reason look", exitOK, "bills has stopped at 8; ", 2},
		{"processors run bills --stop-at 9 --reason look --no-wait", exitOK, "bills runs to 9\n", 2},
	} {
		ran := billingctl(t, "", strings.Fields(step.line)...)
		if ran.code != step.code || !strings.Contains(ran.out+ran.err, step.want) {
			t.Errorf("billingctl %s: %+v, want %d and %q", step.line, ran, step.code, step.want)
		}
		if n := paid(); n != step.paid {
			t.Errorf("after billingctl %s %d bills are paid, want %d", step.line, n, step.paid)
		}
	}
	if s := status(); s.Stopped || stateOf(s) != "runs to 9" {
		t.Errorf("nobody has run it, and it %s", stateOf(s))
	}
	deliver(t, log, projections.Bills.Processor())
	if s := status(); stateOf(s) != "stopped at 9" {
		t.Errorf("it %s", stateOf(s))
	}
	log.Given("cust_9", domain.CustomerRegistered{CustomerID: "cust_9", StripeCustomerID: "cus_9", PaymentMethodID: "pm_9"})
	if ran := billingctl(t, "", "processors", "resume", "bills", "--reason", "seen"); ran.code != exitOK {
		t.Errorf("resume: %+v", ran)
	}
	deliver(t, log, projections.Bills.Processor())
	if s := status(); stateOf(s) != "running" || !s.CaughtUp {
		t.Errorf("it is %s, caught up %t", stateOf(s), s.CaughtUp)
	}
	if dump(t, log, projections.Bills) != live {
		t.Error("the rows differ from those of live delivery")
	}
}
