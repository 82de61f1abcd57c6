package sim_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// A key of each age is asked for again in each prune mode: before its 24 hours
// nobody forgets it, at 24 hours one may, and the seed decides which.
func TestPruneModes(t *testing.T) {
	t.Parallel()
	const keys = 40
	// kept tells which keys are still replayed that long after their first use.
	kept := func(set sim.Settings, after time.Duration) (kept [keys]bool) {
		s, _ := start(t, sim.Options{Settings: set})
		for n := range keys {
			post(t, s, "/v1/charges", keyN(n), chargeForm)
		}
		s.Advance(after)
		for n := range keys {
			_, kept[n] = s.Key(keyN(n))
		}
		return kept
	}
	count := func(kept [keys]bool) (n int) {
		for _, k := range kept {
			if k {
				n++
			}
		}
		return n
	}
	const day = 24 * time.Hour
	for _, mode := range []sim.Prune{sim.PruneExact, sim.PruneLate, sim.PruneRandom} {
		equal(t, string(mode)+" before a day", count(kept(sim.Settings{Prune: mode}, day-time.Minute)), keys)
	}
	equal(t, "exact after a day", count(kept(sim.Settings{Prune: sim.PruneExact}, day)), 0)
	equal(t, "late after a day", count(kept(sim.Settings{Prune: sim.PruneLate}, day+5*time.Hour)), keys)
	equal(t, "late after 30 hours", count(kept(sim.Settings{Prune: sim.PruneLate}, day+6*time.Hour)), 0)
	equal(t, "random after three days", count(kept(sim.Settings{Prune: sim.PruneRandom}, 3*day)), 0)
	random := func(seed uint64) [keys]bool {
		return kept(sim.Settings{Prune: sim.PruneRandom, PruneSeed: seed}, 2*day)
	}
	one := random(1)
	if n := count(one); n == 0 || n == keys {
		t.Errorf("at random, after two days: %d of %d keys are kept", n, keys)
	}
	equal(t, "the same seed", random(1), one)
	if random(2) == one {
		t.Error("another seed forgets the same keys")
	}
}

// With a skew Stripe's created differs from the time that services follow: a
// caller that bounds a list by its own clock misses what a skewed one finds.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-10 * time.Minute, 0, 10 * time.Minute} {
		s, c := start(t, sim.Options{Settings: sim.Settings{ClockSkew: skew}})
		from := s.Now().Unix()
		if _, err := c.Charges.New(chargeParams("k")); err != nil {
			t.Fatal(err)
		}
		made := s.Ledger()[0].At
		if d := made.Sub(s.Now()) - skew; d.Abs() > time.Minute {
			t.Errorf("skew %v: made at %v, now is %v", skew, made, s.Now())
		}
		var list struct{ Data []any }
		if err := json.Unmarshal([]byte(get(t, s, fmt.Sprintf("/v1/charges?created[gte]=%d", from)).body), &list); err != nil {
			t.Fatal(err)
		}
		equal(t, fmt.Sprintf("found with skew %v", skew), len(list.Data) == 1, skew >= 0)
		equal(t, "by control", control(t, s, "POST", "/control/settings", `{"clock_skew":"0s"}`, nil), 200)
		if _, err := c.Charges.New(chargeParams("k2")); err != nil {
			t.Fatal(err)
		}
		if d := s.LedgerWhere(sim.LedgerFilter{Key: "k2"})[0].At.Sub(s.Now()); d.Abs() > time.Minute {
			t.Errorf("without skew: off by %v", d)
		}
	}
}

// In an outage the search index stands still, whatever time goes by.
func TestSearchOutage(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	found := func() (n int) {
		t.Helper()
		it := c.Charges.Search(&stripe.ChargeSearchParams{SearchParams: stripe.SearchParams{Query: "metadata['billing_key']:'b1'"}})
		for it.Next() {
			n++
		}
		if err := it.Err(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, err := c.Charges.New(chargeParams("before")); err != nil {
		t.Fatal(err)
	}
	s.Advance(2 * time.Minute)
	equal(t, "before the outage", found(), 1)
	equal(t, "outage", control(t, s, "POST", "/control/settings", `{"search_outage":true}`, nil), 200)
	if _, err := c.Charges.New(chargeParams("during")); err != nil {
		t.Fatal(err)
	}
	s.Advance(10 * time.Hour)
	equal(t, "hours into it", found(), 1)
	equal(t, "over", control(t, s, "POST", "/control/settings", `{"search_outage":false}`, nil), 200)
	equal(t, "after it", found(), 2)
}
