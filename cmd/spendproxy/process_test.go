package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// child is a spendproxy process.
type child struct {
	cmd    *exec.Cmd
	url    string
	ports  string
	stderr *record
	done   chan error
}

// launch starts a process on the rig's database, in front of an upstream, and
// waits until it serves.
func (r *rig) launch(upstream string, env ...string) *child {
	r.t.Helper()
	c := &child{ports: filepath.Join(r.t.TempDir(), "ports.json"), stderr: new(record), done: make(chan error, 1)}
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(append(os.Environ(), "SPENDPROXY_TEST_MAIN=1", "SPENDPROXY_LISTEN=127.0.0.1:0", "SPENDPROXY_PORT_FILE="+c.ports,
		"SPENDPROXY_UPSTREAM="+upstream, "SPENDPROXY_STRIPE_KEY="+stripeKey, "SPENDPROXY_DATABASE_URL="+r.dsn, "SPENDPROXY_DB_POOL=6",
		"SPENDPROXY_LOG_LEVEL=debug", "SPENDPROXY_ADMIN_TOKEN="+adminToken, "SPENDPROXY_SERVICE_TOKEN="+serviceToken), env...)
	c.cmd.Stdout, c.cmd.Stderr = os.Stdout, c.stderr
	if err := c.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() { c.done <- c.cmd.Wait() }()
	r.t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	eventually(r.t, "the process serves", func() bool {
		content, err := os.ReadFile(c.ports)
		if err != nil {
			select {
			case err := <-c.done:
				r.t.Fatalf("ended before it listened: %v\n%s", err, c.stderr)
			default:
			}
			return false
		}
		var ports struct {
			API string
			PID int
		}
		if err := json.Unmarshal(content, &ports); err != nil || ports.PID != c.cmd.Process.Pid {
			r.t.Fatalf("port file %s: %v", content, err)
		}
		c.url = ports.API
		return true
	})
	return c
}

// Case C029: the cap holds when callers, and replicas, ask at once.
func TestC029_CapUnderConcurrency(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.stripe.AddFault(sim.Fault{Kind: "delay_after_commit", Delay: time.Second, Times: -1}); err != nil {
		t.Fatal(err)
	}
	key := r.free(110_000)
	replicas := []string{r.launch(r.stripe.APIURL).url, r.launch(r.stripe.APIURL).url, r.launch(r.stripe.APIURL).url}
	var passed, refused atomic.Int64
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			a := r.postAt(replicas[n%3], key, "/v1/charges", uuid.NewString(), url.Values{
				"amount": {"10000"}, "currency": {"usd"}, "customer": {fmt.Sprintf("cus_%d", n)}, "source": {"pm_card_visa"}})
			switch {
			case a.status == 200:
				passed.Add(1)
			case a.status == 429 && a.Error.Code == "spend_cap_exceeded" && a.header.Get("Stripe-Should-Retry") == "false":
				refused.Add(1)
			default:
				t.Errorf("%d %v %s", a.status, a.err, a.body)
			}
		})
	}
	wg.Wait()
	minor, charges := r.taken()
	if passed.Load() != 11 || refused.Load() != 39 || minor != 110_000 || charges != 11 {
		t.Errorf("%d passed, %d refused; Stripe took %d in %d charges", passed.Load(), refused.Load(), minor, charges)
	}
	posts := 0
	for _, q := range r.stripe.Requests() {
		if q.Method == http.MethodPost {
			posts++
		}
	}
	if sum := r.books("usd"); posts != 11 || sum.Settled != 110_000 || sum.Held != 0 {
		t.Errorf("%d POSTs reached Stripe; the books %+v", posts, sum)
	}
}

// 200 callers that ask for one bill's money at once, each under a key of its own
// making, by every road and through three processes: one charge.
func TestDuplicatesUnderRandomKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key, b := r.run(1), billOf(0)
	replicas := []string{r.launch(r.stripe.APIURL).url, r.launch(r.stripe.APIURL).url, r.launch(r.stripe.APIURL).url}
	var codes sync.Map
	var wg sync.WaitGroup
	intent := r.post(key, "/v1/payment_intents", b.createKey(), b.form())
	intent.want(t, "create", 200, "")
	legacy := b.form()
	legacy.Del("payment_method_types[0]")
	legacy.Set("source", "pm_card_visa")
	confirm := "/v1/payment_intents/" + intent.ID + "/confirm"
	for n := range 200 {
		wg.Go(func() {
			var a answer
			switch at := replicas[n%3]; {
			case n == 100: // the one that is as it should be
				a = r.postAt(at, key, confirm, b.confirmKey(), offSession)
			case n%4 == 0:
				a = r.postAt(at, key, "/v1/payment_intents", uuid.NewString(), b.form())
			case n%4 == 1:
				a = r.postAt(at, key, "/v1/charges", uuid.NewString(), legacy)
			default:
				a = r.postAt(at, key, confirm, uuid.NewString(), offSession)
			}
			codes.Store(a.Error.Code, true)
			if a.err != nil || a.status != 403 && a.status != 200 {
				t.Errorf("call %d: %d %v %s", n, a.status, a.err, a.body)
			}
		})
	}
	wg.Wait()
	if minor, charges := r.taken(); minor != 2900 || charges != 1 {
		t.Errorf("Stripe took %d in %d charges", minor, charges)
	}
	if n := len(r.stripe.Ledger()); n != 1 {
		t.Errorf("%d movements at Stripe", n)
	}
	if sum := r.books("usd"); sum.Settled != 2900 || sum.SettledCount != 1 || sum.Held != 0 {
		t.Errorf("the books: %+v", sum)
	}
	if _, ok := codes.Load("key_not_derived"); !ok {
		t.Error("none was refused for its key")
	}
}

// Killed in the middle of its work and started again, the proxy has the books
// that Stripe has, and nobody is charged twice.
func TestKilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	const bills = 60
	r := newRig(t)
	key := r.run(bills)
	clock := "SPENDPROXY_CLOCK_URL=" + r.stripe.ControlURL + "/control/clock"
	c := r.launch(r.stripe.APIURL, clock)
	work := func(base string, paid *atomic.Int64) {
		var wg sync.WaitGroup
		for w := range 6 {
			wg.Go(func() {
				for i := w; i < bills; i += 6 {
					b := billOf(i)
					created := r.postAt(base, key, "/v1/payment_intents", b.createKey(), b.form())
					if created.status != 200 {
						return
					}
					a := r.postAt(base, key, "/v1/payment_intents/"+created.ID+"/confirm", b.confirmKey(), offSession)
					if a.status != 200 {
						return
					}
					paid.Add(1)
				}
			})
		}
		wg.Wait()
	}
	var paid atomic.Int64
	worked := make(chan struct{})
	go func() { work(c.url, &paid); close(worked) }()
	eventually(t, "a third is paid", func() bool { return paid.Load() >= bills/3 })
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-worked
	if n := paid.Load(); n == bills {
		t.Fatal("all were paid before the process was killed")
	}

	c = r.launch(r.stripe.APIURL, clock)
	paid.Store(0)
	work(c.url, &paid)
	if n := paid.Load(); n != bills {
		t.Errorf("%d of %d are paid after the restart", n, bills)
	}
	if minor, charges := r.taken(); minor != bills*2900 || charges != bills {
		t.Errorf("Stripe took %d in %d charges", minor, charges)
	}
	if sum := r.books("usd"); sum.Settled != bills*2900 || sum.SettledCount != bills || sum.Held != 0 {
		t.Errorf("the books: %+v", sum)
	}
}

// On SIGTERM what is under way is answered and booked, the port file goes, the
// status is 0.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	stripe := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		<-proceed
		says(200, aCharge)(w, r)
	})
	r := newRigAt(t, stripe.URL, nil)
	key := r.free(10_000)
	c := r.launch(stripe.URL)
	slow := make(chan answer, 1)
	go func() {
		slow <- r.postAt(c.url, key, "/v1/charges", "k", url.Values{"amount": {"1000"}, "currency": {"usd"}, "source": {"pm_1"}})
	}()
	eventually(t, "it has reached Stripe", func() bool { return len(stripe.arrivals()) == 1 })
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is stopping", func() bool { return strings.Contains(c.stderr.String(), "is stopping") })
	close(proceed)
	if a := <-slow; a.status != 200 || a.body != aCharge {
		t.Errorf("the call under way: %d %v %s", a.status, a.err, a.body)
	}
	select {
	case err := <-c.done:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("does not end")
	}
	if _, err := os.Stat(c.ports); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the port file is still there: %v", err)
	}
	if sum := r.books("usd"); sum.Settled != 1000 || sum.Held != 0 {
		t.Errorf("the books: %+v", sum)
	}
}

// Case C106: a token that is empty or blank opens nothing.
func TestC106_EmptyTokens(t *testing.T) {
	t.Parallel()
	r := newRigAt(t, "http://127.0.0.1:1", nil)
	for _, env := range []string{"SPENDPROXY_ADMIN_TOKEN=", "SPENDPROXY_ADMIN_TOKEN= ", "SPENDPROXY_SERVICE_TOKEN=", "SPENDPROXY_ADMIN_TOKEN=null"} {
		cmd := exec.Command(os.Args[0])
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		cmd.Env = append(withoutTokens(), "SPENDPROXY_TEST_MAIN=1", "SPENDPROXY_LISTEN=127.0.0.1:0", "SPENDPROXY_STRIPE_KEY="+stripeKey, "SPENDPROXY_DATABASE_URL="+r.dsn, env)
		err := cmd.Run()
		name, _, _ := strings.Cut(env, "=")
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || !strings.Contains(stderr.String(), name+": ") {
			t.Errorf("%q: %v\n%s", env, err, stderr.String())
		}
	}
	off := newRigAt(t, "http://127.0.0.1:1", withTokens("", ""))
	for _, r := range []*rig{r, off} {
		for name, header := range map[string][]string{
			"none": nil, "empty": {""}, "bearer": {"Bearer "}, "null": {"Bearer null"}, "undefined": {"Bearer undefined"}, "basic": {"Basic Og=="}, "blank": {"Bearer  "},
		} {
			req, _ := http.NewRequest(http.MethodGet, r.url+"/admin/v1/vault-keys", nil)
			req.Header["Authorization"] = header
			if a := r.do(req); a.status != 401 && a.status != 403 {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
	}
	req, _ := http.NewRequest(http.MethodGet, r.url+"/admin/v1/vault-keys", nil)
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if a := r.do(req); a.status != 200 {
		t.Errorf("with the token: %d %s", a.status, a.body)
	}
}

func withoutTokens() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SPENDPROXY_") {
			env = append(env, e)
		}
	}
	return env
}

// The vault key of a run is revoked: the next request is refused, on every
// replica.
func TestRevocationHoldsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := r.launch(r.stripe.APIURL)
	secret, key := r.issue(ledger.Issue{Label: "x", Grant: policy.Grant{Rules: freeRules}, Caps: []ledger.CapTerms{{Currency: "usd", Minor: 100_000}}})
	r.charge(secret, 1000).want(t, "before", 200, "")
	if err := r.app.ledger.Revoke(context.Background(), key.ID, "test", "test"); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{r.url, other.url} {
		a := r.postAt(at, secret, "/v1/charges", uuid.NewString(), url.Values{"amount": {"1000"}, "currency": {"usd"}, "source": {"pm_card_visa"}})
		a.want(t, "after", 401, "vault_key_invalid")
		if a.header.Get("Stripe-Should-Retry") != "false" || a.Error.Type != "invalid_request_error" {
			t.Errorf("%v %s", a.header, a.body)
		}
	}
	if _, charges := r.taken(); charges != 1 {
		t.Errorf("%d charges", charges)
	}
}
