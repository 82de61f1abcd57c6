package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
)

// call sends a request with a token and reads the answer into a value.
func (r *replica) call(token, method, path, body string, into any) (status int) {
	r.t.Helper()
	status, text := r.send(token, method, path, body)
	if into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			r.t.Fatalf("%s %s: %d %s", method, path, status, text)
		}
	}
	return status
}

// send sends a request with a token; the answer is as it came.
func (r *replica) send(token, method, path, body string) (status int, text []byte) {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err = io.ReadAll(res.Body); err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, text
}

// twoTokens lets an operator and a caller in.
func twoTokens(t *testing.T) func(*config.Config) {
	t.Helper()
	hash := func(token string) string { sum := sha256.Sum256([]byte(token)); return hex.EncodeToString(sum[:]) }
	tokens, err := access.Parse("op:read+dispatch+operate:" + hash("operator") + ",ci:read+dispatch:" + hash("caller"))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *config.Config) { c.Tokens = tokens }
}

// TestFindingIsDismissed: a charge that is nobody's is found over HTTP, and an
// operator leaves it as it is: with a reason, by name, once.
func TestFindingIsDismissed(t *testing.T) {
	h := newHouse(t)
	r := h.start(twoTokens(t))
	shop, err := h.stripe.PlantCharge(sim.Plant{Customer: "cus_shop", Amount: 777, Currency: "usd"})
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		ID         int64  `json:"id"`
		State      string `json:"state"`
		Orphans    int    `json:"orphans"`
		Unrepaired int    `json:"unrepaired"`
		Dismissed  int    `json:"dismissed"`
		Findings   []struct {
			Kind, Subject string
			Dismissed     *struct {
				By     string `json:"dismissed_by"`
				Reason string `json:"reason"`
			}
		} `json:"findings"`
	}
	if status := r.call("operator", http.MethodPost, "/v1/reconciliations", `{}`, &v); status != http.StatusAccepted {
		t.Fatalf("reconcile: %d", status)
	}
	path := fmt.Sprintf("/v1/reconciliations/%d", v.ID)
	await(t, "it has ended", func() bool { r.call("caller", http.MethodGet, path, "", &v); return v.State == "done" })
	if v.Orphans != 1 || v.Unrepaired != 1 || len(v.Findings) != 1 || v.Findings[0].Subject != shop.Charge {
		t.Fatalf("it found %+v", v)
	}
	const to = "/v1/reconciliations/dismissals"
	body := func(kind, subject, reason string) string {
		return fmt.Sprintf(`{"kind":%q,"subject":%q,"reason":%q}`, kind, subject, reason)
	}
	for _, c := range []struct {
		token, body string
		want        int
	}{
		{"caller", body("orphan", shop.Charge, "the shop's own"), 403},
		{"operator", body("orphan", shop.Charge, " "), 400},
		{"operator", body("orphan", shop.Charge, "line\nbreak"), 400},
		{"operator", `{"kind":"orphan"}`, 400},
		{"operator", body("orphan", "ch_other", "the shop's own"), 404},
		{"operator", body("duplicate", shop.Charge, "the shop's own"), 422},
		{"operator", body("orphan", shop.Charge, "the shop's own"), 200},
		{"operator", body("orphan", shop.Charge, "the shop's own"), 200},
		{"operator", body("orphan", shop.Charge, "another reason"), 409},
	} {
		if status := r.call(c.token, http.MethodPost, to, c.body, nil); status != c.want {
			t.Errorf("%s with the token %s: %d, want %d", c.body, c.token, status, c.want)
		}
	}
	r.call("caller", http.MethodGet, path, "", &v)
	if d := v.Findings[0].Dismissed; v.Unrepaired != 0 || v.Orphans != 0 || v.Dismissed != 1 || d == nil || d.By != "op" || d.Reason != "the shop's own" {
		t.Errorf("afterwards it shows %+v", v)
	}
}

// TestDuplicateIsFoundAndRefunded: a second success of a bill is found by a
// reconciliation over HTTP; its refund is proposed, and made only when an
// operator asks for it, once.
func TestDuplicateIsFoundAndRefunded(t *testing.T) {
	h := newHouse(t)
	r := h.start(twoTokens(t))
	for path, body := range map[string]string{
		"/v1/commands/register-customer": `{"customer_id":"acme","stripe_customer_id":"cus_acme","payment_method_id":"pm_card_visa"}`,
	} {
		if status := r.call("operator", http.MethodPost, path, body, nil); status != http.StatusOK {
			t.Fatalf("%s: %d", path, status)
		}
	}
	var charged answer
	if r.call("operator", http.MethodPost, "/v1/commands/charge-billing?wait=60s", chargeBody("acme"), &charged); charged.Bill.Status != "paid" {
		t.Fatalf("charge: %+v", charged)
	}
	november := domain.PeriodOf(domain.Monthly, 2026, 11)
	surplus, err := h.stripe.PlantCharge(sim.Plant{Customer: "cus_acme", Amount: 5000, Currency: "usd", WithIntent: true, Metadata: map[string]string{
		"customer_id": "acme", "billing_period": "2026-11", "billing_key": string(domain.ChargeKey("acme", november, 1)),
	}})
	if err != nil {
		t.Fatal(err)
	}

	for body, want := range map[string]int{`{"period":"november"}`: 400, `{"since":"soon"}`: 400, `{"period":"2026-11","since":"2026-11-01"}`: 400, `{"all":"x"}`: 400, ``: 415} {
		if status := r.call("operator", http.MethodPost, "/v1/reconciliations", body, nil); status != want {
			t.Errorf("%q is answered with %d, want %d", body, status, want)
		}
	}
	if status := r.call("caller", http.MethodPost, "/v1/reconciliations", `{}`, nil); status != http.StatusForbidden {
		t.Errorf("without the scope operate: %d", status)
	}
	if status := r.call("operator", http.MethodGet, "/v1/reconciliations/999", "", nil); status != http.StatusNotFound {
		t.Errorf("one that is not there: %d", status)
	}
	type document struct {
		ID         int64  `json:"id"`
		State      string `json:"state"`
		Bills      int    `json:"bills"`
		Duplicates int    `json:"duplicates"`
		Unrepaired int    `json:"unrepaired"`
		Findings   []struct {
			Kind     string `json:"kind"`
			ChargeID string `json:"charge_id"`
			Amount   struct {
				Display string `json:"display"`
			} `json:"amount"`
		} `json:"findings"`
	}
	reconcile := func() (v document) {
		t.Helper()
		if status := r.call("operator", http.MethodPost, "/v1/reconciliations", `{"period":"2026-11"}`, &v); status != http.StatusAccepted {
			t.Fatalf("reconcile: %d", status)
		}
		path := fmt.Sprintf("/v1/reconciliations/%d", v.ID)
		await(t, "it has ended", func() bool {
			r.call("caller", http.MethodGet, path, "", &v)
			return v.State == "done" || v.State == "failed"
		})
		return v
	}
	v := reconcile()
	if v.State != "done" || v.Bills != 1 || v.Duplicates != 1 || v.Unrepaired != 1 || len(v.Findings) != 1 || v.Findings[0].ChargeID != surplus.Charge || v.Findings[0].Amount.Display != "$50.00" {
		t.Fatalf("it found %+v", v)
	}
	refunded := func() (n int64) {
		for _, m := range h.stripe.Ledger() {
			n += m.Refunded
		}
		return n
	}
	if n := refunded(); n != 0 {
		t.Fatalf("%d were refunded by nobody's decision", n)
	}
	body := fmt.Sprintf(`{"customer_id":"acme","billing_period":"2026-11","refund_id":"surplus-1","amount_minor":5000,"charge_id":%q}`, surplus.Charge)
	for range 2 {
		if status := r.call("operator", http.MethodPost, "/v1/commands/refund-charge", body, nil); status != http.StatusOK {
			t.Fatalf("refund: %d", status)
		}
	}
	await(t, "it is refunded", func() bool { return refunded() == 5000 })
	if v := reconcile(); v.Duplicates != 0 || v.Unrepaired != 0 {
		t.Errorf("afterwards it finds %+v", v)
	}
}
