package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// What only the proxy knows, and what only its operator does.
const (
	realStripeKey   = "rk_test_ofTheProxyAlone"
	proxyAdminToken = "admin-token-0123456789"
	proxyToken      = "service-token-0123456789"
)

// built is the spend proxy's program, made once for all tests.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "spendproxy-of-a-test-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	path := filepath.Join(dir, "spendproxy")
	out, err := exec.Command("go", "build", "-o", path, "../spendproxy").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

var builtIn string

// removeBuilt is called when all tests have ended.
func removeBuilt() {
	if builtIn != "" {
		_ = os.RemoveAll(builtIn)
	}
}

// spendproxy is a proxy of its own process, with a database of its own, in
// front of the stand-in, whose key nobody else has.
type spendproxy struct {
	t    testing.TB
	url  string
	db   *pgtest.Proxy // between the proxy and its database
	pool *pgxpool.Pool // to its database, past the former
	base string        // the vault key of reads
	back string        // the vault key of refunds
}

// newProxiedHouse is a house whose stand-in takes the proxy's key alone.
func newProxiedHouse(t *testing.T) (*house, *spendproxy) {
	t.Helper()
	t.Parallel()
	stripe, err := sim.Start(sim.Options{Clock: time.Date(2026, 10, 15, 12, 0, 0, 0, time.UTC), APIKeys: []string{realStripeKey}})
	if err != nil {
		t.Fatalf("start the stand-in: %v", err)
	}
	t.Cleanup(func() { stripe.Close() })
	return &house{t, pgtest.DSN(t), stripe}, startProxy(t, stripe)
}

func startProxy(t *testing.T, stripe *sim.Server) *spendproxy {
	t.Helper()
	program, err := built()
	if err != nil {
		t.Fatalf("build the spend proxy: %v", err)
	}
	dsn := pgtest.Empty(t)
	p := &spendproxy{t: t, db: pgtest.NewProxy(t, dsn)}
	dir := t.TempDir()
	ports, logs := filepath.Join(dir, "ports"), filepath.Join(dir, "log")
	out, err := os.Create(logs)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "SPENDPROXY_LISTEN=127.0.0.1:0", "SPENDPROXY_PORT_FILE="+ports, "SPENDPROXY_UPSTREAM="+stripe.APIURL, "SPENDPROXY_STRIPE_KEY="+realStripeKey,
		"SPENDPROXY_DATABASE_URL="+p.db.DSN(), "SPENDPROXY_ADMIN_TOKEN="+proxyAdminToken, "SPENDPROXY_SERVICE_TOKEN="+proxyToken,
		"SPENDPROXY_CLOCK_URL="+stripe.ControlURL+"/control/clock", "SPENDPROXY_SHUTDOWN_GRACE=5s", "SPENDPROXY_TIMEOUT=5s")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		p.db.Resume()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			text, _ := os.ReadFile(logs)
			t.Logf("the proxy said:\n%s", text[max(0, len(text)-4000):])
		}
	})
	awaitFor(t, time.Minute, "the proxy listens", func() bool {
		text, err := os.ReadFile(ports)
		var where struct{ API string }
		if err != nil || json.Unmarshal(text, &where) != nil {
			return false
		}
		p.url = where.API
		return true
	}, func() string { text, _ := os.ReadFile(logs); return string(text) })
	p.pool = pgtest.Connect(t, dsn, 2)
	reads := []string{"intents:read", "charges:read", "account:read", "events:read", "refunds:read", "customers:read", "payment_methods:read", "intents:cancel"}
	p.base = p.issue(map[string]any{"label": "reads", "rules": reads})
	p.back = p.issue(map[string]any{"label": "refunds", "rules": []string{"refunds:create"}, "caps": []map[string]any{{"currency": "usd", "cap_minor": 10_000}}})
	return p
}

// ask calls the admin API as the operator and reads the answer.
func (p *spendproxy) ask(method, path string, body, answer any) {
	p.t.Helper()
	var text io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			p.t.Fatal(err)
		}
		text = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, p.url+"/admin/v1/"+path, text)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+proxyAdminToken)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= 300 {
		p.t.Fatalf("%s %s: %d %s %v", method, path, res.StatusCode, raw, err)
	}
	if answer != nil {
		if err := json.Unmarshal(raw, answer); err != nil {
			p.t.Fatalf("%s %s: %s: %v", method, path, raw, err)
		}
	}
}

func (p *spendproxy) issue(terms map[string]any) string {
	p.t.Helper()
	var issued struct{ Secret string }
	p.ask(http.MethodPost, "vault-keys", terms, &issued)
	return issued.Secret
}

// run is the key of a run, once the service has asked for it and told the proxy
// of so many bills, and the cap is 1.10 of what is expected.
func (p *spendproxy) run(label string, bills int) (id string) {
	p.t.Helper()
	var limit int64
	awaitFor(p.t, time.Minute, "the run has a key and its manifest", func() bool {
		var page struct {
			Keys []struct {
				ID   string `json:"id"`
				Caps []struct {
					Cap int64 `json:"cap_minor"`
				} `json:"caps"`
			} `json:"vault_keys"`
		}
		p.ask(http.MethodGet, "vault-keys?run="+url.QueryEscape(label), nil, &page)
		if len(page.Keys) != 1 || len(page.Keys[0].Caps) != 1 {
			return false
		}
		all := id != "" && p.count(`SELECT count(*) FROM spendproxy.obligations WHERE vault_key = $1`, id) == bills
		id, limit = page.Keys[0].ID, page.Keys[0].Caps[0].Cap
		return all && limit == int64(bills)*1100 // 10.00 each, and a tenth more
	}, func() string { return fmt.Sprint(id, " ", limit) })
	return id
}

func (p *spendproxy) count(sql string, args ...any) (n int) {
	p.t.Helper()
	if err := p.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// set gives a run's key another cap, by an operator's hand.
func (p *spendproxy) set(key string, limit int64) {
	p.t.Helper()
	p.ask(http.MethodPost, "vault-keys/"+key+"/raises", map[string]any{"currency": "usd", "to_minor": limit, "reason": "as a test has it"}, nil)
}

// behind makes settings go by the proxy.
func (p *spendproxy) behind(c *config.Config) {
	admin, err := url.Parse(p.url)
	if err != nil {
		p.t.Fatal(err)
	}
	c.StripeBase, c.StripeKey, c.RefundKey = p.url, settings.NewSecret(p.base), settings.NewSecret(p.back)
	c.ProxyAdmin, c.ProxyToken = admin, settings.NewSecret(proxyToken)
}

// nothingWentRound holds the stand-in's journal against the proxy's audit: each
// POST came by it.
func (p *spendproxy) nothingWentRound(stripe *sim.Server) {
	p.t.Helper()
	rows, err := p.pool.Query(context.Background(), `SELECT DISTINCT idempotency_key FROM spendproxy.audit WHERE method = 'POST' AND verdict = 'allow'`)
	if err != nil {
		p.t.Fatal(err)
	}
	allowed := map[string]bool{}
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			p.t.Fatal(err)
		}
		allowed[key] = true
	}
	posts := 0
	for _, r := range stripe.Requests() {
		if r.Status == http.StatusUnauthorized {
			p.t.Errorf("somebody without the key called %s %s", r.Method, r.Path)
		}
		if r.Method != http.MethodPost {
			continue
		}
		if posts++; !allowed[r.Key] {
			p.t.Errorf("%s %s under %q is not in the proxy's audit", r.Method, r.Path, r.Key)
		}
	}
	if posts == 0 {
		p.t.Error("the stand-in had no POST")
	}
}

// subscribe gives customers subscriptions of 10.00 a month, from November on.
func (r *replica) subscribe(ids ...string) {
	r.t.Helper()
	var lines strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&lines, `{"command":"register-customer","body":{"customer_id":%q,"stripe_customer_id":"cus_%s","payment_method_id":"pm_card_visa"}}`+"\n", id, id)
		fmt.Fprintf(&lines, `{"command":"activate-subscription","body":{"customer_id":%q,"amount_minor":1000,"currency":"usd","cadence":"monthly","anchor_day":1,"time_zone":"UTC","starts_on":"2026-11-01"}}`+"\n", id)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+"/v1/commands:batch", strings.NewReader(lines.String()))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	r.present(req)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || bytes.Contains(text, []byte(`"code"`)) {
		r.t.Fatalf("subscribe: %d %.500s %v", res.StatusCode, text, err)
	}
}

// november lets the November of everybody fall due.
func (h *house) november() { h.stripe.SetClock(time.Date(2026, 11, 1, 0, 0, 1, 0, time.UTC)) }

// tally is how many bills of the run stand where.
func (r *replica) tally() map[string]int {
	r.t.Helper()
	var run struct {
		Statuses []struct {
			Status string
			Bills  int
		}
	}
	_ = json.Unmarshal([]byte(r.read("/v1/runs/2026-11")), &run)
	n := map[string]int{}
	for _, s := range run.Statuses {
		n[s.Status] = s.Bills
	}
	return n
}

func (r *replica) present(req *http.Request) {
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
}

func (r *replica) read(path string) string {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.present(req)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// charged counts the stand-in's successes, each customer at most once.
func (h *house) charged() (n int, doubled bool) {
	seen := map[string]bool{}
	for _, m := range h.stripe.Ledger() {
		if m.Status == "succeeded" {
			n++
			doubled = doubled || seen[m.Metadata["customer_id"]]
			seen[m.Metadata["customer_id"]] = true
		}
	}
	return n, doubled
}
