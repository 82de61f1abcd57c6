package commands_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// anyCommand draws a command about ada that somebody might send now: a client,
// the saga, a collector, a late answer, an operator.
func anyCommand(t *rapid.T, c domain.Customer) commands.Command[domain.Customer] {
	p := rapid.SampledFrom([]domain.Period{nov, nov, nov, oct, period("2026-Q4"), period("2026"), period("2027-01"), period("2027-02"), period("2027-03"), period("2027-04"), period("2027-05"), period("2027-06")}).Draw(t, "period")
	bill, _ := c.Bill(p)
	attempt := max(bill.Attempt-rapid.SampledFrom([]int{0, 0, 0, 1, -1}).Draw(t, "attempts back"), 0)
	start := max(bill.Start-rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "starts back"), 0)
	n := strconv.Itoa(rapid.IntRange(1, 3).Draw(t, "id"))
	amount := rapid.SampledFrom([]domain.Money{usd49, usd49, usd59}).Draw(t, "amount")
	class := rapid.SampledFrom([]domain.OutcomeClass{
		domain.Unknown, domain.Held, domain.RetrySameKey, domain.Declined, domain.Rejected, domain.Paid, domain.ActionRequired, domain.NeedsReview,
	}).Draw(t, "class")
	o := domain.Outcome{Class: class, IntentID: "pi_" + n, Money: amount, Reason: "so it was", Code: rapid.SampledFrom([]string{"card_declined", "card_declined", "expired_card"}).Draw(t, "code")}
	if class == domain.Paid || class == domain.Declined {
		o.ChargeID = "ch_" + n
	}
	quarterly := monthly
	quarterly.Cadence = domain.Quarterly
	id := domain.Key("k" + n)
	charge := commands.NewChargeBilling(ada, p, amount)
	begin := commands.StartAttempt{CustomerID: ada, BillingPeriod: p, Attempt: attempt}
	report := commands.NewRecordChargeOutcome(ada, p, attempt, start, o)
	plan := commands.NewPlanDunning(ada, p, max(bill.Attempt, 1), domain.DunningDays{1}, noon.AddDate(0, 0, rapid.SampledFrom([]int{0, 1, 2, 9}).Draw(t, "day")))
	if bill.Status == domain.BillDeclined && rapid.Bool().Draw(t, "dunned") {
		return rapid.SampledFrom([]commands.Command[domain.Customer]{plan, commands.NewRetryCharge(ada, p, bill.Attempt+1, commands.StepDunning)}).Draw(t, "dunning")
	}
	refundState := rapid.SampledFrom([]domain.RefundState{
		domain.RefundStateUnknown, domain.RefundStatePending, domain.RefundStateSucceeded, domain.RefundStateFailed, domain.RefundStateRefused, domain.RefundStateRequested,
	}).Draw(t, "refund state")
	going := domain.RefundOutcome{State: refundState, ChargeID: "ch_" + n, Money: domain.Money{Minor: 2000, Currency: "usd"}, Source: domain.SourceFind}
	refundID := rapid.SampledFrom([]string{"r" + n, "r" + n, ""}).Draw(t, "refund id")
	if refundState.Counts() && refundState != domain.RefundStateUnknown && refundState != domain.RefundStateRequested || refundState == domain.RefundStateFailed {
		going.StripeRefundID = "re_" + refundID + n
	}
	surplus := rapid.SampledFrom([]string{"", "", "ch_" + n}).Draw(t, "charge to refund")
	refund := commands.NewRefundCharge(ada, p, "r"+n, rapid.SampledFrom([]int64{2000, 4900, 900}).Draw(t, "back"), surplus)
	refundNews := commands.NewRecordRefundOutcome(ada, p, refundID, going)
	if rapid.IntRange(0, 3).Draw(t, "money back") == 3 {
		return rapid.SampledFrom([]commands.Command[domain.Customer]{
			refund, refundNews, refund, refundNews,
			commands.NewDismissRefundProposal(ada, p, "ch_"+n, "it is owed", id),
			commands.NewAcceptRefund(ada, p, "r"+n, "agreed", id),
			commands.NewProposeRefund(ada, p, "ch_"+n, amount, "found"),
			commands.NewRecordDispute(ada, p, domain.DisputeNews{DisputeID: "dp_" + n, ChargeID: "ch_" + n, Money: amount, Status: rapid.SampledFrom([]string{"needs_response", "lost"}).Draw(t, "dispute")}),
		}).Draw(t, "command about money back")
	}
	// Small numbers are drawn more often: what leads far comes first.
	return rapid.SampledFrom([]commands.Command[domain.Customer]{
		report, begin, charge, commands.NewDeclareBillingDue(ada, p),
		commands.NewRetryCharge(ada, p, attempt+1, rapid.SampledFrom([]string{commands.StepManual, commands.StepDunning}).Draw(t, "step")),
		commands.CommitIntent{CustomerID: ada, BillingPeriod: p, IntentID: "pi_" + n, Adopted: rapid.IntRange(0, 9).Draw(t, "adopted") == 9},
		report, begin, charge, report, begin,
		commands.NewPauseSubscription(ada, "", noon, id),
		begin,
		commands.NewResumeSubscription(ada, noon, id),
		commands.NewSettleBilling(ada, p, "wire", id),
		commands.NewWriteOffBilling(ada, p, "gone", id),
		commands.CompleteClosing{CustomerID: ada, BillingPeriod: p},
		commands.SuspectSettlement{CustomerID: ada, BillingPeriod: p, IntentID: "pi_" + n},
		commands.NewReleaseBilling(ada, p, "not settled", id),
		commands.CommitIntent{CustomerID: ada, BillingPeriod: p, IntentID: "pi_" + n, Replaces: bill.IntentID},
		commands.NewCancelSubscription(ada, rapid.SampledFrom([]domain.CancelMode{domain.CancelNow, domain.CancelPeriodEnd}).Draw(t, "mode"), "", noon, id),
		commands.NewActivateSubscription(ada, amount, rapid.SampledFrom([]domain.Schedule{monthly, quarterly}).Draw(t, "schedule")),
		commands.NewChangeSubscriptionAmount(ada, amount.Minor, "", domain.Period{}, noon, id),
		commands.NewChangeSubscriptionSchedule(ada, rapid.IntRange(0, 31).Draw(t, "anchor"), "Asia/Tokyo", domain.Period{}, noon, id),
		commands.NewChangePaymentMethod(ada, "pm_"+n, noon, id),
		commands.NewImportHistory(ada, p),
		commands.NewImportCharge(ada, p, "ch_"+n, amount),
	}).Draw(t, "command")
}

// Whatever is sent, in whatever order: the promises about one customer's bills
// hold for every fact that is decided.
func TestPromisesHoldInAnyOrder(t *testing.T) {
	t.Parallel()
	reached := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		var c domain.Customer
		c = c.Evolve(registered)
		if rapid.IntRange(0, 3).Draw(t, "comes from elsewhere") < 3 {
			c = c.Evolve(activated)
		}
		paid, back := map[domain.Period]string{}, tally{}
		for range 300 {
			command := anyCommand(t, c)
			events, err := command.Decide(c)
			switch command.(type) {
			case commands.RecordChargeOutcome, commands.RecordRefundOutcome, commands.RecordDispute, commands.ProposeRefund:
				if err != nil {
					t.Fatalf("%s: what has happened was refused: %v", command.Name(), err)
				}
			}
			if refusal, ok := errors.AsType[*domain.Error](err); err != nil && !ok {
				t.Fatalf("%s: %v", command.Name(), refusal)
			}
			if second(command, paid) && !slices.ContainsFunc(events, isSurprise) {
				t.Fatalf("a second success went unnoticed: %+v", command)
			}
			for _, e := range events {
				reached[e.EventName()]++
				promises(t, c, command, e, paid)
				back.promises(t, c, e)
				c = c.Evolve(e)
			}
			for p, charge := range paid {
				if b, _ := c.Bill(p); b.Status != domain.BillPaid || b.ChargeID != charge || !c.BilledPeriods().Has(p) {
					t.Fatalf("%s made %s by %s of a bill that was paid by %s", command.Name(), b.Status, b.ChargeID, charge)
				}
			}
		}
	})
	// The walk is worth something only if it gets everywhere. Declines upon declines
	// are rare in it: the dunning has a walk of its own, in domain.
	rare := []string{"dunning.scheduled.v1", "dunning.waiting.v1", "bill.uncollectible.v1", "subscription.delinquent.v1"}
	for e := range domain.Events() {
		if name := e.EventName(); reached[name] == 0 && e != (domain.CustomerRegistered{}) && !strings.HasPrefix(name, "run.") && !slices.Contains(rare, name) {
			t.Errorf("no walk reached %s", name)
		}
	}
}

// second reports whether a command tells of a success by another charge than
// the one that has paid the bill.
func second(command commands.Command[domain.Customer], paid map[domain.Period]string) bool {
	c, ok := command.(commands.RecordChargeOutcome)
	if !ok || c.Class != domain.Paid {
		return false
	}
	charge, billed := paid[c.BillingPeriod]
	return billed && charge != c.Outcome.ChargeID
}

func isSurprise(e domain.Event) bool {
	_, ok := e.(domain.ChargeOutcomeSurprise)
	return ok
}

// promises checks one decided fact against the state it was decided on.
func promises(t *rapid.T, c domain.Customer, command commands.Command[domain.Customer], e domain.Event, paid map[domain.Period]string) {
	_, p, about := domain.BillOf(e)
	bill, known := c.Bill(p)
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("%s decided %s on a bill that is %q: "+format, append([]any{command.Name(), e.EventName(), bill.Status}, args...)...)
	}
	if !about {
		return
	}
	switch e := e.(type) {
	case domain.MonthlyBillingDue:
		if known && bill.Status.Known() || c.BilledBefore(p) {
			fail("it was known before")
		}
		if q, overlaps := c.Overlapping(p); overlaps {
			fail("%s overlaps %s", p, q)
		}
	case domain.ChargeRequested:
		if e.Key != domain.ChargeKey(ada, p, e.Attempt) {
			fail("key %s", e.Key)
		}
		if e.Attempt == 1 && c.BilledBefore(p) {
			fail("another system has billed it")
		}
		if e.Attempt != bill.Attempt+1 || e.Attempt > 1 && bill.Status != domain.BillDeclined && bill.Status != domain.BillRejected {
			fail("attempt %d after %d", e.Attempt, bill.Attempt)
		}
		if bill.Amount.Minor != 0 && e.Money != bill.Amount {
			fail("over %s, it was frozen at %s", e.Money, bill.Amount)
		}
		if q, overlaps := c.Overlapping(p); overlaps && e.Attempt == 1 {
			fail("%s overlaps %s", p, q)
		}
	case domain.ChargeAttemptStarted:
		if e.Start != bill.Start+1 || e.Attempt != bill.Attempt || bill.Status.Final() || bill.Status == domain.BillClosingStatus {
			fail("start %d of attempt %d after %d", e.Start, e.Attempt, bill.Start)
		}
		if bill.Cancelled && !e.ResolveOnly {
			fail("it may send although the subscription was cancelled")
		}
	case domain.ChargeIntentCommitted:
		if bill.IntentID != "" && e.IntentNo != bill.IntentNo+1 || bill.IntentID == "" && e.IntentNo != 1 {
			fail("intent number %d after %d", e.IntentNo, bill.IntentNo)
		}
	case domain.CustomerBilled:
		if first, twice := paid[p]; twice {
			fail("by %s, it was billed by %s", e.ChargeID, first)
		}
		paid[p] = e.ChargeID
	case domain.ChargeHeld, domain.ChargeRejected, domain.ChargeNotSent:
		if bill.Unresolved || !bill.InFlight() {
			fail("an earlier send is unresolved: %t", bill.Unresolved)
		}
	case domain.ChargeDeclined, domain.ChargeUnknown, domain.ChargeActionRequired, domain.ChargeNeedsReview, domain.ChargeWaiting:
		if bill.Status.Final() {
			fail("it had ended")
		}
	case domain.BillSettled, domain.BillWrittenOff, domain.ChargeVoided:
		_, completes := command.(commands.CompleteClosing)
		// What needs review and was never sent may be closed by a person.
		inFlight := bill.InFlight() && bill.Status != domain.BillNeedsReview
		if bill.Status.Final() || !completes && (inFlight || bill.Unresolved || bill.IntentID != "") {
			fail("intent %q, unresolved %t", bill.IntentID, bill.Unresolved)
		}
	case domain.BillClosing:
		// Of a bill that was perhaps settled, or needs review, the cancel at Stripe tells.
		if bill.Status.Final() || bill.IntentID == "" || bill.Unresolved && !bill.PerhapsSettled && bill.Status != domain.BillNeedsReview {
			fail("intent %q, unresolved %t", bill.IntentID, bill.Unresolved)
		}
	}
}

// tally counts refunds by itself, one entry a refund: what may have gone back
// of each charge, whatever the aggregate thinks of it.
type tally map[refundName]*goingBack

type refundName struct {
	period domain.Period
	id     string // the caller's, or Stripe's
}

type goingBack struct {
	charge string
	minor  int64
	state  domain.RefundState
}

// promises checks one decided fact about money that goes back.
func (all tally) promises(t *rapid.T, c domain.Customer, e domain.Event) {
	switch e := e.(type) {
	case domain.RefundRequested:
		bill, _ := c.Bill(e.BillingPeriod)
		proposal, proposed := c.MoneyBack(e.BillingPeriod).Proposal(e.ChargeID)
		taken := c.MoneyBack(e.BillingPeriod).Taken
		if e.ChargeID != bill.ChargeID {
			taken = proposal.Amount
		}
		if e.ChargeID == "" || e.ChargeID != bill.ChargeID && !proposed {
			t.Fatalf("refund %s is of %q, and the bill was paid by %q", e.RefundID, e.ChargeID, bill.ChargeID)
		}
		name := refundName{e.BillingPeriod, e.RefundID}
		if all[name] != nil || e.Key != domain.RefundKey(ada, e.BillingPeriod, e.RefundID) {
			t.Fatalf("refund %s, with key %s, was asked for before: %t", e.RefundID, e.Key, all[name] != nil)
		}
		sum := e.Minor
		for of, r := range all {
			if of.period == e.BillingPeriod && r.charge == e.ChargeID && r.state.Counts() {
				sum += r.minor
			}
		}
		if e.Minor <= 0 || sum > taken.Minor || e.Currency != taken.Currency {
			t.Fatalf("refund %s of %s lets %d of %s go back", e.RefundID, e.Money, sum, taken)
		}
		all[name] = &goingBack{e.ChargeID, e.Minor, domain.RefundStateRequested}
	case domain.RefundRecorded:
		name := refundName{e.BillingPeriod, e.RefundID}
		if e.RefundID == "" {
			name.id = e.StripeRefundID
		}
		r := all[name]
		if r == nil {
			r = &goingBack{}
			all[name] = r
		}
		if r.state == domain.RefundStateFailed || r.state == domain.RefundStateSucceeded && e.State != domain.RefundStateFailed {
			t.Fatalf("refund %s was %s and is %s", name.id, r.state, e.State)
		}
		if r.state == domain.RefundStateUnknown && e.State == domain.RefundStateRefused {
			t.Fatalf("a no cleared another send of refund %s", name.id)
		}
		r.state = e.State
		if e.ChargeID != "" {
			r.charge, r.minor = e.ChargeID, e.RefundOutcome.Money.Minor
		}
	}
}
