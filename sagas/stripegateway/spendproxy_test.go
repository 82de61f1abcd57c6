package stripegateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/sagas"
)

const proxyToken = "admin-token-of-the-test"

// spendproxy is the real program as a process.
type spendproxy struct{ url string }

// What billingd and other programs meet when Stripe's API is spoken by the spend
// proxy.
func TestTheSpendProxy(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "spendproxy")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/billonce/billonce/cmd/spendproxy").CombinedOutput(); err != nil {
		t.Fatalf("build spendproxy: %v\n%s", err, out)
	}
	t.Run("denials", func(t *testing.T) { denials(t, program) })
	t.Run("throughout", func(t *testing.T) { throughout(t, program) })
}

// startSpendproxy runs the program until the test ends.
func startSpendproxy(t *testing.T, program, upstream, dsn string) spendproxy {
	t.Helper()
	ports := filepath.Join(t.TempDir(), "ports.json")
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "SPENDPROXY_LISTEN=127.0.0.1:0", "SPENDPROXY_PORT_FILE="+ports, "SPENDPROXY_UPSTREAM="+upstream,
		"SPENDPROXY_STRIPE_KEY=sk_test_1", "SPENDPROXY_DATABASE_URL="+dsn, "SPENDPROXY_ADMIN_TOKEN="+proxyToken)
	var stderr record
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("spendproxy ended with %v\n%s", err, stderr.String())
		}
	})
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		content, err := os.ReadFile(ports)
		var p struct{ API string }
		if err == nil && json.Unmarshal(content, &p) == nil && p.API != "" {
			return spendproxy{p.API}
		}
		if time.Now().After(deadline) {
			t.Fatalf("spendproxy does not come up\n%s", stderr.String())
		}
	}
}

// admin makes a call of the admin API.
func (p spendproxy) admin(t *testing.T, method, path string, body any) (answer struct {
	Secret string
	Key    struct{ ID string } `json:"vault_key"`
}) {
	t.Helper()
	kind, text := "application/x-ndjson", []byte(nil)
	if lines, ok := body.(string); ok {
		text = []byte(lines)
	} else {
		kind = "application/json"
		text, _ = json.Marshal(body)
	}
	r, err := http.NewRequest(method, p.url+"/admin/v1/vault-keys"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+proxyToken)
	r.Header.Set("Content-Type", kind)
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer res.Body.Close()
	content, _ := io.ReadAll(res.Body)
	if res.StatusCode > 299 || len(content) > 0 && json.Unmarshal(content, &answer) != nil {
		t.Fatalf("%s %s: %d %s", method, path, res.StatusCode, content)
	}
	return answer
}

func (p spendproxy) issue(t *testing.T, change object) (secret, id string) {
	t.Helper()
	terms := object{
		"label": "test", "environment": "test", "mode": "enforce", "window": "total",
		"rules": []string{"intents:create", "intents:confirm", "intents:cancel", "intents:read", "charges:create", "charges:read"},
		"caps":  []object{{"currency": "usd", "cap_minor": 1_000_000}},
	}
	for name, value := range change {
		terms[name] = value
	}
	a := p.admin(t, http.MethodPost, "", terms)
	return a.Secret, a.Key.ID
}

// ofBills issues a key whose manifest holds a bill of so many customers.
func (p spendproxy) ofBills(t *testing.T, change object, customers ...string) (secret string) {
	t.Helper()
	terms := object{"run": "of-" + customers[0], "manifest": true}
	maps.Copy(terms, change)
	secret, id := p.issue(t, terms)
	var manifest strings.Builder
	for _, name := range customers {
		fmt.Fprintf(&manifest, `{"customer_id":%q,"billing_period":"2026-11","amount_minor":2900,"currency":"usd","stripe_customer_id":"cus_0001"}`+"\n", name)
	}
	p.admin(t, http.MethodPut, "/"+id+"/manifest", manifest.String())
	return secret
}

// counted counts the requests that a library makes.
type counted struct {
	n    atomic.Int32
	next *http.Transport
}

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.next.RoundTrip(r)
}

// library is stripe-go as any program would use it, with its retries on.
func library(t *testing.T, url, key string) (*client.API, *counted) {
	c := &counted{next: new(http.Transport)}
	t.Cleanup(c.next.CloseIdleConnections)
	return client.New(key, &stripe.Backends{API: stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: stripe.String(url), HTTPClient: &http.Client{Transport: c, Timeout: time.Minute}, MaxNetworkRetries: stripe.Int64(2),
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull},
	})}), c
}

// denials: a denial of the spend proxy makes stripe-go give up at once, whatever its
// status, with an error whose code can be read; and it makes the gateway say that
// nothing was executed: the bill is held, or the same key is sent again.
func denials(t *testing.T, program string) {
	stripeSim, err := sim.Start(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stripeSim.Close() })
	dsn, nowhere := pgtest.Empty(t), closedPort(t)
	p := startSpendproxy(t, program, stripeSim.APIURL, dsn)
	astray := startSpendproxy(t, program, nowhere, dsn)
	storeless := pgtest.Empty(t)
	lost := startSpendproxy(t, program, stripeSim.APIURL, storeless)

	good := p.ofBills(t, nil, "Stripe-is-away")
	empty := p.ofBills(t, object{"caps": []object{{"currency": "usd", "cap_minor": 100}}}, "cap")
	single := p.ofBills(t, object{"count_cap": 1}, "used", "count")
	small := p.ofBills(t, object{"caps": []object{{"currency": "usd", "cap_minor": 1_000_000, "ceiling_minor": 100}}}, "ceiling")
	reading, _ := p.issue(t, object{"rules": []string{"intents:read"}})
	plain, _ := p.issue(t, nil)
	revoked, revokedID := p.issue(t, nil)
	p.admin(t, http.MethodPost, "/"+revokedID+"/revoke", object{"reason": "test"})
	run := p.ofBills(t, nil, "cust_123")
	storelessKey, _ := lost.issue(t, nil)
	dropSchema(t, storeless)

	// One charge uses the count of its key up.
	g := gatewayAt(t, p.url, single)
	o := anOrder()
	o.CustomerID, o.IntentID, o.PaymentMethodID = "used", "", "pm_card_visa"
	o.IntentID = g.Prepare(t.Context(), o).IntentID
	if out := g.Take(t.Context(), o); out.Class != domain.Paid {
		t.Fatalf("the first charge: %+v", out)
	}
	movements := len(stripeSim.Ledger())

	for name, x := range map[string]struct {
		at     spendproxy
		key    string
		status int
		code   string
		class  domain.OutcomeClass
		order  func(*sagas.Order)
	}{
		"cap":               {p, empty, 429, "spend_cap_exceeded", domain.Held, nil},
		"count":             {p, single, 429, "charge_cap_exceeded", domain.Held, nil},
		"ceiling":           {p, small, 403, "charge_too_large", domain.Held, nil},
		"rule":              {p, reading, 403, "not_permitted", domain.Held, nil},
		"revoked":           {p, revoked, 401, "vault_key_invalid", domain.Held, nil},
		"unknown key":       {p, "vk_0123456789abcdef_x", 401, "vault_key_invalid", domain.Held, nil},
		"no manifest":       {p, plain, 403, "bill_of_a_run", domain.Held, nil},
		"no such bill":      {p, run, 403, "no_such_bill", domain.Held, func(o *sagas.Order) { o.CustomerID = "cust_124" }},
		"another amount":    {p, run, 403, "bill_mismatch", domain.Held, func(o *sagas.Order) { o.Amount.Minor = 2901 }},
		"another customer":  {p, run, 403, "bill_mismatch", domain.Held, func(o *sagas.Order) { o.StripeCustomerID = "cus_0002" }},
		"Stripe is away":    {astray, good, 502, "upstream_unreachable", domain.RetrySameKey, nil},
		"the store is away": {lost, storelessKey, 503, "ledger_unavailable", domain.RetrySameKey, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := anOrder()
			o.IntentID = ""
			if x.order != nil {
				x.order(&o)
			} else { // a bill of its own: one that was created is answered from the ledger
				o.CustomerID = domain.CustomerID(strings.ReplaceAll(name, " ", "-"))
			}
			// As stripe-go sees it, under the bill's keys.
			api, attempts := library(t, x.at.url, x.key)
			params := stripe.Params{}
			params.SetIdempotencyKey(string(o.CreateKey()))
			_, err := api.PaymentIntents.New(&stripe.PaymentIntentParams{
				Params: params, Amount: stripe.Int64(o.Amount.Minor), Currency: stripe.String(string(o.Amount.Currency)), Customer: stripe.String(o.StripeCustomerID),
				PaymentMethodTypes: stripe.StringSlice(methodTypes), Metadata: o.Markers(),
			})
			moves := x.status == 429 || x.code == "charge_too_large" // an intent alone moves no money
			if moves {
				attempts.n.Store(0)
				params := stripe.Params{}
				params.SetIdempotencyKey(string(domain.ChargeKey(o.CustomerID, o.Period, 1)))
				_, err = api.Charges.New(&stripe.ChargeParams{
					Params: params, Metadata: o.Markers(),
					Amount: stripe.Int64(o.Amount.Minor), Currency: stripe.String(string(o.Amount.Currency)), Customer: stripe.String(o.StripeCustomerID),
					Source: &stripe.PaymentSourceSourceParams{Token: stripe.String("pm_card_visa")},
				})
			}
			e, ok := errors.AsType[*stripe.Error](err)
			if !ok || e.HTTPStatusCode != x.status || string(e.Code) != x.code || e.Msg == "" || e.RequestID == "" {
				t.Errorf("stripe-go sees %v", err)
			}
			if n := attempts.n.Load(); n != 1 {
				t.Errorf("stripe-go tried %d times", n)
			}

			// As the gateway sees it.
			g := gatewayAt(t, x.at.url, x.key)
			var out domain.Outcome
			if moves {
				prepared := g.Prepare(t.Context(), o)
				if o.IntentID = prepared.IntentID; o.IntentID == "" {
					t.Fatalf("prepare: %+v", prepared.Outcome)
				}
				o.PaymentMethodID = "pm_card_visa"
				out = g.Take(t.Context(), o)
			} else {
				out = g.Prepare(t.Context(), o).Outcome
			}
			if out.Class != x.class || out.Code != x.code || !strings.Contains(out.Evidence, fmt.Sprintf("status=%d", x.status)) {
				t.Errorf("the gateway says %+v", out)
			}
		})
	}
	if n := len(stripeSim.Ledger()); n != movements {
		t.Errorf("%d charges were tried at Stripe", n-movements)
	}
}

// throughout: the whole gateway works through the spend proxy: what it sends, with every
// parameter, header, expand and query, passes.
func throughout(t *testing.T, program string) {
	stripeSim, err := sim.Start(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stripeSim.Close() })
	p := startSpendproxy(t, program, stripeSim.APIURL, pgtest.Empty(t))
	run, runID := p.issue(t, object{"run": "2026-11", "manifest": true})
	var manifest strings.Builder
	for _, name := range []string{"paid", "declined", "cancelled", "legacy"} {
		fmt.Fprintf(&manifest, `{"customer_id":%q,"billing_period":"2026-11","amount_minor":2900,"currency":"usd","stripe_customer_id":"cus_%s"}`+"\n", name, name)
	}
	p.admin(t, http.MethodPut, "/"+runID+"/manifest", manifest.String())
	base, _ := p.issue(t, object{"caps": []object{}, "rules": []string{
		"intents:read", "intents:cancel", "charges:read", "account:read", "events:read", "refunds:read", "customers:read", "payment_methods:read"}})
	refunds, _ := p.issue(t, object{"rules": []string{"refunds:create", "refunds:read", "charges:read"}})

	g, reads, ctx := gatewayAt(t, p.url, run), gatewayAt(t, p.url, base), t.Context()
	prepare := func(name, method string) sagas.Order {
		o := billFor(name, method)
		if o.IntentID = g.Prepare(ctx, o).IntentID; o.IntentID == "" {
			t.Fatalf("%s: %+v", name, g.Prepare(ctx, o).Outcome)
		}
		return o
	}
	paid := prepare("paid", "pm_card_visa")
	out := g.Take(ctx, paid)
	if out.Class != domain.Paid {
		t.Fatalf("take: %+v", out)
	}
	if again := g.Take(ctx, paid); again.Class != domain.Paid || again.ChargeID != out.ChargeID {
		t.Errorf("take again: %+v", again)
	}
	if f := reads.Find(ctx, paid); f.State != sagas.IntentDecided || f.Outcome.Class != domain.Paid {
		t.Errorf("find: %+v", f)
	}
	declined := prepare("declined", "pm_card_visa_chargeDeclinedInsufficientFunds")
	if out := g.Take(ctx, declined); out.Class != domain.Declined {
		t.Errorf("decline: %+v", out)
	}
	declined.Attempt, declined.PaymentMethodID = 2, "pm_card_visa"
	if out := g.Take(ctx, declined); out.Class != domain.Paid {
		t.Errorf("the next attempt: %+v", out)
	}
	cancelled := prepare("cancelled", "pm_card_visa")
	if f := reads.Cancel(ctx, cancelled, "duplicate"); f.State != sagas.IntentCancelled {
		t.Errorf("cancel: %+v", f)
	}
	legacy, err := New(Config{API: Charges, BaseURL: p.url, Key: run, Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(legacy.Close)
	lo := billFor("legacy", "pm_card_visa")
	lo.IntentID = legacy.Prepare(ctx, lo).IntentID
	if out := legacy.Take(ctx, lo); out.Class != domain.Paid {
		t.Errorf("legacy charge: %+v", out)
	}
	if f := legacy.Find(ctx, lo); f.Outcome.Class != domain.Paid {
		t.Errorf("find the legacy charge: %+v", f)
	}
	ro := sagas.RefundOrder{CustomerID: paid.CustomerID, Period: paid.Period, RefundID: "r1", ChargeID: out.ChargeID, Amount: domain.Money{Minor: 900, Currency: "usd"}}
	rg := gatewayAt(t, p.url, refunds)
	refunded := rg.Refund(ctx, ro)
	if refunded.State != domain.RefundStateSucceeded {
		t.Errorf("refund: %+v", refunded)
	}
	if found := rg.FindRefund(ctx, ro); found.State != domain.RefundStateSucceeded || found.StripeRefundID != refunded.StripeRefundID {
		t.Errorf("find the refund: %+v", found)
	}
	for _, resource := range []string{"payment_intents", "charges"} {
		page, err := reads.List(ctx, sagas.Listing{Resource: resource, PageSize: 2, Since: time.Now().Add(-time.Hour)})
		if err != nil || len(page.Found) != 2 || !page.More {
			t.Errorf("list %s: %+v %v", resource, page, err)
			continue
		}
		if next, err := reads.List(ctx, sagas.Listing{Resource: resource, PageSize: 100, After: page.Found[1].ID}); err != nil || len(next.Found) == 0 {
			t.Errorf("the next page of %s: %+v %v", resource, next, err)
		}
		if former, err := reads.List(ctx, sagas.Listing{Resource: resource, PageSize: 100, Before: page.Found[1].ID}); err != nil || len(former.Found) != 1 {
			t.Errorf("the former page of %s: %+v %v", resource, former, err)
		}
	}
	events, err := reads.Events(ctx, sagas.EventListing{PageSize: 100, Since: time.Now().Add(-time.Hour)})
	if err != nil || len(events.News) == 0 {
		t.Errorf("events: %+v %v", events, err)
	}
	if account, err := reads.Account(ctx); err != nil || account != sim.DefaultAccount {
		t.Errorf("account: %s %v", account, err)
	}
	if c := stripeSim.Counters(); c.UnkeyedPOSTs != 0 || c.Mismatches != 0 || c.Unknown != 0 {
		t.Errorf("%+v", c)
	}
}

func gatewayAt(t *testing.T, url, key string) *Gateway {
	t.Helper()
	g, err := New(Config{BaseURL: url, Key: key, Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// dropSchema takes the proxy's books away.
func dropSchema(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `DROP SCHEMA spendproxy CASCADE`); err != nil {
		t.Fatal(err)
	}
}
