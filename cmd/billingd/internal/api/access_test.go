package api

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/commands"
)

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// addOperate gives a server an address that operators alone may use; this
// version has none of its own yet.
func (i *instance) addOperate() {
	i.handle(operation("operate", http.MethodGet, "/v1/operate", tagService, "", access.Operate), func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// C106: an empty token is never a pass.
func TestTokens(t *testing.T) {
	t.Parallel()
	i := start(t, tokensOf(t, "reader:read:"+hashOf("r")+",sender:dispatch:"+hashOf("s")+",admin:operate+read:"+hashOf("a")))
	i.addOperate()
	body := `{"customer_id":"alice","stripe_customer_id":"cus_1","payment_method_id":"pm_1"}`
	ask := map[string]func(auth ...string) answer{
		"read":     func(auth ...string) answer { return i.get("/v1/customers", auth...) },
		"dispatch": func(auth ...string) answer { return i.send("register-customer", body, auth...) },
		"operate":  func(auth ...string) answer { return i.get("/v1/operate", auth...) },
	}
	for token, scopes := range map[string]map[string]bool{"r": {"read": true}, "s": {"dispatch": true}, "a": {"operate": true, "read": true}} {
		for _, scheme := range []string{"Bearer ", "bearer ", "BEARER "} {
			for scope, do := range ask {
				a := do("Authorization", scheme+token)
				if scopes[scope] != (a.status < 300) || !scopes[scope] && (a.status != 403 || a.problem(t).Code != "forbidden") {
					t.Errorf("%s%s asked for %s and got %d", scheme, token, scope, a.status)
				}
			}
		}
	}
	for _, auth := range [][]string{
		nil, {"Authorization", ""}, {"Authorization", "Bearer"}, {"Authorization", "Bearer "}, {"Authorization", "Bearer  "}, {"Authorization", "Bearer null"},
		{"Authorization", "Bearer undefined"}, {"Authorization", "Basic cjpy"}, {"Authorization", "r"}, {"Authorization", "Bearer  r"},
		{"Authorization", "Bearer r,a"}, {"Authorization", "Bearer " + hashOf("a")}, {"Authorization", "Bearer a", "Authorization", "Bearer r"}, {"X-Token", "a"},
	} {
		for scope, do := range ask {
			a := do(auth...)
			if p := a.problem(t); a.status != 401 || p.Code != "unauthorized" || a.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%q asked for %s and got %d", auth, scope, a.status)
			}
		}
	}
	for _, path := range []string{"/healthz", "/metrics", "/openapi.json", "/"} {
		if a := i.get(path); a.status != 200 {
			t.Errorf("%s got %d without a token", path, a.status)
		}
	}
	var actor string
	if err := i.pool.QueryRow(t.Context(), `SELECT metadata ->> 'actor' FROM events`).Scan(&actor); err != nil || actor != "sender" {
		t.Errorf("the actor is %q (%v), want sender", actor, err)
	}
}

// Each command asks for the scope that the registry names, by itself and as a
// line of a batch, whatever its body is.
func TestCommandScopes(t *testing.T) {
	t.Parallel()
	i := start(t, tokensOf(t, "shop:dispatch:"+hashOf("s")+",op:operate:"+hashOf("o")+",boss:dispatch+operate:"+hashOf("b")))
	line := func(token, name string) answer {
		return i.batch(`{"command":"`+name+`","key":"k","body":{"x":1}}`, "Authorization", "Bearer "+token)
	}
	for spec := range commands.All() {
		for token, may := range map[string]bool{"s": spec.Scope == commands.Dispatch, "o": spec.Scope == commands.Operate, "b": true} {
			a := i.send(spec.Name, `{"x":1}`, "Authorization", "Bearer "+token)
			if p := a.problem(t); may && p.Code != "invalid_input" || !may && (p.Status != http.StatusForbidden || p.Detail != "the token lacks the scope "+string(spec.Scope)) {
				t.Errorf("%s with the token %s: %d %s %s", spec.Name, token, p.Status, p.Code, p.Detail)
			}
			if token == "o" {
				continue // sends no batches
			}
			want := `"code":"forbidden"`
			if may {
				want = `"code":"invalid_input"`
			}
			if a := line(token, spec.Name); a.status != http.StatusOK || !strings.Contains(a.body, want) {
				t.Errorf("%s in a batch with the token %s: %d %s", spec.Name, token, a.status, a.body)
			}
		}
	}
	if a := line("o", "refund-charge"); a.status != http.StatusForbidden {
		t.Errorf("a batch without the scope dispatch: %d", a.status)
	}
}

func TestWithoutTokens(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.addOperate()
	i.register("alice")
	if a := i.get("/v1/customers"); a.status != 200 {
		t.Errorf("reading got %d", a.status)
	}
	for _, auth := range []string{"", "Bearer ", "Bearer null", "Bearer a"} {
		for what, a := range map[string]answer{
			"an address": i.get("/v1/operate", "Authorization", auth), "a command": i.send("refund-charge", `{}`, "Authorization", auth),
		} {
			if p := a.problem(t); a.status != 403 || p.Code != "forbidden" {
				t.Errorf("operating %s with %q got %d", what, auth, a.status)
			}
		}
	}
	for host, status := range map[string]int{"localhost": 200, "LOCALHOST:8080": 200, "127.0.0.1": 200, "[::1]:80": 200, "billing.example": 403, "127.0.0.1.example": 403, "10.0.0.1": 403} {
		r := i.request(http.MethodGet, "/v1/customers", "")
		r.Host = host
		if a := i.do(r); a.status != status {
			t.Errorf("as %s got %d, want %d", host, a.status, status)
		}
	}
}
