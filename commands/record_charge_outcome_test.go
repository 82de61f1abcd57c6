package commands_test

import (
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

func outcome(attempt, start int, o domain.Outcome) commands.RecordChargeOutcome {
	return commands.NewRecordChargeOutcome(ada, nov, attempt, start, o)
}

// news is an outcome of a class as a gateway words it.
func news(class domain.OutcomeClass) domain.Outcome {
	o := domain.Outcome{Class: class, Reason: "no answer", Evidence: "req_1"}
	switch class {
	case domain.Paid:
		o.ChargeID, o.IntentID, o.Money, o.Source = "ch_1", "pi_1", usd49, domain.SourceAnswer
	case domain.Declined:
		o.ChargeID, o.Code, o.DeclineCode = "ch_no", "card_declined", "insufficient_funds"
	}
	return o
}

func surprise(attempt, start int, reason string) domain.Event {
	return domain.ChargeOutcomeSurprise{ChargeReport: report(attempt, start, reason)}
}

// notOwed proposes to give the money of ch_1 back.
func notOwed(reason string) domain.Event {
	return domain.RefundProposed{CustomerID: ada, BillingPeriod: nov, ChargeID: "ch_1", Money: usd49, Reason: reason}
}

// Each class of outcome has its fact.
func TestRecordChargeOutcome(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	flying := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1))

	flying.When(outcome(1, 1, news(domain.Paid))).Then(paidBy("ch_1"))
	flying.When(outcome(1, 1, news(domain.Declined))).Then(declinedBy("ch_no"))
	flying.When(outcome(1, 1, news(domain.ActionRequired))).Then(actionRequired)
	flying.When(outcome(1, 1, news(domain.Rejected))).Then(rejected)
	flying.When(outcome(1, 1, news(domain.RetrySameKey))).Then(notSent)
	flying.When(outcome(1, 1, news(domain.Held))).Then(held)
	flying.When(outcome(1, 1, news(domain.Unknown))).Then(unknown)
	flying.When(outcome(1, 1, news(domain.NeedsReview))).Then(needsReview)
	// What is not known to be anything else is unknown.
	flying.When(outcome(1, 1, news("a class of tomorrow"))).Then(unknown)
	flying.When(outcome(1, 1, news(""))).Then(unknown)
}

// A no clears only its own request: as long as an earlier send of the attempt
// is unresolved, money may have moved.
func TestNoClearsOnlyItsOwnRequest(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	still := domain.ChargeUnknown{ChargeReport: report(1, 2, "an earlier send is unresolved; this one: no answer")}
	for _, unresolved := range [][]domain.Event{
		{asked, begun, intent("pi_1", 1), unknown, begunFor(nov, 1, 2)},
		{asked, begun, intent("pi_1", 1), begunFor(nov, 1, 2)}, // the first start ended without a word
		{asked, adopted("pi_1"), begun, begunFor(nov, 1, 2)},   // somebody else may have confirmed it
		{adopted("pi_1"), asked, begun, begunFor(nov, 1, 2)},
	} {
		flying := customer.Given(registered, activated, due).And(unresolved...)
		for _, no := range []domain.OutcomeClass{domain.Rejected, domain.Held, domain.RetrySameKey} {
			flying.When(outcome(1, 2, news(no))).Then(still)
		}
		flying.When(outcome(1, 2, news(domain.Unknown))).Then(domain.ChargeUnknown{ChargeReport: report(1, 2, "no answer")})
		// Evidence about the operation itself is taken.
		flying.When(outcome(1, 2, news(domain.Paid))).Then(paidBy("ch_1"))
		flying.When(outcome(1, 2, news(domain.Declined))).Then(declinedBy("ch_no"))
	}
	// After a send that provably executed nothing, a no is a no.
	clear := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1), notSent, begunFor(nov, 1, 2))
	clear.When(outcome(1, 2, news(domain.Held))).Then(domain.ChargeHeld{ChargeReport: report(1, 2, "no answer")})
	// And a decline ends the attempt: the next one begins without a burden.
	next := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1), unknown, declinedBy("ch_no"), askedFor(nov, 2), begunFor(nov, 2, 1))
	next.When(outcome(2, 1, news(domain.Rejected))).Then(domain.ChargeRejected{ChargeReport: report(2, 1, "no answer")})
}

// Paid beats everything: whatever the bill was, and however late.
func TestPaidBeatsEverything(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	paid := outcome(1, 1, news(domain.Paid))
	billed := paidBy("ch_1")
	recovered := billed
	recovered.Recovered = true
	flying := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1))

	for _, state := range []domain.Event{begun, unknown, actionRequired, held, notSent, rejected, needsReview, declinedBy("ch_no"), waiting, closingSettled} {
		flying.And(state).When(paid).Then(billed)
	}
	// Although it was closed: recorded, there to be reconciled, and proposed to
	// go back unless it had been owed.
	flying.And(settled).When(paid).Then(billed, surprise(1, 1, "paid although the bill was settled"), notOwed("paid although the bill was settled"))
	flying.And(writtenOff).When(paid).Then(billed, surprise(1, 1, "paid although the bill was written_off"))
	flying.And(voided).When(paid).Then(billed, surprise(1, 1, "paid although the bill was void"), notOwed("paid although the bill was void"))
	cancelled := "paid although the subscription was cancelled meanwhile"
	flying.And(cancelledNow).When(paid).Then(billed, surprise(1, 1, cancelled), notOwed(cancelled))
	flying.And(cancelledEnd).When(paid).Then(billed)

	// An older attempt's confirm that executed a day later.
	flying.And(declinedBy("ch_no"), askedFor(nov, 2), begunFor(nov, 2, 1)).When(paid).Then(billed)

	// Nobody had asked: the log is behind Stripe.
	customer.Given(registered).When(paid).Then(recovered)
	customer.Given(registered, activated, due).When(paid).Then(recovered)
	customer.Given().When(paid).Then(recovered)
	found := news(domain.Paid)
	found.Source = domain.SourceLook
	found.Recovered = true
	recovered.Source = domain.SourceLook
	flying.When(outcome(1, 1, found)).Then(recovered)
	customer.Given(registered).When(outcome(0, 0, found)).Then(recovered) // an attempt nobody knows is the first

	// Another amount than was asked for is recorded as it is.
	more := news(domain.Paid)
	more.Money = usd59
	dear := billed
	dear.Money = usd59
	flying.When(outcome(1, 1, more)).Then(dear, surprise(1, 1, "paid $59.00 instead of $49.00"))
}

// News about a bill that is paid changes nothing; a contradiction is recorded.
func TestAfterPaid(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	billed := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1), paidBy("ch_1"))

	billed.When(outcome(1, 1, news(domain.Paid))).ThenNothing()
	billed.When(outcome(1, 1, news(domain.Declined))).Then(surprise(1, 1, "a decline for a bill that is paid"))
	for _, class := range []domain.OutcomeClass{domain.Unknown, domain.ActionRequired, domain.Rejected, domain.Held, domain.RetrySameKey, domain.NeedsReview} {
		billed.When(outcome(1, 1, news(class))).ThenNothing()
	}
	second := news(domain.Paid)
	second.ChargeID, second.IntentID = "ch_2", "pi_2"
	billed.When(outcome(1, 1, second)).Then(surprise(1, 1, surplus.Reason), surplus)

	// The same success, once told by the intent alone.
	byIntent := news(domain.Paid)
	byIntent.ChargeID = ""
	billed.When(outcome(1, 1, byIntent)).ThenNothing()
	told := paidBy("")
	customer.Given(registered, activated, due, asked, begun, told).When(outcome(1, 1, news(domain.Paid))).ThenNothing()
}

// A decline ends the attempt it is about, and no other.
func TestDeclines(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	no := outcome(1, 1, news(domain.Declined))
	flying := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1))

	for _, state := range []domain.Event{begun, unknown, actionRequired, held, needsReview} {
		flying.And(state).When(no).Then(declinedBy("ch_no"))
	}
	flying.And(begunFor(nov, 1, 2)).When(no).Then(declinedBy("ch_no")) // whichever start it was
	flying.And(declinedBy("ch_no")).When(no).ThenNothing()
	flying.And(rejected).When(no).ThenNothing()
	flying.And(declinedBy("ch_no"), askedFor(nov, 2), begunFor(nov, 2, 1)).When(no).ThenNothing()
	for _, ended := range []domain.Event{settled, writtenOff, voided, closingSettled} {
		flying.And(ended).When(no).ThenNothing()
	}
	customer.Given(registered).When(no).ThenNothing()

	hard := news(domain.Declined)
	hard.ChargeID, hard.DeclineCode = "ch_hard", "stolen_card"
	want := declinedBy("ch_hard")
	want.DeclineCode, want.Class = "stolen_card", domain.Hard
	flying.When(outcome(1, 1, hard)).Then(want)
}

// What an older start or attempt has to say decides nothing.
func TestStaleNews(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	restarted := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1), begunFor(nov, 1, 2))
	next := customer.Given(registered, activated, due, asked, begun, intent("pi_1", 1), declinedBy("ch_no"), askedFor(nov, 2), begunFor(nov, 2, 1))
	for _, class := range []domain.OutcomeClass{domain.Unknown, domain.ActionRequired, domain.Rejected, domain.Held, domain.RetrySameKey, domain.NeedsReview} {
		restarted.When(outcome(1, 1, news(class))).ThenNothing()
		next.When(outcome(1, 1, news(class))).ThenNothing()
		customer.Given(registered).When(outcome(1, 1, news(class))).ThenNothing()
		customer.Given().When(outcome(1, 1, news(class))).ThenNothing()
	}
}

// Every path that learns of a definite outcome sends the same command, however
// it words it; an outcome that can happen again carries its start.
func TestKeysOfOutcomes(t *testing.T) {
	t.Parallel()
	charge := string(domain.ChargeKey(ada, nov, 1))
	paid, byWebhook := news(domain.Paid), news(domain.Paid)
	byWebhook.Reason, byWebhook.Evidence, byWebhook.Source = "told", "evt_1", domain.SourceFind
	declined := news(domain.Declined)
	nameless := declined
	nameless.ChargeID = ""
	byIntent := paid
	byIntent.ChargeID = ""
	for _, c := range []struct {
		command commands.RecordChargeOutcome
		want    domain.Key
	}{
		{outcome(1, 1, paid), domain.Key("record-charge-outcome/" + charge + "/paid/ch_1")},
		{outcome(1, 7, byWebhook), domain.Key("record-charge-outcome/" + charge + "/paid/ch_1")},
		{outcome(1, 1, byIntent), domain.Key("record-charge-outcome/" + charge + "/paid/pi_1")},
		{outcome(1, 1, declined), domain.Key("record-charge-outcome/" + charge + "/declined/ch_no")},
		{outcome(1, 3, nameless), domain.Key("record-charge-outcome/" + charge + "/3/declined")},
		{outcome(1, 1, news(domain.Unknown)), domain.Key("record-charge-outcome/" + charge + "/1/unknown")},
		{outcome(1, 2, news(domain.Unknown)), domain.Key("record-charge-outcome/" + charge + "/2/unknown")},
		{outcome(1, 2, news(domain.Held)), domain.Key("record-charge-outcome/" + charge + "/2/held")},
		{outcome(2, 1, news(domain.Held)), domain.Key("record-charge-outcome/" + string(domain.ChargeKey(ada, nov, 2)) + "/1/held")},
	} {
		if got := c.command.Key(); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

// Equal keys mean equal fingerprints: an outcome is never refused because
// somebody else had worded it otherwise before.
func TestOutcomeIsNeverAKeyConflict(t *testing.T) {
	t.Parallel()
	for _, class := range []domain.OutcomeClass{domain.Paid, domain.Declined, domain.Unknown, domain.ActionRequired, domain.Rejected, domain.Held, domain.RetrySameKey, domain.NeedsReview} {
		prints := map[domain.Key]string{}
		for _, charge := range []string{"", "ch_1", "ch_2"} {
			for _, intentID := range []string{"", "pi_1", "pi_2"} {
				for start := range 3 {
					o := news(class)
					o.ChargeID, o.IntentID, o.Reason, o.Evidence = charge, intentID, "worded for "+charge+intentID, "req_"+charge
					command := outcome(1, start, o)
					print := fingerprint(t, command)
					if other, met := prints[command.Key()]; met && other != print {
						t.Errorf("%s: charge %q, intent %q, start %d clashes under key %s", class, charge, intentID, start, command.Key())
					}
					prints[command.Key()] = print
				}
			}
		}
	}
}

func fingerprint(t *testing.T, c commands.Command[domain.Customer]) string {
	t.Helper()
	print, err := commands.Of(c).Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	return string(print)
}
