package commands_test

import (
	"testing"

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
	customer.Given(registered, activated, cancelledEnd).When(activate).Then(activated)
}

func TestChangeSubscriptionAmount(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	change := commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "", domain.Period{}, "k1")
	from := func(p domain.Period) domain.Event {
		return domain.SubscriptionAmountChanged{CustomerID: ada, AmountMinor: usd59.Minor, EffectivePeriod: p}
	}

	// Without a period: the first that is not frozen.
	customer.Given(registered, activated).When(change).Then(from(period("2026-01")))
	customer.Given(registered, activated, due).When(change).Then(from(dec))
	customer.Given(registered, activated, dueFor(oct), due, asked, begun).When(change).Then(from(dec))
	customer.Given(registered, activated, asked).When(change).Then(from(dec))
	customer.Given(registered, activated, paused).When(change).Then(from(period("2026-01")))

	// With one.
	explicit := commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "usd", dec, "k2")
	customer.Given(registered, activated, due).When(explicit).Then(from(dec))
	customer.Given(registered, activated, due).When(commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "usd", nov, "k3")).ThenRefused(domain.ErrAmountConflict)
	customer.Given(registered, activated, due).When(commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "usd", oct, "k4")).ThenRefused(domain.ErrAmountConflict)
	customer.Given(registered, activated).When(commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "usd", period("2026-Q4"), "k5")).ThenRefused(domain.ErrPeriodCadence)

	customer.Given(registered, activated).When(commands.NewChangeSubscriptionAmount(ada, usd59.Minor, "eur", dec, "k6")).ThenRefused(domain.ErrCurrencyMismatch)
	customer.Given(registered, activated).When(commands.NewChangeSubscriptionAmount(ada, 49, "", dec, "k7")).ThenRefused(domain.ErrInvalidInput) // below Stripe's minimum
	customer.Given(registered, activated).When(commands.NewChangeSubscriptionAmount(ada, 100_000_000, "", dec, "k8")).ThenRefused(domain.ErrInvalidInput)
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
