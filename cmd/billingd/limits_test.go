package main

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// TestStripesLimitsAreKept bills a month within Stripe's limits, those of the
// account and of each endpoint, with calls that fail and are made again and a
// comparison with Stripe in the middle: no call is one too many. The same month
// without limits of our own meets Stripe's, and is billed all the same.
func TestStripesLimitsAreKept(t *testing.T) {
	const bills = 60
	for _, test := range []struct {
		name          string
		all, endpoint float64
	}{{"kept", 60, 20}, {"unknown", 0, 0}} {
		t.Run(test.name, func(t *testing.T) {
			h := newHouse(t)
			if err := h.stripe.Configure(func(s *sim.Settings) { s.RateLimit, s.EndpointRate = 60, 20 }); err != nil {
				t.Fatal(err)
			}
			h.fault(sim.Fault{Match: sim.Match{Method: "POST"}, Seed: 3, Rate: 0.1, Kinds: []sim.Kind{sim.CommitThenDrop, sim.DropBeforeCommit}})
			r := h.start(func(c *config.Config) {
				twoTokens(t)(c)
				c.StripeRate, c.StripeEndpointRate, c.Concurrency = test.all, test.endpoint, 32
			})
			r.token = "operator"
			ids := make([]string, bills)
			for i := range ids {
				ids[i] = fmt.Sprint("c", i)
			}
			r.subscribe(ids...)
			h.november()
			if status := r.call("operator", http.MethodPost, "/v1/reconciliations", `{}`, nil); status != http.StatusAccepted {
				t.Fatalf("reconcile: %d", status)
			}
			await(t, "every bill is charged", func() bool { n, _ := h.charged(); return n == bills })
			if _, doubled := h.charged(); doubled {
				t.Error("somebody was charged twice")
			}
			tooMany, calls := 0, map[string]int{}
			for _, r := range h.stripe.Requests() {
				calls[r.Method+" "+r.Path]++
				if r.Status == http.StatusTooManyRequests {
					tooMany++
				}
			}
			if kept := test.all > 0; kept != (tooMany == 0) {
				t.Errorf("%d calls were too many: %v", tooMany, calls)
			}
		})
	}
}
