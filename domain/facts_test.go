package domain_test

import (
	"slices"
	"time"

	"github.com/billonce/billonce/domain"
)

const ada = domain.CustomerID("ada")

var (
	usd49 = domain.Money{Minor: 4900, Currency: "usd"}
	usd59 = domain.Money{Minor: 5900, Currency: "usd"}
	noon  = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

	registered = domain.CustomerRegistered{CustomerID: ada, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"}
	activated  = domain.SubscriptionActivated{
		CustomerID: ada, Money: usd49, Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC", StartsOn: domain.Date{Year: 2026, Month: 1, Day: 1},
	}
	paused       = domain.SubscriptionPaused{CustomerID: ada, At: noon}
	resumed      = domain.SubscriptionResumed{CustomerID: ada, At: noon}
	cancelledNow = domain.SubscriptionCancelled{CustomerID: ada, Mode: domain.CancelNow, At: noon}
	cancelledEnd = domain.SubscriptionCancelled{CustomerID: ada, Mode: domain.CancelPeriodEnd, At: noon}
)

// The facts about one bill, in short.

func due(p string) domain.Event {
	return domain.MonthlyBillingDue{CustomerID: ada, BillingPeriod: period(p), DueAt: noon, Money: usd49}
}

func asked(p string, attempt int) domain.Event {
	return domain.ChargeRequested{
		CustomerID: ada, BillingPeriod: period(p), Attempt: attempt, Key: domain.ChargeKey(ada, period(p), attempt), Money: usd49,
		StripeCustomerID: "cus_1", PaymentMethodID: "pm_1",
	}
}

func started(p string, attempt, start int) domain.Event {
	return domain.ChargeAttemptStarted{CustomerID: ada, BillingPeriod: period(p), Attempt: attempt, Start: start}
}

func intent(p, id string, number int) domain.Event {
	return domain.ChargeIntentCommitted{CustomerID: ada, BillingPeriod: period(p), IntentID: id, IntentNo: number}
}

func adopted(p, id string) domain.Event {
	return domain.ChargeIntentCommitted{CustomerID: ada, BillingPeriod: period(p), IntentID: id, IntentNo: 1, Adopted: true}
}

func paid(p, charge string) domain.Event {
	return domain.CustomerBilled{CustomerID: ada, BillingPeriod: period(p), Attempt: 1, ChargeID: charge, Money: usd49, Source: domain.SourceAnswer}
}

func declined(p string, attempt int) domain.Event {
	return domain.ChargeDeclined{CustomerID: ada, BillingPeriod: period(p), Attempt: attempt, ChargeID: "ch_no", Code: "card_declined", Class: domain.Soft}
}

func review(p string) domain.Event { return domain.ChargeNeedsReview{ChargeReport: report(p)} }

func released(p string) domain.Event {
	return domain.ChargeReleased{CustomerID: ada, BillingPeriod: period(p), Reason: "repaired"}
}

func report(p string) domain.ChargeReport {
	return domain.ChargeReport{CustomerID: ada, BillingPeriod: period(p), Attempt: 1, Start: 1, Reason: "so it was"}
}

func unknown(p string) domain.Event { return domain.ChargeUnknown{ChargeReport: report(p)} }
func held(p string) domain.Event    { return domain.ChargeHeld{ChargeReport: report(p)} }
func notSent(p string) domain.Event { return domain.ChargeNotSent{ChargeReport: report(p)} }
func waiting(p string) domain.Event {
	return domain.ChargeWaiting{CustomerID: ada, BillingPeriod: period(p), Attempt: 1, Reason: "paused"}
}
func voided(p string) domain.Event {
	return domain.ChargeVoided{CustomerID: ada, BillingPeriod: period(p), Attempt: 1, Reason: "cancelled"}
}
func closing(p string, mode domain.ClosingMode) domain.Event {
	return domain.BillClosing{CustomerID: ada, BillingPeriod: period(p), Mode: mode, Reference: "wire 7"}
}
func settled(p string) domain.Event {
	return domain.BillSettled{CustomerID: ada, BillingPeriod: period(p), Reference: "wire 7"}
}
func writtenOff(p string) domain.Event {
	return domain.BillWrittenOff{CustomerID: ada, BillingPeriod: period(p), Reason: "uncollectible"}
}

// The facts about money that goes back, in short.

func refundAsked(p, id, charge string, minor int64) domain.Event {
	return domain.RefundRequested{
		CustomerID: ada, BillingPeriod: period(p), RefundID: id, ChargeID: charge, Key: domain.RefundKey(ada, period(p), id), Money: domain.Money{Minor: minor, Currency: "usd"},
	}
}

func refund(p, id, stripeID, charge string, minor int64, state domain.RefundState) domain.Event {
	return domain.RefundRecorded{CustomerID: ada, BillingPeriod: period(p), RefundID: id, RefundOutcome: domain.RefundOutcome{
		State: state, StripeRefundID: stripeID, ChargeID: charge, Money: domain.Money{Minor: minor, Currency: "usd"},
	}}
}

func proposed(p, charge string) domain.Event {
	return domain.RefundProposed{CustomerID: ada, BillingPeriod: period(p), ChargeID: charge, Money: usd49, Reason: "a second success"}
}

func dismissed(p, charge string) domain.Event {
	return domain.RefundProposalDismissed{CustomerID: ada, BillingPeriod: period(p), ChargeID: charge, Reason: "it is owed"}
}

func disputed(p, id, status string) domain.Event {
	return domain.ChargeDisputed{CustomerID: ada, BillingPeriod: period(p), DisputeID: id, ChargeID: "ch_1", Money: usd49, Status: status}
}

func after(history ...domain.Event) domain.Customer {
	return domain.Fold[domain.Customer](slices.Values(history))
}
