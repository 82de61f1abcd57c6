package commands_test

import (
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

func TestSettleAndWriteOff(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	for _, c := range []struct {
		command         commands.Command[domain.Customer]
		closed, closing domain.Event
	}{
		{commands.NewSettleBilling(ada, nov, "wire 7", "k1"), settled, closingSettled},
		{commands.NewWriteOffBilling(ada, nov, "uncollectible", "k2"), writtenOff, closingOff},
	} {
		subscribed := customer.Given(registered, activated)
		// Before a charge starts it wins, and no call is made.
		subscribed.And(due).When(c.command).Then(c.closed)
		subscribed.And(due, asked).When(c.command).Then(c.closed)
		subscribed.And(asked).When(c.command).Then(c.closed)
		subscribed.And(due, asked, paused, waiting).When(c.command).Then(c.closed)
		subscribed.And(due, asked, begun, notSent).When(c.command).Then(c.closed)
		subscribed.And(due, asked, begun, held).When(c.command).Then(c.closed)
		subscribed.And(due, asked, begun, rejected).When(c.command).Then(c.closed)

		// A bill with an intent closes at Stripe first.
		with := subscribed.And(due, asked, begun, intent("pi_1", 1))
		with.And(declinedBy("ch_no")).When(c.command).Then(c.closing)
		with.And(held).When(c.command).Then(c.closing)
		with.And(notSent).When(c.command).Then(c.closing)
		with.And(actionRequired).When(c.command).Then(c.closing)

		// An operator may end what needs review: at Stripe first, if it was sent.
		with.And(needsReview).When(c.command).Then(c.closing)
		with.And(unknown, needsReview).When(c.command).Then(c.closing)
		subscribed.And(due, asked, begun, needsReview).When(c.command).Then(c.closed)

		// In flight: nobody knows yet.
		for _, flight := range []domain.Event{begun, unknown} {
			with.And(flight).When(c.command).ThenRefused(domain.ErrChargeInFlight)
			subscribed.And(due, asked, begun, flight).When(c.command).ThenRefused(domain.ErrChargeInFlight)
		}
		subscribed.And(due, asked, begun, actionRequired).When(c.command).ThenRefused(domain.ErrChargeInFlight)
		with.And(unknown, begunFor(nov, 1, 2), actionRequired).When(c.command).ThenRefused(domain.ErrChargeInFlight)
		subscribed.And(due, asked, adopted("pi_1")).When(c.command).ThenRefused(domain.ErrChargeInFlight)

		// Ended already.
		subscribed.And(due, asked, paidBy("ch_1")).When(c.command).ThenRefused(domain.ErrAlreadyBilled)
		for _, ended := range []domain.Event{settled, writtenOff, voided, closingSettled, closingOff, closingVoid} {
			subscribed.And(due, asked, ended).When(c.command).ThenRefused(domain.ErrBillClosed)
		}
		subscribed.When(c.command).ThenRefused(domain.ErrUnknownBill)
		customer.Given().When(c.command).ThenRefused(domain.ErrUnknownCustomer)
	}
}

func TestCompleteClosing(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	complete := commands.CompleteClosing{CustomerID: ada, BillingPeriod: nov}
	with := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1))

	with.And(declinedBy("ch_no"), closingSettled).When(complete).Then(settled)
	with.And(declinedBy("ch_no"), closingOff).When(complete).Then(writtenOff)
	with.And(declinedBy("ch_no"), closingVoid).When(complete).Then(voided)

	// The intent had succeeded: paid is paid, and the closing is off.
	with.And(closingSettled, paidBy("ch_1")).When(complete).ThenNothing()
	for _, ended := range []domain.Event{settled, writtenOff, voided} {
		with.And(ended).When(complete).ThenNothing()
	}

	// Nothing is closing: only a cancelled subscription's charge ends so.
	with.When(complete).ThenNothing()
	with.And(unknown).When(complete).ThenNothing()
	with.And(declinedBy("ch_no")).When(complete).ThenNothing()
	resolved := domain.ChargeVoided{
		CustomerID: ada, BillingPeriod: nov, Attempt: 1,
		Reason: "the subscription was cancelled; the charge in flight was not executed and its intent is cancelled",
	}
	with.And(cancelledNow).When(complete).Then(resolved)
	with.And(unknown, cancelledNow).When(complete).Then(resolved)
	customer.Given(registered).When(complete).ThenNothing()
}

// What a closing bill lets happen: nothing new, and the news of a payment.
func TestWhileClosing(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	closing := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1), declinedBy("ch_no"), closingSettled)

	closing.When(commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 1}).ThenNothing()
	closing.When(commands.NewRetryCharge(ada, nov, 2, commands.StepManual)).ThenRefused(domain.ErrBillClosed)
	closing.When(commands.NewSettleBilling(ada, nov, "wire 8", "k1")).ThenRefused(domain.ErrBillClosed)
	closing.When(outcome(1, 1, domain.Outcome{Class: domain.Paid, ChargeID: "ch_1", IntentID: "pi_1", Money: usd49, Source: domain.SourceCancel})).Then(
		domain.CustomerBilled{CustomerID: ada, BillingPeriod: nov, Attempt: 1, ChargeID: "ch_1", IntentID: "pi_1", Money: usd49, Source: domain.SourceCancel},
	)
}

// A bill that may have been settled before a restore is collected by nobody
// until an operator has said what it was.
func TestPerhapsSettled(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	suspect := commands.SuspectSettlement{CustomerID: ada, BillingPeriod: nov, IntentID: "pi_1"}
	release := commands.NewReleaseBilling(ada, nov, "not settled", "k1")
	start := commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 1}
	perhaps := domain.ChargeWaiting{CustomerID: ada, BillingPeriod: nov, Attempt: 1, Reason: "settled before a restore?"}
	released := domain.ChargeReleased{CustomerID: ada, BillingPeriod: nov, Reason: "not settled"}
	subscribed := customer.Given(registered, activated)

	open := subscribed.And(due, asked)
	open.When(suspect).Then(perhaps)
	open.And(begun, unknown).When(suspect).Then(perhaps)
	open.And(perhaps).When(suspect).Then()
	open.And(perhaps).When(start).Then()
	open.And(perhaps, paused, resumed).When(start).Then() // a pause that ends is no word about it
	open.And(perhaps).When(commands.NewSettleBilling(ada, nov, "wire 7", "k1")).Then(settled)
	open.And(begun, intent("pi_1", 1), unknown, perhaps).When(commands.NewSettleBilling(ada, nov, "wire 7", "k1")).Then(closingSettled)
	open.And(perhaps).When(release).Then(released)
	open.And(perhaps, released).When(start).Then(begun)
	open.And(perhaps, released).When(suspect).Then()
	open.And(perhaps, released).When(release).ThenRefused(domain.ErrNotWaiting)
	open.When(release).ThenRefused(domain.ErrNotWaiting)
	subscribed.When(release).ThenRefused(domain.ErrUnknownBill)
	for _, ended := range []domain.Event{paidBy("ch_1"), settled, closingSettled} {
		open.And(ended).When(suspect).Then()
	}
	// A bill that the log does not know yet waits from its first claim on.
	before := perhaps
	before.Attempt = 0
	subscribed.When(suspect).Then(before)
	subscribed.And(before, due, asked).When(start).Then(perhaps)
}
