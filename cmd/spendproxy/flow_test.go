package main

import (
	"context"
	"fmt"
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

	"github.com/google/uuid"

	"github.com/billonce/billonce/cmd/spendproxy/internal/config"
	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// A caller that hangs up changes nothing: Stripe's answer is read to its end and
// booked.
func TestACallerThatHangsUp(t *testing.T) {
	t.Parallel()
	arrived, proceed := make(chan struct{}), make(chan struct{})
	stripe := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		select {
		case <-proceed:
			says(200, aCharge)(w, r)
		case <-r.Context().Done():
			t.Error("the call to Stripe was cancelled")
		}
	})
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(100_000)
	ctx, hangUp := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/charges", strings.NewReader(chargeForm))
	req.Header = http.Header{"Authorization": {"Bearer " + key}, "Content-Type": {"application/x-www-form-urlencoded"}, "Idempotency-Key": {"k"}}
	gone := make(chan answer)
	go func() { gone <- r.do(req) }()
	<-arrived
	if sum := r.books("usd"); sum.Held != 1000 {
		t.Errorf("while it is under way: %+v", sum)
	}
	hangUp()
	if a := <-gone; a.err == nil {
		t.Errorf("the caller has an answer: %+v", a)
	}
	close(proceed)
	eventually(t, "the charge is booked", func() bool { return r.books("usd").Settled == 1000 })
	again := r.post(key, "/v1/charges", "k", url.Values{"amount": {"1000"}, "currency": {"usd"}, "customer": {"cus_free"}, "source": {"pm_card_visa"}})
	if again.status != 200 || again.body != aCharge || len(stripe.arrivals()) != 1 {
		t.Errorf("asked again: %d %s", again.status, again.body)
	}
}

// What a caller sends beside its call stays behind; what Stripe sends beside its
// answer comes through where it is about the call.
func TestHeaders(t *testing.T) {
	t.Parallel()
	stripe := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Stripe-Should-Retry", "Original-Request", "Retry-After", "Set-Cookie", "Location", "X-Secret", "Server", "Connection"} {
			w.Header().Set(name, "upstream-"+name)
		}
		w.Header().Set("Idempotent-Replayed", "true")
		says(200, aCharge)(w, r)
	})
	r := newRigAt(t, stripe.URL, nil)
	req, _ := http.NewRequest(http.MethodPost, r.url+"/v1/charges", strings.NewReader(chargeForm))
	for name, value := range map[string]string{
		"Authorization": "Bearer " + r.free(100_000), "Content-Type": "application/x-www-form-urlencoded; charset=utf-8", "Idempotency-Key": "k-1",
		"Stripe-Account": "acct_other", "Stripe-Context": "ctx", "Stripe-Version": "2099-01-01", "User-Agent": "caller/1.0", "X-Stripe-Client-User-Agent": "{}",
		"X-Forwarded-For": "1.2.3.4", "Forwarded": "for=1.2.3.4", "Cookie": "a=b", "Accept-Encoding": "gzip", "X-HTTP-Method-Override": "DELETE", "Via": "1.1 x",
		"Idempotency-Key-2": "x", "Accept": "text/html", "Transfer-Encoding-X": "x",
	} {
		req.Header.Set(name, value)
	}
	got := r.do(req)
	got.want(t, "the charge", 200, "")
	want := http.Header{
		"Authorization": {"Bearer " + stripeKey}, "Stripe-Version": {"2023-10-16"}, "Content-Type": {"application/x-www-form-urlencoded"},
		"Idempotency-Key": {"k-1"}, "User-Agent": {"Billonce-spendproxy"}, "Content-Length": {fmt.Sprint(len(chargeForm))},
	}
	seen := stripe.arrivals()
	if len(seen) != 1 || fmt.Sprint(seen[0].header) != fmt.Sprint(want) || seen[0].body != chargeForm {
		t.Errorf("reached Stripe: %+v\nwant %v", seen, want)
	}
	for _, name := range []string{"Stripe-Should-Retry", "Original-Request", "Retry-After"} {
		if got.header.Get(name) != "upstream-"+name {
			t.Errorf("%s is %q", name, got.header.Get(name))
		}
	}
	if got.header.Get("Idempotent-Replayed") != "true" || got.header.Get("Request-Id") != "req_upstream" || got.body != aCharge {
		t.Errorf("the answer: %v %s", got.header, got.body)
	}
	for _, name := range []string{"Set-Cookie", "Location", "X-Secret", "Server"} {
		if got.header.Get(name) != "" {
			t.Errorf("%s comes through: %q", name, got.header.Get(name))
		}
	}
}

// Answers that are none: what a POST may have done stays held, the caller hears
// that it is unknown, and nobody else is asked.
func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	elsewhere := newUpstream(t, nil)
	for name, x := range map[string]struct {
		answer http.HandlerFunc
		status int
	}{
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/v1/charges", http.StatusTemporaryRedirect)
		}, 502},
		"see other": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/v1/charges", http.StatusSeeOther)
		}, 502},
		"too long": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, io.LimitReader(zeros{}, 2<<20)) }, 502},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "500")
			_, _ = io.WriteString(w, aCharge[:50])
			panic(http.ErrAbortHandler)
		}, 502},
		"compressed": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			says(200, aCharge)(w, r)
		}, 502},
		"no answer":     {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 502},
		"slow":          {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 504},
		"an empty one":  {says(200, "{}"), 200},
		"a page":        {says(200, "<html>"), 200},
		"a gateway's":   {says(503, "<html>busy</html>"), 503},
		"indeterminate": {says(500, `{"error":{"type":"api_error","message":"m"}}`), 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stripe := newUpstream(t, x.answer)
			r := newRigAt(t, stripe.URL, func(c *config.Config) { c.Timeout = 3 * time.Second })
			got := r.charge(r.free(100_000), 1000)
			if got.err != nil || got.status != x.status {
				t.Errorf("%d %v %s, want %d", got.status, got.err, got.body, x.status)
			}
			if got.status >= 502 && got.Error.Type == "api_error" && (got.Error.Code != "upstream_unavailable" || got.header.Get("Request-Id") == "" || got.header.Get("Location") != "") {
				t.Errorf("%v %s", got.header, got.body)
			}
			if sum := r.books("usd"); sum.Held != 1000 || sum.Settled != 0 {
				t.Errorf("the books: %+v", sum)
			}
			if n := len(stripe.arrivals()); n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
	t.Cleanup(func() {
		if seen := elsewhere.arrivals(); len(seen) != 0 {
			t.Errorf("reached somebody else: %+v", seen)
		}
	})
}

// net/http would repeat a POST with an Idempotency-Key whose kept-alive
// connection drops; the caller, and the books, must know of every send. A form
// without parameters is no exception.
func TestAPOSTIsSentOnce(t *testing.T) {
	t.Parallel()
	var posts atomic.Int32
	stripe := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && posts.Add(1) > 1 {
			conn, _, _ := w.(http.Hijacker).Hijack()
			_ = conn.Close()
			return
		}
		says(200, `{"id":"pi_1","object":"payment_intent","status":"requires_payment_method","amount":1000,"currency":"usd","created":1700000000}`)(w, r)
	})
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(100_000)
	r.post(key, "/v1/payment_intents", "k-1", url.Values{"amount": {"1000"}, "currency": {"usd"}}).want(t, "create", 200, "")
	r.post(key, "/v1/payment_intents/pi_1/confirm", "k-2", offSession).want(t, "confirm", 502, "upstream_unavailable")
	r.get(key, "/v1/payment_intents/pi_1").want(t, "read", 200, "") // a connection to keep
	r.post(key, "/v1/payment_intents/pi_1/confirm", "k-3", nil).want(t, "confirm without parameters", 502, "upstream_unavailable")
	sent := map[string]int{}
	for _, a := range stripe.arrivals() {
		sent[a.header.Get("Idempotency-Key")]++
	}
	if sent["k-1"] != 1 || sent["k-2"] != 1 || sent["k-3"] != 1 {
		t.Errorf("sent: %v", sent)
	}
}

// An idle connection that Stripe has closed costs nobody a charge: what was not
// sent is sent on another one.
func TestStaleConnections(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	idle, ended := map[net.Conn]bool{}, map[net.Conn]bool{}
	stripe := &upstream{Server: httptest.NewUnstartedServer(says(200, `{"object":"account","id":"acct_1"}`))}
	stripe.Config.ConnState = func(c net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		idle[c], ended[c] = s == http.StateIdle, s == http.StateClosed
	}
	stripe.Start()
	t.Cleanup(stripe.Close)
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(1_000_000)
	for range 10 {
		got := r.post(key, "/v1/payment_intents", uuid.NewString(), url.Values{"amount": {"1000"}, "currency": {"usd"}})
		got.want(t, "create", 200, "")
		var stale []net.Conn
		eventually(t, "the connection is idle", func() bool {
			mu.Lock()
			defer mu.Unlock()
			for c := range idle {
				if idle[c] {
					stale = append(stale, c)
				}
			}
			return len(stale) > 0
		})
		for _, c := range stale { // the proxy answers this end with its own
			if err := c.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the proxy has noticed", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return !slices.ContainsFunc(stale, func(c net.Conn) bool { return !ended[c] })
		})
	}
}

// Case C092: calls that end in a no, or never reach Stripe, give their room
// back.
func TestC092_FailedCallsGiveTheRoomBack(t *testing.T) {
	t.Parallel()
	e := func(kind, code string) string {
		return fmt.Sprintf(`{"error":{"type":%q,"code":%q,"message":"m"}}`, kind, code)
	}
	var turn atomic.Int64
	stripe := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Idempotency-Key"), "valid") {
			says(200, strings.ReplaceAll(aCharge, "1000,", "50000,"))(w, r)
			return
		}
		switch turn.Add(1) % 4 {
		case 0:
			says(402, e("card_error", "card_declined"))(w, r)
		case 1:
			says(400, e("invalid_request_error", "parameter_invalid_empty"))(w, r)
		case 2:
			says(429, e("invalid_request_error", "rate_limit"))(w, r)
		case 3:
			says(403, e("invalid_request_error", ""))(w, r)
		}
	})
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(100_000)
	closed := r.open("http://"+closedPort(t), nil) // the same books in front of nobody
	var wg sync.WaitGroup
	var refused, statuses sync.Map
	for range 2 { // of which both find room at any time
		wg.Go(func() {
			for n := range 500 {
				form := url.Values{"amount": {"50000"}, "currency": {"usd"}, "source": {"pm_1"}}
				var a answer
				switch n % 5 {
				case 0:
					a = r.postAt("http://"+closed.Address(), key, "/v1/charges", uuid.NewString(), form)
				case 1:
					r.abort(key)
					continue
				default:
					a = r.post(key, "/v1/charges", uuid.NewString(), form)
				}
				statuses.Store(a.status, true)
				if a.Error.Code == "spend_cap_exceeded" || a.err != nil {
					refused.Store(n, a.body)
				}
			}
		})
	}
	wg.Wait()
	refused.Range(func(n, body any) bool {
		t.Errorf("call %v: %v", n, body)
		return true
	})
	for _, want := range []int{400, 402, 403, 429, 502} {
		if _, ok := statuses.Load(want); !ok {
			t.Errorf("no call ended in %d", want)
		}
	}
	if sum := r.books("usd"); sum.Held != 0 || sum.Settled != 0 {
		t.Errorf("the books: %+v", sum)
	}
	form := url.Values{"amount": {"50000"}, "currency": {"usd"}, "source": {"pm_1"}}
	r.post(key, "/v1/charges", "valid-1", form).want(t, "the first", 200, "")
	r.post(key, "/v1/charges", "valid-2", form).want(t, "the second", 200, "")
	r.post(key, "/v1/charges", "valid-3", form).want(t, "the third", 429, "spend_cap_exceeded")
}

// abort begins a call and hangs up before its body is complete.
func (r *rig) abort(key string) {
	conn, err := net.Dial("tcp", r.app.Address())
	if err != nil {
		r.t.Error(err)
		return
	}
	fmt.Fprintf(conn, "POST /v1/charges HTTP/1.1\r\nHost: x\r\n%sContent-Length: 100\r\n\r\namount=50000&", head(key))
	_ = conn.Close()
}

// closedPort is an address at which nobody listens.
func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// What was lost is found: the proxy reads at Stripe what is held, once its quiet
// time is over, and books what it sees.
func TestHeldUntilStripeTells(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key := r.run(3)
	for i, kind := range []sim.Kind{"commit_then_drop", "drop_before_commit"} {
		b := billOf(i)
		created := r.post(key, "/v1/payment_intents", b.createKey(), b.form())
		created.want(t, "create", 200, "")
		if _, err := r.stripe.AddFault(sim.Fault{Kind: kind, Match: sim.Match{Path: "/v1/payment_intents/*/confirm"}}); err != nil {
			t.Fatal(err)
		}
		r.post(key, "/v1/payment_intents/"+created.ID+"/confirm", b.confirmKey(), offSession).want(t, string(kind), 502, "upstream_unavailable")
	}
	if sum := r.books("usd"); sum.Held != 5800 || sum.Settled != 0 {
		t.Fatalf("while both are unknown: %+v", sum)
	}
	r.stripe.Advance(20 * time.Minute)
	eventually(t, "one is settled and the other released", func() bool {
		sum := r.books("usd")
		return sum.Settled == 2900 && sum.Held == 0
	})
	b := billOf(1)
	intent := slices.Collect(func(yield func(string) bool) {
		for _, q := range r.stripe.Requests() {
			if p, ok := strings.CutSuffix(q.Path, "/confirm"); ok && !yield(strings.TrimPrefix(p, "/v1/payment_intents/")) {
				return
			}
		}
	})[1]
	r.post(key, "/v1/payment_intents/"+intent+"/confirm", b.confirmKey()+"-again-1", offSession).want(t, "the released one again", 200, "")
	if minor, charges := r.taken(); minor != 5800 || charges != 2 || r.books("usd").Settled != 5800 {
		t.Errorf("Stripe took %d in %d charges; the books %+v", minor, charges, r.books("usd"))
	}
}
