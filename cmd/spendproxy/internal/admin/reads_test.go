package admin_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// charge takes a legacy charge through the ledger, as the proxy does, and
// leaves it settled, released or held.
func (i *instance) charge(vaultKey, idempotencyKey string, minor int64, state string) {
	i.t.Helper()
	period, err := domain.ParsePeriod("2026-12")
	if err != nil {
		i.t.Fatal(err)
	}
	id := "call-" + idempotencyKey
	d, err := i.ledger.Begin(i.t.Context(), ledger.Ask{ID: id, VaultKey: vaultKey, Verdict: policy.Verdict{Allow: true}, Call: policy.Call{
		Method: http.MethodPost, Path: "/v1/charges", Rule: policy.ChargesCreate, Key: idempotencyKey, Fingerprint: sha256.Sum256([]byte(idempotencyKey)),
		Amount: minor, Currency: "usd", StripeCustomer: "cus_1", Bill: policy.BillID{Customer: "acme", Period: period},
	}})
	if err != nil {
		i.t.Fatal(err)
	}
	if !d.Forward {
		return
	}
	r := ledger.Result{ID: id, Fate: ledger.Answered, Latency: 1500 * time.Microsecond, Answer: ledger.Answer{Status: 200, ContentType: "application/json", RequestID: "req_1", Body: []byte(`{"id":"ch_1"}`)}}
	switch state {
	case "settled":
		r.Evidence = &policy.Evidence{Object: "ch_" + idempotencyKey, State: policy.Succeeded, Amount: domain.Money{Minor: minor, Currency: "usd"}, Received: minor, StripeCustomer: "cus_1", Raw: r.Answer.Body}
	case "released":
		r.Answer.Status, r.Refused = 402, true
	case "held":
		r.Fate, r.Answer = ledger.Lost, ledger.Answer{}
	}
	if err := i.ledger.Finish(i.t.Context(), r); err != nil {
		i.t.Fatal(err)
	}
}

type calls struct {
	Calls []struct {
		Call           string  `json:"call"`
		At             string  `json:"at"`
		Phase          string  `json:"phase"`
		VaultKey       string  `json:"vault_key"`
		Method         string  `json:"method"`
		Path           string  `json:"path"`
		Rule           string  `json:"rule"`
		Verdict        string  `json:"verdict"`
		Code           string  `json:"code"`
		Customer       string  `json:"customer_id"`
		Period         string  `json:"billing_period"`
		Object         string  `json:"object"`
		Amount         int64   `json:"amount_minor"`
		Currency       string  `json:"currency"`
		IdempotencyKey string  `json:"idempotency_key"`
		Reservation    string  `json:"reservation"`
		Status         int     `json:"status"`
		RequestID      string  `json:"request_id"`
		Latency        float64 `json:"latency_ms"`
	} `json:"calls"`
	Next string `json:"next"`
}

// What was asked for and what became of it can be read by bill, key and
// object, page by page; the books add up.
func TestAuditAndBooks(t *testing.T) {
	t.Parallel()
	i := start(t)
	k := i.issue(`{"label":"agent","rules":["charges:create"],"caps":[{"currency":"usd","cap_minor":10000}]}`).VaultKey
	other := i.issue(`{"label":"other","rules":["charges:create"],"caps":[{"currency":"usd","cap_minor":10000}]}`).VaultKey
	i.charge(k.ID, "one", 4000, "settled")
	i.charge(k.ID, "two", 3000, "held")
	i.charge(k.ID, "three", 2000, "released")
	i.charge(k.ID, "four", 3001, "settled") // 3,000 are left
	i.charge(other.ID, "five", 500, "settled")

	var all calls
	i.want(200, &all, serviceToken, "GET", "/admin/v1/audit?customer=acme&period=2026-12&vault_key="+k.ID, "")
	by := map[string]int{}
	for n, c := range all.Calls {
		by[c.IdempotencyKey+" "+c.Phase] = n
		if c.VaultKey != k.ID || c.Customer != "acme" || c.Period != "2026-12" || c.Method != "POST" || c.Path != "/v1/charges" || c.Rule != "charges:create" || c.Currency != "usd" || c.At == "" || c.Call == "" {
			t.Errorf("a line is %+v", c)
		}
	}
	if len(all.Calls) != 7 || len(by) != 7 || all.Next != "" {
		t.Fatalf("%d lines: %v", len(all.Calls), by)
	}
	if c := all.Calls[by["one after"]]; c.Verdict != "allow" || c.Amount != 4000 || c.Status != 200 || c.RequestID != "req_1" || c.Object != "ch_one" || c.Reservation != "settled" || c.Latency != 1.5 && c.Latency != 1 && c.Latency != 2 {
		t.Errorf("settled: %+v", c)
	}
	if c := all.Calls[by["two after"]]; c.Reservation != "held" || c.Status != 0 {
		t.Errorf("held: %+v", c)
	}
	if c := all.Calls[by["three after"]]; c.Reservation != "released" || c.Status != 402 {
		t.Errorf("released: %+v", c)
	}
	if c := all.Calls[by["four before"]]; c.Verdict != "refuse" || c.Code != "spend_cap_exceeded" {
		t.Errorf("refused: %+v", c)
	}

	var one calls
	i.want(200, &one, adminToken, "GET", "/admin/v1/audit?refused=true", "")
	if len(one.Calls) != 1 || one.Calls[0].IdempotencyKey != "four" {
		t.Errorf("refused: %+v", one.Calls)
	}
	i.want(200, &one, adminToken, "GET", "/admin/v1/audit?object=ch_one", "")
	if len(one.Calls) == 0 || one.Calls[0].IdempotencyKey != "one" {
		t.Errorf("by object: %+v", one.Calls)
	}
	i.want(200, &one, adminToken, "GET", "/admin/v1/audit?idempotency_key=five", "")
	if len(one.Calls) != 2 {
		t.Errorf("by key: %+v", one.Calls)
	}
	var paged []string
	after := ""
	for range 20 {
		var page calls
		i.want(200, &page, adminToken, "GET", "/admin/v1/audit?limit=2&customer=acme&vault_key="+k.ID+after, "")
		for _, c := range page.Calls {
			paged = append(paged, c.Call+c.Phase)
		}
		if page.Next == "" {
			break
		}
		after = "&after=" + url.QueryEscape(page.Next)
	}
	var whole []string
	for _, c := range all.Calls {
		whole = append(whole, c.Call+c.Phase)
	}
	if fmt.Sprint(paged) != fmt.Sprint(whole) {
		t.Errorf("by pages %v, want %v", paged, whole)
	}
	for _, query := range []string{"customer=a:b", "period=2026-13", "after=nonsense", "refused=1", "vault_key=vk_" + k.ID + "_secret"} {
		if a := i.send(adminToken, "GET", "/admin/v1/audit?"+query, ""); a.status != 400 {
			t.Errorf("?%s got %d %s", query, a.status, a.body)
		}
	}

	books := func(query string) (v struct {
		Currencies []struct {
			Currency     string `json:"currency"`
			SettledMinor int64  `json:"settled_minor"`
			Settled      int64  `json:"settled"`
			HeldMinor    int64  `json:"held_minor"`
			Held         int64  `json:"held"`
		} `json:"currencies"`
	}) {
		t.Helper()
		i.want(200, &v, serviceToken, "GET", "/admin/v1/books"+query, "")
		return v
	}
	if v := books("?vault_key=" + k.ID); len(v.Currencies) != 1 || v.Currencies[0].SettledMinor != 4000 || v.Currencies[0].Settled != 1 || v.Currencies[0].HeldMinor != 3000 || v.Currencies[0].Held != 1 {
		t.Errorf("the books of one key: %+v", v)
	}
	if v := books(""); v.Currencies[0].SettledMinor != 4500 || v.Currencies[0].Settled != 2 {
		t.Errorf("all books: %+v", v)
	}
}

// An operator's word gives up what is held, and nothing that has succeeded.
func TestRelease(t *testing.T) {
	t.Parallel()
	i := start(t)
	k := i.issue(`{"label":"agent","rules":["charges:create"],"caps":[{"currency":"usd","cap_minor":10000}]}`).VaultKey
	i.charge(k.ID, "held/by a name", 3000, "held")
	i.charge(k.ID, "taken", 4000, "settled")
	release := func(subject string) answer {
		return i.send(adminToken, "POST", "/admin/v1/reservations/"+url.PathEscape(subject)+"/release", `{"reason":"Stripe's support has looked"}`)
	}
	if a := release("key:held/by a name"); a.status != 200 || !strings.Contains(a.body, `"reservation":"released"`) {
		t.Errorf("released: %d %s", a.status, a.body)
	}
	if a := release("key:taken"); a.status != 409 || a.code() != "already_charged" {
		t.Errorf("one that succeeded: %d %s", a.status, a.body)
	}
	if a := release("key:nothing"); a.status != 404 || a.code() != "unknown_reservation" {
		t.Errorf("one that does not exist: %d %s", a.status, a.body)
	}
	if a := i.send(adminToken, "POST", "/admin/v1/reservations/key:taken/release", `{}`); a.status != 400 {
		t.Errorf("without a reason: %d %s", a.status, a.body)
	}
	var shown key
	i.want(200, &shown, adminToken, "GET", "/admin/v1/vault-keys/"+k.ID, "")
	if c := shown.Caps[0]; c.Held != 0 || c.Spent != 4000 || c.Left != 6000 || c.Charges != 1 {
		t.Errorf("the cap is %+v", c)
	}
}

// A parameter that is unknown, twice or cannot be read is named.
func TestParametersAreNamed(t *testing.T) {
	t.Parallel()
	i := start(t)
	for target, name := range map[string]string{
		"audit?after=abc": "after", "audit?after=-1": "after", "audit?after=1e3": "after", "audit?limit=-5": "limit", "audit?limit=0": "limit", "audit?limit=501": "limit",
		"audit?limit=ten": "limit", "audit?colour=red": "colour", "audit?refused=yes": "refused", "audit?customer=a%2Fb": "customer", "audit?period=yesterday": "period",
		"audit?object=": "object", "audit?limit=1&limit=2": "limit", "vault-keys?after=abc": "after", "vault-keys?limit=-1": "limit", "vault-keys?live=1": "live",
		"vault-keys?key=x": "key", "books?day=today": "day", "books?run=": "run",
	} {
		a := i.send(adminToken, "GET", "/admin/v1/"+target, "")
		if a.status != http.StatusBadRequest || a.code() != "invalid_input" || !strings.Contains(a.body, name) {
			t.Errorf("%s: %d %s", target, a.status, a.body)
		}
	}
}
