package commands_test

import (
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

// Every constructor, its key written down. The key is a function of what the
// command is about, and of nothing else: it comes out the same tomorrow.
func TestKeysOfCommands(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	for _, c := range []struct {
		build func() commands.Command[domain.Customer]
		want  domain.Key
	}{
		{func() commands.Command[domain.Customer] { return commands.NewRegisterCustomer(ada, "cus_1", "pm_1") }, "register-customer/ada"},
		{func() commands.Command[domain.Customer] { return commands.NewActivateSubscription(ada, usd49, monthly) }, "activate-subscription/ada/2026-01-01"},
		{func() commands.Command[domain.Customer] {
			return commands.NewChangeSubscriptionAmount(ada, 5900, "usd", dec, noon, "k1")
		}, "change-subscription-amount/ada/k1"},
		{func() commands.Command[domain.Customer] {
			return commands.NewChangeSubscriptionSchedule(ada, 15, "Asia/Tokyo", dec, noon, "k1")
		}, "change-subscription-schedule/ada/k1"},
		{func() commands.Command[domain.Customer] {
			return commands.NewChangePaymentMethod(ada, "pm_2", time.Time{}, "k1")
		}, "change-payment-method/ada/k1"},
		{func() commands.Command[domain.Customer] { return commands.NewPauseSubscription(ada, "", noon, "k1") }, "pause-subscription/ada/k1"},
		{func() commands.Command[domain.Customer] { return commands.NewResumeSubscription(ada, noon, "k1") }, "resume-subscription/ada/k1"},
		{func() commands.Command[domain.Customer] {
			return commands.NewCancelSubscription(ada, domain.CancelNow, "", noon, "k1")
		}, "cancel-subscription/ada/k1"},
		{func() commands.Command[domain.Customer] { return commands.NewDeclareBillingDue(ada, nov) }, "declare-billing-due/ada/2026-11"},
		{func() commands.Command[domain.Customer] { return commands.NewChargeBilling(ada, nov, usd49) }, domain.ChargeKey(ada, nov, 1)},
		{func() commands.Command[domain.Customer] { return commands.NewRetryCharge(ada, nov, 2, "soft-1") }, "retry-charge/ada/2026-11/2/soft-1"},
		{func() commands.Command[domain.Customer] {
			return commands.NewRetryCharge(ada, nov, 2, commands.StepManual)
		}, "retry-charge/ada/2026-11/2/manual"},
		{func() commands.Command[domain.Customer] {
			return commands.NewReleaseBilling(ada, nov, "not settled", "k1")
		}, "release-billing/ada/2026-11/k1"},
		{func() commands.Command[domain.Customer] {
			return commands.SuspectSettlement{CustomerID: ada, BillingPeriod: nov, IntentID: "pi_1"}
		}, ""},
		{func() commands.Command[domain.Customer] { return commands.NewSettleBilling(ada, nov, "wire", "k1") }, "settle-billing/ada/2026-11/k1"},
		{func() commands.Command[domain.Customer] { return commands.NewWriteOffBilling(ada, nov, "gone", "k1") }, "write-off-billing/ada/2026-11/k1"},
		{func() commands.Command[domain.Customer] {
			return commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 1}
		}, ""},
		{func() commands.Command[domain.Customer] {
			return commands.CommitIntent{CustomerID: ada, BillingPeriod: nov, IntentID: "pi_1"}
		}, ""},
		{func() commands.Command[domain.Customer] {
			return commands.CompleteClosing{CustomerID: ada, BillingPeriod: nov}
		}, ""},
	} {
		customer.Given(registered).WhenBuilt(c.build)
		if got := c.build().Key(); got != c.want {
			t.Errorf("%s has key %q, want %q", c.build().Name(), got, c.want)
		}
	}
}

// The fingerprint says what the caller meant: it is equal for the same meaning
// in other words, and differs for another meaning under the same key.
func TestFingerprints(t *testing.T) {
	t.Parallel()
	later := noon.AddDate(0, 0, 1)
	type pair struct {
		what string
		a, b commands.Command[domain.Customer]
		same bool
	}
	for _, c := range []pair{
		{"the same charge", commands.NewChargeBilling(ada, nov, usd49), commands.NewChargeBilling(ada, nov, usd49), true},
		{"another amount", commands.NewChargeBilling(ada, nov, usd49), commands.NewChargeBilling(ada, nov, usd59), false},
		{"another currency", commands.NewChargeBilling(ada, nov, usd49), commands.NewChargeBilling(ada, nov, eur49), false},
		{"another customer at Stripe", commands.NewRegisterCustomer(ada, "cus_1", "pm_1"), commands.NewRegisterCustomer(ada, "cus_2", "pm_1"), false},
		{"another method", commands.NewRegisterCustomer(ada, "cus_1", "pm_1"), commands.NewRegisterCustomer(ada, "cus_1", "pm_2"), false},
		{"another price", commands.NewActivateSubscription(ada, usd49, monthly), commands.NewActivateSubscription(ada, usd59, monthly), false},
		{"another anchor", commands.NewActivateSubscription(ada, usd49, monthly), commands.NewActivateSubscription(ada, usd49, anchoredOn(2)), false},
		{"a later pause", commands.NewPauseSubscription(ada, "x", noon, "k1"), commands.NewPauseSubscription(ada, "x", later, "k1"), true},
		{"a pause in other words", commands.NewPauseSubscription(ada, "x", noon, "k1"), commands.NewPauseSubscription(ada, "y", noon, "k1"), true},
		{"a later resumption", commands.NewResumeSubscription(ada, noon, "k1"), commands.NewResumeSubscription(ada, later, "k1"), true},
		{"a later cancellation", commands.NewCancelSubscription(ada, domain.CancelNow, "x", noon, "k1"), commands.NewCancelSubscription(ada, domain.CancelNow, "y", later, "k1"), true},
		{"another cancellation", commands.NewCancelSubscription(ada, domain.CancelNow, "", noon, "k1"), commands.NewCancelSubscription(ada, domain.CancelPeriodEnd, "", noon, "k1"), false},
		{"another new price", commands.NewChangeSubscriptionAmount(ada, 5900, "", dec, noon, "k1"), commands.NewChangeSubscriptionAmount(ada, 5901, "", dec, noon, "k1"), false},
		{"from another period", commands.NewChangeSubscriptionAmount(ada, 5900, "", dec, noon, "k1"), commands.NewChangeSubscriptionAmount(ada, 5900, "", nov, noon, "k1"), false},
		{"another new method", commands.NewChangePaymentMethod(ada, "pm_2", time.Time{}, "k1"), commands.NewChangePaymentMethod(ada, "pm_3", time.Time{}, "k1"), false},
		{"another reference", commands.NewSettleBilling(ada, nov, "wire 7", "k1"), commands.NewSettleBilling(ada, nov, "wire 8", "k1"), false},
		{"another reason to write off", commands.NewWriteOffBilling(ada, nov, "gone", "k1"), commands.NewWriteOffBilling(ada, nov, "dead", "k1"), false},
		{"another command with the same fields", commands.NewDeclareBillingDue(ada, nov), commands.CompleteClosing{CustomerID: ada, BillingPeriod: nov}, false},
		{"the same payment, told otherwise", outcome(1, 1, news(domain.Paid)), outcome(1, 4, domain.Outcome{Class: domain.Paid, ChargeID: "ch_1", Evidence: "evt_1"}), true},
	} {
		if same := fingerprint(t, c.a) == fingerprint(t, c.b); same != c.same {
			t.Errorf("%s: equal fingerprints %t, want %t", c.what, same, c.same)
		}
	}
}

func anchoredOn(day int) domain.Schedule {
	s := monthly
	s.AnchorDay = day
	return s
}
