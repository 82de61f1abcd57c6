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

func TestChargesOfAnyHistory(t *testing.T) {
	t.Parallel()
	db := projectiontest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		log := db.Cleared(rt)
		log.Given("acme", anyhow(rt, "acme")...)
		log.Check(projections.Charges)
	})
}

// In a lawful history the newest attempt stands where the bill stands, and at
// most one attempt is paid.
func TestTheNewestAttemptStandsWhereTheBillStands(t *testing.T) {
	t.Parallel()
	db := projectiontest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		log := db.Cleared(rt)
		facts := lawful(rt, "acme")
		log.Given("acme", facts...)
		log.Check(projections.Charges)
		charges, err := log.Reads().Charges(rt.Context(), projections.ChargesQuery{Customer: "acme"})
		if err != nil {
			rt.Fatalf("%v", err)
		}
		for bill := range domain.Fold[domain.Customer](slices.Values(facts)).Bills() {
			var statuses []domain.BillStatus
			newest, paid := 0, 0
			for _, c := range charges.Items {
				if c.BillingPeriod != bill.Period {
					continue
				}
				statuses = append(statuses, c.Status)
				newest = max(newest, c.Attempt)
				if c.Status == domain.BillPaid {
					paid++
				}
			}
			switch {
			case len(statuses) != newest || newest < bill.Attempt:
				rt.Fatalf("%d charges for %d attempts of %+v", len(statuses), newest, bill)
			case bill.Status == domain.BillPaid && paid != 1 || bill.Status != domain.BillPaid && paid > 0:
				rt.Fatalf("%d paid attempts of %+v: %v", paid, bill, statuses)
			case bill.Attempt > 0 && paid == 0 && !slices.Contains(statuses, bill.Status):
				rt.Fatalf("attempts are %v, the bill is %+v", statuses, bill)
			}
		}
	})
}

func TestEachAttemptIsACharge(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("acme", registered("acme"), due("acme", november),
		requested("acme", november, 1), started("acme", november, 1, 1), committed("acme", november, "pi_1"), declined("acme", november, 1, "ch_1"),
		requested("acme", november, 2), started("acme", november, 2, 1), unknown("acme", november, 2, 1))
	log.Check(projections.Charges)

	want(t, "charges", story(t, log, "acme"), "1 declined pi_1 ch_1 insufficient_funds; 2 unknown pi_1  no answer in 30s")
	log.Given("acme", billed("acme", november, 2, "ch_2"))
	log.Check(projections.Charges)
	want(t, "charges", story(t, log, "acme"), "1 declined pi_1 ch_1 insufficient_funds; 2 paid pi_1 ch_2 ")
}

// The confirm of attempt 1 was still travelling when it was called declined.
func TestALateSuccessOfAnOlderAttempt(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("acme", registered("acme"), requested("acme", november, 1), started("acme", november, 1, 1), committed("acme", november, "pi_1"),
		declined("acme", november, 1, "ch_1"), requested("acme", november, 2), billed("acme", november, 1, "ch_late"), started("acme", november, 2, 1))
	log.Check(projections.Charges)
	want(t, "charges", story(t, log, "acme"), "1 paid pi_1 ch_late ; 2 void pi_1  paid by another attempt")

	// A decline is an end of its own: it stays, and so does the payment.
	log.Given("zeta", requested("zeta", november, 1), declined("zeta", november, 1, "ch_1"), requested("zeta", november, 2), declined("zeta", november, 2, "ch_2"),
		billed("zeta", november, 1, "ch_late"), unknown("zeta", november, 2, 1))
	log.Check(projections.Charges)
	want(t, "charges", story(t, log, "zeta"), "1 paid pi_1 ch_late ; 2 declined  ch_2 insufficient_funds")
}

// The look found a payment that the log, restored from a backup, knows nothing of.
func TestARecoveredPaymentIsACharge(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("acme", registered("acme"), committed("acme", november, "pi_9"))
	log.Check(projections.Charges)
	want(t, "charges before", story(t, log, "acme"), "")
	log.Given("acme", billed("acme", november, 1, "ch_9"))
	log.Check(projections.Charges)
	want(t, "charges", story(t, log, "acme"), "1 paid pi_1 ch_9 ")
}

// story is a customer's charges in a line.
func story(t *testing.T, log *projectiontest.Log, id domain.CustomerID) (line string) {
	t.Helper()
	for i, c := range must(log.Reads().Charges(t.Context(), projections.ChargesQuery{Customer: string(id)}))(t).Items {
		if i > 0 {
			line += "; "
		}
		line += fmt.Sprintf("%d %s %s %s %s", c.Attempt, c.Status, c.IntentID, c.ChargeID, c.DeclineCode+c.Reason)
	}
	return line
}

func TestChargesFilters(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("paid", requested("paid", november, 1), started("paid", november, 1, 1), billed("paid", november, 1, "ch_1"))
	log.Given("stuck", requested("stuck", november, 1), started("stuck", november, 1, 1), unknown("stuck", november, 1, 1))
	log.Given("new", requested("new", november, 1))
	log.Given("old", requested("old", december, 1), started("old", december, 1, 1), declined("old", december, 1, "ch_2"))
	log.Project(projections.Charges)
	if _, err := log.Pool.Exec(t.Context(), `INSERT INTO dead_letters (processor, position, partition, sequence_key, event_id, event_type, attempts, error)
		VALUES ('preflight', 1, 1, 'new', gen_random_uuid(), 'charge.requested.v1', 5, 'no')`); err != nil {
		t.Fatal(err)
	}
	for query, expected := range map[projections.ChargesQuery][]domain.CustomerID{
		{}:                                      {"paid", "stuck", "new", "old"},
		{Status: "paid"}:                        {"paid"},
		{Status: "unknown"}:                     {"stuck"},
		{Status: "stuck"}:                       {"stuck"},
		{Status: "open"}:                        {"stuck", "new"},
		{Status: "parked"}:                      {"new"},
		{Status: "held"}:                        {},
		{Period: "2026-12"}:                     {"old"},
		{Period: "2026-11", Status: "open"}:     {"stuck", "new"},
		{Customer: "stuck"}:                     {"stuck"},
		{Customer: "stuck", Period: "2026-12"}:  {},
		{Customer: "nobody"}:                    {},
		{Status: "declined", Period: "2026-12"}: {"old"},
	} {
		found := []domain.CustomerID{}
		for _, c := range must(log.Reads().Charges(t.Context(), query))(t).Items {
			found = append(found, c.CustomerID)
			if c.Parked != (c.CustomerID == "new") {
				t.Errorf("%s is parked: %t", c.CustomerID, c.Parked)
			}
		}
		if !slices.Equal(found, expected) {
			t.Errorf("%+v: %v, want %v", query, found, expected)
		}
	}
}
