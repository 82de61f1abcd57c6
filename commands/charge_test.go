package commands_test

import (
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

func TestDeclareBillingDue(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	declare := commands.NewDeclareBillingDue(ada, nov)
	subscribed := customer.Given(registered, activated)

	subscribed.When(declare).Then(due)
	subscribed.And(dueFor(oct)).When(declare).Then(due)
	for _, known := range []domain.Event{due, asked, paidBy("ch_1"), settled, writtenOff, voided, closingSettled} {
		subscribed.And(known).When(declare).ThenNothing()
	}
	subscribed.And(paidBy("ch_1"), cancelledNow).When(declare).ThenNothing()

	customer.Given().When(declare).ThenRefused(domain.ErrUnknownCustomer)
	customer.Given(registered).When(declare).ThenRefused(domain.ErrNoSubscription)
	subscribed.And(paused).When(declare).Then(due) // it was due before the pause
	late := domain.SubscriptionResumed{CustomerID: ada, At: noon.AddDate(0, 1, 0)}
	for _, story := range [][]domain.Event{{paused}, {paused, late}} { // due within the pause
		subscribed.And(story...).When(commands.NewDeclareBillingDue(ada, dec)).ThenRefused(domain.ErrSubscriptionState)
	}
	subscribed.And(paused, late).When(commands.NewDeclareBillingDue(ada, period("2027-01"))).Then(dueFor(period("2027-01")))
	subscribed.And(cancelledNow).When(declare).ThenRefused(domain.ErrCancelled)
	subscribed.And(cancelledEnd).When(declare).Then(due) // it was due before the cancellation
	subscribed.And(cancelledEnd).When(commands.NewDeclareBillingDue(ada, dec)).ThenRefused(domain.ErrCancelled)
	subscribed.When(commands.NewDeclareBillingDue(ada, period("2026-Q4"))).ThenRefused(domain.ErrPeriodCadence)
	subscribed.When(commands.NewDeclareBillingDue(ada, period("2025-12"))).ThenRefused(domain.ErrPeriodOutside)
}

// An intent that was found at Stripe before anybody had asked for the bill is
// no bill: it must not swallow the due.
func TestDueOfAnAdoptedIntent(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	customer.Given(registered, activated, adopted("pi_1")).When(commands.NewDeclareBillingDue(ada, nov)).Then(due)
	customer.Given(registered, activated, adopted("pi_1"), due).When(commands.NewChargeBilling(ada, nov, usd49)).Then(asked)
}

func TestDueHasTheAmountOfItsPeriod(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	changed := domain.SubscriptionAmountChanged{CustomerID: ada, AmountMinor: usd59.Minor, EffectivePeriod: nov}
	dear := due
	dear.Money = usd59
	customer.Given(registered, activated, changed).When(commands.NewDeclareBillingDue(ada, oct)).Then(dueFor(oct))
	customer.Given(registered, activated, changed).When(commands.NewDeclareBillingDue(ada, nov)).Then(dear)
}

// A quarter or a year that overlaps a bill of another label is refused, on
// every path.
func TestPeriodsNeverOverlap(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	quarterly := activated
	quarterly.Cadence = domain.Quarterly
	q4, year := period("2026-Q4"), period("2026")
	for _, bill := range []domain.Event{due, asked, paidBy("ch_1"), settled, writtenOff, voided} {
		moved := customer.Given(registered, activated, bill, cancelledEnd, quarterly)
		moved.When(commands.NewDeclareBillingDue(ada, q4)).ThenRefused(domain.ErrPeriodOverlaps)
		moved.When(commands.NewChargeBilling(ada, q4, usd49)).ThenRefused(domain.ErrPeriodOverlaps)
		customer.Given(registered, bill).When(commands.NewChargeBilling(ada, year, usd49)).ThenRefused(domain.ErrPeriodOverlaps)
		customer.Given(registered, bill).When(commands.NewChargeBilling(ada, q4, usd49)).ThenRefused(domain.ErrPeriodOverlaps)
	}
	wholeYear := askedFor(year, 1)
	customer.Given(registered, wholeYear).When(commands.NewChargeBilling(ada, nov, usd49)).ThenRefused(domain.ErrPeriodOverlaps)
	customer.Given(registered, activated, wholeYear).When(commands.NewDeclareBillingDue(ada, nov)).ThenRefused(domain.ErrPeriodOverlaps)
	customer.Given(registered, asked).When(commands.NewChargeBilling(ada, dec, usd49)).Then(askedFor(dec, 1))
}

func TestChargeBilling(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	charge := commands.NewChargeBilling(ada, nov, usd49)
	subscribed := customer.Given(registered, activated)

	subscribed.And(due).When(charge).Then(asked)
	subscribed.When(charge).Then(asked)                 // before it is due
	customer.Given(registered).When(charge).Then(asked) // a subscription is not needed

	// Asked for or paid already: nothing more.
	for _, flight := range []domain.Event{asked, begun, unknown, actionRequired, held, needsReview, notSent, declinedBy("ch_no"), rejected, paidBy("ch_1")} {
		subscribed.And(due, asked, begun, flight).When(charge).ThenNothing()
	}
	customer.Given(registered, paidBy("ch_1")).When(charge).ThenNothing() // a payment that nobody had asked for

	// A pause does not refuse the charge of a declared due; the claim makes it wait.
	subscribed.And(due, paused).When(charge).Then(asked)
	subscribed.And(due, cancelledEnd).When(charge).Then(asked)

	// Another amount for the same bill is a conflict, at whatever stage.
	other := commands.NewChargeBilling(ada, nov, usd59)
	for _, stage := range []domain.Event{due, asked, begun, unknown, declinedBy("ch_no"), paidBy("ch_1")} {
		subscribed.And(due, stage).When(other).ThenRefused(domain.ErrAmountConflict)
		subscribed.And(due, stage).When(commands.NewChargeBilling(ada, nov, eur49)).ThenRefused(domain.ErrAmountConflict)
	}
	customer.Given(registered, paidBy("ch_1")).When(other).ThenRefused(domain.ErrAmountConflict)

	customer.Given().When(charge).ThenRefused(domain.ErrUnknownCustomer)
	for _, ended := range []domain.Event{settled, writtenOff, voided} {
		subscribed.And(due, ended).When(charge).ThenRefused(domain.ErrBillClosed)
		subscribed.And(due, asked, ended).When(charge).ThenRefused(domain.ErrBillClosed)
	}
	subscribed.And(due, closingSettled).When(charge).ThenRefused(domain.ErrBillClosed)

	// The label must fit the subscription: a month charged as a year would
	// swallow eleven others.
	for _, label := range []string{"2026", "2026-Q4"} {
		subscribed.When(commands.NewChargeBilling(ada, period(label), usd49)).ThenRefused(domain.ErrPeriodCadence)
		customer.Given(registered, activated, cancelledNow).When(commands.NewChargeBilling(ada, period(label), usd49)).Then(askedFor(period(label), 1))
	}
}

func TestChargeKeyIsTheBills(t *testing.T) {
	t.Parallel()
	charge := commands.NewChargeBilling("cust_123", nov, usd49)
	if charge.Key() != "78add715f5445db3d7f8c24b1df859b6" {
		t.Errorf("the key of charge-billing is %s", charge.Key())
	}
	if commands.NewChargeBilling("cust_123", nov, eur49).Key() != charge.Key() {
		t.Error("the amount is in the key")
	}
}

func TestRetryCharge(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	second := commands.NewRetryCharge(ada, nov, 2, commands.StepManual)
	third := commands.NewRetryCharge(ada, nov, 3, commands.StepManual)
	first := commands.NewRetryCharge(ada, nov, 1, commands.StepManual)
	failed := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1), declinedBy("ch_no"))

	failed.When(second).Then(askedFor(nov, 2))
	customer.Given(registered, activated, due, asked, begun, rejected).When(second).Then(askedFor(nov, 2))
	failed.When(third).ThenRefused(domain.ErrAttemptOrder)
	failed.When(first).ThenRefused(domain.ErrAttemptOrder)
	failed.And(askedFor(nov, 2)).When(second).ThenRefused(domain.ErrAttemptOrder)
	failed.And(askedFor(nov, 2)).When(third).ThenRefused(domain.ErrNotDeclined)
	failed.And(askedFor(nov, 2), begunFor(nov, 2, 1)).When(third).ThenRefused(domain.ErrChargeInFlight)
	failed.And(cancelledNow).When(second).ThenRefused(domain.ErrCancelled)

	// Only what has provably failed is tried again.
	flying := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1))
	for _, flight := range []domain.Event{begun, unknown, actionRequired, needsReview} {
		flying.And(flight).When(second).ThenRefused(domain.ErrChargeInFlight)
	}
	for _, resting := range []domain.Event{held, notSent} {
		flying.And(resting).When(second).ThenRefused(domain.ErrNotDeclined)
	}
	customer.Given(registered, activated, due, asked, paused, waiting).When(second).ThenRefused(domain.ErrNotDeclined)

	failed.And(paidBy("ch_1")).When(second).ThenRefused(domain.ErrAlreadyBilled)
	for _, ended := range []domain.Event{settled, writtenOff, voided, closingSettled} {
		failed.And(ended).When(second).ThenRefused(domain.ErrBillClosed)
	}
	customer.Given().When(second).ThenRefused(domain.ErrUnknownCustomer)
	customer.Given(registered, activated).When(second).ThenRefused(domain.ErrUnknownBill)
	customer.Given(registered, activated, due).When(second).ThenRefused(domain.ErrUnknownBill)
}

func TestStartAttempt(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	start := commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 1}
	ready := customer.Given(registered, activated, due, asked)
	resolve := begunFor(nov, 1, 2)
	resolve.ResolveOnly = true

	// Each start has the next number.
	ready.When(start).Then(begun)
	ready.And(begun).When(start).Then(begunFor(nov, 1, 2))
	ready.And(begun, begunFor(nov, 1, 2), unknown).When(start).Then(begunFor(nov, 1, 3))
	ready.And(begun, held).When(start).Then(begunFor(nov, 1, 2))
	ready.And(begun, notSent).When(start).Then(begunFor(nov, 1, 2))
	ready.And(begun, declinedBy("ch_no"), askedFor(nov, 2)).When(commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 2}).Then(begunFor(nov, 2, 1))

	// Another attempt's row, a decided bill, a bill that is not there: no start.
	ready.And(begun, declinedBy("ch_no"), askedFor(nov, 2)).When(start).ThenNothing()
	for _, decided := range []domain.Event{paidBy("ch_1"), declinedBy("ch_no"), rejected, actionRequired, needsReview} {
		ready.And(begun, decided).When(start).ThenNothing()
	}
	customer.Given(registered).When(start).ThenNothing()
	customer.Given().When(start).ThenNothing()

	// Settled, cancelled, paused before the start: no call.
	for _, ended := range []domain.Event{settled, writtenOff, voided} {
		ready.And(ended).When(start).ThenNothing()
	}
	ready.And(closingVoid).When(start).ThenNothing()
	ready.And(paused).When(start).Then(waiting)
	ready.And(paused, waiting).When(start).ThenNothing()
	ready.And(paused, waiting, resumed).When(start).Then(begun)
	ready.And(cancelledNow).When(start).Then(domain.ChargeVoided{
		CustomerID: ada, BillingPeriod: nov, Attempt: 1, Reason: "the subscription was cancelled before the charge started",
	})
	ready.And(cancelledEnd).When(start).Then(begun)

	// One that was started without an outcome is never refused.
	ready.And(begun, paused).When(start).Then(begunFor(nov, 1, 2))
	ready.And(begun, unknown, paused).When(start).Then(begunFor(nov, 1, 2))
	ready.And(begun, cancelledNow).When(start).Then(resolve)
	ready.And(begun, unknown, cancelledNow).When(start).Then(resolve)
	ready.And(begun, intent("pi_1", 1), cancelledNow, notSent).When(start).Then(resolve)
}

func TestCommitIntent(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	commit := commands.CommitIntent{CustomerID: ada, BillingPeriod: nov, IntentID: "pi_1"}
	other := commands.CommitIntent{CustomerID: ada, BillingPeriod: nov, IntentID: "pi_2"}
	replace := commands.CommitIntent{CustomerID: ada, BillingPeriod: nov, IntentID: "pi_2", Replaces: "pi_1"}
	begunBill := customer.Given(registered, activated, due, asked, begun)

	begunBill.When(commit).Then(intent("pi_1", 1))
	// Write-once: whoever comes second uses the first one's.
	begunBill.And(intent("pi_1", 1)).When(commit).ThenNothing()
	begunBill.And(intent("pi_1", 1)).When(other).ThenNothing()
	// Unless the present one was shown to be cancelled.
	begunBill.And(intent("pi_1", 1)).When(replace).Then(intent("pi_2", 2))
	begunBill.And(intent("pi_1", 1), intent("pi_2", 2)).When(replace).ThenNothing()
	begunBill.And(intent("pi_1", 1), intent("pi_3", 2)).When(replace).ThenNothing() // it replaced another one meanwhile
	// Found at Stripe, for a bill nobody has asked for.
	customer.Given(registered).When(commands.CommitIntent{CustomerID: ada, BillingPeriod: nov, IntentID: "pi_1", Adopted: true}).Then(adopted("pi_1"))
}
