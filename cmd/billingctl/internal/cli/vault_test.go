package cli

import (
	"net/http"
	"os"
	"strings"
	"testing"
)

// toProxy makes the one service of a test a spend proxy.
func toProxy(t *testing.T, status int, document string) *request {
	t.Helper()
	got := serve(t, status, document)
	t.Setenv("SPENDPROXY_ADMIN_URL", os.Getenv("BILLINGCTL_URL"))
	t.Setenv("SPENDPROXY_ADMIN_TOKEN", "the proxy's token")
	return got
}

const aKey = `{"id":"9f2c41d07ab34e6f","label":"agent","environment":"","run":"","rules":["intents:create","intents:confirm"],"mode":"enforce","window":"day","manifest":false,
	"expires_at":"2026-12-31T00:00:00Z","revoked_at":null,"created_at":"2026-11-30T12:00:00Z","created_by":"anna","count_cap":100,
	"caps":[{"currency":"jpy","cap_minor":60000,"ceiling_minor":0,"spent_minor":500,"held_minor":0,"left_minor":59500,"charges":1,"by_operator":true},
	{"currency":"usd","cap_minor":60000,"ceiling_minor":20000,"spent_minor":12000,"held_minor":5000,"left_minor":43000,"charges":3,"by_operator":true}],
	"secrets":[{"last4":"x7Qa","created_at":"2026-11-30T12:00:00Z","retires_at":null}],
	"raises":[{"what":"raise","currency":"usd","from_minor":50000,"to_minor":60000,"until":"2026-12-01T00:00:00Z","reason":"a busy day","by":"anna","at":"2026-11-30T13:00:00Z"}]}`

// The secret alone is on the output; everything for people is beside it.
func TestVaultKeysIssue(t *testing.T) {
	got := toProxy(t, http.StatusCreated, `{"vault_key":`+aKey+`,"secret":"vk_9f2c41d07ab34e6f_s3cr3t"}`)
	ran := billingctl(t, "", "vault-keys", "issue", "--label", "agent", "--rule", "intents:create", "--rule=intents:confirm", "--cap", "usd=60000", "--cap", "jpy=60000", "--ceiling", "usd=20000", "--window", "day",
		"--count-cap", "100", "--expires", "2026-12-31")
	if ran.code != exitOK || ran.out != "vk_9f2c41d07ab34e6f_s3cr3t\n" {
		t.Errorf("printed %+v", ran)
	}
	if want := `{"caps":[{"currency":"jpy","cap_minor":60000},{"currency":"usd","cap_minor":60000,"ceiling_minor":20000}],"count_cap":100,"expires_at":"2026-12-31T00:00:00Z","label":"agent","mode":"enforce","rules":["intents:create","intents:confirm"],"window":"day"}`; got.body != want ||
		got.path != "/admin/v1/vault-keys" || got.auth != "Bearer the proxy's token" {
		t.Errorf("sent %+v\nwant %s", *got, want)
	}
	if want := "This secret is shown now and never again: keep it where secrets are kept.\nvault key 9f2c41d07ab34e6f (agent): enforce, ¥60000, $600.00 ($200.00 a charge) a day; until 2026-12-31 00:00:00\n"; ran.err != want {
		t.Errorf("said %q, want %q", ran.err, want)
	}
	ran = billingctl(t, "", "-o", "json", "vault-keys", "issue", "--run", "2026-12", "--environment", "production", "--manifest")
	if ran.code != exitOK || strings.Count(ran.out, "vk_9f2c41d07ab34e6f_s3cr3t") != 1 || strings.Contains(ran.err, "s3cr3t") || got.body != `{"environment":"production","manifest":true,"mode":"enforce","run":"2026-12","window":"total"}` {
		t.Errorf("as JSON: %+v, sent %s", ran, got.body)
	}
	toProxy(t, http.StatusOK, `{"vault_key":{"id":"9f2c41d07ab34e6f","window":"total","manifest":true,"secrets":[{"last4":"x7Qa"},{"last4":"s3cr"}]},"secret":"vk_9f2c41d07ab34e6f_s3cr3t"}`)
	if ran = billingctl(t, "", "vault-keys", "issue", "--run", "2026-12", "--environment", "production"); ran.code != exitOK || !strings.Contains(ran.err, "one more secret") {
		t.Errorf("a key that the run has already: %+v", ran)
	}
	toProxy(t, http.StatusOK, `{"secret":"vk_9f2c41d07ab34e6f_an0ther"}`)
	ran = billingctl(t, "", "vault-keys", "rotate", "9f2c41d07ab34e6f", "--grace", "1h")
	if ran.code != exitOK || ran.out != "vk_9f2c41d07ab34e6f_an0ther\n" || !strings.Contains(ran.err, "older secrets work for 1h0m0s more") || strings.Contains(ran.err, "an0ther") {
		t.Errorf("rotated: %+v", ran)
	}
}

// Changes are sent as they were typed, amounts in minor units.
func TestVaultKeysChange(t *testing.T) {
	got := toProxy(t, http.StatusOK, aKey)
	const path = "/admin/v1/vault-keys/9f2c41d07ab34e6f"
	for _, test := range []struct{ line, path, body string }{
		{"raise 9f2c41d07ab34e6f usd --to 60000 --until 2026-12-01T00:00:00+01:00 --reason busy", path + "/raises", `{"currency":"usd","reason":"busy","to_minor":60000,"until":"2026-11-30T23:00:00Z"}`},
		{"raise 9f2c41d07ab34e6f usd --by 500 --reason busy", path + "/raises", `{"by_minor":500,"currency":"usd","reason":"busy"}`},
		{"raise 9f2c41d07ab34e6f usd --by 500 --until 72h --reason busy", path + "/raises", `{"by_minor":500,"currency":"usd","reason":"busy","until":"72h"}`},
		{"extend 9f2c41d07ab34e6f --until 2026-12-31T00:00:00Z --reason on", path + "/extend", `{"expires_at":"2026-12-31T00:00:00Z","reason":"on"}`},
		{"raise 9f2c41d07ab34e6f usd --to 0 --reason stop", path + "/raises", `{"currency":"usd","reason":"stop","to_minor":0}`},
		{"extend 9f2c41d07ab34e6f --until 2026-12-31 --reason on", path + "/extend", `{"expires_at":"2026-12-31T00:00:00Z","reason":"on"}`},
		{"revoke 9f2c41d07ab34e6f --reason over", path + "/revoke", `{"reason":"over"}`},
		{"release key:a/b --reason looked", "/admin/v1/reservations/key:a%2Fb/release", `{"reason":"looked"}`},
	} {
		ran := billingctl(t, "", append([]string{"vault-keys"}, strings.Fields(test.line)...)...)
		if ran.code != exitOK || ran.err != "" || got.path != test.path || got.body != test.body {
			t.Errorf("%s: %+v, sent %+v", test.line, ran, *got)
		}
	}
	if ran := billingctl(t, "", "vault-keys", "extend", "9f2c41d07ab34e6f", "--until", "2026-12-01", "--reason", "x"); ran.code != exitOK || !strings.Contains(ran.err, "longer already") {
		t.Errorf("an earlier end: %+v", ran)
	}
	toProxy(t, http.StatusConflict, `{"error":{"code":"vault_key_revoked","message":"the vault key is revoked"}}`)
	if ran := billingctl(t, "", "vault-keys", "revoke", "9f2c41d07ab34e6f", "--reason", "over"); ran.code != exitFailed || ran.err != "billingctl: vault_key_revoked: the vault key is revoked\n" || ran.out != "" {
		t.Errorf("refused: %+v", ran)
	}
}

func TestPlainName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"billingctl/anna": "billingctl/anna", "billingctl/jürgen\n": "billingctl/j?rgen?", strings.Repeat("x", 80): strings.Repeat("x", 64)} {
		if got := plainName(name); got != want {
			t.Errorf("%q is written as %q", name, got)
		}
	}
}

// What is shown has the currencies' own decimals.
func TestVaultKeysShow(t *testing.T) {
	toProxy(t, http.StatusOK, aKey)
	ran := billingctl(t, "", "vault-keys", "show", "9f2c41d07ab34e6f")
	for _, want := range []string{"label                agent", "caps count over      a day of UTC", "charges at most      100", "until 2026-12-31 00:00:00",
		"usd       $600.00             $200.00  $120.00  $50.00  $430.00        3  the operator", "jpy        ¥60000", "…x7Qa", "a busy day", "$500.00"} {
		if !strings.Contains(ran.out, want) {
			t.Errorf("%q is not in\n%s", want, ran.out)
		}
	}
	got := toProxy(t, http.StatusOK, `{"vault_keys":[`+aKey+`]}`)
	ran = billingctl(t, "", "vault-keys", "list", "--live", "--label", "agent")
	if want := `id                label  mode     window      cap    spent    held     left  charges  until
9f2c41d07ab34e6f  agent  enforce  day      ¥60000     ¥500      ¥0   ¥59500        1  2026-12-31 00:00:00
9f2c41d07ab34e6f  agent  enforce  day     $600.00  $120.00  $50.00  $430.00        3  2026-12-31 00:00:00
`; ran.code != exitOK || ran.out != want || got.path != "/admin/v1/vault-keys?label=agent&limit=500&live=true" {
		t.Errorf("%+v of %s, want\n%s", ran, got.path, want)
	}
	toProxy(t, http.StatusOK, `{"vault_keys":[]}`)
	if ran := billingctl(t, "", "-o", "json", "vault-keys", "list"); ran.out != "{\n  \"vault_keys\": []\n}\n" {
		t.Errorf("an empty list is %q", ran.out)
	}
	got = toProxy(t, http.StatusOK, `{"calls":[{"at":"2026-11-30T12:00:00Z","phase":"before","vault_key":"9f2c41d07ab34e6f","method":"POST","path":"/v1/charges","verdict":"refuse","code":"spend_cap_exceeded",
		"reason":"5000 asked; 10 left","customer_id":"acme","billing_period":"2026-12","amount_minor":5000,"currency":"usd","idempotency_key":"k1","reservation":"none","status":429}],"next":"c1"}`)
	ran = billingctl(t, "", "vault-keys", "audit", "--customer", "acme", "--period", "2026-12", "--refused", "--limit", "1")
	if ran.code != exitOK || got.path != "/admin/v1/audit?customer=acme&limit=1&period=2026-12&refused=true" || !strings.Contains(ran.out, "spend_cap_exceeded") || !strings.Contains(ran.out, "$50.00") || !strings.HasSuffix(ran.out, "and more: narrow it down, or raise --limit\n") {
		t.Errorf("audit: %+v of %s", ran, got.path)
	}
	toProxy(t, http.StatusOK, `{"currencies":[{"currency":"kwd","settled_minor":10500,"settled":2,"held_minor":0,"held":0}]}`)
	if ran := billingctl(t, "", "vault-keys", "books"); ran.code != exitOK || !strings.Contains(ran.out, "KWD 10.500") {
		t.Errorf("books: %+v", ran)
	}
}

// Mistakes end with 2 before anything is sent, and no secret is repeated.
func TestVaultKeysUsage(t *testing.T) {
	got := toProxy(t, http.StatusOK, aKey)
	for _, test := range []struct{ line, want string }{
		{"issue", "--label and one --rule"}, {"issue --label agent", "--label and one --rule"}, {"issue --label a --rule intents:read --cap usd", "--cap"}, {"issue --label a --rule intents:read --cap usd=6,00", "--cap"},
		{"issue --label a --rule intents:read --ceiling usd=5", "needs --cap usd"}, {"issue --label a --rule intents:read --cap usd=1 --cap usd=2", "--cap has usd twice"}, {"issue --label a --rule intents:read --expires soon", "--expires must be"}, {"issue --label a --rule intents:read --mode off", "--mode"},
		{"raise k usd --reason x", "--to"}, {"raise k usd --to 5 --by 5 --reason x", "together"}, {"raise k usd --to 5", "--reason"}, {"raise k usd --to 5 --until later --reason x", "--until must be"},
		{"raise k usd --to 5 --until -3h --reason x", "--until"}, {"raise k usd --to 5 --until=-3h --reason x", "--until must be"}, {"raise k usd --to 5 --until 0d --reason x", "--until must be"}, {"issue --label a --rule intents:read --expires 1.5d", "--expires must be"},
		{"revoke k", "--reason"}, {"extend k --reason x", "--until"}, {"rotate k --grace soon", "--grace"}, {"audit --limit 0", "--limit must be"},
		{"show vk_9f2c_s3cr3t", "this is a secret"}, {"revoke vk_9f2c_s3cr3t --reason x", "this is a secret"}, {"books --key vk_9f2c_s3cr3t", "this is a secret"}, {"audit --key vk_9f2c_s3cr3t", "this is a secret"},
		{"--admin-url localhost:1 list", "--admin-url: the address of the spend proxy must be a URL"},
	} {
		ran := billingctl(t, "", append([]string{"vault-keys"}, strings.Fields(test.line)...)...)
		if ran.code != exitUsage || ran.out != "" || !strings.Contains(ran.err, test.want) || strings.Contains(ran.err, "s3cr3t") || got.path != "" {
			t.Errorf("vault-keys %s: %+v, want %q; sent to %q", test.line, ran, test.want, got.path)
		}
	}
	t.Setenv("SPENDPROXY_ADMIN_TOKEN", " ")
	if ran := billingctl(t, "", "vault-keys", "list"); ran.code != exitUsage || !strings.Contains(ran.err, "SPENDPROXY_ADMIN_TOKEN is set but blank") {
		t.Errorf("a blank token: %+v", ran)
	}
	os.Unsetenv("SPENDPROXY_ADMIN_TOKEN") // put back by Setenv's clean-up
	if ran := billingctl(t, "", "vault-keys", "list"); ran.code != exitUsage || !strings.Contains(ran.err, "SPENDPROXY_ADMIN_TOKEN is needed") {
		t.Errorf("no token: %+v", ran)
	}
}
