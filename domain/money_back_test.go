package domain_test

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/billonce/billonce/domain"
)

func backAfter(history ...domain.Event) domain.MoneyBack {
	return after(append([]domain.Event{registered, due("2026-11"), asked("2026-11", 1)}, history...)...).MoneyBack(period("2026-11"))
}

// What may have moved takes room from the charge; what provably has not gives
// it back, however late.
func TestWhatCountsAsRefunded(t *testing.T) {
	t.Parallel()
	const nov = "2026-11"
	one := []domain.Event{paid(nov, "ch_1"), refundAsked(nov, "r1", "ch_1", 1000)}
	for _, c := range []struct {
		more []domain.Event
		want int64
	}{
		{nil, 1000},
		{[]domain.Event{refund(nov, "r1", "", "", 0, domain.RefundStateUnknown)}, 1000},
		{[]domain.Event{refund(nov, "r1", "re_1", "ch_1", 1000, domain.RefundStatePending)}, 1000},
		{[]domain.Event{refund(nov, "r1", "re_1", "ch_1", 1000, domain.RefundStateSucceeded)}, 1000},
		{[]domain.Event{refund(nov, "r1", "re_1", "ch_1", 1000, "a state of tomorrow")}, 1000},
		{[]domain.Event{refund(nov, "r1", "", "", 0, domain.RefundStateRefused)}, 0},
		{[]domain.Event{refund(nov, "r1", "re_1", "ch_1", 1000, domain.RefundStateCancelled)}, 0},
		{[]domain.Event{refund(nov, "r1", "re_1", "ch_1", 1000, domain.RefundStateSucceeded), refund(nov, "r1", "re_1", "ch_1", 1000, domain.RefundStateFailed)}, 0},
		{[]domain.Event{refundAsked(nov, "r2", "ch_1", 1000)}, 2000},                               // two equal ones
		{[]domain.Event{refundAsked(nov, "r1", "ch_1", 1000)}, 1000},                               // told again
		{[]domain.Event{refund(nov, "", "re_9", "ch_1", 500, domain.RefundStateSucceeded)}, 1500},  // made outside
		{[]domain.Event{refund(nov, "", "re_9", "ch_2", 500, domain.RefundStateSucceeded)}, 1000},  // of another charge
		{[]domain.Event{refundAsked("2026-10", "r1", "ch_1", 1000)}, 1000},                         // of another bill
		{[]domain.Event{refund(nov, "r1", "re_1", "ch_1", 900, domain.RefundStateSucceeded)}, 900}, // as Stripe states it
		{[]domain.Event{refund(nov, "", "re_9", "ch_1", math.MaxInt64, domain.RefundStateSucceeded)}, math.MaxInt64},
		{[]domain.Event{ // Stripe holds two under one name: both count
			refund(nov, "r1", "re_1", "ch_1", 1000, domain.RefundStateSucceeded), refund(nov, "r1", "re_2", "ch_1", 1000, domain.RefundStateSucceeded),
		}, 2000},
	} {
		back := backAfter(append(slices.Clone(one), c.more...)...)
		if got := back.Refunded("ch_1"); got != c.want {
			t.Errorf("%d of the charge went back, want %d: %+v", got, c.want, back.Refunds)
		}
	}
}

// A refunded bill stays billed.
func TestARefundedBillStaysBilled(t *testing.T) {
	t.Parallel()
	c := after(registered, due("2026-11"), asked("2026-11", 1), paid("2026-11", "ch_1"),
		refundAsked("2026-11", "r1", "ch_1", 4900), refund("2026-11", "r1", "re_1", "ch_1", 4900, domain.RefundStateSucceeded), disputed("2026-11", "dp_1", "lost"))
	bill, _ := c.Bill(period("2026-11"))
	if bill.Status != domain.BillPaid || !c.BilledPeriods().Has(period("2026-11")) || c.Claim(period("2026-11"), 1) != domain.ClaimNone {
		t.Errorf("it is %s, billed: %t", bill.Status, c.BilledPeriods().Has(period("2026-11")))
	}
	// News about a bill that the log had not asked for does not make it due.
	c = after(registered, refund("2026-12", "", "re_1", "ch_9", 100, domain.RefundStateSucceeded))
	if bill, _ := c.Bill(period("2026-12")); bill.Status != domain.BillFound || c.Claim(period("2026-12"), 0) != domain.ClaimNone {
		t.Errorf("it is %s", bill.Status)
	}
}

// A proposal is open until it is dismissed or its charge is refunded; a refund
// that fails opens it again.
func TestProposals(t *testing.T) {
	t.Parallel()
	const nov = "2026-11"
	open := func(history ...domain.Event) bool {
		back := backAfter(append([]domain.Event{paid(nov, "ch_1"), proposed(nov, "ch_2")}, history...)...)
		p, ok := back.Proposal("ch_2")
		if taken, known := back.TakenBy("ch_2"); !ok || !known || taken != usd49 {
			t.Errorf("ch_2 took %s, proposed: %t", taken, ok)
		}
		return back.Open(p)
	}
	going := refundAsked(nov, "r1", "ch_2", 4900)
	for i, c := range []struct {
		history []domain.Event
		want    bool
	}{
		{nil, true},
		{[]domain.Event{proposed(nov, "ch_2"), proposed(nov, "ch_3")}, true},
		{[]domain.Event{dismissed(nov, "ch_3")}, true},
		{[]domain.Event{dismissed(nov, "ch_2")}, false},
		{[]domain.Event{going}, false},
		{[]domain.Event{going, refund(nov, "r1", "re_1", "ch_2", 4900, domain.RefundStateFailed)}, true},
		{[]domain.Event{refund(nov, "", "re_1", "ch_2", 4900, domain.RefundStateSucceeded)}, false},
		{[]domain.Event{refundAsked(nov, "r1", "ch_1", 4900)}, true},
	} {
		if got := open(c.history...); got != c.want {
			t.Errorf("%d: open: %t, want %t", i, got, c.want)
		}
	}
}

func TestDisputes(t *testing.T) {
	t.Parallel()
	for status, holds := range map[string]bool{
		"needs_response": true, "under_review": true, "lost": true, "warning_needs_response": true, "a word of tomorrow": true,
		"won": false, "warning_closed": false, "charge_refunded": false,
	} {
		back := backAfter(paid("2026-11", "ch_1"), disputed("2026-11", "dp_1", "needs_response"), disputed("2026-11", "dp_1", status))
		if back.Disputed() != holds || len(back.Disputes) != 1 {
			t.Errorf("%s: disputed: %t, %d disputes", status, back.Disputed(), len(back.Disputes))
		}
	}
	two := backAfter(paid("2026-11", "ch_1"), disputed("2026-11", "dp_1", "lost"), disputed("2026-11", "dp_2", "won"))
	if !two.Disputed() || len(two.Disputes) != 2 {
		t.Errorf("one lost, one won: %+v", two.Disputes)
	}
}

// The state may be kept as JSON by a reader.
func TestMoneyBackAsJSON(t *testing.T) {
	t.Parallel()
	want := backAfter(paid("2026-11", "ch_1"), refundAsked("2026-11", "r1", "ch_1", 1000), refund("2026-11", "", "re_2", "ch_1", 5, domain.RefundStateFailed),
		proposed("2026-11", "ch_2"), dismissed("2026-11", "ch_2"), disputed("2026-11", "dp_1", "won"))
	stored, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got domain.MoneyBack
	if err := json.Unmarshal(stored, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v, want\n%+v", err, got, want)
	}
}
