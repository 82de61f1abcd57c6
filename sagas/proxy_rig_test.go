package sagas_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/sagas/vault"
)

const (
	baseKey      = "vk_base_1234567890"
	serviceToken = "the-token-of-the-service"
)

// proxy is as much of a spend proxy as the service meets: keys of runs with
// secrets, a manifest, one cap that counts what is confirmed, and refusals in
// Stripe's form. The real one has tests of its own; cmd/billingd's go through it.
type proxy struct {
	*httptest.Server
	to *httputil.ReverseProxy

	mu       sync.Mutex
	away     bool              // the admin API answers 503
	secrets  map[string]string // of runs, by secret
	manifest map[string]line   // by run and customer
	intents  map[string]int64
	cap      int64 // minor units, of every run; 0: none
	spent    int64
	revoked  bool
	refuse   map[string]string // customers that the manifest does not take
	issued   int
	told     int
	extended time.Time
	policy   string // refuse every create with this code

	meanwhile func() // before a manifest is answered
}

type line struct {
	Customer  string `json:"customer_id"`
	Period    string `json:"billing_period"`
	Amount    int64  `json:"amount_minor"`
	Currency  string `json:"currency"`
	Stripe    string `json:"stripe_customer_id"`
	Fixed     bool   `json:"fixed"`
	Withdrawn bool   `json:"withdrawn"`
}

func newProxy(t testing.TB, stripe string) *proxy {
	t.Helper()
	base, err := url.Parse(stripe)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{
		to: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			r.Out.Header.Set("Authorization", "Bearer sk_test_rig")
		}},
		secrets: map[string]string{}, manifest: map[string]line{}, intents: map[string]int64{}, refuse: map[string]string{},
	}
	p.to.ModifyResponse = p.learn
	mux := http.NewServeMux()
	mux.HandleFunc("POST /admin/v1/vault-keys", p.issue)
	mux.HandleFunc("GET /admin/v1/vault-keys/{id}", p.show)
	mux.HandleFunc("POST /admin/v1/vault-keys/{id}/extend", p.extend)
	mux.HandleFunc("PUT /admin/v1/vault-keys/{id}/manifest", p.register)
	mux.HandleFunc("/v1/", p.forward)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/admin/") && (p.isAway() || r.Header.Get("Authorization") != "Bearer "+serviceToken) {
			http.Error(w, `{"error":{"code":"ledger_unavailable","message":"away"}}`, http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) client() *vault.Client {
	base, _ := url.Parse(p.URL)
	return vault.New(vault.Config{BaseURL: base, Token: serviceToken, Actor: "test", Timeout: 5 * time.Second})
}

// set changes the proxy under its lock.
func (p *proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *proxy) isAway() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.away
}

func (p *proxy) issue(w http.ResponseWriter, r *http.Request) {
	var order struct {
		Environment, Run string
		Expires          time.Time `json:"expires_at"`
	}
	if json.NewDecoder(r.Body).Decode(&order) != nil || order.Environment != "test" || order.Expires.IsZero() {
		deny(w, 400, "invalid_input")
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revoked {
		deny(w, 409, "vault_key_revoked")
		return
	}
	p.issued++
	secret := fmt.Sprintf("vk_%s_%d", strings.ReplaceAll(order.Run, "-", ""), p.issued)
	p.secrets[secret] = order.Run
	_ = json.NewEncoder(w).Encode(map[string]any{"vault_key": map[string]any{"id": "run" + order.Run, "expires_at": order.Expires}, "secret": secret})
}

func (p *proxy) show(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"id": r.PathValue("id"), "caps": []map[string]any{{"currency": "usd", "cap_minor": p.cap, "left_minor": p.cap - p.spent}}})
}

func (p *proxy) extend(w http.ResponseWriter, r *http.Request) {
	var order struct {
		Expires time.Time `json:"expires_at"`
	}
	_ = json.NewDecoder(r.Body).Decode(&order)
	p.set(func() { p.extended = order.Expires })
	_, _ = io.WriteString(w, "{}")
}

func (p *proxy) register(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	received := 0
	refused := []map[string]any{}
	count := 0
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		var l line
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			deny(w, 400, "invalid_input")
			return
		}
		received++
		if code := p.refuse[l.Customer]; code != "" {
			if count++; len(refused) < 100 {
				refused = append(refused, map[string]any{"line": received, "customer_id": l.Customer, "billing_period": l.Period, "code": code})
			}
			continue
		}
		p.told++
		p.manifest[l.Period+"/"+l.Customer] = l
	}
	if p.meanwhile != nil {
		p.meanwhile()
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"received": received, "refused_count": count, "refused": refused})
}

// forward lets reads pass, and of POSTs what the manifest holds and the cap has
// room for.
func (p *proxy) forward(w http.ResponseWriter, r *http.Request) {
	secret := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	if code, status := p.judge(r, secret, string(body)); code != "" {
		deny(w, status, code)
		return
	}
	p.to.ServeHTTP(w, r)
}

func (p *proxy) judge(r *http.Request, secret, body string) (code string, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	run, known := p.secrets[secret]
	money := r.Method == http.MethodPost && !strings.HasSuffix(r.URL.Path, "/cancel")
	switch {
	case secret == baseKey && !money:
		return "", 0
	case !known || p.revoked:
		return "vault_key_invalid", 401
	case p.policy != "":
		return p.policy, 403
	case r.URL.Path == "/v1/payment_intents":
		form, _ := url.ParseQuery(body)
		if l, ok := p.manifest[run+"/"+form.Get("metadata[customer_id]")]; !ok || fmt.Sprint(l.Amount) != form.Get("amount") {
			return "no_such_bill", 403
		}
	case strings.HasSuffix(r.URL.Path, "/confirm"):
		amount := p.intents[strings.Split(r.URL.Path, "/")[3]]
		if p.cap > 0 && p.spent+amount > p.cap {
			return "spend_cap_exceeded", 429
		}
		p.spent += amount
	}
	return "", 0
}

// learn remembers what an intent is for.
func (p *proxy) learn(res *http.Response) error {
	if res.Request.URL.Path != "/v1/payment_intents" || res.StatusCode != http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	res.Body = io.NopCloser(strings.NewReader(string(body)))
	var intent struct {
		ID     string `json:"id"`
		Amount int64  `json:"amount"`
	}
	if json.Unmarshal(body, &intent) == nil && intent.ID != "" {
		p.set(func() { p.intents[intent.ID] = intent.Amount })
	}
	return nil
}

func deny(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Stripe-Should-Retry", "false")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"type": "invalid_request_error", "code": code, "message": "no"}})
}
