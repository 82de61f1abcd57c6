package projections_test

import (
	"errors"
	"testing"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// The facts of an ordinary month, in the order in which they happen.

func registered(id domain.CustomerID) domain.Event {
	return domain.CustomerRegistered{CustomerID: id, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"}
}

func activated(id domain.CustomerID) domain.Event {
	return domain.SubscriptionActivated{
		CustomerID: id, Money: fifty, Cadence: domain.Monthly, AnchorDay: 31, TimeZone: "Europe/Berlin", StartsOn: domain.Date{Year: 2026, Month: 11, Day: 1},
	}
}

func due(id domain.CustomerID, p domain.Period) domain.Event {
	return domain.MonthlyBillingDue{CustomerID: id, BillingPeriod: p, DueAt: noon, Money: fifty}
}

func requested(id domain.CustomerID, p domain.Period, attempt int) domain.Event {
	return domain.ChargeRequested{
		CustomerID: id, BillingPeriod: p, Attempt: attempt, Key: domain.ChargeKey(id, p, attempt), Money: fifty, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1",
	}
}

func started(id domain.CustomerID, p domain.Period, attempt, start int) domain.Event {
	return domain.ChargeAttemptStarted{CustomerID: id, BillingPeriod: p, Attempt: attempt, Start: start}
}

func committed(id domain.CustomerID, p domain.Period, intent string) domain.Event {
	return domain.ChargeIntentCommitted{CustomerID: id, BillingPeriod: p, IntentID: intent, IntentNo: 1}
}

func declined(id domain.CustomerID, p domain.Period, attempt int, charge string) domain.Event {
	return domain.ChargeDeclined{
		CustomerID: id, BillingPeriod: p, Attempt: attempt, ChargeID: charge, Code: "card_declined", DeclineCode: "insufficient_funds", Class: domain.Soft,
	}
}

func unknown(id domain.CustomerID, p domain.Period, attempt, start int) domain.Event {
	return domain.ChargeUnknown{ChargeReport: domain.ChargeReport{
		CustomerID: id, BillingPeriod: p, Attempt: attempt, Start: start, Reason: "no answer in 30s", Evidence: "req_1",
	}}
}

func billed(id domain.CustomerID, p domain.Period, attempt int, charge string) domain.Event {
	return domain.CustomerBilled{
		CustomerID: id, BillingPeriod: p, Attempt: attempt, ChargeID: charge, IntentID: "pi_1", Money: fifty, Source: domain.SourceAnswer,
	}
}

func refundAsked(id domain.CustomerID, p domain.Period, refundID string, minor int64) domain.Event {
	return domain.RefundRequested{
		CustomerID: id, BillingPeriod: p, RefundID: refundID, ChargeID: "ch_1", Key: domain.RefundKey(id, p, refundID), Money: domain.Money{Minor: minor, Currency: "usd"},
	}
}

func refundAt(id domain.CustomerID, p domain.Period, refundID string, minor int64, state domain.RefundState) domain.Event {
	return domain.RefundRecorded{CustomerID: id, BillingPeriod: p, RefundID: refundID, RefundOutcome: domain.RefundOutcome{
		State: state, StripeRefundID: "re_" + refundID, ChargeID: "ch_1", Money: domain.Money{Minor: minor, Currency: "usd"}, Reason: "so it was", Source: domain.SourceAnswer,
	}}
}

func proposedFor(id domain.CustomerID, p domain.Period, charge string) domain.Event {
	return domain.RefundProposed{CustomerID: id, BillingPeriod: p, ChargeID: charge, Money: fifty, Reason: "a second success"}
}

// billOf is the row of one bill, which must be there.
func billOf(t *testing.T, log *projectiontest.Log, id domain.CustomerID, p domain.Period) projections.Bill {
	t.Helper()
	list := must(log.Reads().Bills(t.Context(), string(id), projections.Page{}))(t)
	for _, b := range list.Items {
		if b.BillingPeriod == p {
			return b
		}
	}
	t.Fatalf("%s has no bill for %s: %+v", id, p, list.Items)
	return projections.Bill{}
}

func want[V comparable](t *testing.T, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// must is the value of a call that must not fail.
func must[V any](v V, err error) func(*testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// refused checks that err is a refusal, and which field it names.
func refused(t *testing.T, err error, as *domain.Error, field string) {
	t.Helper()
	e, ok := errors.AsType[*domain.Error](err)
	switch {
	case !ok || !errors.Is(err, as):
		t.Errorf("the answer is %v, want the refusal %s", err, as.Code)
	case field != "" && (len(e.Fields) != 1 || e.Fields[0].Field != field):
		t.Errorf("the refusal names %v, want %s", e.Fields, field)
	}
}
