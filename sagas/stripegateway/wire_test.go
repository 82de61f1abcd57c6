package stripegateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/form"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// What stands on the wire, call by call: the keys, the frozen parameters, and
// no header beyond the five.
func TestRequestsOnTheWire(t *testing.T) {
	t.Parallel()
	type request struct {
		method, path, key, form string
		length                  int64
		header                  []string
	}
	var got request
	g := newRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.Method == http.MethodGet {
			body = []byte(r.URL.RawQuery)
		}
		values, err := url.ParseQuery(string(body))
		if err != nil {
			t.Error(err)
		}
		got = request{r.Method, r.URL.Path, r.Header.Get("Idempotency-Key"), values.Encode(), r.ContentLength, nil}
		for name := range r.Header {
			got.header = append(got.header, name)
		}
		slices.Sort(got.header)
		if r.Header.Get("Authorization") != "Bearer "+apiKey || r.Header.Get("Stripe-Version") != "2023-10-16" {
			t.Errorf("authorization or version is wrong: %q", r.Header)
		}
		if len(r.TransferEncoding) > 0 {
			t.Errorf("sent with transfer encoding %q", r.TransferEncoding)
		}
		answers(200, anIntent().open().String())(w, r)
	})

	o := anOrder()
	second := o
	second.Attempt, second.IntentNo, second.Again = 2, 2, 1
	back, known := aRefundOrder(), aRefundOrder()
	known.StripeRefundID = "re_1"
	since := time.Unix(1700000000, 999).UTC()
	for _, c := range []struct {
		name string
		call func(context.Context)
		want request
	}{
		{"create", func(ctx context.Context) { g.Prepare(ctx, o) }, request{
			method: "POST", path: "/v1/payment_intents", key: "78add715f5445db3d7f8c24b1df859b6-intent",
			form: "amount=2900&currency=usd&customer=cus_0001&metadata%5Bbilling_key%5D=78add715f5445db3d7f8c24b1df859b6&metadata%5Bbilling_period%5D=2026-11&metadata%5Bcustomer_id%5D=cust_123&payment_method_types%5B0%5D=card",
		}},
		{"create of a later attempt", func(ctx context.Context) { g.Prepare(ctx, second) }, request{
			method: "POST", path: "/v1/payment_intents", key: "78add715f5445db3d7f8c24b1df859b6-intent-2",
			form: "amount=2900&currency=usd&customer=cus_0001&metadata%5Bbilling_key%5D=78add715f5445db3d7f8c24b1df859b6&metadata%5Bbilling_period%5D=2026-11&metadata%5Bcustomer_id%5D=cust_123&payment_method_types%5B0%5D=card",
		}},
		{"confirm", func(ctx context.Context) { g.Take(ctx, o) }, request{
			method: "POST", path: "/v1/payment_intents/pi_1/confirm", key: "78add715f5445db3d7f8c24b1df859b6",
			form: "off_session=true&payment_method=pm_1",
		}},
		{"confirm again, second attempt", func(ctx context.Context) { g.Take(ctx, second) }, request{
			method: "POST", path: "/v1/payment_intents/pi_1/confirm", key: string(second.ConfirmKey()),
			form: "off_session=true&payment_method=pm_1",
		}},
		{"cancel", func(ctx context.Context) { g.Cancel(ctx, o, "duplicate") }, request{
			method: "POST", path: "/v1/payment_intents/pi_1/cancel", key: "78add715f5445db3d7f8c24b1df859b6-cancel-pi_1",
			form: "cancellation_reason=duplicate",
		}},
		{"read", func(ctx context.Context) { g.Find(ctx, o) }, request{
			method: "GET", path: "/v1/payment_intents/pi_1", form: "expand%5B0%5D=latest_charge",
		}},
		{"list intents", func(ctx context.Context) {
			_, _ = g.List(ctx, sagas.Listing{Resource: "payment_intents", Since: since, After: "pi_9", PageSize: 100})
		}, request{method: "GET", path: "/v1/payment_intents", form: "created%5Bgte%5D=1700000000&limit=100&starting_after=pi_9"}},
		{"list charges", func(ctx context.Context) {
			_, _ = g.List(ctx, sagas.Listing{Resource: "charges", Before: "ch_9", PageSize: 1})
		}, request{method: "GET", path: "/v1/charges", form: "ending_before=ch_9&limit=1"}},
		{"refund", func(ctx context.Context) { g.Refund(ctx, back) }, request{
			method: "POST", path: "/v1/refunds", key: string(back.Key()),
			form: "amount=1000&charge=ch_1&metadata%5Bbilling_period%5D=2026-11&metadata%5Bcustomer_id%5D=cust_123&metadata%5Brefund_id%5D=goodwill-1",
		}},
		{"find refund", func(ctx context.Context) { g.FindRefund(ctx, back) }, request{method: "GET", path: "/v1/refunds", form: "charge=ch_1&limit=100"}},
		{"read refund", func(ctx context.Context) { g.FindRefund(ctx, known) }, request{method: "GET", path: "/v1/refunds/re_1"}},
		{"list events", func(ctx context.Context) {
			_, _ = g.Events(ctx, sagas.EventListing{Since: since, After: "evt_9", PageSize: 100})
		}, request{method: "GET", path: "/v1/events", form: "created%5Bgte%5D=1700000000&limit=100&starting_after=evt_9"}},
		{"list newer events", func(ctx context.Context) {
			_, _ = g.Events(ctx, sagas.EventListing{Before: "evt_9", PageSize: 1})
		}, request{method: "GET", path: "/v1/events", form: "ending_before=evt_9&limit=1"}},
		{"account", func(ctx context.Context) { _, _ = g.Account(ctx) }, request{method: "GET", path: "/v1/account"}},
	} {
		got = request{}
		c.call(t.Context())
		if got.method != c.want.method || got.path != c.want.path || got.key != c.want.key || got.form != c.want.form {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
		headers := []string{"Authorization", "Content-Type", "Stripe-Version", "User-Agent"}
		if got.method == "POST" {
			headers = []string{"Authorization", "Content-Length", "Content-Type", "Idempotency-Key", "Stripe-Version", "User-Agent"}
			if got.length <= 0 {
				t.Errorf("%s: no Content-Length", c.name)
			}
		}
		if !slices.Equal(got.header, headers) {
			t.Errorf("%s: headers %q", c.name, got.header)
		}
	}
	if first, later := o.ConfirmKey(), second.ConfirmKey(); first == later {
		t.Error("two attempts share a key")
	}
}

// The library's ways around the key end at the wire, before a byte leaves.
func TestViolationsDoNotLeave(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int32
	g := newRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		answers(200, anIntent().String())(w, r)
	})
	key := string(anOrder().ConfirmKey())
	const path = "/v1/payment_intents/pi_1/confirm"
	body := func() *form.Values {
		v := &form.Values{}
		v.Add("off_session", "true")
		return v
	}
	type sent struct {
		method, path string
		body         *form.Values
		params       *stripe.Params
		apiKey       string
	}
	for _, c := range []struct {
		name string
		bend func(*sent)
		why  string
	}{
		{"nil params, so no key", func(s *sent) { s.params = &stripe.Params{IdempotencyKey: nil} }, "another Idempotency-Key"},
		{"an empty key", func(s *sent) { s.params.IdempotencyKey = stripe.String("") }, "another Idempotency-Key"},
		{"a blank key", func(s *sent) { s.params.IdempotencyKey = stripe.String("  ") }, "another Idempotency-Key"},
		{"another key", func(s *sent) { s.params.IdempotencyKey = stripe.String("x" + key) }, "another Idempotency-Key"},
		{"the key overridden by a header", func(s *sent) { s.params.Headers = http.Header{"Idempotency-Key": {"mine"}} }, "another Idempotency-Key"},
		{"the version overridden", func(s *sent) { s.params.Headers = http.Header{"Stripe-Version": {"2026-08-26.dahlia"}} }, "another Stripe-Version"},
		{"the authorization overridden", func(s *sent) { s.params.Headers = http.Header{"Authorization": {"Bearer sk_live_x"}} }, "another Authorization"},
		{"another API key", func(s *sent) { s.apiKey = "sk_test_other" }, "another Authorization"},
		{"no API key", func(s *sent) { s.apiKey = "" }, "another Authorization"},
		{"another account", func(s *sent) { s.params.StripeAccount = stripe.String("acct_1") }, "an unexpected header"},
		{"one more header", func(s *sent) { s.params.Headers = http.Header{"X-Forwarded-Host": {"elsewhere"}} }, "an unexpected header"},
		{"another path", func(s *sent) { s.path = "/v1/payment_intents/pi_2/confirm" }, "another path"},
		{"a path that climbs", func(s *sent) { s.path = "/v1/payment_intents/../charges" }, "another path"},
		{"a query on a POST", func(s *sent) { s.path = path + "?amount=1" }, "a query on a POST"},
		{"another method", func(s *sent) { s.method = http.MethodDelete }, "another method"},
		{"a body-less POST, which net/http would repeat", func(s *sent) { s.body = nil }, "a POST without a body"},
		{"a body beyond reason", func(s *sent) { s.body.Add("description", strings.Repeat("x", maxRequest)) }, "a body that is too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sent{http.MethodPost, path, body(), &stripe.Params{IdempotencyKey: &key}, apiKey}
			c.bend(&s)
			call := post(path, domain.Key(key))
			call.secret = apiKey
			s.params.Context = call.in(t.Context())
			var v intentAnswer
			a := call.answer(g.api.CallRaw(s.method, s.path, s.apiKey, s.body, s.params, &v))
			if a.fault != violated || a.why != c.why {
				t.Errorf("got fault %q, %q", a.fault, a.why)
			}
			if out := takeOutcome(anOrder(), a); out.Class != domain.Held {
				t.Errorf("outcome %+v", out)
			}
		})
	}

	t.Run("no params at all", func(t *testing.T) {
		var v intentAnswer
		if err := g.api.CallRaw(http.MethodPost, path, apiKey, body(), nil, &v); err == nil {
			t.Error("a request without a call was sent")
		}
	})
	t.Run("a key on a GET", func(t *testing.T) {
		call := get("/v1/payment_intents/pi_1", maxAnswer)
		call.key, call.secret = "k", apiKey
		var v intentAnswer
		a := call.answer(g.api.CallRaw(http.MethodGet, call.path, apiKey, nil, &stripe.Params{Context: call.in(t.Context()), IdempotencyKey: stripe.String("k")}, &v))
		if a.fault != violated || a.why != "a GET with a key" {
			t.Errorf("got fault %q, %q", a.fault, a.why)
		}
	})
	t.Run("a key of 256 characters", func(t *testing.T) {
		call := post(path, domain.Key(strings.Repeat("k", 256)))
		var v intentAnswer
		a := g.send(t.Context(), call, &stripe.PaymentIntentConfirmParams{OffSession: stripe.Bool(true)}, &v)
		if out := takeOutcome(anOrder(), a); out.Class != domain.Held {
			t.Errorf("got %+v", out)
		}
	})
	t.Run("another host", func(t *testing.T) {
		call := post(path, domain.Key(key))
		call.secret = apiKey
		r, err := http.NewRequestWithContext(call.in(t.Context()), http.MethodPost, "http://127.0.0.1:2"+path, strings.NewReader("a=b"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.client.Do(r); err == nil || call.violation != "another host" {
			t.Errorf("got %v, violation %q", err, call.violation)
		}
	})
	if n := arrived.Load(); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

func TestIncompleteOrdersAreNotSent(t *testing.T) {
	t.Parallel()
	g := newRig(t, time.Minute, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
	bend := func(f func(*sagas.Order)) sagas.Order {
		o := anOrder()
		f(&o)
		return o
	}
	for _, o := range []sagas.Order{
		bend(func(o *sagas.Order) { o.IntentID = "" }),
		bend(func(o *sagas.Order) { o.IntentID = "pi_1/../../charges" }),
		bend(func(o *sagas.Order) { o.IntentID = "pi_1_secret_x" }),
	} {
		if out := g.Take(t.Context(), o); out.Class != domain.Held {
			t.Errorf("take %q: %+v", o.IntentID, out)
		}
		if f := g.Find(t.Context(), o); f.State != sagas.IntentUnreachable {
			t.Errorf("find %q: %+v", o.IntentID, f)
		}
		if f := g.Cancel(t.Context(), o, "duplicate"); f.State != sagas.IntentUnreachable {
			t.Errorf("cancel %q: %+v", o.IntentID, f)
		}
	}
	for _, o := range []sagas.Order{
		bend(func(o *sagas.Order) { o.Amount.Minor = 0 }),
		bend(func(o *sagas.Order) { o.Amount.Currency = "" }),
		bend(func(o *sagas.Order) { o.StripeCustomerID = "" }),
	} {
		if p := g.Prepare(t.Context(), o); p.IntentID != "" || p.Outcome.Class != domain.Held {
			t.Errorf("prepare %+v: %+v", o, p)
		}
	}
	out := g.Take(t.Context(), bend(func(o *sagas.Order) { o.PaymentMethodID = "" }))
	if out.Class != domain.Declined || domain.ClassifyDecline(out.Code, out.DeclineCode) != domain.MethodMissing {
		t.Errorf("take without a method: %+v", out)
	}
}

// A key that cannot be sent is seen before the network, and told to the log.
func TestViolationsAreLogged(t *testing.T) {
	t.Parallel()
	g := newRig(t, time.Minute, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
	o := anOrder()
	o.IntentID = "pi_" + strings.Repeat("x", 240)
	if f := g.Cancel(t.Context(), o, "duplicate"); f.State != sagas.IntentUnreachable || f.Outcome.Reason == "" {
		t.Errorf("got %+v", f)
	}
	if !strings.Contains(g.log.String(), `"level":"ERROR"`) {
		t.Errorf("no error in the log: %s", g.log)
	}
}

// A kept-alive connection that drops after Stripe has executed the request: the
// transport must not send it again behind our back, and we must hear of it.
func TestDropOnAKeptAliveConnection(t *testing.T) {
	t.Parallel()
	var (
		mu    sync.Mutex
		sends []string // the remote address of each confirm
	)
	g := newRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodGet {
			answers(200, anIntent().open().String())(w, r)
			return
		}
		mu.Lock()
		sends = append(sends, r.RemoteAddr)
		mu.Unlock()
		drop(t, w)
	})
	warm := ""
	g.client.Transport.(*wire).next = watching{g.client.Transport.(*wire).next, func(addr string) { warm = addr }}
	for range 5 {
		if f := g.Find(t.Context(), anOrder()); f.State != sagas.IntentUnchanged { // warms the connection up
			t.Fatalf("%+v", f)
		}
		out := g.Take(t.Context(), anOrder())
		if out.Class != domain.Unknown || out.QuietSeconds != quiet {
			t.Fatalf("got %+v", out)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(sends) != 5 {
		t.Errorf("5 confirms were sent %d times", len(sends))
	}
	if sends[4] != warm {
		t.Errorf("the last confirm came from %s, the warm connection is %s: the case was not tested", sends[4], warm)
	}
}

// watching tells the local address of the connection that each request got.
type watching struct {
	next http.RoundTripper
	tell func(string)
}

func (w watching) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := &traceConn{tell: w.tell}
	return w.next.RoundTrip(r.WithContext(trace.in(r.Context())))
}

func (w watching) CloseIdleConnections() {
	w.next.(interface{ CloseIdleConnections() }).CloseIdleConnections()
}

func TestLostAnswers(t *testing.T) {
	t.Parallel()
	whole := anIntent().String()
	for _, c := range []struct {
		name   string
		answer func(t *testing.T, w http.ResponseWriter, r *http.Request)
		reason string
		quiet  int
	}{
		{"closed before the answer", func(t *testing.T, w http.ResponseWriter, _ *http.Request) { drop(t, w) }, "closed", quiet},
		{"reset", func(t *testing.T, w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}, "connection", quiet},
		{"cut off in the headers", cutOff("HTTP/1.1 200 OK\r\nContent-Le"), "", quiet},
		{"cut off in the body", cutOff("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + whole), "cut off", quiet},
		{"cut off in a chunk", cutOff("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n" + whole), "cut off", quiet},
		{"cut off in a 500", cutOff("HTTP/1.1 500 Oops\r\nContent-Length: 9999\r\n\r\n{"), "cut off", quietStored},
		{"an answer that is no HTTP", cutOff("SSH-2.0-OpenSSH_9.9 " + secret + "\r\n"), "", quiet},
		{"endless headers", cutOff("HTTP/1.1 200 OK\r\nX: " + strings.Repeat(secret, maxHeader/8) + "\r\n\r\n"), "", quiet},
		{"too long", func(_ *testing.T, w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat(" ", maxAnswer)+whole)
		}, "too long", quiet},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var sends atomic.Int32
			g := newRig(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
				sends.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				c.answer(t, w, r)
			})
			for range 3 { // fresh, then whatever is kept alive
				out := g.Take(t.Context(), anOrder())
				noSecret(t, "outcome", out)
				if out.Class != domain.Unknown || out.QuietSeconds != c.quiet || !strings.Contains(out.Reason, c.reason) {
					t.Fatalf("got %+v, want unknown, %q, %d", out, c.reason, c.quiet)
				}
			}
			if f := g.Find(t.Context(), anOrder()); f.State != sagas.IntentUnreachable {
				t.Errorf("find: %+v", f)
			}
			if sends.Load() < 4 {
				t.Errorf("sent %d times", sends.Load())
			}
		})
	}
}

func cutOff(text string) func(*testing.T, http.ResponseWriter, *http.Request) {
	return func(t *testing.T, w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, text)
		_ = conn.Close()
	}
}

// Every method returns within the time-out, wherever the other side hangs.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]string{
		"before the answer": "",
		"in the headers":    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n",
		"in the body":       "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			g := newRig(t, time.Second, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, hang)
				<-release
				_ = conn.Close()
			})
			t.Cleanup(func() { close(release) })
			began := time.Now()
			out := g.Take(t.Context(), anOrder())
			f := g.Find(t.Context(), anOrder())
			_, err := g.List(t.Context(), sagas.Listing{Resource: "charges", PageSize: 10})
			if out.Class != domain.Unknown || !strings.Contains(out.Reason, "timed out") {
				t.Errorf("take: %+v", out)
			}
			if f.State != sagas.IntentUnreachable || err == nil {
				t.Errorf("find: %+v, list: %v", f, err)
			}
			if d := time.Since(began); d > 15*time.Second {
				t.Errorf("three calls with a time-out of a second took %s", d)
			}
		})
	}
}

// Only a request whose body nobody has begun to read is proven not sent.
func TestProofOfNotSending(t *testing.T) {
	t.Parallel()
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		g := rigAt(t, closedPort(t), time.Minute)
		if out := g.Take(t.Context(), anOrder()); out.Class != domain.RetrySameKey || !strings.Contains(out.Reason, "refused") {
			t.Errorf("take: %+v", out)
		}
		if p := g.Prepare(t.Context(), anOrder()); p.IntentID != "" || p.Outcome.Class != domain.RetrySameKey {
			t.Errorf("prepare: %+v", p)
		}
		if f := g.Find(t.Context(), anOrder()); f.State != sagas.IntentUnreachable || f.Outcome.Class != domain.Unknown {
			t.Errorf("find: %+v", f)
		}
	})
	t.Run("cancelled before it began", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, time.Minute, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if out := g.Take(ctx, anOrder()); out.Class != domain.RetrySameKey || !strings.Contains(out.Reason, "cancelled") {
			t.Errorf("got %+v", out)
		}
	})
	t.Run("cancelled on its way", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		g := newRig(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			cancel()
			<-release
		})
		t.Cleanup(func() { close(release) })
		if out := g.Take(ctx, anOrder()); out.Class != domain.Unknown || !strings.Contains(out.Reason, "cancelled") {
			t.Errorf("got %+v", out)
		}
	})
	t.Run("a certificate nobody knows", func(t *testing.T) {
		t.Parallel()
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") }))
		s.Config.ErrorLog = quietLog
		s.StartTLS()
		t.Cleanup(s.Close)
		g := rigAt(t, s.URL, time.Minute)
		if out := g.Take(t.Context(), anOrder()); out.Class != domain.RetrySameKey || !strings.Contains(out.Reason, "certificate") {
			t.Errorf("got %+v", out)
		}
	})

	failure := &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host " + secret, Name: "x", IsNotFound: true}}
	for _, c := range []struct {
		name string
		next roundTrip
		want domain.OutcomeClass
	}{
		{"host not found", func(*http.Request) (*http.Response, error) { return nil, failure }, domain.RetrySameKey},
		{"no connection in time", func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, domain.RetrySameKey},
		{"a dial error after one byte", func(r *http.Request) (*http.Response, error) {
			_, _ = r.Body.Read(make([]byte, 1))
			return nil, failure
		}, domain.Unknown},
		{"a reader that comes late", func(r *http.Request) (*http.Response, error) {
			go func() { // the connection's writer, after the call has given up
				<-r.Context().Done()
				if n, err := r.Body.Read(make([]byte, 1)); n != 0 || err == nil {
					t.Error("the body of a call that is over could be read")
				}
			}()
			return nil, errors.New("gave up " + secret)
		}, domain.RetrySameKey},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := rigAt(t, "http://127.0.0.1:1", 50*time.Millisecond)
			g.client.Transport.(*wire).next = c.next
			out := g.Take(t.Context(), anOrder())
			noSecret(t, "outcome", out)
			if out.Class != c.want {
				t.Errorf("got %+v, want %s", out, c.want)
			}
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A redirect would carry key and authorization to another place.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		answers(200, anIntent().String())(w, r)
	}))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		g := newRig(t, time.Minute, answers(status, "", "Location", elsewhere.URL+"/v1/payment_intents/pi_1/confirm"))
		if out := g.Take(t.Context(), anOrder()); out.Class != domain.Unknown {
			t.Errorf("%d: %+v", status, out)
		}
		if f := g.Find(t.Context(), anOrder()); f.State != sagas.IntentUnreachable {
			t.Errorf("%d: %+v", status, f)
		}
	}
	if n := arrived.Load(); n != 0 {
		t.Errorf("%d requests were redirected", n)
	}
}

// A path prefix is kept, and the environment does not reroute calls.
func TestBaseURL(t *testing.T) {
	t.Parallel()
	if newTransport(time.Second, 1).Proxy != nil {
		t.Error("the environment may choose a proxy")
	}
	for _, suffix := range []string{"", "/", "/v1", "/v1/", "/stripe", "/stripe/v1"} {
		var path string
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			path = r.URL.Path
			answers(200, anIntent().String())(w, r)
		}))
		g := rigAt(t, s.URL+suffix, time.Minute)
		out := g.Take(t.Context(), anOrder())
		want := strings.TrimSuffix(strings.TrimSuffix(suffix, "/"), "/v1") + "/v1/payment_intents/pi_1/confirm"
		if out.Class != domain.Paid || path != want {
			t.Errorf("suffix %q: %s at %q, want %q", suffix, out.Class, path, want)
		}
		g.Close()
		s.Close()
	}
}

// Calls in flight together do not disturb each other, and connections are kept.
func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	var fresh atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id := strings.Split(r.URL.Path, "/")[3]
		if r.Header.Get("Idempotency-Key") == "" || !strings.Contains(string(body), "pm_"+id[3:]) {
			t.Errorf("%s got %s", id, body)
		}
		_, _ = io.WriteString(w, anIntent().with("id", id).String())
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			fresh.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	g := rigAt(t, s.URL, time.Minute)
	var wait sync.WaitGroup
	for worker := range 8 {
		wait.Go(func() {
			for i := range 50 {
				o := anOrder()
				n := string(rune('a'+worker)) + strings.Repeat("x", i)
				o.IntentID, o.PaymentMethodID = "pi_"+n, "pm_"+n
				if out := g.Take(t.Context(), o); out.Class != domain.Paid || out.IntentID != o.IntentID {
					t.Errorf("%s: %+v", o.IntentID, out)
				}
			}
		})
	}
	wait.Wait()
	if n := fresh.Load(); n > 16 {
		t.Errorf("8 callers opened %d connections", n)
	}
}
