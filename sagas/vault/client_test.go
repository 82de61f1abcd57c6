package vault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/vault"
)

const token = "MARKER-token-of-the-service"

var november = domain.PeriodOf(domain.Monthly, 2026, 11)

// serve is the proxy's admin API as a test has it.
func serve(t *testing.T, h http.HandlerFunc) *vault.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := vault.New(vault.Config{BaseURL: base, Token: token, Actor: "test", Timeout: 5 * time.Second})
	t.Cleanup(c.Close)
	return c
}

func TestIssue(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		const want = `{"environment":"production","expires_at":"2026-12-15T14:00:00Z","label":"run 2026-11","run":"2026-11"}`
		if r.Method != http.MethodPost || r.URL.Path != "/admin/v1/vault-keys" || string(body) != want || r.Header.Get("Authorization") != "Bearer "+token || r.Header.Get("X-Actor") != "test" {
			t.Errorf("asked for %s %s with %s by %q", r.Method, r.URL, body, r.Header)
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"vault_key":{"id":"9f2c","expires_at":"2026-12-15T14:00:00Z","caps":[{"currency":"usd","cap_minor":110,"left_minor":100}]},"secret":"vk_9f2c_secret"}`)
	})
	expires := time.Date(2026, 12, 15, 14, 0, 0, 0, time.UTC)
	key, secret, err := c.Issue(t.Context(), sagas.VaultOrder{Environment: "production", Run: "2026-11", Label: "run 2026-11", Expires: expires})
	if err != nil || secret != "vk_9f2c_secret" || key.ID != "9f2c" || !key.Expires.Equal(expires) || !slices.Equal(key.Caps, []sagas.VaultCap{{Currency: "usd", CapMinor: 110, LeftMinor: 100}}) {
		t.Errorf("got %+v, %v", key, err)
	}
}

// What the proxy refuses for good is told apart from what may pass; neither
// shows what was sent or answered.
func TestRefusalsAndTroubles(t *testing.T) {
	t.Parallel()
	for _, answer := range []struct {
		status  int
		body    string
		refused bool
		says    string
	}{
		{409, `{"error":{"code":"vault_key_revoked","message":"MARKER"}}`, true, "409 vault_key_revoked"},
		{403, `{"error":{"code":"not_permitted","message":"MARKER"}}`, true, "403 not_permitted"},
		{401, `MARKER`, true, "401"},
		{503, `{"error":{"code":"ledger_unavailable","message":"MARKER"}}`, false, "503 ledger_unavailable"},
		{500, `{"error":{"code":"MARKER code","message":""}}`, false, "500"},
		{302, ``, false, "302"},
		{200, `MARKER`, false, "not what was asked for"},
		{200, `{"vault_key":{"id":""},"secret":"vk_MARKER"}`, false, "no vault key"},
		{200, `{"vault_key":{"id":"9f2c","revoked_at":"2026-11-02T00:00:00Z"},"secret":"vk_MARKER"}`, true, "revoked"},
		{200, `{"vault_key":{"id":"9f2c"},"secret":"MARKER"}`, false, "no secret"},
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/MARKER")
			w.WriteHeader(answer.status)
			fmt.Fprint(w, answer.body)
		})
		_, secret, err := c.Issue(t.Context(), sagas.VaultOrder{})
		if err == nil || secret != "" || errors.Is(err, sagas.ErrVaultRefused) != answer.refused || !strings.Contains(err.Error(), answer.says) {
			t.Errorf("%d %s: %v", answer.status, answer.body, err)
		} else if strings.Contains(err.Error(), "MARKER") {
			t.Errorf("it shows what it should not: %v", err)
		}
	}
	c := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if _, err := c.Key(t.Context(), "9f2c"); err == nil || errors.Is(err, sagas.ErrVaultRefused) || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("a dropped connection: %v", err)
	}
	if shown := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(shown, token) {
		t.Errorf("it prints its token: %s", shown)
	}
}

func TestRegister(t *testing.T) {
	t.Parallel()
	var got []string
	answer := `{"received":3,"refused_count":1,"refused":[{"line":2,"customer_id":"b","billing_period":"2026-11","code":"entry_fixed","message":"m"}]}`
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPut || r.URL.Path != "/admin/v1/vault-keys/9f2c/manifest" || r.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("asked for %s %s", r.Method, r.URL)
		}
		got = strings.Split(strings.TrimSpace(string(body)), "\n")
		fmt.Fprint(w, answer)
	})
	usd := domain.Money{Minor: 5000, Currency: "usd"}
	entries := slices.Values([]sagas.VaultEntry{
		{CustomerID: "a", Period: november, Amount: usd, StripeCustomerID: "cus_a", Fixed: true}, {CustomerID: "b", Period: november, Amount: usd}, {CustomerID: "c", Period: november, Amount: usd, Withdrawn: true},
	})
	registered, err := c.Register(t.Context(), "9f2c", entries)
	if err != nil || registered.RefusedCount != 1 || !slices.Equal(registered.Refused, []sagas.RefusedEntry{{CustomerID: "b", Code: "entry_fixed", Message: "m"}}) {
		t.Errorf("got %+v, %v", registered, err)
	}
	const first = `{"customer_id":"a","billing_period":"2026-11","amount_minor":5000,"currency":"usd","stripe_customer_id":"cus_a","fixed":true,"withdrawn":false}`
	if len(got) != 3 || got[0] != first || !strings.Contains(got[2], `"withdrawn":true`) {
		t.Errorf("sent was %q", got)
	}
	answer = `{"received":2,"refused_count":0}`
	if _, err := c.Register(t.Context(), "9f2c", entries); err == nil || !strings.Contains(err.Error(), "2 of 3") {
		t.Errorf("a part was received: %v", err)
	}
}

// Verdicts are asked for page by page, for two seconds at most.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/admin/v1/audit" || q.Get("customer") != "acme" || q.Get("period") != "2026-11" {
			t.Errorf("asked for %s", r.URL)
		}
		if q.Get("after") == "" {
			fmt.Fprint(w, `{"calls":[{"call":"1","phase":"before","verdict":"allow","status":0}],"next":"1"}`)
			return
		}
		fmt.Fprint(w, `{"calls":[{"call":"1","phase":"after","verdict":"allow","status":200}]}`)
	})
	calls, err := c.Verdicts(t.Context(), "acme", november)
	if err != nil || len(calls) != 2 || calls[0].Phase != "before" || calls[1].Status != 200 {
		t.Errorf("got %+v, %v", calls, err)
	}
	release := make(chan struct{})
	slow := serve(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	began := time.Now()
	if _, err := slow.Verdicts(context.Background(), "acme", november); err == nil || time.Since(began) > 4*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
}
