package commands_test

import (
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

// A bill that needs review goes on when an operator says so, by another start
// that finds out first; the customer's shop cannot retry it meanwhile.
func TestReleaseFromReview(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	release := commands.NewReleaseBilling(ada, nov, "the key is repaired", "k1")
	released := domain.ChargeReleased{CustomerID: ada, BillingPeriod: nov, Reason: "the key is repaired"}
	start := commands.StartAttempt{CustomerID: ada, BillingPeriod: nov, Attempt: 1}
	inReview := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1), needsReview)

	inReview.When(release).Then(released)
	inReview.When(start).ThenNothing()
	inReview.When(commands.NewRetryCharge(ada, nov, 2, commands.StepManual)).ThenRefused(domain.ErrChargeInFlight)
	on := inReview.And(released)
	on.When(release).ThenRefused(domain.ErrNotWaiting)
	on.When(start).Then(begunFor(nov, 1, 2))
	on.And(begunFor(nov, 1, 2)).When(outcome(1, 2, news(domain.NeedsReview))).Then(domain.ChargeNeedsReview{ChargeReport: report(1, 2, "no answer")})
	// It may have been sent: a refusal of the next send clears nothing else.
	on.And(begunFor(nov, 1, 2)).When(outcome(1, 2, news(domain.Rejected))).Then(domain.ChargeUnknown{ChargeReport: report(1, 2, "an earlier send is unresolved; this one: no answer")})
	on.When(outcome(1, 1, news(domain.Paid))).Then(paidBy("ch_1"))
	// What may have been settled before a restore is still asked about.
	on.When(commands.SuspectSettlement{CustomerID: ada, BillingPeriod: nov, IntentID: "pi_0"}).
		Then(domain.ChargeWaiting{CustomerID: ada, BillingPeriod: nov, Attempt: 1, Reason: domain.ReasonPerhapsSettled})
}

// A closing that meets an intent which Stripe does not know needs review, once;
// decided again in view of that, it ends.
func TestClosingOfWhatStripeDoesNotKnow(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	closing := customer.Given(registered, due, asked, begun, intent("pi_1", 1), declinedBy("ch_no"), closingOff)
	closing.When(outcome(1, 1, news(domain.NeedsReview))).Then(needsReview)
	for _, class := range []domain.OutcomeClass{domain.Unknown, domain.Held, domain.Rejected, domain.RetrySameKey, domain.ActionRequired} {
		closing.When(outcome(1, 1, news(class))).ThenNothing()
	}
	closing.And(needsReview).When(commands.NewWriteOffBilling(ada, nov, "uncollectible", "k2")).Then(closingOff)
	closing.And(needsReview, closingOff).When(commands.CompleteClosing{CustomerID: ada, BillingPeriod: nov}).Then(writtenOff)
}

// Stripe holds a refund under our name that is not the one that was asked for:
// by whatever road that is learnt, it is taken for what it is, and waits for an
// operator.
func TestRefundThatDiffers(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	asking := customer.Given(registered, due, asked, begun, paidBy("ch_1"), refundAsked("r1", "ch_1", 2000))
	const why = "Stripe gives back $10.00 of ch_1; asked for was $20.00 of ch_1"
	surprise := surprise(1, 1, "refunded $10.00 instead of $20.00")
	review := func(at domain.RefundState, from domain.Source) domain.RefundOutcome {
		o := refunded(domain.RefundStateReview, "re_1", from)
		o.AtStripe, o.Reason = at, why
		return o
	}
	for _, at := range []domain.RefundState{domain.RefundStatePending, domain.RefundStateSucceeded} {
		asking.When(refundNews("r1", refunded(at, "re_1", domain.SourceWebhook))).Then(recorded("r1", review(at, domain.SourceWebhook)), surprise)
		asking.And(recorded("r1", domain.RefundOutcome{State: domain.RefundStateUnknown})).
			When(refundNews("r1", review(at, domain.SourceFind))).Then(recorded("r1", review(at, domain.SourceFind)), surprise)
	}
	pending := asking.And(recorded("r1", review(domain.RefundStatePending, domain.SourceFind)))
	pending.When(refundNews("r1", refunded(domain.RefundStatePending, "re_1", domain.SourceEvents))).ThenNothing()
	pending.When(refundNews("r1", refunded(domain.RefundStateSucceeded, "re_1", domain.SourceEvents))).Then(recorded("r1", review(domain.RefundStateSucceeded, domain.SourceEvents)))
	// It takes room by what Stripe gives back, and is no refund to be asked for again.
	pending.When(commands.NewRefundCharge(ada, nov, "r2", 3900, "")).Then(refundAsked("r2", "ch_1", 3900))
	pending.When(commands.NewRefundCharge(ada, nov, "r2", 3901, "")).ThenRefused(domain.ErrRefundExceeds)
	failed := refunded(domain.RefundStateFailed, "re_1", domain.SourceWebhook)
	pending.When(refundNews("r1", failed)).Then(recorded("r1", failed))

	accept := commands.NewAcceptRefund(ada, nov, "r1", "agreed by phone", "k1")
	accepted := func(state domain.RefundState) domain.RefundRecorded {
		return recorded("r1", domain.RefundOutcome{State: state, StripeRefundID: "re_1", ChargeID: "ch_1", Money: dollars(1000), Reason: "accepted as it is: agreed by phone", Source: domain.SourceOperator})
	}
	pending.When(accept).Then(accepted(domain.RefundStatePending))
	done := pending.And(recorded("r1", review(domain.RefundStateSucceeded, domain.SourceEvents)))
	done.When(accept).Then(accepted(domain.RefundStateSucceeded))
	done.And(accepted(domain.RefundStateSucceeded)).When(accept).ThenRefused(domain.ErrNoReview)
	succeeded := refunded(domain.RefundStateSucceeded, "re_1", domain.SourceFind)
	pending.And(accepted(domain.RefundStatePending)).When(refundNews("r1", succeeded)).Then(recorded("r1", succeeded))
	asking.When(accept).ThenRefused(domain.ErrNoReview)
	customer.Given().When(accept).ThenRefused(domain.ErrUnknownCustomer)
}
