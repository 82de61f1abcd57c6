package commands_test

import (
	"errors"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// Given a declined bill that is to be tried again, when an operator stops or
// moves that, then it rests or is tried at the new time, whatever came before.
func TestSteerDunning(t *testing.T) {
	t.Parallel()
	from := domain.Date{Year: 2026, Month: time.November, Day: 1}
	c := domain.Customer{}
	evolve := func(events ...domain.Event) {
		for _, e := range events {
			c = c.Evolve(e)
		}
	}
	decide := func(command commands.Command[domain.Customer]) (domain.Dunning, error) {
		events, err := command.Decide(c)
		evolve(events...)
		b, _ := c.Bill(nov)
		return b.Dunning, err
	}
	evolve(registered, domain.ChargeRequested{CustomerID: ada, BillingPeriod: nov, Attempt: 1, Money: usd49, PaymentMethodID: "pm_1"},
		domain.ChargeAttemptStarted{CustomerID: ada, BillingPeriod: nov, Attempt: 1, Start: 1})
	if _, err := decide(commands.NewStopDunning(ada, nov, "wire", "k1")); !errors.Is(err, domain.ErrNotDeclined) {
		t.Errorf("of a bill under way: %v", err)
	}
	evolve(domain.ChargeDeclined{CustomerID: ada, BillingPeriod: nov, Attempt: 1, Code: "card_declined", Class: domain.Soft},
		domain.DunningScheduled{CustomerID: ada, BillingPeriod: nov, Attempt: 2, At: noon, Day: 1, From: from, Reason: "soft"})
	if d, err := decide(commands.NewStopDunning(ada, nov, "wire", "k1")); err != nil || d.Attempt != 0 || d.Awaits != domain.AwaitsOperator || d.Reason != "wire" || d.From != from {
		t.Errorf("stopped: %+v, %v", d, err)
	}
	later := noon.AddDate(0, 0, 9)
	if d, err := decide(commands.NewRescheduleDunning(ada, nov, later, "asked for", "k2")); err != nil || d.Attempt != 2 || !d.At.Equal(later) || d.Awaits != "" {
		t.Errorf("rescheduled: %+v, %v", d, err)
	}
	evolve(domain.BillSettled{CustomerID: ada, BillingPeriod: nov, Reference: "wire"})
	if _, err := decide(commands.NewRescheduleDunning(ada, nov, later, "asked for", "k3")); !errors.Is(err, domain.ErrNotDeclined) {
		t.Errorf("of a settled bill: %v", err)
	}
}
