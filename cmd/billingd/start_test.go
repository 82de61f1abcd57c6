package main

import (
	"fmt"
	"net/http"
	"testing"
)

// TestC077_StartedByHand: a run that has just finished is started by hand on two
// replicas, as often as anybody likes: 200, and nothing is new. The run tells how
// far it is meanwhile.
func TestC077_StartedByHand(t *testing.T) {
	h := newHouse(t)
	one, two := h.start(twoTokens(t)), h.start(twoTokens(t))
	one.token, two.token = "operator", "operator"
	one.subscribe("acme", "bolt", "cone")
	h.november()
	await(t, "all are paid", func() bool { return fmt.Sprint(one.tally()) == "map[paid:3]" })
	for _, r := range []*replica{two, one, two} {
		var v struct {
			BillingPeriod string `json:"billing_period"`
			New           int    `json:"new"`
		}
		if status := r.call("caller", http.MethodPost, "/v1/runs/2026-11/start", "", &v); status != http.StatusOK || v.BillingPeriod != "2026-11" || v.New != 0 {
			t.Errorf("started by hand: %d %+v", status, v)
		}
	}
	if status := one.call("caller", http.MethodPost, "/v1/runs/November/start", "", nil); status != http.StatusBadRequest {
		t.Errorf("a label that is none: %d", status)
	}
	if n := len(h.stripe.Ledger()); n != 3 {
		t.Errorf("%d charges", n)
	}
	var run struct {
		Progress struct {
			Expected, Ended, Remaining int
			Rate                       float64 `json:"bills_per_second"`
		}
	}
	await(t, "the run has come to its end", func() bool {
		one.call("caller", http.MethodGet, "/v1/runs/2026-11", "", &run)
		return run.Progress.Ended == 3 && run.Progress.Rate > 0
	})
	if run.Progress.Expected != 3 || run.Progress.Remaining != 0 {
		t.Errorf("progress is %+v", run.Progress)
	}
}
