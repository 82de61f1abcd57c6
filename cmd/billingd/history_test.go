package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// TestHistoryMovesIn: a company moves here in the middle of a year. What the
// other system has billed is not billed again, whoever asks; what falls due
// afterwards is billed once; and the charges it made belong to their bills, so
// that the books agree.
func TestHistoryMovesIn(t *testing.T) {
	h := newHouse(t)
	h.stripe.SetClock(time.Date(2026, 10, 20, 0, 0, 0, 0, time.UTC))
	old := map[string]string{}
	for _, p := range []string{"2026-09", "2026-10"} {
		m, err := h.stripe.PlantCharge(sim.Plant{Customer: "cus_moved", Amount: 1000, Currency: "usd", Description: "the old system's"})
		if err != nil {
			t.Fatal(err)
		}
		old[p] = m.Charge
	}
	r := h.start(twoTokens(t))
	r.token = "caller"
	send := func(want int, name, body string) string {
		t.Helper()
		status, text := r.send(r.token, http.MethodPost, "/v1/commands/"+name, body)
		if status != want {
			t.Fatalf("%s %s: %d %s", name, body, status, text)
		}
		return string(text)
	}
	send(200, "register-customer", `{"customer_id":"moved","stripe_customer_id":"cus_moved","payment_method_id":"pm_card_visa"}`)
	send(200, "import-history", `{"customer_id":"moved","billed_through":"2026-10"}`)
	for p, charge := range old {
		send(200, "import-charge", fmt.Sprintf(`{"customer_id":"moved","billing_period":%q,"charge_id":%q,"amount_minor":1000,"currency":"usd"}`, p, charge))
	}
	send(200, "activate-subscription", `{"customer_id":"moved","amount_minor":1000,"currency":"usd","cadence":"monthly","anchor_day":1,"time_zone":"UTC","starts_on":"2024-01-01"}`)

	// The same again changes nothing; another history is a contradiction.
	if text := send(200, "import-history", `{"customer_id":"moved","billed_through":"2026-10"}`); !strings.Contains(text, `"replayed":true`) {
		t.Errorf("the same again: %s", text)
	}
	send(409, "import-history", `{"customer_id":"moved","billed_through":"2026-11"}`)
	// A period of the history that has no known charge is refused, and so is one that has.
	if text := send(422, "charge-billing", `{"customer_id":"moved","billing_period":"2026-08","amount_minor":1000,"currency":"usd"}`); !strings.Contains(text, `"billed_before"`) {
		t.Errorf("charged by hand: %s", text)
	}
	send(422, "declare-billing-due", `{"customer_id":"moved","billing_period":"2026-08"}`)
	if text := send(200, "charge-billing", `{"customer_id":"moved","billing_period":"2026-10","amount_minor":1000,"currency":"usd"}`); !strings.Contains(text, old["2026-10"]) {
		t.Errorf("the charge of October: %s", text)
	}

	h.stripe.SetClock(time.Date(2026, 12, 1, 0, 0, 1, 0, time.UTC))
	await(t, "November and December are billed", func() bool { return len(h.charges("moved")) == 2 })
	periods := r.document("caller", "/v1/customers/moved/periods")
	for _, want := range []string{`"2026-12"`, `"2026-11"`, old["2026-10"], old["2026-09"]} {
		if !strings.Contains(periods, want) {
			t.Errorf("%s is not among the periods: %s", want, periods)
		}
	}
	if strings.Contains(periods, `"2026-08"`) {
		t.Errorf("a period of the history has a bill: %s", periods)
	}
	if customer := r.document("caller", "/v1/customers/moved"); !strings.Contains(customer, `"billed_through": "2026-10"`) && !strings.Contains(customer, `"billed_through":"2026-10"`) {
		t.Errorf("the customer: %s", customer)
	}
	await(t, "the bills are read as paid", func() bool {
		return strings.Count(r.document("caller", "/v1/customers/moved/periods"), `"paid"`) == 4
	})

	var done struct {
		ID                            int64
		State                         string
		Differences, Missing, Orphans int64
	}
	if status := r.call("operator", http.MethodPost, "/v1/reconciliations", `{}`, &done); status != http.StatusAccepted {
		t.Fatalf("reconcile: %d", status)
	}
	path := fmt.Sprintf("/v1/reconciliations/%d", done.ID)
	await(t, "it is compared with Stripe", func() bool { r.call("caller", http.MethodGet, path, "", &done); return done.State == "done" })
	if text := r.document("caller", path); strings.Contains(text, old["2026-10"]) || strings.Contains(text, `"orphan"`) || done.Differences != 0 {
		t.Errorf("the books differ: %s", text)
	}
	if n := len(h.charges("moved")); n != 2 {
		t.Errorf("%d charges were made, want 2", n)
	}
}
