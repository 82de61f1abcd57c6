package main

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/billonce/billonce/cmd/spendproxy/internal/config"
	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// In the modes open and report refusals pass, are counted and are booked all the
// same; what is not canonical, unknown or unreadable is refused in every mode.
func TestModes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, mode := range []policy.Mode{policy.Open, policy.Report, policy.Enforce} {
		secret, key := r.issue(ledger.Issue{
			Label: string(mode), Caps: []ledger.CapTerms{{Currency: "usd", Minor: 1000}},
			Grant: policy.Grant{Rules: []policy.Rule{policy.ChargesCreate, policy.IntentsCreate}, Mode: mode},
		})
		enforced, refusal := mode == policy.Enforce, func(status int) int {
			if mode == policy.Enforce {
				return status
			}
			return 200
		}
		if a := r.charge(secret, 5000); a.status != refusal(429) {
			t.Errorf("%s: a charge over the cap: %d %s", mode, a.status, a.body)
		}
		oneStep := url.Values{"amount": {"900"}, "currency": {"usd"}, "confirm": {"true"}, "payment_method": {"pm_card_visa"}, "payment_method_types[]": {"card"}}
		oneStep.Set("capture_method", "automatic")
		if a := r.post(secret, "/v1/payment_intents", uuid.NewString(), oneStep); a.status != refusal(403) {
			t.Errorf("%s: a parameter that is not on the list: %d %s", mode, a.status, a.body)
		}
		if a := r.get(secret, "/v1/charges?limit=1"); a.status != refusal(403) {
			t.Errorf("%s: a read without a rule: %d %s", mode, a.status, a.body)
		}
		oneStep.Del("capture_method")
		oneStep.Set("amount", "100")
		oneStep.Set("currency", "eur")
		if a := r.post(secret, "/v1/payment_intents", uuid.NewString(), oneStep); a.status != refusal(403) {
			t.Errorf("%s: a currency without a cap: %d %s", mode, a.status, a.body)
		}
		r.post(secret, "/v1/payouts", uuid.NewString(), url.Values{"amount": {"100"}}).want(t, string(mode)+": payouts", 403, "path_refused")
		r.post(secret, "/v1/charges", "", url.Values{"amount": {"100"}, "currency": {"usd"}}).want(t, string(mode)+": no key", 400, "idempotency_key_required")
		r.post(secret, "/v1/charges", "k", url.Values{"amount": {"1", "2"}, "currency": {"usd"}}).want(t, string(mode)+": two amounts", 400, "request_refused")

		sums, err := r.app.ledger.Books(t.Context(), ledger.BooksFilter{VaultKey: key.ID})
		if err != nil {
			t.Fatal(err)
		}
		settled := int64(0)
		for _, s := range sums {
			settled += s.Settled
		}
		if want := int64(6000); enforced && settled != 0 || !enforced && settled != want {
			t.Errorf("%s: the books %+v", mode, sums)
		}
		eventually(t, "the audit shows the verdicts", func() bool {
			calls, _, err := r.app.ledger.Calls(t.Context(), ledger.CallFilter{VaultKey: key.ID, Refused: true, Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for _, c := range calls {
				seen[c.Verdict+" "+string(c.Code)] = true
			}
			word := "would_refuse"
			if enforced {
				word = "refuse"
			}
			return seen[word+" spend_cap_exceeded"] && seen[word+" parameter_refused"] && seen[word+" not_permitted"] && seen[word+" currency_not_capped"] &&
				seen["refuse path_refused"] && seen["refuse idempotency_key_required"] && seen["refuse request_refused"]
		})
	}
	metrics := r.get("vk_x", "/metrics").body
	for _, line := range []string{
		`spendproxy_calls_total{mode="enforce",rule="charges:create",verdict="spend_cap_exceeded"} 1`,
		`spendproxy_calls_total{mode="enforce",rule="none",verdict="path_refused"} 1`,
		`spendproxy_calls_total{mode="report",rule="charges:read",verdict="not_permitted"} 1`,
		`spendproxy_calls_total{mode="open",rule="charges:create",verdict="request_refused"} 1`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
}

// Refunds go by a key of their own, bounded by its caps, and give no room back.
func TestRefunds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	charges := r.free(5000)
	refunds, _ := r.issue(ledger.Issue{
		Label: "refunds", Caps: []ledger.CapTerms{{Currency: "usd", Minor: 3000}},
		Grant: policy.Grant{Rules: []policy.Rule{policy.RefundsCreate, policy.RefundsRead, policy.ChargesRead}},
	})
	charged := r.charge(charges, 5000)
	charged.want(t, "the charge", 200, "")
	run := r.run(1)
	r.post(run, "/v1/refunds", "k-0", url.Values{"charge": {charged.ID}}).want(t, "by a run's key", 403, "not_permitted")
	r.post(refunds, "/v1/refunds", "k-1", url.Values{"charge": {charged.ID}}).want(t, "all of it", 429, "spend_cap_exceeded")
	r.post(refunds, "/v1/refunds", "k-2", url.Values{"charge": {charged.ID}, "amount": {"2000"}}).want(t, "a part", 200, "")
	r.post(refunds, "/v1/refunds", "k-3", url.Values{"charge": {charged.ID}, "amount": {"2000"}}).want(t, "more than the cap", 429, "spend_cap_exceeded")
	r.post(refunds, "/v1/refunds", "k-4", url.Values{"charge": {"ch_unknown"}, "amount": {"1"}}).want(t, "of nothing", 404, "parameter_refused")
	r.charge(charges, 100).want(t, "room for another charge", 429, "spend_cap_exceeded")
	if sum := r.books("usd"); sum.Refunded != 2000 || sum.Settled != 5000 {
		t.Errorf("the books: %+v", sum)
	}
}

// With an address of its own the admin API is not on the other one, and
// Stripe's is not on it.
func TestAdminListener(t *testing.T) {
	t.Parallel()
	stripe := newUpstream(t, nil)
	r := newRigAt(t, stripe.URL, func(c *config.Config) { c.AdminListen = "127.0.0.1:0" })
	for address, want := range map[string]int{r.app.Address(): 401, r.app.AdminAddress(): 200} {
		req, _ := http.NewRequest(http.MethodGet, "http://"+address+"/admin/v1/vault-keys", nil)
		req.Header.Set("Authorization", "Bearer "+adminToken)
		if a := r.do(req); a.status != want {
			t.Errorf("admin on %s: %d %s, want %d", address, a.status, a.body, want)
		}
	}
	key := r.free(1000)
	r.get(key, "/admin/v1/vault-keys").want(t, "admin with a vault key", 403, "path_refused")
	req, _ := http.NewRequest(http.MethodGet, "http://"+r.app.AdminAddress()+"/v1/account", nil)
	req.Header.Set("Authorization", "Bearer "+key)
	if a := r.do(req); a.status == 200 {
		t.Errorf("Stripe's API on the admin listener: %d %s", a.status, a.body)
	}
	if n := len(stripe.arrivals()); n != 0 {
		t.Errorf("%d calls reached Stripe", n)
	}
}
