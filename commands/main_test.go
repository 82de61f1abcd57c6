package commands_test

import (
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// Property tests start from a fixed seed, so that a run can be repeated;
// -rapid.seed=0 draws another one each time.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.seed": "20261101", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	os.Exit(m.Run())
}

// dispatcherOn is one replica of the service on a database.
func dispatcherOn(t testing.TB, pool *pgxpool.Pool) *commands.Dispatcher {
	t.Helper()
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), slog.New(slog.DiscardHandler))
	t.Cleanup(store.Close)
	return commands.NewDispatcher(store)
}

func newDispatcher(t testing.TB) *commands.Dispatcher {
	t.Helper()
	return dispatcherOn(t, pgtest.Pool(t))
}

// The people, the amounts, the days and the facts that the tests talk about.

const (
	ada = domain.CustomerID("ada")
	bob = domain.CustomerID("bob")
)

var (
	usd49 = domain.Money{Minor: 4900, Currency: "usd"}
	usd59 = domain.Money{Minor: 5900, Currency: "usd"}
	eur49 = domain.Money{Minor: 4900, Currency: "eur"}

	oct, nov, dec = period("2026-10"), period("2026-11"), period("2026-12")
	noon          = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

	monthly = domain.Schedule{Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC", StartsOn: domain.Date{Year: 2026, Month: 1, Day: 1}}

	registered = domain.CustomerRegistered{CustomerID: ada, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"}
	activated  = domain.SubscriptionActivated{CustomerID: ada, Money: usd49, Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC", StartsOn: monthly.StartsOn}

	paused       = domain.SubscriptionPaused{CustomerID: ada, At: noon, Reason: "a holiday"}
	resumed      = domain.SubscriptionResumed{CustomerID: ada, At: noon}
	cancelledNow = domain.SubscriptionCancelled{CustomerID: ada, Mode: domain.CancelNow, At: noon}
	cancelledEnd = domain.SubscriptionCancelled{CustomerID: ada, Mode: domain.CancelPeriodEnd, At: noon}

	due   = dueFor(nov)
	asked = askedFor(nov, 1)
	begun = begunFor(nov, 1, 1)
)

func period(s string) domain.Period {
	p, err := domain.ParsePeriod(s)
	if err != nil {
		panic(err)
	}
	return p
}

func dueFor(p domain.Period) domain.MonthlyBillingDue {
	return domain.MonthlyBillingDue{CustomerID: ada, BillingPeriod: p, DueAt: monthly.DueAt(p), Money: usd49}
}

func askedFor(p domain.Period, attempt int) domain.ChargeRequested {
	return domain.ChargeRequested{
		CustomerID: ada, BillingPeriod: p, Attempt: attempt, Key: domain.ChargeKey(ada, p, attempt), Money: usd49,
		StripeCustomerID: "cus_1", PaymentMethodID: "pm_1",
	}
}

func begunFor(p domain.Period, attempt, start int) domain.ChargeAttemptStarted {
	return domain.ChargeAttemptStarted{CustomerID: ada, BillingPeriod: p, Attempt: attempt, Start: start}
}

func intent(id string, number int) domain.ChargeIntentCommitted {
	return domain.ChargeIntentCommitted{CustomerID: ada, BillingPeriod: nov, IntentID: id, IntentNo: number}
}

func adopted(id string) domain.ChargeIntentCommitted {
	return domain.ChargeIntentCommitted{CustomerID: ada, BillingPeriod: nov, IntentID: id, IntentNo: 1, Adopted: true}
}

func paidBy(charge string) domain.CustomerBilled {
	return domain.CustomerBilled{CustomerID: ada, BillingPeriod: nov, Attempt: 1, ChargeID: charge, IntentID: "pi_1", Money: usd49, Source: domain.SourceAnswer}
}

func declinedBy(charge string) domain.ChargeDeclined {
	return domain.ChargeDeclined{CustomerID: ada, BillingPeriod: nov, Attempt: 1, ChargeID: charge, Code: "card_declined", DeclineCode: "insufficient_funds", Class: domain.Soft}
}

func report(attempt, start int, reason string) domain.ChargeReport {
	return domain.ChargeReport{CustomerID: ada, BillingPeriod: nov, Attempt: attempt, Start: start, Reason: reason, Evidence: "req_1"}
}

var (
	unknown        = domain.ChargeUnknown{ChargeReport: report(1, 1, "no answer")}
	held           = domain.ChargeHeld{ChargeReport: report(1, 1, "no answer")}
	notSent        = domain.ChargeNotSent{ChargeReport: report(1, 1, "no answer")}
	rejected       = domain.ChargeRejected{ChargeReport: report(1, 1, "no answer")}
	actionRequired = domain.ChargeActionRequired{ChargeReport: report(1, 1, "no answer")}
	needsReview    = domain.ChargeNeedsReview{ChargeReport: report(1, 1, "no answer")}
	waiting        = domain.ChargeWaiting{CustomerID: ada, BillingPeriod: nov, Attempt: 1, Reason: "the subscription is paused"}
	settled        = domain.BillSettled{CustomerID: ada, BillingPeriod: nov, Reference: "wire 7"}
	writtenOff     = domain.BillWrittenOff{CustomerID: ada, BillingPeriod: nov, Reason: "uncollectible"}
	voided         = domain.ChargeVoided{CustomerID: ada, BillingPeriod: nov, Attempt: 1, Reason: "cancelled"}
	closingSettled = domain.BillClosing{CustomerID: ada, BillingPeriod: nov, Mode: domain.ClosingSettled, Reference: "wire 7"}
	closingOff     = domain.BillClosing{CustomerID: ada, BillingPeriod: nov, Mode: domain.ClosingWrittenOff, Reason: "uncollectible"}
	closingVoid    = domain.BillClosing{CustomerID: ada, BillingPeriod: nov, Mode: domain.ClosingVoid, Reason: "cancelled"}
)
