package admin_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/billonce/billonce/cmd/spendproxy/internal/admin"
)

// A key's whole life, on the real ledger.
func TestLifeOfAKey(t *testing.T) {
	t.Parallel()
	i := start(t)
	first := i.issue(strings.Replace(anAgent, "{", `{"expires_at":"2099-01-31T00:00:00Z",`, 1))
	k := first.VaultKey
	if !strings.HasPrefix(first.Secret, "vk_"+k.ID+"_") || !i.works(first.Secret) {
		t.Errorf("the secret of %s does not work", k.ID)
	}
	if k.Mode != "enforce" || k.Window != "total" || k.Manifest || len(k.Caps) != 1 || k.Caps[0].Cap != 60000 || k.Caps[0].Ceiling != 20000 || k.Caps[0].Left != 60000 || k.Expires != "2099-01-31T00:00:00Z" || k.Revoked != "" {
		t.Errorf("issued: %+v", k)
	}
	path := "/admin/v1/vault-keys/" + k.ID
	var got key
	i.want(200, &got, adminToken, "POST", path+"/raises", `{"currency":"usd","to_minor":90000,"until":"2099-01-01T01:00:00+01:00","reason":"a busy day"}`)
	if c := got.Caps[0]; c.Cap != 90000 || c.Left != 90000 || len(got.Raises) != 1 || got.Raises[0].Until != "2099-01-01T00:00:00Z" || got.Raises[0].By != "admin" || got.Raises[0].Reason != "a busy day" {
		t.Errorf("raised for a time: %+v", got)
	}
	if a := i.send(adminToken, "POST", path+"/raises", `{"currency":"eur","by_minor":500,"reason":"another currency"}`); a.status != 400 || !strings.Contains(a.body, "no cap in eur") {
		t.Errorf("raised in another currency: %d %s", a.status, a.body)
	}
	i.want(200, &got, adminToken, "POST", path+"/raises", `{"currency":"usd","to_minor":0,"reason":"stop it"}`)
	if slices.IndexFunc(got.Caps, func(c capOf) bool {
		return c.Currency == "usd" && c.Cap == 0 && c.Left == 0
	}) < 0 {
		t.Errorf("lowered to nothing: %+v", got.Caps)
	}
	i.want(200, &got, adminToken, "POST", path+"/extend", `{"expires_at":"2099-06-01T00:00:00Z","reason":"it goes on"}`)
	if got.Expires != "2099-06-01T00:00:00Z" {
		t.Errorf("extended: %+v", got)
	}
	i.want(200, &got, adminToken, "POST", path+"/extend", `{"expires_at":"2099-05-01T00:00:00Z","reason":"a replica is late"}`)
	if got.Expires != "2099-06-01T00:00:00Z" {
		t.Errorf("an earlier end takes nothing back: %+v", got)
	}
	var second issued
	i.want(200, &second, adminToken, "POST", path+"/rotate", `{"grace":"1h"}`)
	if !i.works(first.Secret) || !i.works(second.Secret) || second.Secret == first.Secret {
		t.Error("within the grace both secrets work")
	}
	var third issued
	i.want(200, &third, adminToken, "POST", path+"/rotate", `{"grace":"0s"}`)
	if i.works(second.Secret) || !i.works(third.Secret) {
		t.Error("without a grace the older secret works")
	}
	i.want(200, &got, adminToken, "GET", path, "")
	if len(got.Secrets) != 3 || got.Secrets[2].Last4 != third.Secret[len(third.Secret)-4:] || got.Secrets[2].Retires != "" || got.Secrets[1].Retires == "" {
		t.Errorf("the secrets are %+v", got.Secrets)
	}
	i.want(200, &got, adminToken, "POST", path+"/revoke", `{"reason":"it is over — für immer"}`)
	if got.Revoked == "" || got.Reason != "it is over — für immer" || i.works(third.Secret) {
		t.Errorf("revoked: %+v", got)
	}
	if a := i.send(adminToken, "POST", path+"/raises", `{"currency":"usd","to_minor":1,"reason":"x"}`); a.status != 409 || a.code() != "vault_key_revoked" {
		t.Errorf("raised after that: %d %s", a.status, a.body)
	}
	for _, change := range []string{"/raises", "/extend", "/rotate", "/revoke"} {
		body := map[string]string{"/raises": `{"currency":"usd","to_minor":1,"reason":"x"}`, "/extend": `{"expires_at":"2099-06-01T00:00:00Z","reason":"x"}`, "/rotate": `{}`, "/revoke": `{"reason":"x"}`}[change]
		if a := i.send(adminToken, "POST", "/admin/v1/vault-keys/nobody"+change, body); a.status != 404 || a.code() != "unknown_vault_key" {
			t.Errorf("%s of a key that does not exist: %d %s", change, a.status, a.body)
		}
	}
}

// Replicas that issue a run's key at once get one key, each a secret of its own.
func TestOneKeyARun(t *testing.T) {
	t.Parallel()
	i := start(t)
	got := make([]issued, 8)
	statuses := make([]int, len(got))
	var all sync.WaitGroup
	for n := range got {
		all.Go(func() {
			a := i.send(serviceToken, "POST", "/admin/v1/vault-keys", aRun)
			statuses[n] = a.status
			if err := json.Unmarshal([]byte(a.body), &got[n]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	secrets := map[string]bool{}
	for n := range got {
		k := got[n].VaultKey
		if k.ID != got[0].VaultKey.ID || k.Run != "2026-12" || !k.Manifest || k.Mode != "enforce" || k.Window != "total" || len(k.Rules) != 6 || k.Expires != "2099-01-31T00:00:00Z" {
			t.Errorf("got %d %+v", statuses[n], k)
		}
		secrets[got[n].Secret] = i.works(got[n].Secret)
	}
	slices.Sort(statuses)
	if len(secrets) != len(got) || statuses[0] != 200 || statuses[len(statuses)-1] != 201 || statuses[len(statuses)-2] != 200 {
		t.Errorf("%d secrets, answers %v", len(secrets), statuses)
	}
	for _, works := range secrets {
		if !works {
			t.Error("a secret that was issued does not work")
		}
	}
}

// What cannot be read as it stands is refused, with every field at fault.
func TestStrictBodies(t *testing.T) {
	t.Parallel()
	i := start(t)
	id := i.issue(anAgent).VaultKey.ID
	with := func(fields string) string {
		return `{"label":"agent","rules":["intents:read"]` + fields + `}`
	}
	for _, test := range []struct{ body, says string }{
		{``, "JSON object"}, {`[]`, "JSON object"}, {`null`, "JSON object"}, {`"x"`, "JSON object"}, {`{`, "JSON object"}, {`{"label":"a"`, "JSON object"}, {`{} {}`, "follows"}, {"{\"label\":\"\xff\"}", "UTF-8"},
		{with(`,"label":"b"`), "more than once"}, {with(`,"colour":"red"`), "not a field"}, {with(`,"Mode":"open"`), "not a field"}, {with(`,"secret":"x"`), "not a field"},
		{`{"rules":["intents:read"]}`, "is required"}, {`{"label":"a"}`, "is required"}, {`{"label":null,"rules":["intents:read"]}`, "is required"}, {`{"label":"a","rules":[]}`, "one rule at least"},
		{`{"label":"a","rules":["intents:*"]}`, "the rules are"}, {`{"label":"a","rules":["intents:read","intents:read"]}`, "more than once"}, {`{"label":"a","rules":"intents:read"}`, "a list of strings"},
		{with(`,"mode":"off"`), "one of"}, {with(`,"mode":1`), "a string"}, {with(`,"window":"week"`), "one of"}, {with(`,"manifest":"yes"`), "true or false"}, {with(`,"manifest":true,"mode":"open"`), "enforce"},
		{with(`,"count_cap":-1`), "negative"}, {with(`,"count_cap":1.5`), "whole number"}, {with(`,"count_cap":"1"`), "whole number"}, {with(`,"count_cap":1e3`), "whole number"}, {with(`,"count_cap":9223372036854775808`), "whole number"},
		{with(`,"expires_at":"tomorrow"`), "a time such as"}, {with(`,"expires_at":"2026-12-31"`), "a time such as"}, {with(`,"expires_at":1796083200`), "a string"}, {with(`,"expires_at":"0001-01-01T00:00:00Z"`), "a time such as"},
		{with(`,"caps":{}`), "a list of objects"}, {with(`,"caps":[1]`), "objects alone"}, {with(`,"caps":[{"currency":"usd"}]`), "cap_minor"}, {with(`,"caps":[{"cap_minor":1}]`), "currency"},
		{with(`,"caps":[{"currency":"USD","cap_minor":1}]`), "lower case"}, {with(`,"caps":[{"currency":"xyz","cap_minor":1}]`), "cannot be charged|can be charged"}, {with(`,"caps":[{"currency":"usd","cap_minor":0}]`), "1 at least"},
		{with(`,"caps":[{"currency":"usd","cap_minor":-5}]`), "1 at least"}, {with(`,"caps":[{"currency":"usd","cap_minor":10.5}]`), "whole number"}, {with(`,"caps":[{"currency":"usd","cap_minor":1},{"currency":"usd","cap_minor":2}]`), "a cap already"},
		{with(`,"caps":[{"currency":"usd","cap_minor":1,"cap_minor":2}]`), "more than once"}, {with(`,"caps":[{"currency":"usd","cap_minor":1,"ceiling_minor":-1}]`), "0 at least"}, {with(`,"caps":[{"currency":"usd","cap_minor":1,"limit":2}]`), "not a field"},
		{with(`,"run":"a/b","environment":"production"`), "must match"}, {with(`,"run":"2026-12"`), "environment"}, {with(`,"environment":"Prod"`), "must match"},
		{`{"label":"` + strings.Repeat("x", 129) + `","rules":["intents:read"]}`, "1 to 128"}, {`{"label":"a\u0000b","rules":["intents:read"]}`, "printable"}, {`{"label":" a","rules":["intents:read"]}`, "printable"}, {`{"label":"","rules":["intents:read"]}`, "printable"},
	} {
		a := i.send(adminToken, "POST", "/admin/v1/vault-keys", test.body, "Content-Type", "application/json")
		said := slices.ContainsFunc(strings.Split(test.says, "|"), func(s string) bool { return strings.Contains(a.body, s) })
		if a.status != 400 || a.code() != "invalid_input" || !said {
			t.Errorf("%s: got %d %s, want it to say %q", test.body, a.status, a.body, test.says)
		}
	}
	for _, body := range []string{
		`{"currency":"usd","reason":"x"}`, `{"currency":"usd","to_minor":1,"by_minor":1,"reason":"x"}`, `{"currency":"usd","to_minor":-1,"reason":"x"}`, `{"currency":"usd","by_minor":0,"reason":"x"}`,
		`{"currency":"usd","by_minor":-5,"reason":"x"}`, `{"to_minor":1,"reason":"x"}`, `{"currency":"usd","to_minor":1}`, `{"currency":"usd","to_minor":1,"reason":"  "}`, `{"currency":"usd","to_minor":1,"reason":"a\nb"}`,
		`{"currency":"usd","to_minor":1,"reason":"x","until":"later"}`, fmt.Sprintf(`{"currency":"usd","to_minor":1,"reason":%q}`, strings.Repeat("x", 501)),
	} {
		if a := i.send(adminToken, "POST", "/admin/v1/vault-keys/"+id+"/raises", body); a.status != 400 || a.code() != "invalid_input" {
			t.Errorf("raise %s: got %d %s", body, a.status, a.body)
		}
	}
	for _, body := range []string{`{"grace":"-1s"}`, `{"grace":"200h"}`, `{"grace":10}`, `{"grace":"soon"}`, `{"reason":"x"}`} {
		if a := i.send(adminToken, "POST", "/admin/v1/vault-keys/"+id+"/rotate", body); a.status != 400 {
			t.Errorf("rotate %s: got %d %s", body, a.status, a.body)
		}
	}
	for contentType, status := range map[string]int{"text/plain": 415, "": 415, "application/json; charset=latin1": 415, "application/x-www-form-urlencoded": 415, "application/json; charset=utf-8": 201} {
		if a := i.send(adminToken, "POST", "/admin/v1/vault-keys", anAgent, "Content-Type", contentType); a.status != status {
			t.Errorf("%q got %d", contentType, a.status)
		}
	}
	for name, values := range map[string][]string{"Content-Type": {"application/json", "text/plain"}, "Content-Encoding": {"identity", "gzip"}} {
		if a := i.twice(adminToken, "/admin/v1/vault-keys", anAgent, name, values); a.status != 415 {
			t.Errorf("%s %v: %d %s", name, values, a.status, a.body)
		}
	}
	if a := i.send(adminToken, "POST", "/admin/v1/vault-keys", anAgent, "Content-Encoding", "gzip"); a.status != 415 {
		t.Errorf("a compressed body got %d", a.status)
	}
	if a := i.send(adminToken, "POST", "/admin/v1/vault-keys", `{"label":"`+strings.Repeat("x", 2<<20)+`"}`); a.status != 413 {
		t.Errorf("2 MiB got %d %s", a.status, a.body)
	}
	if a := i.send(adminToken, "GET", "/admin/v1/vault-keys", `{}`); a.status != 400 || a.code() != "unexpected_body" {
		t.Errorf("a body on a GET got %d %s", a.status, a.body)
	}
	var all struct {
		Keys []key `json:"vault_keys"`
	}
	i.want(200, &all, adminToken, "GET", "/admin/v1/vault-keys", "")
	if len(all.Keys) != 2 { // the first, and that of the right content type
		t.Errorf("there are %d keys", len(all.Keys))
	}
}

// Pages hold each key once, in order, and end.
func TestPagesOfKeys(t *testing.T) {
	t.Parallel()
	i := start(t)
	var want []string
	for n := range 7 {
		want = append(want, i.issue(strings.Replace(anAgent, "agent", fmt.Sprintf("agent %d", n), 1)).VaultKey.Label)
	}
	for _, limit := range []int{1, 2, 7, 8} {
		var got []string
		after := ""
		for range 10 {
			var page struct {
				Keys []key  `json:"vault_keys"`
				Next string `json:"next"`
			}
			path := fmt.Sprintf("/admin/v1/vault-keys?limit=%d", limit)
			if after != "" {
				path += "&after=" + after
			}
			i.want(200, &page, adminToken, "GET", path, "")
			if len(page.Keys) > limit || len(page.Keys) == 0 {
				t.Fatalf("a page of %d has %d keys", limit, len(page.Keys))
			}
			for _, k := range page.Keys {
				got = append(got, k.Label)
			}
			if after = page.Next; after == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %d: %v, want %v", limit, got, want)
		}
	}
	var one struct {
		Keys []key `json:"vault_keys"`
	}
	i.want(200, &one, adminToken, "GET", "/admin/v1/vault-keys?label=agent%203&live=true", "")
	if len(one.Keys) != 1 || one.Keys[0].Label != "agent 3" {
		t.Errorf("by label: %+v", one.Keys)
	}
	i.want(200, nil, adminToken, "POST", "/admin/v1/vault-keys/"+one.Keys[0].ID+"/revoke", `{"reason":"x"}`)
	i.want(200, &one, adminToken, "GET", "/admin/v1/vault-keys?label=agent%203&live=true", "")
	if len(one.Keys) != 0 {
		t.Errorf("a revoked key is live: %+v", one.Keys)
	}
}

// A secret is in the answer that made it; no other answer, log line or table
// holds it, nor the tokens.
func TestSecretsAreShownOnce(t *testing.T) {
	t.Parallel()
	i := start(t)
	first := i.issue(anAgent)
	path := "/admin/v1/vault-keys/" + first.VaultKey.ID
	var second issued
	i.want(200, &second, adminToken, "POST", path+"/rotate", `{}`)
	var said strings.Builder
	for _, a := range []answer{
		i.send(adminToken, "GET", "/admin/v1/vault-keys", ""), i.send(adminToken, "GET", path, ""), i.send(adminToken, "GET", path+"x", ""),
		i.send(adminToken, "POST", path+"/raises", `{"currency":"usd","to_minor":1,"reason":"x"}`), i.send(adminToken, "GET", "/admin/v1/audit", ""),
		i.send(adminToken, "POST", path+"/revoke", `{"reason":"x"}`), i.send(adminToken, "GET", "/admin/v1/vault-keys/"+first.Secret, ""),
		i.send(adminToken, "POST", "/admin/v1/vault-keys", anAgent[:20]), i.send("not-the-token-of-admin", "GET", path, ""),
	} {
		if a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("an answer may be kept: %s", a.body)
		}
		said.WriteString(a.body + "\n")
	}
	rows, err := i.pool.Query(t.Context(), `SELECT table_name FROM information_schema.tables WHERE table_schema = 'spendproxy'`)
	if err != nil {
		t.Fatal(err)
	}
	var tables []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		tables = append(tables, name)
	}
	if rows.Err() != nil || len(tables) < 5 {
		t.Fatalf("%d tables, %v", len(tables), rows.Err())
	}
	for _, table := range tables {
		var text *string
		if err := i.pool.QueryRow(t.Context(), `SELECT string_agg(t::text, E'\n') FROM spendproxy."`+table+`" AS t`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		if text != nil {
			said.WriteString(*text + "\n")
		}
	}
	said.WriteString(i.log.String())
	if !strings.Contains(said.String(), "a vault key was revoked") || !strings.Contains(said.String(), first.VaultKey.ID) {
		t.Fatal("the log does not tell what was changed, so the search proves nothing")
	}
	for _, secret := range []string{first.Secret, second.Secret} {
		random := secret[strings.LastIndex(secret, "_")+1:]
		if strings.Contains(said.String(), random) {
			t.Errorf("a secret is shown twice")
		}
	}
	for _, token := range []string{adminToken, serviceToken, "not-the-token-of-admin"} {
		if strings.Contains(said.String(), token) {
			t.Errorf("a token is shown")
		}
	}
}

// A panic is answered like any fault, and the log has no request's text.
func TestPanics(t *testing.T) {
	t.Parallel()
	log := &logged{}
	i := (&instance{log: log}).at(t, admin.New(struct{ admin.Ledger }{}, admin.Tokens{Admin: adminToken}, slog.New(slog.NewJSONHandler(log, nil))))
	a := i.send(adminToken, "GET", "/admin/v1/vault-keys?label=MARKER", "")
	if a.status != 500 || a.code() != "internal" || !strings.Contains(log.String(), a.header.Get("X-Request-Id")) || strings.Contains(log.String(), "MARKER") {
		t.Errorf("%d %s; the log: %s", a.status, a.body, log)
	}
}

// Where the store is away the API says so, in words that hold no detail.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	i := start(t)
	id := i.issue(anAgent).VaultKey.ID
	i.pool.Close()
	for _, test := range []struct{ method, path, body string }{
		{"GET", "/admin/v1/vault-keys", ""}, {"GET", "/admin/v1/vault-keys/" + id, ""}, {"POST", "/admin/v1/vault-keys", anAgent}, {"POST", "/admin/v1/vault-keys/" + id + "/rotate", "{}"},
		{"GET", "/admin/v1/books", ""}, {"GET", "/admin/v1/audit", ""},
	} {
		a := i.send(adminToken, test.method, test.path, test.body)
		if a.status != http.StatusServiceUnavailable || a.code() != "ledger_unavailable" || a.header.Get("Retry-After") == "" || strings.Contains(a.body, "pool") {
			t.Errorf("%s %s: %d %s", test.method, test.path, a.status, a.body)
		}
	}
	if !strings.Contains(i.log.String(), "closed pool") {
		t.Errorf("the log does not say why: %s", i.log)
	}
}
