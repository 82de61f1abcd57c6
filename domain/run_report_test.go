package domain_test

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/billonce/billonce/domain"
)

func TestRunReportAddsUp(t *testing.T) {
	t.Parallel()
	var r domain.RunReport
	usd := func(minor int64) domain.Money { return domain.Money{Minor: minor, Currency: "usd"} }
	eur := func(minor int64) domain.Money { return domain.Money{Minor: minor, Currency: "eur"} }
	for _, b := range []struct {
		bill domain.Bill
		back domain.MoneyBack
	}{
		{domain.Bill{Status: domain.BillPaid, Amount: usd(5000), Attempt: 2}, domain.MoneyBack{ChargeID: "ch_1", Taken: usd(5000),
			Refunds: []domain.Refund{{Amount: usd(100), State: domain.RefundStateSucceeded}, {Amount: usd(4000), State: domain.RefundStateFailed}}, Disputes: []domain.Dispute{{DisputeID: "dp_1"}}}},
		{domain.Bill{Status: domain.BillPaid, Amount: usd(700), Attempt: 1}, domain.MoneyBack{ChargeID: "ch_2", Taken: eur(650),
			Proposals: []domain.RefundProposal{{ChargeID: "ch_2", Amount: eur(650)}, {ChargeID: "ch_3", Amount: usd(700), Dismissed: "a gift"}}}},
		{domain.Bill{Status: domain.BillSettledStatus, Amount: usd(30), Attempt: 1}, domain.MoneyBack{}},
		{domain.Bill{Status: domain.BillDeclined, Amount: eur(2), Attempt: 3}, domain.MoneyBack{Taken: eur(9)}},
	} {
		if err := r.Add(b.bill, b.back); err != nil {
			t.Fatal(err)
		}
	}
	for _, code := range []string{"stolen_card", "insufficient_funds", "stolen_card"} {
		r.Decline(domain.ChargeDeclined{Code: "card_declined", DeclineCode: code, Class: domain.Hard})
	}
	want := domain.RunReport{
		Bills: 4, Open: 1, Attempts: 7, Disputes: 1,
		Statuses: []domain.RunReportStatus{{Status: domain.BillDeclined, Bills: 1}, {Status: domain.BillPaid, Bills: 2}, {Status: domain.BillSettledStatus, Bills: 1}},
		Totals: []domain.RunReportTotal{
			{Currency: "eur", Bills: 1, Expected: 2, Open: 2, Taken: 650},
			{Currency: "usd", Bills: 3, Expected: 5730, Paid: 5700, Closed: 30, Taken: 5000, Surplus: 700, Refunded: 100, Refunds: 1},
		},
		Declines: []domain.RunReportDecline{{Code: "card_declined", DeclineCode: "insufficient_funds", Class: domain.Hard, Declines: 1}, {Code: "card_declined", DeclineCode: "stolen_card", Class: domain.Hard, Declines: 2}},
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("it is\n%+v, want\n%+v", r, want)
	}
	if other := want; r.Digest() != other.Digest() || len(r.Digest()) != 64 {
		t.Error("equal reports have different digests")
	}
	changed := want
	changed.AsOf = "later"
	if changed.Digest() == want.Digest() {
		t.Error("another report has the same digest")
	}
	if err := r.Add(domain.Bill{Status: domain.BillPaid, Amount: usd(math.MaxInt64)}, domain.MoneyBack{}); !errors.Is(err, domain.ErrOverflow) {
		t.Errorf("too much: %v", err)
	}
}
