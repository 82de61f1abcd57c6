package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/spendproxy/internal/admin"
	"github.com/billonce/billonce/cmd/spendproxy/internal/config"
	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// TestMain lets the test binary be the program: a child with this variable set
// runs main.
func TestMain(m *testing.M) {
	if os.Getenv("SPENDPROXY_TEST_MAIN") != "" {
		main()
		return
	}
	if benchPart() {
		return
	}
	os.Exit(m.Run())
}

// Secrets that must never come out again.
const (
	stripeKey    = "sk_test_MARKERstripe5f0c1f6e"
	adminToken   = "MARKERadmin-0123456789"
	serviceToken = "MARKERservice-0123456789"
)

// rig is a whole proxy between callers and the Stripe stand-in, whose ledger is
// the judge.
type rig struct {
	t      testing.TB
	stripe *sim.Server
	dsn    string
	app    *App
	url    string
	log    *record
}

// newRig starts a proxy in front of the stand-in.
func newRig(t testing.TB) *rig {
	t.Helper()
	s, err := sim.Start(sim.Options{APIKeys: []string{stripeKey}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	r := newRigAt(t, s.APIURL, func(c *config.Config) { c.ClockURL = s.ControlURL + "/control/clock" })
	r.stripe = s
	return r
}

// newRigAt starts a proxy in front of another upstream.
func newRigAt(t testing.TB, upstream string, change func(*config.Config)) *rig {
	t.Helper()
	r := &rig{t: t, dsn: pgtest.Empty(t), log: new(record)}
	r.app = r.open(upstream, change)
	r.url = "http://" + r.app.Address()
	return r
}

// open starts an app on the rig's database, and stops it with the test.
func (r *rig) open(upstream string, change func(*config.Config)) *App {
	r.t.Helper()
	base, err := url.Parse(upstream)
	if err != nil {
		r.t.Fatal(err)
	}
	given := config.Config{
		Listen: "127.0.0.1:0", Upstream: base, Key: settings.NewSecret(stripeKey), Timeout: 80 * time.Second, Database: settings.NewSecret(r.dsn), DBPool: 8, IdleConnections: 1000,
		Tokens: admin.Tokens{Admin: adminToken, Service: serviceToken}, Grace: 20 * time.Second,
	}
	if change != nil {
		change(&given)
	}
	app, err := Open(r.t.Context(), given, slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx) }()
	r.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
		app.Close()
	})
	return app
}

// withTokens sets the tokens of the admin API.
func withTokens(admins, service string) func(*config.Config) {
	return func(c *config.Config) { c.Tokens = admin.Tokens{Admin: admins, Service: service} }
}

// freeRules are what a key without a manifest has in these tests.
var freeRules = []policy.Rule{
	policy.IntentsCreate, policy.IntentsConfirm, policy.IntentsCancel, policy.IntentsRead, policy.ChargesCreate, policy.ChargesRead,
	policy.RefundsCreate, policy.RefundsRead, policy.AccountRead, policy.EventsRead,
}

func (r *rig) issue(i ledger.Issue) (secret string, key ledger.VaultKey) {
	r.t.Helper()
	if i.Grant.Mode == "" {
		i.Grant.Mode = policy.Enforce
	}
	if i.Grant.Window == "" {
		i.Grant.Window = policy.Total
	}
	i.By, i.Environment = "test", "test"
	key, secret, _, err := r.app.ledger.Issue(r.t.Context(), i)
	if err != nil {
		r.t.Fatal(err)
	}
	return secret, key
}

// free issues a key without a manifest, with a cap in dollars' cents.
func (r *rig) free(limit int64) string {
	secret, _ := r.issue(ledger.Issue{Label: "free", Grant: policy.Grant{Rules: freeRules}, Caps: []ledger.CapTerms{{Currency: "usd", Minor: limit}}})
	return secret
}

// run issues a run's key and registers a manifest of n bills of 2,900 cents for
// customers c0, c1, …
func (r *rig) run(n int) string {
	secret, key := r.issue(ledger.Issue{Label: "run", Run: "2026-11", Grant: policy.Grant{Rules: policy.RunRules, Manifest: true}})
	r.register(key.ID, n)
	return secret
}

func (r *rig) register(key string, n int) {
	r.t.Helper()
	_, err := r.app.ledger.Register(r.t.Context(), key, func(yield func(ledger.Entry, error) bool) {
		for i := range n {
			b := billOf(i)
			if !yield(ledger.Entry{Obligation: policy.Obligation{
				Bill: policy.BillID{Customer: b.customer, Period: b.period}, Amount: domain.Money{Minor: 2900, Currency: "usd"}, StripeCustomer: b.stripe,
			}}, nil) {
				return
			}
		}
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// aBill is a bill of the manifest and how billingd would ask for its money.
type aBill struct {
	customer domain.CustomerID
	period   domain.Period
	stripe   string
}

func billOf(i int) aBill {
	p, err := domain.ParsePeriod("2026-11")
	if err != nil {
		panic(err)
	}
	return aBill{domain.CustomerID(fmt.Sprintf("c%d", i)), p, fmt.Sprintf("cus_%d", i)}
}

func (b aBill) form() url.Values {
	return url.Values{
		"amount": {"2900"}, "currency": {"usd"}, "customer": {b.stripe}, "payment_method_types[0]": {"card"},
		"metadata[customer_id]": {string(b.customer)}, "metadata[billing_period]": {b.period.String()},
		"metadata[billing_key]": {string(domain.ChargeKey(b.customer, b.period, 1))},
	}
}

func (b aBill) createKey() string  { return string(domain.CreateKey(b.customer, b.period, 1, 0)) }
func (b aBill) confirmKey() string { return string(domain.ConfirmKey(b.customer, b.period, 1, 1, 0)) }

var offSession = url.Values{"payment_method": {"pm_card_visa"}, "off_session": {"true"}}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	err    error

	ID     string `json:"id"`
	Status string `json:"status"`
	Error  struct {
		Type, Code, Message string
	} `json:"error"`
}

var client = &http.Client{
	Timeout:   60 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
}

func (r *rig) do(req *http.Request) (a answer) {
	res, err := client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	a = answer{status: res.StatusCode, header: res.Header, body: string(body), err: err}
	_ = json.Unmarshal(body, &a)
	return a
}

func (r *rig) post(secret, path, key string, form url.Values) answer {
	return r.postAt(r.url, secret, path, key, form)
}

func (r *rig) postAt(base, secret, path, key string, form url.Values) answer {
	req, err := http.NewRequest(http.MethodPost, base+path, strings.NewReader(form.Encode()))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Idempotency-Key", key)
	return r.do(req)
}

func (r *rig) get(secret, target string) answer {
	req, err := http.NewRequest(http.MethodGet, r.url+target, nil)
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	return r.do(req)
}

// charge makes a legacy charge under a random key.
func (r *rig) charge(secret string, minor int64, more ...string) answer {
	form := url.Values{"amount": {fmt.Sprint(minor)}, "currency": {"usd"}, "customer": {"cus_free"}, "source": {"pm_card_visa"}}
	for i := 0; i < len(more); i += 2 {
		form.Set(more[i], more[i+1])
	}
	return r.post(secret, "/v1/charges", uuid.NewString(), form)
}

// books are the sums of one currency.
func (r *rig) books(currency domain.Currency) ledger.Sum {
	r.t.Helper()
	sums, err := r.app.ledger.Books(r.t.Context(), ledger.BooksFilter{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range sums {
		if s.Currency == currency {
			return s
		}
	}
	return ledger.Sum{Currency: currency}
}

// taken is what the stand-in's ledger says: money and charges that succeeded.
func (r *rig) taken() (minor, charges int64) {
	for _, m := range r.stripe.LedgerWhere(sim.LedgerFilter{Status: "succeeded"}) {
		minor += m.Amount
		charges++
	}
	return minor, charges
}

// want fails unless the answer is what it should be.
func (a answer) want(t testing.TB, what string, status int, code string) {
	t.Helper()
	if a.err != nil || a.status != status || a.Error.Code != code {
		t.Errorf("%s: %d %q %v %.300s; want %d %q", what, a.status, a.Error.Code, a.err, a.body, status, code)
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come true", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// record is a writer that several goroutines may use.
type record struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}
