package admin_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/admin"
)

// A token that is unset, empty or blank opens nothing, and nor does any way of
// presenting none.
func TestC106_EmptyTokenIsNotAPass(t *testing.T) {
	t.Parallel()
	house := start(t)
	presented := []string{"", "Bearer", "Bearer ", "Bearer  ", "Bearer null", "Bearer undefined", "null", "Bearer \"\"", "Basic Og==", "Bearer " + strings.ToUpper(adminToken),
		"Bearer " + adminToken[:len(adminToken)-1], "Bearer " + adminToken + " x", adminToken, "Token " + adminToken}
	for name, test := range map[string]struct {
		tokens admin.Tokens
		status int // of whoever presents none
	}{
		"both set":     {admin.Tokens{Admin: adminToken, Service: serviceToken}, http.StatusUnauthorized},
		"admin alone":  {admin.Tokens{Admin: adminToken}, http.StatusUnauthorized},
		"none":         {admin.Tokens{}, http.StatusForbidden},
		"blank ones":   {admin.Tokens{Admin: " ", Service: "\t"}, http.StatusForbidden},
		"short ones":   {admin.Tokens{Admin: "null", Service: "undefined"}, http.StatusForbidden},
		"many blanks":  {admin.Tokens{Admin: strings.Repeat(" ", 20)}, http.StatusForbidden},
		"service only": {admin.Tokens{Service: serviceToken}, http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			i := house.with(t, test.tokens)
			for _, given := range presented {
				var headers []string
				if given != "" {
					headers = []string{"Authorization", given}
				}
				for _, path := range []string{"/admin/v1/vault-keys", "/admin/v1/nothing"} {
					if a := i.send("", http.MethodGet, path, "", headers...); a.status != test.status {
						t.Errorf("%q on %s got %d %s", given, path, a.status, a.body)
					}
				}
			}
			if a := i.send("", http.MethodPost, "/admin/v1/vault-keys", anAgent); a.status != test.status || strings.Contains(a.body, "vk_") {
				t.Errorf("without a token a key was issued: %d %s", a.status, a.body)
			}
			if test.status == http.StatusForbidden {
				if a := i.send("", http.MethodGet, "/admin/v1/vault-keys", ""); a.code() != "admin_off" || !strings.Contains(a.body, admin.AdminVariable) {
					t.Errorf("it does not say that it is off: %s", a.body)
				}
			}
			if a := i.send(adminToken, http.MethodGet, "/admin/v1/vault-keys", ""); (a.status == http.StatusOK) != (test.tokens.Admin == adminToken) {
				t.Errorf("the admin's token got %d", a.status)
			}
		})
	}
}

// Two headers are no token, even if one of them would be.
func TestTwoTokens(t *testing.T) {
	t.Parallel()
	i := start(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.url+"/admin/v1/vault-keys", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header["Authorization"] = []string{"Bearer " + adminToken, "Bearer " + serviceToken}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized || res.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("got %d", res.StatusCode)
	}
}

// Settings that are no tokens stop the start, all at once and unquoted.
func TestLoadTokens(t *testing.T) {
	t.Parallel()
	load := func(settings map[string]string) (admin.Tokens, error) {
		return admin.LoadTokens(func(name string) (string, bool) { v, ok := settings[name]; return v, ok })
	}
	for _, bad := range []string{"", " ", "\t\n", "fifteen-letters", "a token with blanks in it", "ends-with-a-line\n", "nicht-ganz-ASCII-ü", strings.Repeat("x", 513)} {
		got, err := load(map[string]string{admin.AdminVariable: bad, admin.ServiceVariable: bad})
		if err == nil || got != (admin.Tokens{}) {
			t.Errorf("%q is accepted", bad)
			continue
		}
		if said := err.Error(); strings.Count(said, "\n") != 1 || len(bad) > 3 && strings.Contains(said, bad) {
			t.Errorf("of %q it says %q", bad, said)
		}
	}
	if _, err := load(map[string]string{admin.AdminVariable: adminToken, admin.ServiceVariable: adminToken}); err == nil || !strings.Contains(err.Error(), admin.ServiceVariable) {
		t.Errorf("one token for both: %v", err)
	}
	if got, err := load(nil); err != nil || got != (admin.Tokens{}) {
		t.Errorf("without settings: %+v, %v", got, err)
	}
	want := admin.Tokens{Admin: adminToken, Service: serviceToken}
	if got, err := load(map[string]string{admin.AdminVariable: adminToken, admin.ServiceVariable: serviceToken}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
}

// The service may do what a run needs and nothing else.
func TestServiceScope(t *testing.T) {
	t.Parallel()
	i := start(t)
	agent := i.issue(anAgent).VaultKey.ID
	var run issued
	i.want(http.StatusCreated, &run, serviceToken, http.MethodPost, "/admin/v1/vault-keys", aRun)
	of := func(id string) string { return "/admin/v1/vault-keys/" + id }
	const reason = `"reason":"a test"`
	for _, test := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/admin/v1/vault-keys", "", 403},
		{"GET", "/admin/v1/vault-keys?run=2026-12", "", 200},
		{"GET", of(run.VaultKey.ID), "", 200},
		{"GET", of(agent), "", 403},
		{"POST", of(run.VaultKey.ID) + "/extend", `{"expires_at":"2099-02-28T00:00:00Z",` + reason + `}`, 200},
		{"POST", of(agent) + "/extend", `{"expires_at":"2099-02-28T00:00:00Z",` + reason + `}`, 403},
		{"POST", of(run.VaultKey.ID) + "/raises", `{"currency":"usd","to_minor":1,` + reason + `}`, 403},
		{"POST", of(run.VaultKey.ID) + "/rotate", `{}`, 403},
		{"POST", of(run.VaultKey.ID) + "/revoke", `{` + reason + `}`, 403},
		{"POST", "/admin/v1/reservations/pi_1/release", `{` + reason + `}`, 403},
		{"GET", "/admin/v1/audit", "", 200},
		{"GET", "/admin/v1/books", "", 200},
	} {
		if a := i.send(serviceToken, test.method, test.path, test.body); a.status != test.status || a.status == 403 && a.code() != "not_permitted" {
			t.Errorf("%s %s: got %d %s, want %d", test.method, test.path, a.status, a.body, test.status)
		}
	}
	if a := i.send(serviceToken, "PUT", of(agent)+"/manifest", "{}\n", "Content-Type", "application/x-ndjson"); a.status != 403 {
		t.Errorf("a manifest for a key that is not a run's: %d %s", a.status, a.body)
	}
	for _, field := range []string{`"rules":["refunds:create"]`, `"mode":"open"`, `"window":"day"`, `"manifest":false`, `"caps":[]`, `"count_cap":1`} {
		body := strings.Replace(aRun, "{", "{"+field+",", 1)
		if a := i.send(serviceToken, "POST", "/admin/v1/vault-keys", body); a.status != 403 {
			t.Errorf("the service sets %s: %d %s", field, a.status, a.body)
		}
	}
	for _, body := range []string{anAgent, `{"run":"2026-12","environment":"production"}`, `{"run":"2026-12","expires_at":"2099-01-31T00:00:00Z"}`, `{"environment":"production","expires_at":"2099-01-31T00:00:00Z"}`} {
		if a := i.send(serviceToken, "POST", "/admin/v1/vault-keys", body); a.status != 400 && a.status != 403 {
			t.Errorf("the service issues %s: %d", body, a.status)
		}
	}
	// A run's name that an operator has used for something else stays the operator's.
	i.issue(`{"label":"tools","run":"tools","environment":"production","rules":["refunds:create"]}`)
	if a := i.send(serviceToken, "POST", "/admin/v1/vault-keys", strings.Replace(aRun, "2026-12", "tools", 1)); a.status != 409 || strings.Contains(a.body, "vk_") {
		t.Errorf("the service gets a secret of another's key: %d %s", a.status, a.body)
	}
}

// Who did it is the name that the caller gives; the service stays the service.
func TestActor(t *testing.T) {
	t.Parallel()
	i := start(t)
	for given, want := range map[string]string{"anna": "anna", "billingctl/anna": "billingctl/anna", "": "admin"} {
		var headers []string
		if given != "" {
			headers = []string{"X-Actor", given}
		}
		a := i.send(adminToken, "POST", "/admin/v1/vault-keys", anAgent, headers...)
		if a.status != 201 || !strings.Contains(a.body, `"created_by":"`+want+`"`) {
			t.Errorf("%q: %d %s", given, a.status, a.body)
		}
	}
	if a := i.send(serviceToken, "POST", "/admin/v1/vault-keys", aRun, "X-Actor", "admin"); a.status != 201 || !strings.Contains(a.body, `"created_by":"service/admin"`) {
		t.Errorf("the service passes for another: %d %s", a.status, a.body)
	}
	for _, bad := range []string{strings.Repeat("x", 65), "ann\u00e4", "a\tb"} {
		if a := i.send(adminToken, "POST", "/admin/v1/vault-keys", anAgent, "X-Actor", bad); a.status != 400 {
			t.Errorf("%q is accepted: %d", bad, a.status)
		}
	}
}

// The API has one spelling. Others lead nowhere, whoever holds a token.
func TestPathsHaveOneSpelling(t *testing.T) {
	t.Parallel()
	i := start(t)
	id := i.issue(anAgent).VaultKey.ID
	address := strings.TrimPrefix(i.url, "http://")
	raw := func(method, target string) int {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: elsewhere.example\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n", method, target, adminToken)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s %s: %v", method, target, err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if got := raw("GET", "/admin/v1/vault-keys/"+id); got != 200 {
		t.Fatalf("the right spelling got %d", got)
	}
	for _, target := range []string{
		"/admin/v1", "/admin/v1/", "/admin/v1/vault-keys/", "/admin//v1/vault-keys", "//admin/v1/vault-keys", "/admin/v1//vault-keys", "/admin/v1/./vault-keys",
		"/admin/v1/x/../vault-keys", "/admin/v1/%2e/vault-keys", "/admin/v1/%76ault-keys", "/admin%2fv1/vault-keys", "/admin/v1%2fvault-keys", "/admin/v1/vault-keys%2f" + id,
		"/admin/v1/vault-keys/" + id + "/", "/admin/v1/vault-keys/%39", "/admin/v1/vault-keys/..", "/admin/v1/vault-keys/" + id + "%00", "/admin/v1/vault-keys;x", "/admin/v1/vault-keys;x=1/" + id,
		"/ADMIN/v1/vault-keys", "/admin/V1/vault-keys", "/admin/v1/Vault-Keys", "/admin/v1/vault-keys.", "/admin/v1/vault-keys%20", "/admin/v1/vault-keys#x", "/v1/../admin/v1/vault-keys",
		"/v1/charges/../../admin/v1/vault-keys", "/admin\\v1\\vault-keys", "/admin/v1/vault-keys/a/b", "http://" + address + "/admin/v1/vault-keys", "http://elsewhere.example/admin/v1/vault-keys",
	} {
		if got := raw("GET", target); got != 404 && got != 400 {
			t.Errorf("GET %s got %d", target, got)
		}
	}
	for method, want := range map[string]int{"HEAD": 405, "DELETE": 405, "PUT": 405, "get": 405, "OPTIONS": 405, "PATCH": 405} {
		if got := raw(method, "/admin/v1/vault-keys"); got != want {
			t.Errorf("%s got %d, want %d", method, got, want)
		}
	}
	if got := raw("CONNECT", "/admin/v1/vault-keys"); got < 400 {
		t.Errorf("CONNECT got %d", got)
	}
	for _, query := range []string{"colour=red", "run=a&run=b", "run=", "limit=0", "limit=501", "limit=x", "live=yes", "run=%00", "%zz", "live=true;x"} {
		if got := raw("GET", "/admin/v1/vault-keys?"+query); got != 400 {
			t.Errorf("?%s got %d", query, got)
		}
	}
	if a := i.send(adminToken, "POST", "/admin/v1/vault-keys?dry_run=true", anAgent); a.status != 400 {
		t.Errorf("a query on a POST got %d", a.status)
	}
}
