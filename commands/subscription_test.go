package commands_test

import (
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

func TestActivateSubscription(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	activate := commands.NewActivateSubscription(ada, usd49, monthly)

	customer.Given(registered).When(activate).Then(activated)
	customer.Given().When(activate).ThenRefused(domain.ErrUnknownCustomer)
	customer.Given(registered, activated).When(activate).ThenRefused(domain.ErrSubscriptionExists)
	customer.Given(registered, activated, paused).When(activate).ThenRefused(domain.ErrSubscriptionExists)
	customer.Given(registered, activated, cancelledNow).When(activate).Then(activated)

	// What the former one owes is declared first, by its own terms, if nobody has yet.
	former := activated
	former.StartsOn = domain.Date{Year: 2026, Month: 10, Day: 1}
	customer.Given(registered, former, cancelledEnd).When(activate).Then(dueFor(oct), due, activated)
	customer.Given(registered, former, dueFor(oct), cancelledEnd).When(activate).Then(due, activated)
	customer.Given(registered, former, dueFor(oct), due, cancelledEnd).When(activate).Then(activated)
}

func TestChangeSubscriptionAmount(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	change := commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "", domain.Period{}, noon, "k1")
	from := func(p domain.Period) domain.Event {
		return domain.SubscriptionAmountChanged{CustomerID: ada, AmountMinor: usd59.Minor, EffectivePeriod: p}
	}

	// Without a period: the first that is not frozen. November has fallen due, if
	// nobody has declared it yet.
	customer.Given(registered, activated).When(change).Then(from(dec))
	customer.Given(registered, activated, due).When(change).Then(from(dec))
	customer.Given(registered, activated, dueFor(oct), due, asked, begun).When(change).Then(from(dec))
	customer.Given(registered, activated, asked).When(change).Then(from(dec))
	customer.Given(registered, activated, paused).When(change).Then(from(dec))
	customer.Given(registered, activated, due, askedFor(dec, 1)).When(change).Then(from(period("2027-01")))

	// With one.
	explicit := commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "usd", dec, noon, "k2")
	customer.Given(registered, activated, due).When(explicit).Then(from(dec))
	customer.Given(registered, activated, due).When(commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "usd", nov, noon, "k3")).ThenRefused(domain.ErrAmountConflict)
	customer.Given(registered, activated).When(commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "usd", nov, noon, "k9")).ThenRefused(domain.ErrAmountConflict)
	customer.Given(registered, activated, due).When(commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "usd", oct, noon, "k4")).ThenRefused(domain.ErrAmountConflict)
	customer.Given(registered, activated).When(commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "usd", period("2026-Q4"), noon, "k5")).ThenRefused(domain.ErrPeriodCadence)

	customer.Given(registered, activated).When(commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "eur", dec, noon, "k6")).ThenRefused(domain.ErrCurrencyMismatch)
	customer.Given(registered, activated).When(commands.NewChangeSubscriptionAmount(ada, 49, "", dec, noon, "k7")).ThenRefused(domain.ErrInvalidInput) // below Stripe's minimum
	customer.Given(registered, activated).When(commands.NewChangeSubscriptionAmount(ada, 100_000_000, "", dec, noon, "k8")).ThenRefused(domain.ErrInvalidInput)
	customer.Given().When(change).ThenRefused(domain.ErrUnknownCustomer)
	customer.Given(registered).When(change).ThenRefused(domain.ErrNoSubscription)
	customer.Given(registered, activated, cancelledNow).When(change).ThenRefused(domain.ErrCancelled)
}

// A price that changes while a charge is under way changes neither the charge
// nor its repeats; it holds from the next period on.
func TestNewPriceLeavesTheBillAlone(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	changed := domain.SubscriptionAmountChanged{CustomerID: ada, AmountMinor: usd59.Minor, EffectivePeriod: dec}
	story := customer.Given(registered, activated, due, asked, begun, unknown, changed)

	story.When(commands.NewChargeBilling(ada, nov, usd49)).ThenNothing()
	story.When(commands.NewChargeBilling(ada, nov, usd59)).ThenRefused(domain.ErrAmountConflict)
	story.When(commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 1}).Then(begunFor(nov, 1, 2))
	story.And(declinedBy("ch_no")).When(commands.NewRetryCharge(ada, nov, 2, commands.StepManual)).Then(askedFor(nov, 2))
	next := dueFor(dec)
	next.Money = usd59
	story.When(commands.NewDeclareBillingDue(ada, dec)).Then(next)
}

func TestChangeSubscriptionSchedule(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	change := func(anchor int, zone string, from domain.Period, id domain.Key) commands.ChangeSubscriptionSchedule {
		return commands.NewChangeSubscriptionSchedule(ada, anchor, zone, from, noon, id) // 15 November, noon in UTC
	}
	moved := func(anchor int, zone string, from domain.Period) domain.Event {
		return domain.SubscriptionScheduleChanged{CustomerID: ada, AnchorDay: anchor, TimeZone: zone, EffectivePeriod: from, At: noon}
	}
	jan := period("2027-01")
	subscribed := customer.Given(registered, activated) // on the first, in UTC
	end := customer.Given(registered, domain.SubscriptionActivated{
		CustomerID: ada, Money: usd49, Cadence: domain.Monthly, AnchorDay: 30, TimeZone: "UTC", StartsOn: monthly.StartsOn,
	})

	// November is over, declared or not: a later day in it does not bill it again.
	subscribed.When(change(20, "", domain.Period{}, "k1")).Then(moved(20, "", dec))
	subscribed.And(due).When(change(20, "", domain.Period{}, "k1")).Then(moved(20, "", dec))
	subscribed.And(due).When(change(0, "Asia/Tokyo", domain.Period{}, "k2")).Then(moved(0, "Asia/Tokyo", dec))
	subscribed.And(due).When(change(31, "Asia/Tokyo", domain.Period{}, "k3")).Then(moved(31, "Asia/Tokyo", dec))
	// An earlier day that has passed does not bill at once: November keeps its 30th.
	end.When(change(16, "", domain.Period{}, "k4")).Then(moved(16, "", nov))
	end.When(change(15, "", domain.Period{}, "k5")).Then(moved(15, "", dec))
	end.When(change(15, "America/New_York", domain.Period{}, "k6")).Then(moved(15, "America/New_York", dec))
	// Nor is what was declared early moved.
	end.And(due).When(change(16, "", domain.Period{}, "k7")).Then(moved(16, "", dec))

	// From a period that is named.
	subscribed.When(change(20, "", jan, "k8")).Then(moved(20, "", jan))
	subscribed.When(change(20, "", nov, "k9")).ThenRefused(domain.ErrPeriodFrozen)
	end.When(change(15, "", nov, "k10")).ThenRefused(domain.ErrPeriodFrozen)
	subscribed.When(change(20, "", period("2027-Q1"), "k11")).ThenRefused(domain.ErrPeriodCadence)

	subscribed.When(change(0, "", domain.Period{}, "k12")).ThenNothing()
	subscribed.And(paused).When(change(20, "", domain.Period{}, "k13")).Then(moved(20, "", dec))
	customer.Given().When(change(20, "", domain.Period{}, "k14")).ThenRefused(domain.ErrUnknownCustomer)
	customer.Given(registered).When(change(20, "", domain.Period{}, "k15")).ThenRefused(domain.ErrNoSubscription)
	subscribed.And(cancelledEnd).When(change(20, "", domain.Period{}, "k16")).ThenRefused(domain.ErrCancelled)

	// Two changes are added up, each from its own period on.
	both := subscribed.And(due, moved(20, "", jan), moved(0, "Asia/Tokyo", dec))
	for p, want := range map[domain.Period]string{dec: "2026-11-30T15:00:00Z", jan: "2027-01-19T15:00:00Z"} {
		next := dueFor(p)
		next.DueAt, _ = time.Parse(time.RFC3339, want)
		both.When(commands.NewDeclareBillingDue(ada, p)).Then(next)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	pause, resume := commands.NewPauseSubscription(ada, "a holiday", noon, "k1"), commands.NewResumeSubscription(ada, noon, "k2")

	customer.Given(registered, activated).When(pause).Then(paused)
	customer.Given(registered, activated, paused).When(pause).ThenNothing()
	customer.Given(registered, activated, paused, resumed).When(pause).Then(paused)
	customer.Given(registered, activated, paused).When(resume).Then(resumed)
	customer.Given(registered, activated).When(resume).ThenNothing()

	for _, c := range []commands.Command[domain.Customer]{pause, resume} {
		customer.Given().When(c).ThenRefused(domain.ErrUnknownCustomer)
		customer.Given(registered).When(c).ThenRefused(domain.ErrNoSubscription)
		customer.Given(registered, activated, cancelledNow).When(c).ThenRefused(domain.ErrCancelled)
		customer.Given(registered, activated, cancelledEnd).When(c).ThenRefused(domain.ErrCancelled)
	}
}

func TestCancelSubscription(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	const rule = "the subscription was cancelled with immediate effect before this bill was paid"
	now := commands.NewCancelSubscription(ada, domain.CancelNow, "", noon, "k1")
	end := commands.NewCancelSubscription(ada, domain.CancelPeriodEnd, "", noon, "k2")
	void := func(p domain.Period, attempt int) domain.Event {
		return domain.ChargeVoided{CustomerID: ada, BillingPeriod: p, Attempt: attempt, Reason: rule}
	}
	closing := domain.BillClosing{CustomerID: ada, BillingPeriod: nov, Mode: domain.ClosingVoid, Reason: rule}
	subscribed := customer.Given(registered, activated)

	// With its period: what is due is still charged.
	subscribed.When(end).Then(cancelledEnd)
	subscribed.And(due).When(end).Then(cancelledEnd)
	subscribed.And(due, asked, begun).When(end).Then(cancelledEnd)
	subscribed.And(paused).When(end).Then(cancelledEnd)

	// Now: what is neither paid nor in flight ends without money,
	subscribed.When(now).Then(cancelledNow)
	subscribed.And(due).When(now).Then(cancelledNow, void(nov, 0))
	subscribed.And(due, asked).When(now).Then(cancelledNow, void(nov, 1))
	subscribed.And(due, asked, begun, notSent).When(now).Then(cancelledNow, void(nov, 1))
	subscribed.And(due, asked, begun, declinedBy("ch_no")).When(now).Then(cancelledNow, void(nov, 1))
	subscribed.And(due, asked, paused, waiting).When(now).Then(cancelledNow, void(nov, 1))
	subscribed.And(dueFor(oct), due, asked).When(now).Then(cancelledNow, void(oct, 0), void(nov, 1))
	// through a cancel at Stripe where there is an intent,
	subscribed.And(due, asked, begun, intent("pi_1", 1), declinedBy("ch_no")).When(now).Then(cancelledNow, closing)
	subscribed.And(due, asked, begun, intent("pi_1", 1), held).When(now).Then(cancelledNow, closing)
	// and what is in flight is never pulled back.
	for _, flight := range []domain.Event{begun, unknown, actionRequired, needsReview} {
		subscribed.And(due, asked, begun, flight).When(now).Then(cancelledNow)
		subscribed.And(due, asked, begun, intent("pi_1", 1), flight).When(now).Then(cancelledNow)
	}
	subscribed.And(due, asked, adopted("pi_1")).When(now).Then(cancelledNow) // an adopted intent may have been confirmed
	for _, ended := range []domain.Event{paidBy("ch_1"), settled, writtenOff, voided, closingSettled} {
		subscribed.And(due, asked, ended).When(now).Then(cancelledNow)
	}

	// Twice; and first with the period, then at once.
	subscribed.And(cancelledNow).When(now).ThenRefused(domain.ErrCancelled)
	subscribed.And(cancelledNow).When(end).ThenRefused(domain.ErrCancelled)
	subscribed.And(cancelledEnd).When(end).ThenRefused(domain.ErrCancelled)
	subscribed.And(due, cancelledEnd).When(now).Then(cancelledNow, void(nov, 0))

	customer.Given().When(now).ThenRefused(domain.ErrUnknownCustomer)
	customer.Given(registered).When(end).ThenRefused(domain.ErrNoSubscription)
}
