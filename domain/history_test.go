package domain_test

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
)

// anyFact draws a fact about ada, legitimate or not at this point of the story.
func anyFact() *rapid.Generator[domain.Event] {
	return rapid.Custom(func(t *rapid.T) domain.Event {
		p := rapid.SampledFrom([]string{"2026-10", "2026-11", "2026-Q4"}).Draw(t, "period")
		attempt := rapid.IntRange(1, 3).Draw(t, "attempt")
		id := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "id")
		return rapid.SampledFrom([]domain.Event{
			registered, activated, paused, resumed, cancelledNow, cancelledEnd,
			domain.PaymentMethodChanged{CustomerID: ada, PaymentMethodID: "pm_" + id},
			domain.SubscriptionAmountChanged{CustomerID: ada, AmountMinor: usd59.Minor, EffectivePeriod: period("2026-11")},
			domain.SubscriptionScheduleChanged{CustomerID: ada, AnchorDay: 31, EffectivePeriod: period("2026-12"), At: noon},
			due(p), asked(p, attempt), started(p, attempt, 1), started(p, attempt, 2), intent(p, "pi_"+id, 1), adopted(p, "pi_"+id),
			paid(p, "ch_"+id), declined(p, attempt), unknown(p), held(p), notSent(p),
			domain.ChargeRejected{ChargeReport: report(p)}, domain.ChargeActionRequired{ChargeReport: report(p)},
			domain.ChargeNeedsReview{ChargeReport: report(p)}, domain.ChargeOutcomeSurprise{ChargeReport: report(p)},
			refundAsked(p, "r"+id, "ch_1", 1000), refund(p, "r"+id, "re_"+id, "ch_1", 1000, domain.RefundStatePending),
			refund(p, "", "re_"+id, "ch_1", 1000, domain.RefundStateSucceeded), refund(p, "r"+id, "", "", 0, domain.RefundStateUnknown),
			refund(p, "r"+id, "re_"+id, "ch_1", 1000, domain.RefundStateFailed), proposed(p, "ch_"+id), dismissed(p, "ch_"+id), disputed(p, "dp_"+id, "lost"),
			waiting(p), voided(p), closing(p, domain.ClosingSettled), closing(p, domain.ClosingVoid), settled(p), writtenOff(p),
		}).Draw(t, "fact")
	})
}

// No sequence of facts, not even one that no decision would make, un-pays a
// bill, takes a period out of billedPeriods or reopens what has ended.
func TestNoHistoryUnpaysABill(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var c domain.Customer
		charge := map[domain.Period]bool{}
		for _, e := range rapid.SliceOfN(anyFact(), 1, 40).Draw(t, "history") {
			before := slices.Collect(c.Bills())
			c = c.Evolve(e)
			if b, ok := e.(domain.CustomerBilled); ok {
				charge[b.BillingPeriod] = true
			}
			for _, b := range before {
				now, _ := c.Bill(b.Period)
				if b.Status.Final() && now.Status != b.Status && now.Status != domain.BillPaid {
					t.Fatalf("%s made %s of a bill that was %s", e.EventName(), now.Status, b.Status)
				}
			}
			for p := range charge {
				if b, _ := c.Bill(p); b.Status != domain.BillPaid || !c.BilledPeriods().Has(p) || c.Claim(p, b.Attempt) != domain.ClaimNone {
					t.Fatalf("%s made %s of a paid bill; in billedPeriods: %t", e.EventName(), b.Status, c.BilledPeriods().Has(p))
				}
			}
			if c.BilledPeriods().Len() != len(charge) {
				t.Fatalf("%d periods are billed, %d were paid", c.BilledPeriods().Len(), len(charge))
			}
		}
	})
}

// Evolve makes another value: two continuations of one state know nothing of
// each other, and the state is as it was.
func TestEvolveNeverChangesItsReceiver(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		history := rapid.SliceOfN(anyFact(), 0, 20).Draw(t, "history")
		left := rapid.SliceOfN(anyFact(), 1, 8).Draw(t, "left")
		right := rapid.SliceOfN(anyFact(), 1, 8).Draw(t, "right")
		base, same := after(history...), after(history...)
		onto := func(c domain.Customer, events []domain.Event) domain.Customer {
			for _, e := range events {
				c = c.Evolve(e)
			}
			return c
		}
		l := onto(base, left)
		r := onto(base, right)
		if !reflect.DeepEqual(base, same) {
			t.Fatal("a continuation changed the state it began with")
		}
		if !reflect.DeepEqual(l, onto(after(history...), left)) || !reflect.DeepEqual(r, onto(after(history...), right)) {
			t.Fatal("one continuation shows in the other")
		}
	})
}

// A reader that keeps one bill, or only the subscription, sees what the whole
// customer sees.
func TestPartsEvolveAsTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var c domain.Customer
		var sub domain.Subscription
		parts, backs := map[domain.Period]domain.Bill{}, map[domain.Period]domain.MoneyBack{}
		for _, e := range rapid.SliceOfN(anyFact(), 1, 40).Draw(t, "history") {
			c = c.Evolve(e)
			sub = sub.Evolve(e)
			if id, p, ok := domain.BillOf(e); ok {
				if id != ada {
					t.Fatalf("%s is about %q", e.EventName(), id)
				}
				if _, known := c.Bill(p); known {
					if _, kept := parts[p]; !kept {
						parts[p], backs[p] = domain.BlankBill(p), domain.MoneyBack{Period: p}
					}
				}
			}
			for p, b := range parts {
				parts[p], backs[p] = b.Evolve(e), backs[p].Evolve(e)
			}
		}
		if whole, _ := c.Subscription(); !reflect.DeepEqual(whole, sub) {
			t.Fatalf("the subscription alone is %+v, of the customer %+v", sub, whole)
		}
		n := 0
		for whole := range c.Bills() {
			n++
			if back := c.MoneyBack(whole.Period); !reflect.DeepEqual(backs[whole.Period], back) {
				t.Fatalf("the money back alone is\n%+v, of the customer\n%+v", backs[whole.Period], back)
			}
			if parts[whole.Period] != whole {
				t.Fatalf("the bill alone is\n%+v, of the customer\n%+v", parts[whole.Period], whole)
			}
		}
		if n != len(parts) {
			t.Fatalf("%d bills alone, %d of the customer", len(parts), n)
		}
	})
}
