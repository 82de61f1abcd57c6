//go:build oracle

package sagas_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// These tests put the question "was anybody charged twice?" to a Stripe that is
// not ours: npm's stripe-stateful-mock, which keeps idempotency keys of legacy
// Charges and was written by somebody else. Between it and the service stands a
// proxy that drops a quarter of the charges before they are made, and a quarter
// after. They run with `make oracle`.

const oracleCustomers = 60

// TestOracleOneChargeEach is the service as it is: it looks before it sends
// again, and it sends under the same key.
func TestOracleOneChargeEach(t *testing.T) {
	o := newOracle(t)
	o.bill(func(g sagas.Gateway) sagas.Gateway { return g })
	o.oneEach()
}

// TestOracleKeyAlone takes the looking away: the key alone keeps every charge
// one.
func TestOracleKeyAlone(t *testing.T) {
	o := newOracle(t)
	o.bill(func(g sagas.Gateway) sagas.Gateway { return &blind{Gateway: g} })
	o.oneEach()
}

// TestOracleCanFail takes the key away too, by a fresh one for every call: the
// same customers, the same losses, and some are charged twice. A test that
// cannot see that proves nothing.
func TestOracleCanFail(t *testing.T) {
	o := newOracle(t)
	o.bill(func(g sagas.Gateway) sagas.Gateway { return &blind{Gateway: g, fresh: true} })
	doubled := 0
	for _, charges := range o.charges() {
		if len(charges) > 1 {
			doubled++
		}
	}
	t.Logf("a fresh key a call: %d of %d customers charged more than once", doubled, oracleCustomers)
	if doubled == 0 {
		t.Error("nobody was charged twice although every call had a key of its own")
	}
}

// blind is a gateway that never finds anything, and that may send each charge
// under a key of its own.
type blind struct {
	sagas.Gateway
	fresh bool
	calls atomic.Int64
}

func (b *blind) Find(_ context.Context, o sagas.Order) sagas.Finding {
	return sagas.Finding{State: sagas.IntentUnchanged, LatestCharge: o.LatestCharge}
}

func (b *blind) Take(ctx context.Context, o sagas.Order) domain.Outcome {
	if b.fresh {
		o.Again = int(b.calls.Add(1))
	}
	return b.Gateway.Take(ctx, o)
}

// oracle is the other Stripe, and a world that bills through it.
type oracle struct {
	*rig
	url   string // of the fake itself
	proxy string // of the proxy that loses charges

	mu      sync.Mutex
	chance  *rand.Rand
	dropped map[string]int // before, after
}

func newOracle(t *testing.T) *oracle {
	t.Helper()
	r := newRig(t)
	o := &oracle{rig: r, url: startFake(t), chance: rand.New(rand.NewPCG(60, 1)), dropped: map[string]int{}}
	upstream, err := url.Parse(o.url)
	if err != nil {
		t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(upstream) }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		where := ""
		if q.Method == http.MethodPost && q.URL.Path == "/v1/charges" {
			where = o.draw()
		}
		switch where {
		case "before":
			_, _ = io.Copy(io.Discard, q.Body)
		case "after":
			forward.ServeHTTP(httptest.NewRecorder(), q)
		default:
			forward.ServeHTTP(w, q)
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
	}))
	t.Cleanup(front.Close)
	o.proxy = front.URL
	return o
}

// draw decides where a charge is lost, if at all.
func (o *oracle) draw() (where string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch o.chance.IntN(4) {
	case 0:
		where = "before"
	case 1:
		where = "after"
	default:
		return ""
	}
	o.dropped[where]++
	return where
}

// startFake runs the fake as a child that dies with the test.
func startFake(t *testing.T) string {
	t.Helper()
	fake := exec.Command("node", "server.js")
	fake.Dir, fake.Stderr = "stripegateway/oracle", os.Stderr
	stdin, err := fake.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := fake.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := fake.Start(); err != nil {
		t.Fatalf("start the fake (make oracle installs it): %v", err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = fake.Process.Kill()
		_ = fake.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the fake did not come up: %v", err)
	}
	return strings.TrimSpace(line)
}

// ask makes a request to the fake itself, past the proxy.
func (o *oracle) ask(method, path string, form url.Values, into any) {
	o.t.Helper()
	q, err := http.NewRequestWithContext(o.t.Context(), method, o.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		o.t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer sk_test_oracle")
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		o.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		o.t.Fatalf("%s %s: %d %s %v", method, path, answer.StatusCode, body, err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		o.t.Fatal(err)
	}
}

// bill charges every customer through the whole service until all are paid, as
// far as it knows.
func (o *oracle) bill(wrap func(sagas.Gateway) sagas.Gateway) {
	o.t.Helper()
	real, err := stripegateway.New(stripegateway.Config{API: stripegateway.Charges, BaseURL: o.proxy, Key: "sk_test_oracle", Timeout: 10 * time.Second, Log: o.log})
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(real.Close)
	s := o.start(options{gateway: func(sagas.Gateway) sagas.Gateway { return wrap(real) }, timeout: 10 * time.Second})
	ids := customers(oracleCustomers)
	for _, id := range ids {
		var customer struct {
			ID     string `json:"id"`
			Source string `json:"default_source"`
		}
		o.ask(http.MethodPost, "/v1/customers", url.Values{"id": {"cus_" + string(id)}, "source": {"tok_visa"}}, &customer)
		s.must(commands.Of(commands.NewRegisterCustomer(id, customer.ID, customer.Source)))
		s.charge(id, november)
	}
	for _, id := range ids {
		o.awaitState(id, november, "succeeded")
	}
	o.mu.Lock()
	dropped := maps.Clone(o.dropped)
	o.mu.Unlock()
	o.t.Logf("charges dropped: %v", dropped)
	if dropped["before"] == 0 || dropped["after"] == 0 {
		o.t.Error("the proxy lost nothing")
	}
}

// charge is what the fake says of a charge.
type charge struct {
	ID       string            `json:"id"`
	Amount   int64             `json:"amount"`
	Currency string            `json:"currency"`
	Status   string            `json:"status"`
	Metadata map[string]string `json:"metadata"`
}

// charges are all charges of the fake, by the customer in their metadata.
func (o *oracle) charges() map[string][]charge {
	o.t.Helper()
	all := map[string][]charge{}
	for after := ""; ; {
		var page struct {
			Data []charge `json:"data"`
			More bool     `json:"has_more"`
		}
		o.ask(http.MethodGet, "/v1/charges?limit=100"+after, nil, &page)
		for _, c := range page.Data {
			all[c.Metadata["customer_id"]] = append(all[c.Metadata["customer_id"]], c)
		}
		if !page.More {
			return all
		}
		after = "&starting_after=" + page.Data[len(page.Data)-1].ID
	}
}

// oneEach fails unless the fake has one charge for every customer, of the right
// amount, and the log has recorded that one.
func (o *oracle) oneEach() {
	o.t.Helper()
	all := o.charges()
	if len(all) != oracleCustomers {
		o.t.Errorf("%d customers were charged, want %d", len(all), oracleCustomers)
	}
	for id, charges := range all {
		if len(charges) != 1 {
			o.t.Errorf("%s was charged %d times", id, len(charges))
			continue
		}
		c := charges[0]
		if c.Amount != 5000 || c.Currency != "usd" || c.Status != "succeeded" || c.Metadata["billing_period"] != "2026-11" ||
			c.Metadata["billing_key"] != string(domain.ChargeKey(domain.CustomerID(id), november, 1)) {
			o.t.Errorf("%s: %+v", id, c)
		}
		if n := o.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND stream_id = $1 AND payload->>'charge_id' = $2`,
			string(domain.CustomerID(id).Stream()), c.ID); n != 1 {
			o.t.Errorf("%s: %d billed facts name %s", id, n, c.ID)
		}
	}
	if n := o.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1'`); n != oracleCustomers {
		o.t.Errorf("%d billed facts, want %d", n, oracleCustomers)
	}
}
