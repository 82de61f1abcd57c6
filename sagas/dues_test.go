package sagas_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// declared lists the labels that fell due of each customer, in the order of the
// log.
func (r *rig) declared() map[string][]string {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `SELECT sequence_key, payload->>'billing_period' FROM events WHERE event_type = 'billing.due.v1' ORDER BY partition, position`)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	all := map[string][]string{}
	for rows.Next() {
		var id, p string
		if err := rows.Scan(&id, &p); err != nil {
			r.t.Fatal(err)
		}
		all[id] = append(all[id], p)
	}
	return all
}

// fire lets scanners look at the same moments until each has found nothing in
// two looks on end.
func fire(t *testing.T, scanners ...*sagas.DueScanner) {
	t.Helper()
	var all sync.WaitGroup
	for _, s := range scanners {
		all.Go(func() {
			for idle := 0; idle < 2; {
				n, err := s.Scan(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if idle++; n > 0 {
					idle = 0
				}
			}
		})
	}
	all.Wait()
}

// TestThreeScanners shows why no leader and no lease are needed: three scanners
// that look at the same moments, an hour late, twice, and again after months in
// which none looked, declare each period of each customer once, under its own
// label, oldest first.
func TestThreeScanners(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noProcessors: true})
	var now time.Time
	var clocks []*sagas.DueScanner
	at := func(moment time.Time) []*sagas.DueScanner {
		now, clocks = moment, nil
		for range 3 {
			clock := sagas.NewClock(func(context.Context) (time.Time, error) { return now, nil }, time.Hour)
			clocks = append(clocks, sagas.NewDueScanner(s.d, clock, time.Second, r.log))
		}
		return clocks
	}
	zones := []string{"Pacific/Kiritimati", "Asia/Kathmandu", "Europe/Berlin", "UTC", "America/New_York", "Pacific/Pago_Pago"}
	cadences := []domain.Cadence{domain.Monthly, domain.Monthly, domain.Quarterly, domain.Yearly}
	subs := map[string]domain.Schedule{}
	for i, id := range customers(300) {
		schedule := domain.Schedule{
			Cadence: cadences[i%4], AnchorDay: 1 + i%31, TimeZone: zones[i%6], StartsOn: domain.Date{Year: 2026, Month: 11, Day: 1 + i%28},
		}
		subs[string(id)] = schedule
		s.register("pm_card_visa", id)
		s.must(commands.Of(commands.NewActivateSubscription(id, usd(5000), schedule)))
	}
	r.followSchedule(s)
	for _, moment := range []string{
		"2026-11-01T00:00:00Z", "2026-11-01T01:00:00Z", "2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z", "2026-12-01T12:00:00Z", // in time, and an hour late
		"2027-04-20T08:00:00Z", "2027-04-20T08:00:00Z", // after months, and at once again
	} {
		moment, err := time.Parse(time.RFC3339, moment)
		if err != nil {
			t.Fatal(err)
		}
		fire(t, at(moment)...)
		got := r.declared()
		for id, schedule := range subs {
			var want []string
			for p := schedule.First(); !schedule.DueAt(p).After(moment); p = p.Next() {
				want = append(want, p.String())
			}
			if !slices.Equal(got[id], want) {
				t.Fatalf("at %s, %+v: due were %v, want %v", moment, schedule, got[id], want)
			}
		}
	}
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'billing.due.v1'`); n < 300 {
		t.Errorf("%d dues in all: the test shows nothing", n)
	}
}

// followSchedule runs the processor that keeps the schedule until it has read
// everything.
func (r *rig) followSchedule(s *service) {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.runtime.Run(ctx, sagas.Schedule(s.d)) }()
	r.eventually("the schedule is up to date", s.caughtUp)
	stop()
	if err := <-ended; err != nil {
		r.t.Error(err)
	}
}

// TestC026_EveryReplicaFires lets three replicas declare a month while Stripe is
// slow, fires their scanners again and again until all is paid, and starts the
// run by hand beside them.
func TestC026_EveryReplicaFires(t *testing.T) {
	r := newRig(t)
	replicas := []*service{r.start(options{timeout: 10 * time.Second}), r.start(options{timeout: 10 * time.Second}), r.start(options{timeout: 10 * time.Second})}
	ids := customers(100)
	replicas[0].register("pm_card_visa", ids...)
	for i, id := range ids {
		replicas[i%3].must(commands.Of(commands.NewActivateSubscription(id, usd(5000), domain.Schedule{
			Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC", StartsOn: domain.Date{Year: 2026, Month: 12, Day: 1},
		})))
	}
	r.eventually("all are scheduled", func() bool { return r.count(`SELECT count(*) FROM subscription_schedule`) == len(ids) })
	r.fault(sim.Fault{Match: sim.Match{Method: "POST"}, Kind: sim.DelayBeforeCommit, Delay: 2 * time.Second, Times: -1})
	december := november.Next()
	r.stripe.SetClock(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC))
	paid := func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == len(ids)
	}
	var all sync.WaitGroup
	for _, s := range replicas {
		all.Go(func() {
			for !paid() {
				if _, err := s.scanner.Scan(t.Context()); err != nil {
					t.Error(err)
					return
				}
				if _, err := s.scanner.Start(t.Context(), december); err != nil {
					t.Error(err)
					return
				}
				if _, err := s.send(commands.Of(commands.NewDeclareBillingDue(ids[0], december))); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	all.Wait()
	r.once(december, ids...)
	if n := len(r.stripe.Ledger()); n != len(ids) {
		t.Errorf("%d charges of %d customers", n, len(ids))
	}
	for id, labels := range r.declared() {
		if len(labels) != 1 || labels[0] != "2026-12" {
			t.Errorf("%s was declared due for %v", id, labels)
		}
	}
	if n := r.count(`SELECT count(*) FROM dead_letters`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// TestC077_ByHandBesideTheSchedule: a run that has just finished is started once
// more on a replica whose machine is 20 seconds behind, and by hand, as a whole and
// a customer at a time: nothing is new, and nothing is an error.
func TestC077_ByHandBesideTheSchedule(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	ids := s.november(30)
	facts := r.count(`SELECT count(*) FROM events`)
	clock := sagas.NewClock(func(context.Context) (time.Time, error) { return r.stripe.Now().Add(-20 * time.Second), nil }, time.Second)
	behind := sagas.NewDueScanner(r.start(options{noProcessors: true}).d, clock, time.Second, r.log)
	for _, scanner := range []*sagas.DueScanner{behind, s.scanner} {
		if n, err := scanner.Start(t.Context(), november); n != 0 || err != nil {
			t.Errorf("started by hand: %d new, %v", n, err)
		}
	}
	for _, id := range ids {
		receipt := s.must(commands.Of(commands.NewDeclareBillingDue(id, november)))
		if !receipt.Replayed || len(receipt.Events) != 1 {
			t.Errorf("%s by hand: %+v", id, receipt)
		}
	}
	if n := r.count(`SELECT count(*) FROM events`); n != facts {
		t.Errorf("%d new facts", n-facts)
	}
	r.once(november, ids...)
}

// TestC068_ALongRun: a run takes its time on three replicas, with no lock to
// outlast. One of them dies in the middle; no bill is sent under two keys, and what
// is done is not done again.
func TestC068_ALongRun(t *testing.T) {
	r := newRig(t)
	r.fault(sim.Fault{Match: sim.Match{Method: "POST"}, Kind: sim.DelayBeforeCommit, Delay: 100 * time.Millisecond, Times: -1})
	replicas := []*service{r.start(options{}), r.start(options{}), r.start(options{})}
	ids := customers(300)
	replicas[0].register("pm_card_visa", ids...)
	for i, id := range ids {
		replicas[i%3].must(activate(id))
	}
	paid := func() int { return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) }
	r.eventually("a third is paid", func() bool { return paid() > len(ids)/3 })
	before := paid()
	replicas[0].stop()
	if after := paid(); after < before {
		t.Errorf("%d were paid, and then %d", before, after)
	}
	r.once(november, ids...)
	keys := map[string]int{}
	for _, key := range r.confirms() {
		keys[key]++
	}
	if len(keys) != len(ids) {
		t.Errorf("%d keys for %d bills", len(keys), len(ids))
	}
	for _, id := range ids {
		if keys[string(domain.ChargeKey(id, november, 1))] == 0 {
			t.Errorf("%s was sent under another key", id)
		}
	}
}

// TestC061_CancelBetweenDueAndCharge: what is due is charged once if the
// subscription ends with its period, and not at all if it ends now; either way no
// last bill is made up, and the log tells which rule applied.
func TestC061_CancelBetweenDueAndCharge(t *testing.T) {
	for mode, charges := range map[domain.CancelMode]int{domain.CancelNow: 0, domain.CancelPeriodEnd: 1} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t)
			quiet := r.start(options{noCollector: true})
			quiet.register("pm_card_visa", "acme")
			quiet.must(activate("acme"))
			r.awaitState("acme", november, "reserved")
			quiet.must(commands.Of(commands.NewCancelSubscription("acme", mode, "moved away", r.stripe.Now(), "k1")))
			quiet.stop()
			s := r.start(options{})
			r.awaitState("acme", november, map[int]string{0: "void", 1: "succeeded"}[charges])
			r.stripe.SetClock(time.Date(2027, 2, 10, 0, 0, 0, 0, time.UTC))
			if n, err := s.scanner.Start(t.Context(), november.Next()); n != 0 || err != nil {
				t.Errorf("%d dues after the end, %v", n, err)
			}
			r.eventually("nothing is left to be read", s.caughtUp)
			if got := len(r.stripe.Ledger()); got != charges || r.charged("acme", november) != charges {
				t.Errorf("%d charges, want %d", got, charges)
			}
			if got := fmt.Sprint(r.declared()["acme"]); got != "[2026-11]" {
				t.Errorf("due were %s", got)
			}
			if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'subscription.cancelled.v1' AND payload->>'mode' = $1`, string(mode)); n != 1 {
				t.Errorf("the log does not tell how the subscription was cancelled")
			}
			if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'charge.voided.v1' AND payload->>'reason' LIKE '%cancelled%'`); n != 1-charges {
				t.Errorf("%d bills are void", n)
			}
		})
	}
}

// A bill that waits for the end of a pause goes on when the subscription ends with
// its period: what is due is charged, once.
func TestABillOutlivesAPauseThatEndsForGood(t *testing.T) {
	r := newRig(t)
	quiet := r.start(options{noCollector: true})
	quiet.register("pm_card_visa", "acme")
	quiet.must(activate("acme"))
	r.awaitState("acme", november, "reserved")
	quiet.must(commands.Of(commands.NewPauseSubscription("acme", "", r.stripe.Now(), "k1")))
	quiet.stop()
	s := r.start(options{})
	r.awaitState("acme", november, "waiting")
	s.must(commands.Of(commands.NewCancelSubscription("acme", domain.CancelPeriodEnd, "", r.stripe.Now(), "k2")))
	r.once(november, "acme")
}
