package projections_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// Whatever happened, and in whatever order: each bill's row is the domain's
// own fold of the customer's stream, and comes out the same however it is
// delivered.
func TestBillsAreTheDomainsFold(t *testing.T) {
	t.Parallel()
	for name, history := range map[string]func(*rapid.T, domain.CustomerID) []domain.Event{"lawful": lawful, "anyhow": anyhow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := projectiontest.New(t)
			rapid.Check(t, func(rt *rapid.T) {
				log := db.Cleared(rt)
				want := map[domain.CustomerID][]domain.Bill{}
				for i := range rapid.IntRange(1, 2).Draw(rt, "customers") {
					id := domain.CustomerID(fmt.Sprintf("customer-%d", i))
					facts := history(rt, id)
					log.Given(id, facts...)
					want[id] = slices.Collect(domain.Fold[domain.Customer](slices.Values(facts)).Bills())
				}
				log.Check(projections.Bills)
				for id := range want {
					if got := billsOf(rt, log, id); !slices.Equal(got, want[id]) {
						rt.Fatalf("bills of %s:\n%+v\nthe domain says\n%+v", id, got, want[id])
					}
				}
			})
		})
	}
}

// billsOf reads the domain's part of a customer's rows.
func billsOf(t projectiontest.T, log *projectiontest.Log, id domain.CustomerID) []domain.Bill {
	t.Helper()
	rows, err := log.Pool.Query(t.Context(), `SELECT billing_period, status, amount_minor, currency, has_due, due_at, attempt, starts, key,
			stripe_customer_id, payment_method_id, intent_id, intent_no, charge_id, decline_class, closing, reference, closing_reason, unresolved, cancelled, perhaps_settled, released, reviewed
		FROM bills WHERE customer_id = $1`, string(id))
	if err != nil {
		t.Fatalf("%v", err)
	}
	bills, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b domain.Bill, err error) {
		var label string
		var due *time.Time
		err = row.Scan(&label, &b.Status, &b.Amount.Minor, &b.Amount.Currency, &b.HasDue, &due, &b.Attempt, &b.Start, &b.Key,
			&b.StripeCustomerID, &b.PaymentMethodID, &b.IntentID, &b.IntentNo, &b.ChargeID, &b.DeclineClass, &b.Closing, &b.Reference, &b.Reason,
			&b.Unresolved, &b.Cancelled, &b.PerhapsSettled, &b.Released, &b.Reviewed)
		b.Period = period(label)
		if due != nil {
			b.DueAt = due.UTC()
		}
		return b, err
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	slices.SortFunc(bills, func(a, b domain.Bill) int {
		if a.Period.Before(b.Period) {
			return -1
		}
		return 1
	})
	return bills
}

func TestABillTellsWhyItStandsWhereItStands(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	request := log.Given("acme", registered("acme"), due("acme", november), requested("acme", november, 1))[2]
	log.Given("acme", started("acme", november, 1, 1), unknown("acme", november, 1, 1))
	log.Check(projections.Bills)

	bill := billOf(t, log, "acme", november)
	want(t, "status", bill.Status, domain.BillUnknown)
	want(t, "reason", bill.Reason, "no answer in 30s")
	want(t, "evidence", bill.Evidence, "req_1")
	want(t, "amount", bill.Amount, projections.Money{Minor: 5000, Currency: "usd", Display: "$50.00"})
	want(t, "requested at", *bill.RequestedAt, request.RecordedAt.UTC())

	log.Given("acme", started("acme", november, 1, 2), declined("acme", november, 1, "ch_1"))
	log.Check(projections.Bills)
	bill = billOf(t, log, "acme", november)
	want(t, "reason after the decline", bill.Reason, "")
	want(t, "code", bill.Code+" "+bill.DeclineCode, "card_declined insufficient_funds")

	paid := log.Given("acme", requested("acme", november, 2), started("acme", november, 2, 1), billed("acme", november, 2, "ch_2"))[2]
	log.Check(projections.Bills)
	bill = billOf(t, log, "acme", november)
	want(t, "status", bill.Status, domain.BillPaid)
	want(t, "code after the payment", bill.Code, "")
	want(t, "charge", bill.ChargeID, "ch_2")
	want(t, "taken", *bill.Taken, projections.Money{Minor: 5000, Currency: "usd", Display: "$50.00"})
	want(t, "paid at", *bill.PaidAt, paid.RecordedAt.UTC())
	want(t, "paid position", bill.PaidPosition, paid.Place)

	log.Given("acme", domain.ChargeOutcomeSurprise{ChargeReport: domain.ChargeReport{CustomerID: "acme", BillingPeriod: november, Attempt: 2, Reason: "a second success"}})
	log.Check(projections.Bills)
	bill = billOf(t, log, "acme", november)
	want(t, "status after the surprise", bill.Status, domain.BillPaid)
	want(t, "surprise", fmt.Sprint(bill.Surprises, " ", bill.Surprise), "1 a second success")
}

// A surprise about a bill that nobody knows makes no bill, and a cancellation
// does not make one of it.
func TestWhatIsNoBillHasNoRow(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("acme", registered("acme"), activated("acme"), due("acme", december),
		domain.ChargeOutcomeSurprise{ChargeReport: domain.ChargeReport{CustomerID: "acme", BillingPeriod: november, Attempt: 1, Reason: "whose is it?"}},
		domain.SubscriptionCancelled{CustomerID: "acme", Mode: domain.CancelNow, At: noon})
	log.Check(projections.Bills)
	log.Check(projections.Charges)
	log.Check(projections.Runs)
	bills := must(log.Reads().Bills(t.Context(), "acme", projections.Page{}))(t).Items
	if len(bills) != 1 || bills[0].BillingPeriod != december || !bills[0].Cancelled {
		t.Errorf("bills %+v", bills)
	}
}
