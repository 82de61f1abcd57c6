package projections_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// A run's totals are the sum over the domain's bills, whatever happened.
func TestRunsAddUpTheDomainsBills(t *testing.T) {
	t.Parallel()
	db := projectiontest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		log := db.Cleared(rt)
		type key struct {
			period, currency, status string
		}
		count, sum, taken := map[key]int64{}, map[key]int64{}, map[[2]string]int64{}
		for i := range rapid.IntRange(1, 3).Draw(rt, "customers") {
			id := domain.CustomerID(fmt.Sprintf("customer-%d", i))
			facts := anyhow(rt, id)
			log.Given(id, facts...)
			for b := range domain.Fold[domain.Customer](slices.Values(facts)).Bills() {
				k := key{b.Period.String(), string(b.Amount.Currency), string(b.Status)}
				count[k]++
				sum[k] += b.Amount.Minor
			}
			paid := map[domain.Period]bool{}
			for _, e := range facts {
				if e, ok := e.(domain.CustomerBilled); ok && !paid[e.BillingPeriod] {
					paid[e.BillingPeriod] = true
					taken[[2]string{e.BillingPeriod.String(), string(e.Currency)}] += e.Minor
				}
			}
		}
		log.Check(projections.Runs)
		runs, err := log.Reads().Runs(rt.Context(), projections.Page{})
		if err != nil {
			rt.Fatalf("%v", err)
		}
		gotCount, gotSum, gotTaken := map[key]int64{}, map[key]int64{}, map[[2]string]int64{}
		for _, run := range runs.Items {
			for _, total := range run.Totals {
				for _, s := range total.Statuses {
					k := key{run.BillingPeriod.String(), string(total.Currency), string(s.Status)}
					gotCount[k], gotSum[k] = s.Bills, s.Amount.Minor
				}
				if total.Taken.Minor != 0 {
					gotTaken[[2]string{run.BillingPeriod.String(), string(total.Currency)}] = total.Taken.Minor
				}
				if total.Expected.Minor != total.Paid.Minor+total.Open.Minor+total.Closed.Minor {
					rt.Fatalf("the total does not add up: %+v", total)
				}
			}
		}
		if !maps.Equal(gotCount, count) || !maps.Equal(gotSum, sum) || !maps.Equal(gotTaken, taken) {
			rt.Fatalf("counts %v, want %v\nsums %v, want %v\ntaken %v, want %v", gotCount, count, gotSum, sum, gotTaken, taken)
		}
		log.Check(projections.Revenue)
		revenueIsTaken(rt, log, taken)
	})
}

func revenueIsTaken(t projectiontest.T, log *projectiontest.Log, taken map[[2]string]int64) {
	t.Helper()
	want, got := map[[2]string]int64{}, map[[2]string]int64{}
	for k, minor := range taken {
		year, month := period(k[0]).Start()
		want[[2]string{domain.PeriodOf(domain.Monthly, year, month).String(), k[1]}] += minor
	}
	list, err := log.Reads().Revenue(t.Context(), "", "", "")
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, m := range list.Items {
		got[[2]string{m.Month.String(), string(m.Amount.Currency)}] = m.Amount.Minor
	}
	if !maps.Equal(got, want) {
		t.Fatalf("revenue %v, want %v", got, want)
	}
}

func TestARun(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	for i := range 4 {
		id := domain.CustomerID(fmt.Sprintf("c%d", i))
		log.Given(id, registered(id), due(id, november), requested(id, november, 1), started(id, november, 1, 1))
	}
	log.Given("c0", billed("c0", november, 1, "ch_0"))
	log.Given("c1", unknown("c1", november, 1, 1))
	log.Given("c2", declined("c2", november, 1, "ch_2"), domain.BillWrittenOff{CustomerID: "c2", BillingPeriod: november, Reason: "gone"})
	yen := domain.Money{Minor: 500, Currency: "jpy"}
	log.Given("c4", registered("c4"), domain.MonthlyBillingDue{CustomerID: "c4", BillingPeriod: november, DueAt: noon, Money: yen})
	log.Given("c5", due("c5", december))
	log.Check(projections.Runs)
	log.Check(projections.Revenue)

	run := must(log.Reads().Run(t.Context(), "2026-11"))(t)
	want(t, "counts", fmt.Sprint(run.Bills, run.Paid, run.Open, run.Closed), "5 1 3 1")
	want(t, "statuses", fmt.Sprint(run.Statuses), "[{due 1} {paid 1} {started 1} {unknown 1} {written_off 1}]")
	yens, dollars := run.Totals[0], run.Totals[1]
	want(t, "yen", fmt.Sprintf("%s %s %s", yens.Expected.Display, yens.Paid.Display, yens.Open.Display), "¥500 ¥0 ¥500")
	want(t, "dollars", fmt.Sprintf("%s %s %s %s %s",
		dollars.Expected.Display, dollars.Paid.Display, dollars.Taken.Display, dollars.Open.Display, dollars.Closed.Display), "$200.00 $50.00 $50.00 $100.00 $50.00")

	want(t, "progress, before the bills' model has seen a payment", fmt.Sprint(run.Progress), "{5 2 2 0 <nil>}")
	log.Check(projections.Bills)
	run = must(log.Reads().Run(t.Context(), "2026-11"))(t)
	if p := run.Progress; p.Rate <= 0 || p.Rate > 1 || p.SecondsLeft == nil || *p.SecondsLeft < 2 {
		t.Errorf("progress is %+v", p)
	}

	_, err := log.Reads().Run(t.Context(), "2025-01")
	refused(t, err, projections.ErrUnknownRun, "")
	_, err = log.Reads().Run(t.Context(), "2026-13")
	refused(t, err, domain.ErrInvalidInput, "period")
}

func TestRevenue(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("a", billed("a", november, 1, "ch_1"), billed("a", december, 1, "ch_2"))
	log.Given("b", billed("b", period("2026-Q4"), 1, "ch_3"), billed("b", november, 1, "ch_4"))
	log.Check(projections.Revenue)
	show := func(from, to string, order projections.Order) string {
		t.Helper()
		text := ""
		for _, m := range must(log.Reads().Revenue(t.Context(), from, to, order))(t).Items {
			text += fmt.Sprint(m.Month, " ", m.Bills, " ", m.Amount.Display, "; ")
		}
		return text
	}
	want(t, "all", show("", "", ""), "2026-10 1 $50.00; 2026-11 2 $100.00; 2026-12 1 $50.00; ")
	want(t, "part", show("2026-11", "2026-11", ""), "2026-11 2 $100.00; ")
	want(t, "newest first", show("2026-11", "", projections.Descending), "2026-12 1 $50.00; 2026-11 2 $100.00; ")
	for field, bounds := range map[string][2]string{"from": {"2026-Q4", ""}, "to": {"2026-11", "2026-10"}} {
		_, err := log.Reads().Revenue(t.Context(), bounds[0], bounds[1], "")
		refused(t, err, domain.ErrInvalidInput, field)
	}
}

// What is expected of a run, and what holds it back, is shown also before
// anything has fallen due.
func TestARunShowsWhatHoldsItBack(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	for _, sql := range []string{
		`INSERT INTO run_manifest (billing_period, customer_id, amount_minor, currency, stripe_customer_id, fixed, withdrawn, version, registered, refused)
			VALUES ('2026-12', 'a', 5000, 'usd', 'cus_a', true, false, 1, true, NULL), ('2026-12', 'b', 2500, 'usd', 'cus_b', false, false, 1, false, 'entry_fixed'),
				('2026-12', 'c', 2500, 'usd', 'cus_c', false, true, 1, false, NULL), ('2026-12', 'd', 700, 'jpy', 'cus_d', false, false, 1, true, NULL)`,
		`INSERT INTO billing_runs (billing_period, paused, reason, refusal, paused_by, paused_at, vault_key, expires_at)
			VALUES ('2026-12', true, 'the spend cap is reached', '{"code":"spend_cap_exceeded","currency":"usd","asked_minor":5000}', 'collector', '2026-12-01', '9f2c', '2027-01-15')`,
	} {
		if _, err := log.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	run := must(log.Reads().Run(t.Context(), "2026-12"))(t)
	manifest := ""
	for _, m := range run.Manifest {
		manifest += fmt.Sprint(m.Bills, " ", m.Expected.Display, " ", m.Fixed, " ", m.Registered, " ", m.Refused, "; ")
	}
	want(t, "manifest", manifest, "1 ¥700 0 1 0; 2 $75.00 1 1 1; ")
	c := run.Control
	want(t, "control", fmt.Sprint(c.Paused, " ", c.Reason, " ", c.Refusal.Code, " ", c.PausedBy, " ", c.VaultKey, " ", c.ExpiresAt.Format("2006-01-02")), "true the spend cap is reached spend_cap_exceeded collector 9f2c 2027-01-15")
	if _, err := log.Pool.Exec(t.Context(), `UPDATE billing_runs SET paused = false`); err != nil {
		t.Fatal(err)
	}
	c = must(log.Reads().Run(t.Context(), "2026-12"))(t).Control
	want(t, "after it was resumed", fmt.Sprintln(c.Paused, c.Reason == "", c.Refusal == nil, c.PausedBy == "", c.PausedAt == nil, c.VaultKey), "false true true true true 9f2c\n")
}

// A run is not over while a subscription is behind: one that still owes an earlier
// period of its cadence owes this one after it.
func TestARunAwaitsWhoIsLate(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	if _, err := log.Pool.Exec(t.Context(), `INSERT INTO run_manifest (billing_period, customer_id, amount_minor, currency, stripe_customer_id, fixed, withdrawn, version)
		VALUES ('2026-10', 'late', 5000, 'usd', 'cus_1', false, false, 1), ('2026-11', 'now', 5000, 'usd', 'cus_1', false, false, 1), ('2026-12', 'next', 5000, 'usd', 'cus_1', false, false, 1),
			('2026-Q3', 'quarter', 5000, 'usd', 'cus_1', false, false, 1), ('2026', 'year', 5000, 'usd', 'cus_1', false, false, 1),
			('2026-09', 'declared', 5000, 'usd', 'cus_1', true, false, 1), ('2026-09', 'cancelled', 5000, 'usd', 'cus_1', false, true, 1)`); err != nil {
		t.Fatal(err)
	}
	for label, n := range map[string]int64{"2026-09": 0, "2026-10": 1, "2026-11": 2, "2026-12": 3, "2026-Q2": 0, "2026-Q4": 1, "2026": 1, "2025": 0} {
		standing := must(log.Reads().RunStanding(t.Context(), period(label), noon))(t)
		want(t, label, fmt.Sprint(standing.FallingDue), fmt.Sprint(n))
	}
}
