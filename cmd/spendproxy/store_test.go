package main

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/spendproxy/internal/config"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// Without its database the proxy is closed: nothing is forwarded, callers are
// told so, and what was under way is answered and booked later.
func TestTheStoreIsAway(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	stripe := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == "under-way" {
			<-proceed
		}
		says(200, aCharge)(w, r)
	})
	r := &rig{t: t, dsn: pgtest.Empty(t), log: new(record)}
	store := pgtest.NewProxy(t, r.dsn)
	r.app = r.open(stripe.URL, func(c *config.Config) { c.Database = settings.NewSecret(store.DSN()) })
	r.url = "http://" + r.app.Address()
	key := r.free(10_000)
	form := url.Values{"amount": {"1000"}, "currency": {"usd"}, "source": {"pm_1"}}
	under := make(chan answer, 1)
	go func() { under <- r.post(key, "/v1/charges", "under-way", form) }()
	eventually(t, "it has reached Stripe", func() bool { return len(stripe.arrivals()) == 1 })

	store.Pause()
	store.CutAll()
	if a := r.get(key, "/healthz"); a.status != 200 {
		t.Errorf("alive: %d", a.status)
	}
	if a := r.get(key, "/readyz"); a.status != 503 {
		t.Errorf("ready: %d %s", a.status, a.body)
	}
	for target, want := range map[string]int{"/healthz": 200, "/readyz": 503} { // as load balancers ask
		head, err := http.NewRequest(http.MethodHead, r.url+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		if a := r.do(head); a.status != want || a.body != "" {
			t.Errorf("HEAD %s: %d %q, want %d", target, a.status, a.body, want)
		}
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			a := r.post(key, "/v1/charges", "refused", form)
			a.want(t, "a charge", 503, "ledger_unavailable")
			if a.header.Get("Stripe-Should-Retry") != "false" || a.Error.Type != "api_error" || !strings.Contains(a.Error.Message, "nothing was executed") {
				t.Errorf("%v %s", a.header, a.body)
			}
		})
	}
	wg.Go(func() { r.get(key, "/v1/charges/ch_1").want(t, "a read", 503, "ledger_unavailable") })
	wg.Wait()
	close(proceed)
	if a := <-under; a.status != 200 || a.body != aCharge {
		t.Errorf("the call under way: %d %v %s", a.status, a.err, a.body)
	}
	if n := len(stripe.arrivals()); n != 1 {
		t.Errorf("%d calls reached Stripe", n)
	}

	store.Resume()
	eventually(t, "it is ready again", func() bool { return r.get(key, "/readyz").status == 200 })
	eventually(t, "what was under way is booked", func() bool { return r.books("usd").Settled == 1000 })
	a := r.post(key, "/v1/charges", "under-way", form)
	if a.status != 200 || a.body != aCharge || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("asked again: %d %v %s", a.status, a.header, a.body)
	}
	r.post(key, "/v1/charges", "refused", form).want(t, "the refused one again", 200, "")
	if n := len(stripe.arrivals()); n != 2 || r.books("usd").Settled != 2000 || r.books("usd").Held != 0 {
		t.Errorf("%d calls reached Stripe; the books %+v", n, r.books("usd"))
	}
}

// A commit whose answer is lost: the call is refused, nothing was sent, and the
// reservation that may have been written is taken back.
func TestALostCommitOfAReservation(t *testing.T) {
	t.Parallel()
	stripe := newUpstream(t, says(200, aCharge))
	r := &rig{t: t, dsn: pgtest.Empty(t), log: new(record)}
	store := pgtest.NewProxy(t, r.dsn)
	r.app = r.open(stripe.URL, func(c *config.Config) { c.Database = settings.NewSecret(store.DSN()) })
	r.url = "http://" + r.app.Address()
	key := r.free(1000)
	form := url.Values{"amount": {"1000"}, "currency": {"usd"}, "source": {"pm_1"}}
	lost := store.DropServerToClientOnCommit("spendproxy.audit")
	a := r.post(key, "/v1/charges", "k", form)
	<-lost
	if a.status == 503 {
		if n := len(stripe.arrivals()); n != 0 {
			t.Errorf("%d calls reached Stripe", n)
		}
		eventually(t, "the room is back", func() bool { return r.books("usd").Held == 0 })
		a = r.post(key, "/v1/charges", "k", form)
	}
	a.want(t, "the charge", 200, "")
	eventually(t, "it is booked", func() bool { return r.books("usd").Settled == 1000 })
	if n := len(stripe.arrivals()); n != 1 {
		t.Errorf("%d calls reached Stripe", n)
	}
}
