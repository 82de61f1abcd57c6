package domain_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/billonce/billonce/domain"
)

func TestCustomerIsWhatHappened(t *testing.T) {
	t.Parallel()
	if c := after(); c.Registered() || c.ID() != "" {
		t.Errorf("nothing happened, and there is %+v", c)
	}
	c := after(registered, activated)
	if !c.Registered() || c.ID() != ada || c.StripeCustomerID() != "cus_1" || c.PaymentMethodID() != "pm_1" {
		t.Errorf("registered as %+v", c)
	}
	sub, ok := c.Subscription()
	if !ok || sub.Status != domain.SubscriptionActive || sub.Amount != usd49 || sub.First() != period("2026-01") {
		t.Errorf("subscribed to %+v, %t", sub, ok)
	}
	c = c.Evolve(domain.PaymentMethodChanged{CustomerID: ada, PaymentMethodID: "pm_2"})
	if c.PaymentMethodID() != "pm_2" || c.StripeCustomerID() != "cus_1" {
		t.Errorf("after a new method: %s, %s", c.PaymentMethodID(), c.StripeCustomerID())
	}
}

// Where a bill stands after each fact, read as a story.
func TestBillStatusAfterFacts(t *testing.T) {
	t.Parallel()
	const p = "2026-11"
	base := []domain.Event{registered, activated}
	for _, c := range []struct {
		story []domain.Event
		want  domain.BillStatus
		claim domain.Claim // of attempt 1
	}{
		{[]domain.Event{due(p)}, domain.BillDue, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1)}, domain.BillRequested, domain.ClaimSend},
		{[]domain.Event{asked(p, 1), due(p)}, domain.BillRequested, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1)}, domain.BillStarted, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), paid(p, "ch_1")}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), declined(p, 1)}, domain.BillDeclined, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), held(p)}, domain.BillHeld, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), unknown(p)}, domain.BillUnknown, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), notSent(p)}, domain.BillRequested, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), unknown(p), started(p, 1, 2), notSent(p)}, domain.BillUnknown, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), domain.ChargeRejected{ChargeReport: report(p)}}, domain.BillRejected, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), domain.ChargeActionRequired{ChargeReport: report(p)}}, domain.BillActionRequired, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), domain.ChargeNeedsReview{ChargeReport: report(p)}}, domain.BillNeedsReview, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), declined(p, 1), asked(p, 2)}, domain.BillRequested, domain.ClaimNone},

		// What needs review goes on when an operator says so; what may have been sent
		// is found out first, whatever has become of the subscription.
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1), review(p), released(p)}, domain.BillRequested, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1), review(p), released(p), paused}, domain.BillRequested, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1), review(p), cancelledNow, released(p)}, domain.BillRequested, domain.ClaimResolve},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1), review(p), released(p), review(p)}, domain.BillNeedsReview, domain.ClaimNone},

		// A pause makes a due wait, unless its charge may be under way.
		{[]domain.Event{due(p), asked(p, 1), paused}, domain.BillRequested, domain.ClaimWait},
		{[]domain.Event{due(p), asked(p, 1), paused, waiting(p)}, domain.BillWaiting, domain.ClaimWait},
		{[]domain.Event{due(p), asked(p, 1), paused, waiting(p), resumed}, domain.BillRequested, domain.ClaimSend},
		{[]domain.Event{asked(p, 1), paused}, domain.BillRequested, domain.ClaimSend}, // not a due: somebody asked for it
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), paused}, domain.BillStarted, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), held(p), paused}, domain.BillHeld, domain.ClaimWait},

		// A cancellation voids what has not started, and resolves what has.
		{[]domain.Event{due(p), asked(p, 1), cancelledNow}, domain.BillRequested, domain.ClaimVoid},
		{[]domain.Event{due(p), asked(p, 1), cancelledEnd}, domain.BillRequested, domain.ClaimSend},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), cancelledNow}, domain.BillStarted, domain.ClaimResolve},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), unknown(p), cancelledNow}, domain.BillUnknown, domain.ClaimResolve},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), cancelledNow, paid(p, "ch_1")}, domain.BillPaid, domain.ClaimNone},
		// Even if nothing was sent: an intent at Stripe must be cancelled there first.
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1), cancelledNow, notSent(p)}, domain.BillRequested, domain.ClaimResolve},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1), cancelledNow, held(p)}, domain.BillHeld, domain.ClaimResolve},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), cancelledNow, notSent(p)}, domain.BillRequested, domain.ClaimVoid},

		// What ended, ended.
		{[]domain.Event{due(p), voided(p)}, domain.BillVoid, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), voided(p)}, domain.BillVoid, domain.ClaimVoid},
		{[]domain.Event{due(p), asked(p, 1), settled(p)}, domain.BillSettledStatus, domain.ClaimVoid},
		{[]domain.Event{due(p), asked(p, 1), writtenOff(p)}, domain.BillWrittenOffStatus, domain.ClaimVoid},
		{[]domain.Event{due(p), asked(p, 1), settled(p), unknown(p)}, domain.BillSettledStatus, domain.ClaimVoid},
		{[]domain.Event{due(p), asked(p, 1), settled(p), declined(p, 1)}, domain.BillSettledStatus, domain.ClaimVoid},
		{[]domain.Event{due(p), asked(p, 1), voided(p), asked(p, 1)}, domain.BillVoid, domain.ClaimVoid},
		{[]domain.Event{due(p), asked(p, 1), closing(p, domain.ClosingSettled)}, domain.BillClosingStatus, domain.ClaimClose},
		{[]domain.Event{due(p), asked(p, 1), closing(p, domain.ClosingSettled), settled(p)}, domain.BillSettledStatus, domain.ClaimVoid},

		// Paid beats everything, whenever it becomes known.
		{[]domain.Event{due(p), asked(p, 1), settled(p), paid(p, "ch_1")}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), voided(p), paid(p, "ch_1")}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), writtenOff(p), paid(p, "ch_1")}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), closing(p, domain.ClosingVoid), paid(p, "ch_1")}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{due(p), asked(p, 1), started(p, 1, 1), declined(p, 1), paid(p, "ch_1")}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{paid(p, "ch_1")}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{paid(p, "ch_1"), due(p)}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{paid(p, "ch_1"), settled(p)}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{paid(p, "ch_1"), voided(p)}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{paid(p, "ch_1"), closing(p, domain.ClosingVoid)}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{paid(p, "ch_1"), unknown(p)}, domain.BillPaid, domain.ClaimNone},
		{[]domain.Event{paid(p, "ch_1"), cancelledNow}, domain.BillPaid, domain.ClaimNone},
	} {
		customer := after(append(slices.Clone(base), c.story...)...)
		bill, ok := customer.Bill(period(p))
		if !ok || bill.Status != c.want {
			t.Errorf("%s: %s, want %s", names(c.story), bill.Status, c.want)
		}
		if claim := customer.Claim(period(p), 1); claim != c.claim {
			t.Errorf("%s: a collector may %s, want %s", names(c.story), claim, c.claim)
		}
		if got, want := customer.BilledPeriods().Has(period(p)), c.want == domain.BillPaid; got != want {
			t.Errorf("%s: in billedPeriods %t, want %t", names(c.story), got, want)
		}
	}
}

func names(story []domain.Event) (s string) {
	for _, e := range story {
		s += e.EventName() + " "
	}
	return s
}

func TestClaimOfAnotherAttempt(t *testing.T) {
	t.Parallel()
	c := after(registered, due("2026-11"), asked("2026-11", 1), started("2026-11", 1, 1), declined("2026-11", 1), asked("2026-11", 2))
	for attempt, want := range map[int]domain.Claim{0: domain.ClaimNone, 1: domain.ClaimNone, 2: domain.ClaimSend, 3: domain.ClaimNone} {
		if got := c.Claim(period("2026-11"), attempt); got != want {
			t.Errorf("attempt %d: %s, want %s", attempt, got, want)
		}
	}
	if got := c.Claim(period("2026-12"), 1); got != domain.ClaimNone {
		t.Errorf("a bill that does not exist: %s", got)
	}
}

// Unresolved says that an earlier send may have moved money.
func TestUnresolved(t *testing.T) {
	t.Parallel()
	const p = "2026-11"
	for _, c := range []struct {
		story []domain.Event
		want  bool
	}{
		{[]domain.Event{asked(p, 1)}, false},
		{[]domain.Event{asked(p, 1), started(p, 1, 1)}, false},
		{[]domain.Event{asked(p, 1), started(p, 1, 1), started(p, 1, 2)}, false}, // no intent, nothing that could be confirmed
		{[]domain.Event{asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1)}, false},
		{[]domain.Event{asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1), started(p, 1, 2)}, true},
		{[]domain.Event{asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1), notSent(p), started(p, 1, 2)}, false},
		{[]domain.Event{asked(p, 1), started(p, 1, 1), unknown(p)}, true},
		{[]domain.Event{asked(p, 1), started(p, 1, 1), unknown(p), started(p, 1, 2), notSent(p)}, true},
		{[]domain.Event{asked(p, 1), started(p, 1, 1), unknown(p), started(p, 1, 2), declined(p, 1)}, false},
		{[]domain.Event{asked(p, 1), started(p, 1, 1), unknown(p), declined(p, 1), asked(p, 2)}, false},
		{[]domain.Event{asked(p, 1), started(p, 1, 1), unknown(p), paid(p, "ch_1")}, false},
		{[]domain.Event{asked(p, 1), adopted(p, "pi_1")}, true}, // somebody may have confirmed it
		{[]domain.Event{adopted(p, "pi_1"), asked(p, 1)}, true},
	} {
		bill, _ := after(c.story...).Bill(period(p))
		if bill.Unresolved != c.want {
			t.Errorf("%s: unresolved %t, want %t", names(c.story), bill.Unresolved, c.want)
		}
	}
}

// What a bill carries on from attempt to attempt, and what it does not.
func TestNextAttempt(t *testing.T) {
	t.Parallel()
	const p = "2026-11"
	bill, _ := after(registered, due(p), asked(p, 1), started(p, 1, 1), intent(p, "pi_1", 1), started(p, 1, 2), unknown(p), declined(p, 1), asked(p, 2)).Bill(period(p))
	want := domain.Bill{
		Period: period(p), Status: domain.BillRequested, Amount: usd49, HasDue: true, DueAt: noon,
		Attempt: 2, Start: 0, Key: domain.ChargeKey(ada, period(p), 2), StripeCustomerID: "cus_1", PaymentMethodID: "pm_1",
		IntentID: "pi_1", IntentNo: 1, DeclineClass: domain.Soft,
	}
	if bill != want {
		t.Errorf("the second attempt is\n%+v, want\n%+v", bill, want)
	}
}

// The amount freezes with the first fact that names it.
func TestAmountFreezes(t *testing.T) {
	t.Parallel()
	c := after(registered, activated, due("2026-11"),
		domain.SubscriptionAmountChanged{CustomerID: ada, AmountMinor: usd59.Minor, EffectivePeriod: period("2026-12")},
		domain.MonthlyBillingDue{CustomerID: ada, BillingPeriod: period("2026-11"), DueAt: noon, Money: usd59}, // a second one changes nothing
	)
	if bill, _ := c.Bill(period("2026-11")); bill.Amount != usd49 {
		t.Errorf("the bill is now over %s", bill.Amount)
	}
	sub, _ := c.Subscription()
	for p, want := range map[string]domain.Money{"2026-10": usd49, "2026-11": usd49, "2026-12": usd59, "2027-01": usd59} {
		if got := sub.AmountFor(period(p)); got != want {
			t.Errorf("%s is over %s, want %s", p, got, want)
		}
	}
	if bill, _ := after(registered, paid("2026-11", "ch_1")).Bill(period("2026-11")); bill.Amount != usd49 {
		t.Errorf("a payment nobody had asked for is over %s", bill.Amount)
	}
}

func TestSubscriptionStillBills(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		story []domain.Event
		want  map[string]bool
	}{
		{[]domain.Event{activated}, map[string]bool{"2026-11": true, "2030-01": true}},
		{[]domain.Event{activated, paused}, map[string]bool{"2026-11": true, "2026-12": false}}, // paused on the 15th
		{[]domain.Event{activated, paused, resumed}, map[string]bool{"2026-11": true, "2026-12": true}},
		{[]domain.Event{activated, cancelledNow}, map[string]bool{"2026-11": false, "2026-12": false}},
		{[]domain.Event{activated, cancelledEnd}, map[string]bool{"2026-11": true, "2026-12": false}}, // cancelled on the 15th
		{nil, map[string]bool{"2026-11": false}},
	} {
		sub, _ := after(c.story...).Subscription()
		for p, want := range c.want {
			if got := sub.Bills(period(p)); got != want {
				t.Errorf("%s: bills %s %t, want %t", names(c.story), p, got, want)
			}
		}
	}
}

// One boolean and one key for all months would silence or mis-key the later
// ones: the guard belongs to the period.
func TestTwelveMonthsAreTwelveBills(t *testing.T) {
	t.Parallel()
	history := []domain.Event{registered, activated}
	keys := map[domain.Key]bool{}
	for month := 1; month <= 12; month++ {
		p := fmt.Sprintf("2026-%02d", month)
		history = append(history, due(p), asked(p, 1), started(p, 1, 1), paid(p, "ch_"+p))
		keys[domain.ChargeKey(ada, period(p), 1)] = true
	}
	c := after(history...)
	if c.BilledPeriods().Len() != 12 || c.Requested().Len() != 12 || len(keys) != 12 {
		t.Errorf("%d billed, %d requested, %d keys", c.BilledPeriods().Len(), c.Requested().Len(), len(keys))
	}
	n := 0
	for b := range c.Bills() {
		n++
		if b.Status != domain.BillPaid || b.ChargeID != "ch_"+b.Period.String() {
			t.Errorf("%s is %s by %s", b.Period, b.Status, b.ChargeID)
		}
	}
	if n != 12 {
		t.Errorf("%d bills", n)
	}
}

func TestOverlapping(t *testing.T) {
	t.Parallel()
	for _, fact := range []domain.Event{due("2026-11"), asked("2026-11", 1), paid("2026-11", "ch_1"), settled("2026-11"), voided("2026-11")} {
		c := after(registered, fact)
		for p, want := range map[string]bool{"2026-Q4": true, "2026": true, "2026-11": false, "2026-12": false, "2026-Q3": false, "2027": false} {
			q, overlaps := c.Overlapping(period(p))
			if overlaps != want || want && q != period("2026-11") {
				t.Errorf("after %s: %s overlaps %s, %t", fact.EventName(), p, q, overlaps)
			}
		}
	}
}

// Every fact about a bill says which.
func TestBillOfKnowsEveryFact(t *testing.T) {
	t.Parallel()
	for e := range domain.Events() {
		v := reflect.New(reflect.TypeOf(e)).Elem()
		f := v.FieldByName("BillingPeriod")
		about := f.IsValid() && v.FieldByName("CustomerID").IsValid() // a run's fact is about many bills
		if about {
			f.Set(reflect.ValueOf(period("2026-11")))
			v.FieldByName("CustomerID").Set(reflect.ValueOf(ada))
		}
		id, p, ok := domain.BillOf(v.Interface().(domain.Event))
		if ok != about || about && (id != ada || p != period("2026-11")) {
			t.Errorf("%s is about bill %q %s, %t", e.EventName(), id, p, ok)
		}
	}
}
