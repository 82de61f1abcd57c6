package sagas_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/sagas"
)

// expected spells the manifest: a line a bill.
func (r *rig) expected() string {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `SELECT billing_period, customer_id, amount_minor, currency, stripe_customer_id,
		CASE WHEN withdrawn THEN ' withdrawn' WHEN fixed THEN ' fixed' ELSE '' END FROM run_manifest ORDER BY 1, 2`)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var period, customer, currency, stripe, state string
		var amount int64
		if err := rows.Scan(&period, &customer, &amount, &currency, &stripe, &state); err != nil {
			r.t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s %d %s %s%s\n", period, customer, amount, currency, stripe, state)
	}
	return b.String()
}

func (r *rig) awaitExpected(want ...string) {
	r.t.Helper()
	lines := strings.Join(want, "\n") + "\n"
	deadline := time.Now().Add(60 * time.Second)
	for r.expected() != lines {
		if time.Now().After(deadline) {
			r.t.Fatalf("the manifest is\n%swant\n%s", r.expected(), lines)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// The manifest follows the subscription: one bill that may still change, the
// next; what has fallen due, or was asked for, stays for good.
func TestTheManifestFollowsSubscriptions(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	schedule := domain.Schedule{Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC", StartsOn: domain.Date{Year: 2027, Month: 1, Day: 1}}
	at := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	period := func(s string) domain.Period {
		p, err := domain.ParsePeriod(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	s.register("pm_card_visa", "acme", "bond")
	s.must(commands.Of(commands.NewActivateSubscription("acme", usd(5000), schedule)))
	r.awaitExpected("2027-01 acme 5000 usd cus_acme")
	s.must(commands.Of(commands.NewChangeSubscriptionAmount("acme", 6000, "", period("2027-01"), at, "k1")))
	r.awaitExpected("2027-01 acme 6000 usd cus_acme")
	s.must(commands.Of(commands.NewPauseSubscription("acme", "", at, "k1")))
	r.awaitExpected("2027-01 acme 6000 usd cus_acme withdrawn")
	s.must(commands.Of(commands.NewResumeSubscription("acme", time.Date(2027, 1, 20, 0, 0, 0, 0, time.UTC), "k1")))
	r.awaitExpected("2027-01 acme 6000 usd cus_acme withdrawn", "2027-02 acme 6000 usd cus_acme")
	s.must(commands.Of(commands.NewDeclareBillingDue("acme", period("2027-02"))))
	r.awaitExpected("2027-01 acme 6000 usd cus_acme withdrawn", "2027-02 acme 6000 usd cus_acme fixed", "2027-03 acme 6000 usd cus_acme")
	s.must(commands.Of(commands.NewChangeSubscriptionAmount("acme", 7000, "", period("2027-04"), at, "k2")))
	s.must(commands.Of(commands.NewChargeBilling("acme", period("2027-03"), usd(6000)))) // asked for before it is due
	r.awaitExpected("2027-01 acme 6000 usd cus_acme withdrawn", "2027-02 acme 6000 usd cus_acme fixed", "2027-03 acme 6000 usd cus_acme fixed", "2027-04 acme 7000 usd cus_acme")
	s.must(commands.Of(commands.NewChargeBilling("bond", november, usd(900)))) // without a subscription
	s.must(commands.Of(commands.NewCancelSubscription("acme", domain.CancelNow, "", at, "k3")))
	all := []string{
		"2026-11 bond 900 usd cus_bond fixed",
		"2027-01 acme 6000 usd cus_acme withdrawn", "2027-02 acme 6000 usd cus_acme fixed", "2027-03 acme 6000 usd cus_acme fixed", "2027-04 acme 7000 usd cus_acme withdrawn",
	}
	r.awaitExpected(all...)

	// A lost token makes it read everything again: nothing changes, and nothing is
	// told to the proxy once more.
	if _, err := r.pool.Exec(t.Context(), `UPDATE run_manifest SET pending = false`); err != nil {
		t.Fatal(err)
	}
	before := r.expected()
	s.stop()
	if _, err := r.pool.Exec(t.Context(), `DELETE FROM processor_tokens WHERE processor = 'manifest'`); err != nil {
		t.Fatal(err)
	}
	again := r.start(options{noCollector: true})
	r.eventually("it has read the log again", func() bool {
		all, err := again.runtime.Status(t.Context())
		for _, p := range all {
			if p.Processor == "manifest" && p.CaughtUp {
				return err == nil
			}
		}
		return false
	})
	if after := r.expected(); after != before || r.count(`SELECT count(*) FROM run_manifest WHERE pending`) != 0 {
		t.Errorf("after a replay the manifest is\n%swant\n%s", after, before)
	}
}

// A hundred thousand bills are entered and told of in seconds.
func BenchmarkRegister(b *testing.B) {
	const bills = 100_000
	r := rigOn(b, pgtest.Pool(b))
	p := newProxy(b, r.stripe.APIURL)
	clock := sagas.DatabaseClock(r.pool)
	for b.Loop() {
		b.StopTimer()
		if _, err := r.pool.Exec(context.Background(), `TRUNCATE run_manifest`); err != nil {
			b.Fatal(err)
		}
		if _, err := r.pool.Exec(context.Background(), `INSERT INTO run_manifest (billing_period, customer_id, amount_minor, currency, stripe_customer_id, fixed, version)
			SELECT '2026-11', 'cust-' || n, 5000, 'usd', 'cus_1', false, n FROM generate_series(1, $1::int) n`, bills); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		keys := sagas.NewRunKeys(p.client(), r.pool, clock, "test")
		registrar := sagas.NewRegistrar(p.client(), keys, r.pool, clock, time.Second, func() error { return nil }, func() {}, r.log)
		for more := true; more; {
			var err error
			if more, err = registrar.Register(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		if n := r.count(`SELECT count(*) FROM run_manifest WHERE registered`); n != bills {
			b.Fatalf("%d are registered", n)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(bills*b.N)/b.Elapsed().Seconds(), "bills/s")
}
