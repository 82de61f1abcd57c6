package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
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

// TestTheDueDayMoves: an anchor day and a zone are changed over HTTP, each from the
// first period on that it can still touch, and what falls due next follows.
func TestTheDueDayMoves(t *testing.T) {
	h := newHouse(t)
	r := h.start(twoTokens(t))
	r.token = "operator"
	r.subscribe("acme")
	h.november()
	await(t, "November is paid", func() bool { return fmt.Sprint(r.tally()) == "map[paid:1]" })
	change := func(key, body string) (code string, status int) {
		req, err := http.NewRequest(http.MethodPost, r.url+"/v1/commands/change-subscription-schedule", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		r.present(req)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var problem struct{ Code string }
		if err := json.NewDecoder(res.Body).Decode(&problem); err != nil {
			t.Fatal(err)
		}
		return problem.Code, res.StatusCode
	}
	if code, status := change("k1", `{"customer_id":"acme","anchor_day":31,"effective_period":"2026-11"}`); status != http.StatusConflict || code != "period_frozen" {
		t.Errorf("a period that has fallen due was moved: %d %s", status, code)
	}
	for key, body := range map[string]string{"k2": `{"customer_id":"acme","anchor_day":31}`, "k3": `{"customer_id":"acme","time_zone":"Pacific/Kiritimati","effective_period":"2027-01"}`} {
		if code, status := change(key, body); status != http.StatusOK {
			t.Errorf("%s: %d %s", body, status, code)
		}
	}
	type subscription struct {
		AnchorDay int    `json:"anchor_day"`
		TimeZone  string `json:"time_zone"`
		Next      struct {
			BillingPeriod string `json:"billing_period"`
			DueAt         string `json:"due_at"`
		}
		Changes []struct{ From string } `json:"schedule_changes"`
	}
	var c struct{ Subscription subscription }
	shown := func(want string) {
		t.Helper()
		await(t, want, func() bool {
			r.call("caller", http.MethodGet, "/v1/customers/acme", "", &c)
			s := c.Subscription
			return fmt.Sprint(s.AnchorDay, " ", s.TimeZone, " ", s.Next.BillingPeriod, " ", s.Next.DueAt, " ", len(s.Changes)) == want
		})
	}
	shown("31 UTC 2026-12 2026-12-31T00:00:00Z 2")
	h.stripe.SetClock(time.Date(2026, 12, 31, 0, 0, 1, 0, time.UTC))
	shown("31 Pacific/Kiritimati 2027-01 2027-01-30T10:00:00Z 2")
	await(t, "December is paid", func() bool { return len(h.stripe.Ledger()) == 2 })
}
