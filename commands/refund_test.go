package commands_test

import (
	"slices"
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

func dollars(minor int64) domain.Money { return domain.Money{Minor: minor, Currency: "usd"} }

func refundAsked(id, charge string, minor int64) domain.RefundRequested {
	return domain.RefundRequested{
		CustomerID: ada, BillingPeriod: nov, RefundID: id, ChargeID: charge, Key: domain.RefundKey(ada, nov, id), Money: dollars(minor),
	}
}

// refunded is news of a refund of ch_1 over $10 as a gateway words it.
func refunded(state domain.RefundState, stripeID string, from domain.Source) domain.RefundOutcome {
	o := domain.RefundOutcome{State: state, StripeRefundID: stripeID, Reason: "so it was", Evidence: "req_1", Source: from}
	if stripeID != "" {
		o.ChargeID, o.Money = "ch_1", dollars(1000)
	}
	return o
}

func recorded(id string, o domain.RefundOutcome) domain.RefundRecorded {
	return domain.RefundRecorded{CustomerID: ada, BillingPeriod: nov, RefundID: id, RefundOutcome: o}
}

func refundNews(id string, o domain.RefundOutcome) commands.RecordRefundOutcome {
	return commands.NewRecordRefundOutcome(ada, nov, id, o)
}

var surplus = domain.RefundProposed{CustomerID: ada, BillingPeriod: nov, ChargeID: "ch_2", Money: usd49, Reason: "a second success for a bill that is paid by ch_1"}

func TestRefundCharge(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	billed := customer.Given(registered, due, asked, begun, paidBy("ch_1"))
	give := func(id string, minor int64) commands.RefundCharge {
		return commands.NewRefundCharge(ada, nov, id, minor, "")
	}

	billed.WhenBuilt(func() commands.Command[domain.Customer] { return give("r1", 1000) }).Then(refundAsked("r1", "ch_1", 1000))
	billed.When(give("r1", 4900)).Then(refundAsked("r1", "ch_1", 4900))
	billed.When(commands.NewRefundCharge(ada, nov, "r1", 1000, "ch_1")).Then(refundAsked("r1", "ch_1", 1000))
	// Two equal refunds have two names.
	one := billed.And(refundAsked("r1", "ch_1", 2000))
	one.When(give("r2", 2000)).Then(refundAsked("r2", "ch_1", 2000))
	// Never more than the charge, whatever is under way.
	billed.When(give("r1", 4901)).ThenRefused(domain.ErrRefundExceeds)
	billed.When(give("r1", 0)).ThenRefused(domain.ErrRefundExceeds)
	billed.When(give("r1", -5)).ThenRefused(domain.ErrRefundExceeds)
	one.When(give("r2", 2901)).ThenRefused(domain.ErrRefundExceeds)
	two := one.And(refundAsked("r2", "ch_1", 2000))
	two.When(give("r3", 2000)).ThenRefused(domain.ErrRefundExceeds)
	two.When(give("r3", 900)).Then(refundAsked("r3", "ch_1", 900))
	for _, state := range []domain.RefundState{domain.RefundStateUnknown, domain.RefundStatePending, domain.RefundStateSucceeded} {
		two.And(recorded("r1", domain.RefundOutcome{State: state})).When(give("r3", 901)).ThenRefused(domain.ErrRefundExceeds)
	}
	// What provably moved nothing frees its room.
	for _, state := range []domain.RefundState{domain.RefundStateFailed, domain.RefundStateCancelled, domain.RefundStateRefused} {
		two.And(recorded("r1", domain.RefundOutcome{State: state})).When(give("r3", 2900)).Then(refundAsked("r3", "ch_1", 2900))
	}
	// One made outside takes room as well.
	outside := refunded(domain.RefundStateSucceeded, "re_9", domain.SourceWebhook)
	billed.And(recorded("", outside)).When(give("r1", 3901)).ThenRefused(domain.ErrRefundExceeds)
	// One that Stripe showed under this name, when the log had forgotten it.
	found := billed.And(recorded("r1", outside))
	found.When(give("r1", 1000)).ThenNothing()
	found.When(give("r1", 2000)).ThenRefused(domain.ErrRefundExists)
	found.When(give("r2", 1000)).Then(refundAsked("r2", "ch_1", 1000))

	// Only what is paid can go back.
	for _, state := range []domain.Event{begun, unknown, declinedBy("ch_no"), settled, voided} {
		customer.Given(registered, due, asked, state).When(give("r1", 1000)).ThenRefused(domain.ErrNotPaid)
	}
	customer.Given(registered).When(give("r1", 1000)).ThenRefused(domain.ErrUnknownBill)
	customer.Given().When(give("r1", 1000)).ThenRefused(domain.ErrUnknownCustomer)
	customer.Given(registered, due, asked, begun, paidBy("")).When(give("r1", 1000)).ThenRefused(domain.ErrUnknownCharge)
	billed.When(commands.NewRefundCharge(ada, nov, "r1", 1000, "ch_other")).ThenRefused(domain.ErrUnknownCharge)

	// Three-decimal amounts move in steps of ten.
	dinar := paidBy("ch_1")
	dinar.Money = domain.Money{Minor: 5000, Currency: "kwd"}
	half := refundAsked("r1", "ch_1", 2500)
	half.Money.Currency = "kwd"
	customer.Given(registered, due, asked, begun, dinar).When(give("r1", 2505)).ThenRefused(domain.ErrInvalidInput)
	customer.Given(registered, due, asked, begun, dinar).When(give("r1", 2500)).Then(half)
}

// A surplus charge can go back whole, beside the bill's own.
func TestRefundOfASurplusCharge(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	twice := customer.Given(registered, due, asked, begun, paidBy("ch_1"), surplus, refundAsked("r1", "ch_1", 4900))
	giveSurplus := commands.NewRefundCharge(ada, nov, "r2", 4900, "ch_2")
	dismiss := commands.NewDismissRefundProposal(ada, nov, "ch_2", "it is owed", "k1")
	dismissed := domain.RefundProposalDismissed{CustomerID: ada, BillingPeriod: nov, ChargeID: "ch_2", Reason: "it is owed"}

	twice.When(giveSurplus).Then(refundAsked("r2", "ch_2", 4900))
	twice.When(commands.NewRefundCharge(ada, nov, "r2", 4901, "ch_2")).ThenRefused(domain.ErrRefundExceeds)
	twice.When(commands.NewRefundCharge(ada, nov, "r2", 1, "")).ThenRefused(domain.ErrRefundExceeds)

	twice.When(dismiss).Then(dismissed)
	twice.And(dismissed).When(dismiss).ThenNothing()
	twice.And(dismissed).When(commands.NewDismissRefundProposal(ada, nov, "ch_2", "another reason", "k2")).ThenRefused(domain.ErrNoProposal)
	twice.When(commands.NewDismissRefundProposal(ada, nov, "ch_3", "it is owed", "k3")).ThenRefused(domain.ErrNoProposal)
	going := twice.And(refundAsked("r2", "ch_2", 4900))
	going.When(dismiss).ThenRefused(domain.ErrNoProposal)
	going.And(recorded("r2", domain.RefundOutcome{State: domain.RefundStateFailed})).When(dismiss).Then(dismissed)
	// A change of mind is allowed: the money was not owed after all.
	twice.And(dismissed).When(giveSurplus).Then(refundAsked("r2", "ch_2", 4900))
	customer.Given().When(dismiss).ThenRefused(domain.ErrUnknownCustomer)
}

// Whatever is not owed is proposed, once a charge, and never given back silently.
func TestProposals(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	billed := customer.Given(registered, due, asked, begun, paidBy("ch_1"))
	second := news(domain.Paid)
	second.ChargeID, second.IntentID = "ch_2", "pi_2"

	billed.When(outcome(1, 1, second)).Then(surprise(1, 1, surplus.Reason), surplus)
	again := second
	again.Source = domain.SourceWebhook
	billed.And(surplus).When(outcome(1, 1, again)).Then(surprise(1, 1, surplus.Reason))

	find := commands.NewProposeRefund(ada, nov, "ch_2", usd49, surplus.Reason)
	billed.When(find).Then(surplus)
	billed.And(surplus).When(find).ThenNothing()
	billed.And(surplus).When(commands.NewProposeRefund(ada, nov, "ch_2", usd59, "found elsewhere")).ThenNothing()
	customer.Given().When(find).Then(surplus) // never refused
	billed.When(commands.NewProposeRefund(ada, nov, "ch_2", domain.Money{}, "nothing")).ThenNothing()
	if other := commands.NewProposeRefund(ada, nov, "ch_2", usd59, "found elsewhere"); fingerprint(t, other) != fingerprint(t, find) || other.Key() != find.Key() {
		t.Error("two paths that find the same charge clash")
	}
}

// News in any order leads to the same end, and no news is refused.
func TestRecordRefundOutcome(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	asked := customer.Given(registered, due, asked, begun, paidBy("ch_1"), refundAsked("r1", "ch_1", 1000))
	const own, find, told = domain.SourceAnswer, domain.SourceFind, domain.SourceWebhook
	at := func(state domain.RefundState) commandstest.Given[domain.Customer] {
		id := "re_1"
		switch state {
		case domain.RefundStateRequested:
			return asked
		case domain.RefundStateUnknown, domain.RefundStateRefused:
			id = ""
		}
		return asked.And(recorded("r1", refunded(state, id, own)))
	}
	const (
		requested, unknown, refused = domain.RefundStateRequested, domain.RefundStateUnknown, domain.RefundStateRefused
		pending, succeeded          = domain.RefundStatePending, domain.RefundStateSucceeded
		failed, cancelled           = domain.RefundStateFailed, domain.RefundStateCancelled
	)
	for _, c := range []struct {
		from  domain.RefundState
		moves []domain.RefundState // what is recorded as it comes; all else changes nothing
	}{
		{requested, []domain.RefundState{unknown, refused, pending, succeeded, failed, cancelled}},
		{unknown, []domain.RefundState{pending, succeeded, failed, cancelled}}, // a no clears only its own request
		{pending, []domain.RefundState{succeeded, failed, cancelled}},
		{succeeded, []domain.RefundState{failed, cancelled}},
		{failed, nil}, {cancelled, nil},
	} {
		for _, to := range []domain.RefundState{requested, unknown, refused, pending, succeeded, failed, cancelled} {
			id := "re_1"
			if to == requested || to == unknown || to == refused {
				id = ""
			}
			o := refunded(to, id, told)
			d := at(c.from).When(refundNews("r1", o))
			if slices.Contains(c.moves, to) {
				d.Then(recorded("r1", o))
			} else {
				d.ThenNothing()
			}
		}
	}
	// Only a read of Stripe proves that an unknown send moved nothing.
	at(unknown).When(refundNews("r1", refunded(requested, "", own))).ThenNothing()
	at(unknown).When(refundNews("r1", refunded(requested, "", find))).Then(recorded("r1", refunded(requested, "", find)))
	at(pending).When(refundNews("r1", refunded(requested, "", find))).ThenNothing()
	// What is not known to be another state is unknown.
	asked.When(refundNews("r1", refunded("a state of tomorrow", "", own))).Then(recorded("r1", refunded("a state of tomorrow", "", own)))
	// A late failure, told by the Stripe id alone.
	at(succeeded).When(refundNews("", refunded(failed, "re_1", told))).Then(recorded("r1", refunded(failed, "re_1", told)))
	// News about nothing that could be told apart.
	asked.When(refundNews("", refunded(failed, "", told))).ThenNothing()
	asked.When(refundNews("r9", refunded(unknown, "", own))).ThenNothing()
}

// What contradicts the log is recorded, and is there to be reconciled.
func TestRefundSurprises(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	billed := customer.Given(registered, due, asked, begun, paidBy("ch_1"))
	asked := billed.And(refundAsked("r1", "ch_1", 1000))
	moved := refunded(domain.RefundStateSucceeded, "re_1", domain.SourceWebhook)
	second := moved
	second.StripeRefundID = "re_2"
	dear := moved
	dear.Money = dollars(1200)
	all := second
	all.Money = usd49

	billed.When(refundNews("", moved)).Then(recorded("", moved)) // made outside, and within the charge
	billed.When(refundNews("r1", moved)).Then(recorded("r1", moved), surprise(1, 1, "a refund under refund id r1 that the log had not asked for"))
	review := dear
	review.State, review.AtStripe, review.Reason = domain.RefundStateReview, domain.RefundStateSucceeded, "Stripe gives back $12.00 of ch_1; asked for was $10.00 of ch_1"
	asked.When(refundNews("r1", dear)).Then(recorded("r1", review), surprise(1, 1, "refunded $12.00 instead of $10.00"))
	asked.And(recorded("r1", moved)).When(refundNews("r1", second)).Then(
		recorded("r1", second), surprise(1, 1, "a second refund at Stripe under refund id r1, beside re_1"))
	asked.And(recorded("r1", refunded(domain.RefundStateRefused, "", domain.SourceAnswer))).When(refundNews("r1", moved)).Then(
		recorded("r1", moved), surprise(1, 1, "refund r1 is at Stripe although it had been refused"))
	asked.When(refundNews("", all)).Then(recorded("", all), surprise(1, 1, "more goes back than the charge took, which was $49.00"))

	nobody := domain.ChargeReport{CustomerID: ada, BillingPeriod: nov, Reason: "a refund under refund id r1 that the log had not asked for", Evidence: "req_1"}
	customer.Given().When(refundNews("r1", moved)).Then(recorded("r1", moved), domain.ChargeOutcomeSurprise{ChargeReport: nobody})
}

// What Stripe shows of a refund is one command on every path.
func TestKeysOfRefundNews(t *testing.T) {
	t.Parallel()
	answered := refundNews("r1", refunded(domain.RefundStateSucceeded, "re_1", domain.SourceAnswer))
	told := refunded(domain.RefundStateSucceeded, "re_1", domain.SourceWebhook)
	told.Reason, told.Evidence = "told", "evt_1"
	if other := refundNews("r1", told); other.Key() != "record-refund-outcome/ada/2026-11/r1/re_1/succeeded" || other.Key() != answered.Key() || fingerprint(t, other) != fingerprint(t, answered) {
		t.Errorf("%s and %s", other.Key(), answered.Key())
	}
	for _, again := range []domain.RefundState{domain.RefundStateRequested, domain.RefundStateUnknown, domain.RefundStateRefused} {
		if key := refundNews("r1", refunded(again, "", domain.SourceAnswer)).Key(); key != "" {
			t.Errorf("%s, which can be so more than once, has key %s", again, key)
		}
	}
	if key := commands.NewRefundCharge(ada, nov, "r1", 1, "").Key(); key != "refund-charge/ada/r1" {
		t.Errorf("key %s", key)
	}
	if fingerprint(t, commands.NewRefundCharge(ada, nov, "r1", 1, "")) == fingerprint(t, commands.NewRefundCharge(ada, nov, "r1", 2, "")) {
		t.Error("another amount under one refund id is not noticed")
	}
}

func TestRecordDispute(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	billed := customer.Given(registered, due, asked, begun, paidBy("ch_1"))
	news := func(status string) domain.DisputeNews {
		return domain.DisputeNews{DisputeID: "dp_1", ChargeID: "ch_1", Status: status, Reason: "fraudulent", Money: usd49, Source: domain.SourceWebhook}
	}
	tell := func(status string) commands.RecordDispute { return commands.NewRecordDispute(ada, nov, news(status)) }
	fact := func(status string) domain.ChargeDisputed {
		return domain.ChargeDisputed{
			CustomerID: ada, BillingPeriod: nov, DisputeID: "dp_1", ChargeID: "ch_1", Money: usd49, Status: status, Reason: "fraudulent", Source: domain.SourceWebhook,
		}
	}
	order := []string{"warning_needs_response", "warning_under_review", "warning_closed", "needs_response", "a word of tomorrow", "under_review", "lost"}
	for i, status := range order {
		billed.When(tell(status)).Then(fact(status))
		for j, next := range order {
			if d := billed.And(fact(status)).When(tell(next)); j > i {
				d.Then(fact(next))
			} else {
				d.ThenNothing()
			}
		}
	}
	billed.And(fact("lost")).When(tell("won")).Then(fact("won"))
	customer.Given().When(tell("lost")).Then(fact("lost"))
	if key := tell("lost").Key(); key != "record-dispute/ada/2026-11/dp_1/lost" {
		t.Errorf("key %s", key)
	}
}
