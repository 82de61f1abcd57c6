package admin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
)

// billingctl builds the operator's tool and returns a way to run it on the API.
func (i *instance) billingctl() func(args ...string) (stdout, stderr string, status int) {
	i.t.Helper()
	program := filepath.Join(i.t.TempDir(), "billingctl")
	if out, err := exec.CommandContext(i.t.Context(), "go", "build", "-o", program, "github.com/billonce/billonce/cmd/billingctl").CombinedOutput(); err != nil {
		i.t.Fatalf("build billingctl: %v\n%s", err, out)
	}
	return func(args ...string) (string, string, int) {
		i.t.Helper()
		var out, errs bytes.Buffer
		c := exec.CommandContext(i.t.Context(), program, append([]string{"vault-keys"}, args...)...)
		c.Env = append(os.Environ(), "SPENDPROXY_ADMIN_URL="+i.url, "SPENDPROXY_ADMIN_TOKEN="+adminToken)
		c.Stdout, c.Stderr = &out, &errs
		status := 0
		if err := c.Run(); err != nil {
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok {
				i.t.Fatal(err)
			}
			status = exit.ExitCode()
		}
		return out.String(), errs.String(), status
	}
}

// billingctl and the API understand each other, the real one and the real one.
func TestBillingctl(t *testing.T) {
	t.Parallel()
	i := start(t)
	run := i.billingctl()
	must := func(args ...string) string {
		t.Helper()
		out, errs, status := run(args...)
		if status != 0 {
			t.Fatalf("%q ended with %d: %s", args, status, errs)
		}
		return out
	}
	out, errs, status := run("issue", "--label", "agent", "--rule", "charges:create", "--cap", "usd=60000", "--ceiling", "usd=50000", "--cap=jpy=7000", "--expires", "2099-01-31")
	secret := strings.TrimSpace(out)
	if status != 0 || !i.works(secret) || out != secret+"\n" || strings.Contains(errs, secret) || !strings.Contains(errs, "never again") || !strings.Contains(errs, "$600.00 ($500.00 a charge)") {
		t.Fatalf("issue: %q %q %d", out, errs, status)
	}
	var list struct {
		Keys []key `json:"vault_keys"`
	}
	if err := json.Unmarshal([]byte(must("list", "--live", "-o", "json")), &list); err != nil || len(list.Keys) != 1 || !strings.HasPrefix(list.Keys[0].By, "billingctl/") {
		t.Fatalf("list: %+v, %v", list, err)
	}
	id := list.Keys[0].ID
	i.charge(id, "one", 40000, "settled")
	i.charge(id, "two", 30000, "settled") // above what is left

	if out := must("list"); !strings.Contains(out, "$400.00") || !strings.Contains(out, "$200.00") || !strings.Contains(out, "¥7000") || strings.Count(out, "\n") != 3 {
		t.Errorf("list:\n%s", out)
	}
	if out := must("raise", id, "usd", "--to", "90000", "--until", "2099-01-01", "--reason", "a busy day"); !strings.Contains(out, "$900.00") || !strings.Contains(out, "a busy day") {
		t.Errorf("raise:\n%s", out)
	}
	if out := must("raise", id, "jpy", "--by", "500", "--reason", "a little more"); !strings.Contains(out, "¥7500") {
		t.Errorf("raise by:\n%s", out)
	}
	if out := must("audit", "--customer", "acme", "--period", "2026-12", "--refused"); !strings.Contains(out, "spend_cap_exceeded") || !strings.Contains(out, "$300.00") || strings.Contains(out, "$400.00") {
		t.Errorf("audit:\n%s", out)
	}
	if out := must("books", "--key", id); !strings.Contains(out, "$400.00") {
		t.Errorf("books:\n%s", out)
	}
	if out := must("extend", id, "--until", "2099-06-01T12:00:00Z", "--reason", "it goes on"); !strings.Contains(out, "until 2099-06-01 12:00:00") {
		t.Errorf("extend:\n%s", out)
	}
	if next := strings.TrimSpace(must("rotate", id, "--grace", "0s")); !i.works(next) || i.works(secret) {
		t.Error("after a rotation the new secret works, and the old one does not")
	}
	if out := must("revoke", id, "--reason", "it is over"); !strings.Contains(out, "revoked ") {
		t.Errorf("revoke:\n%s", out)
	}
	if out := must("show", id); !strings.Contains(out, "it is over") || !strings.Contains(out, "2099-01-01 00:00:00") {
		t.Errorf("show:\n%s", out)
	}
	if out, errs, status := run("audit", "--customer", "acme", "--period", "2027-01"); status != 0 || out != "no calls\n" {
		t.Errorf("a quiet month: %d %s%s", status, out, errs)
	}
	for _, unknown := range [][]string{{"--customer", "acmee"}, {"--key", "0000000000000000"}, {"--object", "pi_none"}, {"--idempotency-key", "none"}, {"--customer", "acmee", "--refused", "-o", "json"}} {
		if out, errs, status := run(append([]string{"audit"}, unknown...)...); status != 1 || out != "" || errs == "" {
			t.Errorf("the audit of %q: %d %s%s", unknown, status, out, errs)
		}
	}
	if out, errs, status := run("books", "--key", "0000000000000000"); status != 1 || out != "" || !strings.Contains(errs, "no such vault key") {
		t.Errorf("the books of no key: %d %s%s", status, out, errs)
	}
	if _, errs, status := run("raise", id, "usd", "--to", "1", "--reason", "x"); status != 1 || !strings.Contains(errs, "vault_key_revoked") {
		t.Errorf("a revoked key is raised: %d %s", status, errs)
	}
	if _, errs, status := run("issue", "--label", "x", "--rule", "everything:write"); status != 1 || !strings.Contains(errs, "the rules are") {
		t.Errorf("a rule that does not exist: %d %s", status, errs)
	}
	if _, _, status := run("raise", id, "usd", "--reason", "x"); status != 2 {
		t.Errorf("a mistake ends with %d", status)
	}
}

// An end is a time or a duration, which counts from the proxy's now; one that is
// past, and a currency without a cap, are refused by the flag's own name.
func TestBillingctlEnds(t *testing.T) {
	t.Parallel()
	i := start(t)
	run := i.billingctl()
	issue := func(expires string) (id string) {
		t.Helper()
		if out, errs, status := run("issue", "--label", "for "+expires, "--rule", "charges:create", "--cap", "usd=60000", "--expires", expires); status != 0 {
			t.Fatalf("--expires %s: %d %s%s", expires, status, out, errs)
		}
		keys, err := i.ledger.Keys(t.Context(), ledger.KeyFilter{Label: "for " + expires})
		if err != nil || len(keys) != 1 {
			t.Fatalf("%+v, %v", keys, err)
		}
		return keys[0].ID
	}
	end := func(id string) time.Time {
		t.Helper()
		k, err := i.ledger.Key(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return k.Grant.Expires
	}
	about := func(what string, at time.Time, d time.Duration) {
		t.Helper()
		now, err := i.ledger.Clock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if off := now.Add(d).Sub(at); off < 0 || off > time.Minute {
			t.Errorf("%s ends at %s, %s off", what, at, off)
		}
	}
	id := issue("72h")
	about("72h", end(id), 72*time.Hour)
	about("30d", end(issue("30d")), 30*24*time.Hour)
	if _, errs, status := run("extend", id, "--until", "60d", "--reason", "x"); status != 0 || errs != "" {
		t.Errorf("extend: %d %s", status, errs)
	}
	about("60d", end(id), 60*24*time.Hour)
	if _, errs, status := run("extend", id, "--until", "1h", "--reason", "x"); status != 0 || !strings.Contains(errs, "longer already") {
		t.Errorf("extend to an earlier end: %d %s", status, errs)
	}
	if out, errs, status := run("raise", id, "usd", "--by", "100", "--until", "2d", "--reason", "x"); status != 0 || !strings.Contains(out, "$601.00") {
		t.Errorf("raise: %d %s%s", status, out, errs)
	}
	past := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for _, test := range []struct {
		line   string
		status int
		want   string
	}{
		{"issue --label late --rule charges:create --expires " + past, 2, "--expires must be in the future"},
		{"issue --label late --rule charges:create --expires 2026-01-01", 2, "--expires must be in the future"},
		{"raise " + id + " usd --by 1 --reason x --until " + past, 2, "--until must be in the future"},
		{"extend " + id + " --reason x --until " + past, 2, "--until must be in the future"},
		{"raise " + id + " eur --by 1 --reason x", 1, "no cap in eur to be raised; it has one in usd"},
		{"raise " + id + " eur --to 1 --until 1h --reason x", 1, "no cap in eur to be raised; it has one in usd"},
		{"raise 0000000000000000 usd --by 1 --reason x", 1, "no such vault key"},
	} {
		if out, errs, status := run(strings.Fields(test.line)...); status != test.status || out != "" || !strings.Contains(errs, test.want) {
			t.Errorf("%s: %d %s%s", test.line, status, out, errs)
		}
	}
	if _, err := i.pool.Exec(t.Context(), `UPDATE spendproxy.vault_keys SET expires_at = clock_timestamp() WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	if _, errs, status := run("raise", id, "usd", "--by", "1", "--reason", "x"); status != 1 || !strings.Contains(errs, "vault_key_expired") || !strings.Contains(errs, "extend it first") {
		t.Errorf("a key that has expired is raised: %d %s", status, errs)
	}
}
