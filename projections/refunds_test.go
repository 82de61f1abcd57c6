package projections_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// Whatever happens, the rows are the domain's own fold, in one page, event by
// event or rebuilt.
func TestRefundsOfAnyHistory(t *testing.T) {
	t.Parallel()
	for name, draw := range map[string]func(*rapid.T, domain.CustomerID) []domain.Event{"anyhow": anyhow, "lawful": lawful} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := projectiontest.New(t)
			rapid.Check(t, func(rt *rapid.T) {
				log := db.Cleared(rt)
				facts := draw(rt, "acme")
				log.Given("acme", facts...)
				log.Check(projections.Refunds)
				log.Project(projections.Bills) // its own tests deliver it in every way
				refunds, err := log.Reads().Refunds(rt.Context(), projections.RefundsQuery{Page: projections.Page{Limit: projections.MaxLimit}})
				if err != nil {
					rt.Fatalf("%v", err)
				}
				bills, err := log.Reads().Bills(rt.Context(), "acme", projections.Page{})
				if err != nil {
					if len(bills.Items) == 0 {
						return // facts of nobody
					}
					rt.Fatalf("%v", err)
				}
				customer := domain.Fold[domain.Customer](slices.Values(facts))
				for back := range customer.MoneyBacks() {
					if got, want := shown(refunds.Items, back.Period), told(back); !slices.Equal(got, want) {
						rt.Fatalf("%s shows\n%q, want\n%q", back.Period, got, want)
					}
				}
				for _, b := range bills.Items {
					back := customer.MoneyBack(b.BillingPeriod)
					var minor int64
					if b.Refunded != nil {
						minor = b.Refunded.Minor
					}
					if minor != back.Refunded(back.ChargeID) || b.Disputed != back.Disputed() {
						rt.Fatalf("%s: %d went back, disputed %t; want %d, %t", b.BillingPeriod, minor, b.Disputed, back.Refunded(back.ChargeID), back.Disputed())
					}
				}
			})
		})
	}
}

// shown is a bill's rows in a line each, refunds first.
func shown(list []projections.Refund, p domain.Period) (lines []string) {
	for _, proposals := range []bool{false, true} {
		for _, r := range list {
			isProposal := r.Status == projections.ProposalOpen || r.Status == projections.ProposalAnswered || r.Status == projections.ProposalDismissed
			if r.BillingPeriod == p && isProposal == proposals {
				lines = append(lines, fmt.Sprintf("%s %q %q %s %d%s %q %q", r.Status, r.RefundID, r.StripeRefundID, r.ChargeID, r.Amount.Minor, r.Amount.Currency, r.Reason, r.Dismissed))
			}
		}
	}
	return lines
}

// told is the same from the domain's fold.
func told(back domain.MoneyBack) (lines []string) {
	for _, r := range back.Refunds {
		lines = append(lines, fmt.Sprintf("%s %q %q %s %d%s %q %q", r.State, r.RefundID, r.StripeRefundID, r.ChargeID, r.Amount.Minor, r.Amount.Currency, r.Reason, ""))
	}
	for _, p := range back.Proposals {
		status := projections.ProposalDismissed
		switch {
		case back.Open(p):
			status = projections.ProposalOpen
		case back.Refunded(p.ChargeID) > 0:
			status = projections.ProposalAnswered
		}
		lines = append(lines, fmt.Sprintf("%s %q %q %s %d%s %q %q", status, "", "", p.ChargeID, p.Amount.Minor, p.Amount.Currency, p.Reason, p.Dismissed))
	}
	return lines
}

// Bill, charge and refund show the same money, in the bill's own currency.
func TestWhatWentBackIsShown(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("acme", registered("acme"), requested("acme", november, 1), started("acme", november, 1, 1), billed("acme", november, 1, "ch_1"),
		refundAsked("acme", november, "r-1", 2000), refundAt("acme", november, "r-1", 2000, domain.RefundStateSucceeded),
		refundAsked("acme", november, "r-2", 500), refundAsked("acme", november, "r-3", 300), refundAt("acme", november, "r-3", 300, domain.RefundStateFailed))
	show := func() (bill, charge string) {
		t.Helper()
		log.Project(projections.All()...)
		b := billOf(t, log, "acme", november)
		c := must(log.Reads().Charges(t.Context(), projections.ChargesQuery{Customer: "acme"}))(t).Items[0]
		if b.Status != domain.BillPaid || b.Taken.Display != "$50.00" {
			t.Errorf("the bill is %s, %s taken", b.Status, b.Taken.Display)
		}
		return b.Refunded.Display, c.Refunded.Display
	}
	if bill, charge := show(); bill != "$25.00" || charge != "$25.00" {
		t.Errorf("refunded are %s of the bill, %s of the charge", bill, charge)
	}
	log.Given("acme", refundAt("acme", november, "r-1", 2000, domain.RefundStateFailed)) // weeks later
	if bill, charge := show(); bill != "$5.00" || charge != "$5.00" {
		t.Errorf("after the failure refunded are %s of the bill, %s of the charge", bill, charge)
	}
}

func TestRefundFilters(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("acme", registered("acme"), requested("acme", november, 1), billed("acme", november, 1, "ch_1"), refundAsked("acme", november, "r-1", 100))
	log.Given("bolt", registered("bolt"), refundAsked("bolt", december, "r-1", 100), refundAt("bolt", december, "r-1", 100, domain.RefundStateSucceeded))
	log.Given("cone", registered("cone"), proposedFor("cone", november, "ch_9"))
	log.Given("dune", registered("dune"), proposedFor("dune", november, "ch_8"),
		domain.RefundProposalDismissed{CustomerID: "dune", BillingPeriod: november, ChargeID: "ch_8", Reason: "it is owed"})
	log.Project(projections.Refunds)
	for query, expected := range map[projections.RefundsQuery][]domain.CustomerID{
		{}:                                   {"acme", "bolt", "cone", "dune"},
		{Status: "open"}:                     {"acme", "cone"},
		{Status: "proposed"}:                 {"cone"},
		{Status: "dismissed"}:                {"dune"},
		{Status: "succeeded"}:                {"bolt"},
		{Status: "pending"}:                  {},
		{Period: "2026-12"}:                  {"bolt"},
		{Customer: "acme"}:                   {"acme"},
		{Charge: "ch_1"}:                     {"acme", "bolt"},
		{Charge: "ch_9", Status: "proposed"}: {"cone"},
		{Charge: "ch_9", Customer: "acme"}:   {},
		{Status: "open", Page: projections.Page{Order: projections.Descending}}: {"cone", "acme"},
	} {
		found := []domain.CustomerID{}
		for _, r := range must(log.Reads().Refunds(t.Context(), query))(t).Items {
			found = append(found, r.CustomerID)
		}
		if !slices.Equal(found, expected) {
			t.Errorf("%+v: %v, want %v", query, found, expected)
		}
	}
	for field, query := range map[string]projections.RefundsQuery{
		"status": {Status: "lost"}, "period": {Period: "2026-13"}, "customer": {Customer: "a:b"}, "charge": {Charge: "a'b"}, "cursor": {Page: projections.Page{Cursor: "x"}},
	} {
		_, err := log.Reads().Refunds(t.Context(), query)
		refused(t, err, domain.ErrInvalidInput, field)
	}
}

// Half of each goes back, and is shown with the decimals of its currency.
func TestC027_AmountsAreShownInTheirCurrency(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	for currency, display := range map[domain.Currency][2]string{"jpy": {"¥500", "¥250"}, "krw": {"₩500", "₩250"}, "usd": {"$5.00", "$2.50"}} {
		id := domain.CustomerID("in-" + string(currency))
		whole, half := domain.Money{Minor: 500, Currency: currency}, domain.Money{Minor: 250, Currency: currency}
		log.Given(id, registered(id),
			domain.ChargeRequested{CustomerID: id, BillingPeriod: november, Attempt: 1, Key: domain.ChargeKey(id, november, 1), Money: whole},
			domain.CustomerBilled{CustomerID: id, BillingPeriod: november, Attempt: 1, ChargeID: "ch_1", Money: whole},
			domain.RefundRequested{CustomerID: id, BillingPeriod: november, RefundID: "half", ChargeID: "ch_1", Money: half},
			domain.RefundRecorded{CustomerID: id, BillingPeriod: november, RefundID: "half", RefundOutcome: domain.RefundOutcome{
				State: domain.RefundStateSucceeded, StripeRefundID: "re_1", ChargeID: "ch_1", Money: half,
			}})
		log.Project(projections.All()...)
		b := billOf(t, log, id, november)
		c := must(log.Reads().Charges(t.Context(), projections.ChargesQuery{Customer: string(id)}))(t).Items[0]
		r := must(log.Reads().Refunds(t.Context(), projections.RefundsQuery{Customer: string(id)}))(t).Items[0]
		got := []string{b.Amount.Display, b.Taken.Display, c.Amount.Display, b.Refunded.Display, c.Refunded.Display, r.Amount.Display}
		if want := []string{display[0], display[0], display[0], display[1], display[1], display[1]}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", currency, got, want)
		}
	}
}
