package main

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"
)

// Who is due when can be read beside the command line: the next due of those who
// have one, and the next attempt of a declined bill, with the token that steers it.
func TestScheduleByHTTP(t *testing.T) {
	h := newHouse(t)
	r := h.dunned()
	h.poor("poor", "insufficient_funds", 1)
	r.subscribe("poor", "fine", "gone")
	if status := r.dispatch("cancel-subscription", "gone", `{"customer_id":"gone","at":"now"}`); status != http.StatusOK {
		t.Fatalf("cancel: %d", status)
	}
	h.november()
	h.reaches("the declined bill has a timer", 1, func() int { return h.timers("poor") })
	read := func(query string) (lines []string) {
		var list struct {
			Items []struct {
				DueAt         time.Time `json:"due_at"`
				Command       string
				CustomerID    string `json:"customer_id"`
				BillingPeriod string `json:"billing_period"`
				Token         string
			}
		}
		r.get("/v1/schedule"+query, &list)
		for _, s := range list.Items {
			lines = append(lines, fmt.Sprint(s.DueAt.Format(time.RFC3339), " ", s.Command, " ", s.CustomerID, " ", s.BillingPeriod, " ", s.Token))
		}
		return lines
	}
	want := []string{
		"2026-11-02T00:00:00Z retry-charge poor 2026-11 dunning/poor/2026-11",
		"2026-12-01T00:00:00Z declare-billing-due fine 2026-12 ",
		"2026-12-01T00:00:00Z declare-billing-due poor 2026-12 ",
	}
	awaitFor(t, time.Minute, fmt.Sprintf("scheduled is\n%q", want), func() bool { return slices.Equal(read(""), want) }, func() string { return fmt.Sprintf("%q", read("")) })
	if got := read("?customer=poor&command=retry-charge"); !slices.Equal(got, want[:1]) {
		t.Errorf("scheduled for one is\n%q", got)
	}
}
