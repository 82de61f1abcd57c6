package shapes

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-mock/embedded"
	"github.com/stripe/stripe-mock/server"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/stripegateway"
)

const apiKey = "sk_test_shapes"

// stub is stripe-mock, loaded once: reading the description takes a second.
var stub = sync.OnceValues(func() (*server.StubServer, error) {
	spec, err := server.LoadSpec(embedded.OpenAPISpec, "")
	if err != nil {
		return nil, err
	}
	fixtures, err := server.LoadFixtures(embedded.OpenAPIFixtures, "")
	if err != nil {
		return nil, err
	}
	return server.NewStubServer(fixtures, spec, false, false)
})

// judgeFor is stripe-mock for one test. It prints every request and cannot be
// told otherwise, so the standard output is away until the test ends; tests that
// use it do not run in parallel.
func judgeFor(t *testing.T) *server.StubServer {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := os.Stdout
	os.Stdout = null
	t.Cleanup(func() {
		os.Stdout = out
		_ = null.Close()
	})
	judge, err := stub()
	if err != nil {
		t.Fatal(err)
	}
	return judge
}

// rig gives each request to stripe-mock and then to the stand-in.
type rig struct {
	*stripegateway.Gateway
	t      *testing.T
	stripe *sim.Server

	mu   sync.Mutex
	seen map[string]int // method and path, ids as *
}

func newRig(t *testing.T, api stripegateway.API) *rig {
	t.Helper()
	judge := judgeFor(t)
	stripe, err := sim.Start(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stripe.Close() })
	upstream, err := url.Parse(stripe.APIURL)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, stripe: stripe, seen: map[string]int{}}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(upstream) }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			t.Error(err)
		}
		r.judge(judge, q, body)
		q.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, q)
	}))
	t.Cleanup(front.Close)
	r.Gateway, err = stripegateway.New(stripegateway.Config{
		API: api, BaseURL: front.URL, Key: apiKey, Timeout: 30 * time.Second, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// judge fails the test unless stripe-mock accepts the request.
func (r *rig) judge(judge *server.StubServer, q *http.Request, body []byte) {
	copied := q.Clone(q.Context())
	copied.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	judge.HandleRequest(answer, copied)
	if answer.Code != http.StatusOK {
		r.t.Errorf("%s %s %s: stripe-mock says %d %s", q.Method, q.URL, body, answer.Code, answer.Body)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[q.Method+" "+shapeOf(q.URL.Path)]++
}

// shapeOf replaces the ids of a path.
func shapeOf(p string) string {
	for _, prefix := range []string{"/v1/payment_intents/", "/v1/refunds/"} {
		if rest, ok := strings.CutPrefix(p, prefix); ok {
			_, action, _ := strings.Cut(rest, "/")
			return strings.TrimSuffix(prefix+"*/"+action, "/")
		}
	}
	return p
}

// sent fails unless exactly the given requests were among those seen.
func (r *rig) sent(want ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range want {
		if r.seen[w] == 0 {
			r.t.Errorf("%s was not sent; sent: %v", w, r.seen)
		}
		delete(r.seen, w)
	}
	if len(r.seen) > 0 {
		r.t.Errorf("sent beside what was expected: %v", r.seen)
	}
}

func orderOf(name, method string) sagas.Order {
	return sagas.Order{
		CustomerID: domain.CustomerID(name), Period: domain.PeriodOf(domain.Monthly, 2026, 11), Attempt: 1,
		Amount: domain.Money{Minor: 2900, Currency: "usd"}, StripeCustomerID: "cus_" + name, PaymentMethodID: method, IntentNo: 1,
	}
}

// bill takes a bill through all calls that its road has.
func (r *rig) bill() {
	ctx := r.t.Context()
	prepare := func(name, method string) sagas.Order {
		o := orderOf(name, method)
		p := r.Prepare(ctx, o)
		if p.IntentID == "" {
			r.t.Fatalf("prepare: %+v", p)
		}
		o.IntentID, o.LatestCharge = p.IntentID, p.LatestCharge
		return o
	}
	o := prepare("paid", "pm_card_visa")
	paid := r.Take(ctx, o)
	if found := r.Find(ctx, o); paid.Class != domain.Paid || found.Outcome.ChargeID != paid.ChargeID {
		r.t.Fatalf("take: %+v, find: %+v", paid, found)
	}
	declined := prepare("declined", "pm_sim_declines_lost_card")
	if out := r.Take(ctx, declined); out.Class != domain.Declined {
		r.t.Errorf("take: %+v", out)
	}
	if f := r.Cancel(ctx, declined, "requested_by_customer"); f.State != sagas.IntentCancelled {
		r.t.Errorf("cancel: %+v", f)
	}
	for _, resource := range []string{"payment_intents", "charges"} {
		l := sagas.Listing{Resource: resource, Since: r.stripe.Now().Add(-time.Hour), PageSize: 1}
		for {
			page, err := r.List(ctx, l)
			if err != nil {
				r.t.Fatal(err)
			}
			if !page.More {
				break
			}
			l.After = page.Found[0].ID
		}
	}
	back := sagas.RefundOrder{CustomerID: o.CustomerID, Period: o.Period, RefundID: "r-1", ChargeID: paid.ChargeID, Amount: domain.Money{Minor: 1000, Currency: "usd"}}
	out := r.Refund(ctx, back)
	if out.State != domain.RefundStateSucceeded {
		r.t.Fatalf("refund: %+v", out)
	}
	if f := r.FindRefund(ctx, back); f.StripeRefundID != out.StripeRefundID {
		r.t.Errorf("find refund: %+v", f)
	}
	back.StripeRefundID = out.StripeRefundID
	if f := r.FindRefund(ctx, back); f.State != domain.RefundStateSucceeded {
		r.t.Errorf("read refund: %+v", f)
	}
}

func TestShapesOfPaymentIntents(t *testing.T) {
	r := newRig(t, stripegateway.PaymentIntents)
	r.bill()
	r.sent("POST /v1/payment_intents", "POST /v1/payment_intents/*/confirm", "POST /v1/payment_intents/*/cancel", "GET /v1/payment_intents/*",
		"GET /v1/payment_intents", "GET /v1/charges", "POST /v1/refunds", "GET /v1/refunds", "GET /v1/refunds/*")
}

func TestShapesOfCharges(t *testing.T) {
	r := newRig(t, stripegateway.Charges)
	r.bill()
	r.sent("POST /v1/charges", "GET /v1/charges", "GET /v1/payment_intents", "POST /v1/refunds", "GET /v1/refunds", "GET /v1/refunds/*")
}

// What is asked of the newsstand. The answers are stripe-mock's own, whose
// events and account have the shapes of a newer API version than ours.
func TestShapesOfNews(t *testing.T) {
	judge := judgeFor(t)
	r := &rig{t: t, seen: map[string]int{}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.judge(judge, q, nil)
		judge.HandleRequest(w, q)
	}))
	t.Cleanup(front.Close)
	g, err := stripegateway.New(stripegateway.Config{BaseURL: front.URL, Key: apiKey, Timeout: 30 * time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	if id, err := g.Account(t.Context()); err != nil || id == "" {
		t.Errorf("account %q, %v", id, err)
	}
	for _, l := range []sagas.EventListing{
		{PageSize: 100}, {PageSize: 1, Since: time.Unix(1700000000, 0), After: "evt_1"}, {PageSize: 100, Before: "evt_1"},
	} {
		if page, err := g.Events(t.Context(), l); err != nil || len(page.News) == 0 {
			t.Errorf("events %+v: %+v, %v", l, page, err)
		}
	}
	r.sent("GET /v1/account", "GET /v1/events")
}

// The check can fail: a parameter that Stripe does not know is refused.
func TestShapesCanFail(t *testing.T) {
	judge := judgeFor(t)
	for _, form := range []string{"amount=2900&currency=usd&billing_key=x", "amount=many&currency=usd", "currency=usd"} {
		q := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/payment_intents", bytes.NewReader([]byte(form)))
		q.Header.Set("Authorization", "Bearer "+apiKey)
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer := httptest.NewRecorder()
		if judge.HandleRequest(answer, q); answer.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", form, answer.Code, answer.Body)
		}
	}
}
