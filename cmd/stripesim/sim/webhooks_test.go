package sim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/webhook"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// endpoint receives webhooks and remembers them.
type endpoint struct {
	*httptest.Server
	mu      sync.Mutex
	got     []delivery
	respond func(http.ResponseWriter, *http.Request)
}

type delivery struct {
	body      []byte
	signature string
	event     stripe.Event // read without a check
}

const secret = "whsec_test"

// receive starts an endpoint that answers 200 unless told otherwise.
func receive(t testing.TB) *endpoint {
	t.Helper()
	e := &endpoint{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		d := delivery{body: body, signature: r.Header.Get("Stripe-Signature")}
		if err := json.Unmarshal(body, &d.event); err != nil {
			t.Errorf("a webhook that is not JSON: %v", err)
		}
		e.mu.Lock()
		e.got = append(e.got, d)
		respond := e.respond
		e.mu.Unlock()
		if respond != nil {
			respond(w, r)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) answer(respond func(http.ResponseWriter, *http.Request)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.respond = respond
}

func (e *endpoint) received() []delivery {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got)
}

// types counts the received webhooks by type.
func (e *endpoint) types() map[string]int {
	n := make(map[string]int)
	for _, d := range e.received() {
		n[string(d.event.Type)]++
	}
	return n
}

// hooked is a stand-in that delivers to a fresh endpoint.
func hooked(t testing.TB, o sim.Options) (*sim.Server, *endpoint) {
	t.Helper()
	e := receive(t)
	o.WebhookURL, o.WebhookSecret = e.URL, secret
	s, _ := start(t, o)
	return s, e
}

// idle waits until nothing is due or being sent.
func idle(t testing.TB, s *sim.Server) {
	t.Helper()
	eventually(t, "webhooks are idle", s.WebhooksIdle)
}

func rule(t testing.TB, s *sim.Server, r sim.WebhookRule) {
	t.Helper()
	if _, err := s.AddWebhookRule(r); err != nil {
		t.Fatal(err)
	}
}

// A bill's webhooks come once each, signed, in stripe-go's shape and version.
func TestWebhooksAreDelivered(t *testing.T) {
	t.Parallel()
	s, e := hooked(t, sim.Options{})
	c := clientOf(t, s, nil)
	pi := create(t, c, "create")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	idle(t, s)
	got := e.received()
	equal(t, "deliveries", len(got), 3)
	for _, d := range got {
		event, err := webhook.ConstructEvent(d.body, d.signature, secret)
		if err != nil {
			t.Fatalf("verify: %v", err)
		}
		if want := map[bool]string{true: "create", false: "k"}[event.Type == "payment_intent.created"]; event.Request.IdempotencyKey != want {
			t.Errorf("%s has key %q, want %q", event.Type, event.Request.IdempotencyKey, want)
		}
		if _, err := webhook.ConstructEvent(d.body, d.signature, "whsec_other"); err == nil {
			t.Error("any secret verifies")
		}
		equal(t, "pending when sent", event.PendingWebhooks, 1)
		shown, err := c.Events.Get(event.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "pending when delivered", shown.PendingWebhooks, 0)
	}
	equal(t, "successes", len(eventIDs(t, c, &stripe.EventListParams{DeliverySuccess: stripe.Bool(true)})), 3)
}

// Without an endpoint nothing is owed; one that is set later gets what happens
// from then on, and the rest on request.
func TestWebhookEndpointAtRunTime(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	post(t, s, "/v1/charges", "before", chargeForm)
	e := receive(t)
	equal(t, "secret missing", control(t, s, "PUT", "/control/webhooks", fmt.Sprintf(`{"url":%q}`, e.URL), nil), 400)
	equal(t, "replay to nobody", control(t, s, "POST", "/control/webhooks", `{"action":"replay"}`, nil), 400)
	equal(t, "endpoint", control(t, s, "PUT", "/control/webhooks", fmt.Sprintf(`{"url":%q,"secret":"whsec_new, whsec_test"}`, e.URL), nil), 200)
	post(t, s, "/v1/charges", "after", chargeForm)
	idle(t, s)
	equal(t, "delivered", len(e.received()), 1)
	d := e.received()[0]
	equal(t, "signatures", strings.Count(d.signature, ",v1="), 2)
	for _, half := range []string{"whsec_new", secret} {
		if _, err := webhook.ConstructEvent(d.body, d.signature, half); err != nil {
			t.Errorf("%s while rolling: %v", half, err)
		}
	}
	var replayed struct{ Replayed int }
	control(t, s, "POST", "/control/webhooks", `{"action":"replay","since":1,"type":"charge.*"}`, &replayed)
	equal(t, "replayed", replayed.Replayed, 2)
	idle(t, s)
	equal(t, "delivered", len(e.received()), 3)
	control(t, s, "POST", "/control/webhooks", fmt.Sprintf(`{"action":"replay","event":%q}`, d.event.ID), &replayed)
	equal(t, "replayed by id", replayed.Replayed, 1)
	equal(t, "replay nothing", control(t, s, "POST", "/control/webhooks", `{"action":"replay","event":"evt_none"}`, nil), 404)
	idle(t, s)
	equal(t, "off", control(t, s, "PUT", "/control/webhooks", `{"url":""}`, nil), 200)
	post(t, s, "/v1/charges", "off", chargeForm)
	equal(t, "owed", len(eventIDs(t, c, &stripe.EventListParams{DeliverySuccess: stripe.Bool(false)})), 0)
	var shown struct {
		URL        string
		Idle       bool
		Deliveries []sim.Delivery
	}
	control(t, s, "GET", "/control/webhooks?event="+d.event.ID+"&state=delivered", "", &shown)
	equal(t, "deliveries of the event", len(shown.Deliveries), 3)
	equal(t, "object", shown.Deliveries[0].Object, s.LedgerWhere(sim.LedgerFilter{Key: "after"})[0].Charge)
	equal(t, "unknown parameter", control(t, s, "GET", "/control/webhooks?evt=1", "", nil), 400)
}

// What is not answered 2xx in time is sent again, with a new signature, for
// three days on the stand-in's clock.
func TestWebhookRetries(t *testing.T) {
	t.Parallel()
	for name, respond := range map[string]func(http.ResponseWriter, *http.Request){
		"500":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"slow":     func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"drop":     func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, e := hooked(t, sim.Options{Settings: sim.Settings{WebhookTimeout: 50 * time.Millisecond}})
			e.answer(respond)
			post(t, s, "/v1/charges", "k", chargeForm)
			idle(t, s)
			equal(t, "attempts at once", len(e.received()), 1)
			d := s.Deliveries(sim.DeliveryFilter{})[0]
			if d.State != "waiting" || d.Error == "" || d.Due.Sub(d.Last) != 5*time.Minute {
				t.Fatalf("after a failure: %+v", d)
			}
			s.Advance(6 * time.Minute)
			eventually(t, "a second attempt", func() bool { return len(e.received()) == 2 })
			e.answer(nil)
			idle(t, s)
			if err := s.Configure(func(set *sim.Settings) { set.WebhookTimeout = time.Minute }); err != nil {
				t.Fatal(err)
			}
			s.Advance(time.Hour)
			eventually(t, "delivered", func() bool { return len(s.Deliveries(sim.DeliveryFilter{State: "delivered"})) == 1 })
			s.Advance(72 * time.Hour)
			idle(t, s)
			got := e.received()
			equal(t, "attempts", len(got), 3)
			for _, d := range got {
				equal(t, "event", d.event.ID, got[0].event.ID)
				if _, err := webhook.ConstructEvent(d.body, d.signature, secret); err != nil {
					t.Errorf("verify: %v", err)
				}
			}
		})
	}
	t.Run("for ever", func(t *testing.T) {
		t.Parallel()
		s, e := hooked(t, sim.Options{})
		e.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) })
		post(t, s, "/v1/charges", "k", chargeForm)
		for n := 1; ; n++ {
			eventually(t, fmt.Sprintf("attempt %d", n), func() bool { return len(e.received()) == n && s.WebhooksIdle() })
			d := s.Deliveries(sim.DeliveryFilter{})[0]
			if d.State == "failed" {
				equal(t, "attempts", n, 10) // 0, 5 m, 35 m, 2 h 35, 7 h 35, 17 h 35, then every 12 h
				break
			}
			if n > 20 {
				t.Fatal("never given up")
			}
			s.SetClock(d.Due)
		}
		equal(t, "missed", len(eventIDs(t, clientOf(t, s, nil), &stripe.EventListParams{DeliverySuccess: stripe.Bool(false)})), 1)
	})
}

// What a killed process still owed, its successor delivers; what was delivered it
// does not send again.
func TestWebhooksSurviveARestart(t *testing.T) {
	t.Parallel()
	e := receive(t)
	o := sim.Options{Data: filepath.Join(t.TempDir(), "journal"), WebhookURL: e.URL, WebhookSecret: secret}
	s, _ := start(t, o)
	post(t, s, "/v1/charges", "delivered", chargeForm)
	idle(t, s)
	e.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	post(t, s, "/v1/charges", "owed", chargeForm)
	eventually(t, "an attempt", func() bool { return len(e.received()) == 2 })
	idle(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	e.answer(nil)
	s, _ = start(t, o)
	eventually(t, "delivered after the restart", func() bool { return len(e.received()) == 3 })
	idle(t, s)
	equal(t, "its key", e.received()[2].event.Request.IdempotencyKey, "owed")
	equal(t, "deliveries", len(s.Deliveries(sim.DeliveryFilter{})), 1)
}

// An intent that ends its processing, or a 500 that rolls forward, tells of it
// without anybody asking.
func TestWebhooksOfWhatHappensLater(t *testing.T) {
	t.Parallel()
	s, e := hooked(t, sim.Options{})
	c := clientOf(t, s, nil)
	pi := create(t, c, "create")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_sim_processing_100ms_succeeds")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the success is delivered", func() bool { return e.types()["payment_intent.succeeded"] == 1 })
}

func TestWebhookFaults(t *testing.T) {
	t.Parallel()
	charge := func(t *testing.T, s *sim.Server, n int) {
		t.Helper()
		for i := range n {
			equal(t, "status", post(t, s, "/v1/charges", keyN(i), chargeForm).status, 200)
		}
	}
	tests := map[sim.WebhookFault]func(*testing.T, *sim.Server, *endpoint){
		sim.WebhookDrop: func(t *testing.T, s *sim.Server, e *endpoint) {
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookDrop, Type: "charge.succeeded"})
			charge(t, s, 2)
			idle(t, s)
			equal(t, "delivered", len(e.received()), 1)
			equal(t, "dropped", len(s.Deliveries(sim.DeliveryFilter{State: "dropped"})), 1)
			equal(t, "listed all the same", len(eventIDs(t, clientOf(t, s, nil), &stripe.EventListParams{})), 2)
		},
		sim.WebhookReorder: func(t *testing.T, s *sim.Server, e *endpoint) {
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookReorder, Times: 3})
			charge(t, s, 2)
			idle(t, s)
			equal(t, "held", len(e.received()), 0)
			equal(t, "third", post(t, s, "/v1/charges", "third", chargeForm).status, 200)
			eventually(t, "released", func() bool { return len(e.received()) == 3 })
			idle(t, s)
			var got, want []string
			for _, d := range e.received() {
				got = append(got, d.event.ID)
			}
			for _, event := range s.Events("") {
				want = append(want, event.ID)
			}
			slices.Reverse(want)
			if !slices.Equal(got, want) {
				t.Errorf("came as %v, want %v", got, want)
			}
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookReorder, Times: 9})
			equal(t, "fourth", post(t, s, "/v1/charges", "fourth", chargeForm).status, 200)
			var released struct{ Released int }
			control(t, s, "POST", "/control/webhooks", `{"action":"release"}`, &released)
			equal(t, "released by hand", released.Released, 1)
			eventually(t, "the fourth", func() bool { return len(e.received()) == 4 })
		},
		sim.WebhookDuplicate: func(t *testing.T, s *sim.Server, e *endpoint) {
			both := make(chan struct{})
			var together sync.WaitGroup
			together.Add(2)
			go func() { together.Wait(); close(both) }()
			e.answer(func(http.ResponseWriter, *http.Request) { together.Done(); <-both }) // each waits for the other
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookDuplicate})
			charge(t, s, 1)
			eventually(t, "two", func() bool { return len(s.Deliveries(sim.DeliveryFilter{State: "delivered"})) == 2 })
			got := e.received()
			equal(t, "the same event", got[0].event.ID, got[1].event.ID)
		},
		sim.WebhookTwoEventIDs: func(t *testing.T, s *sim.Server, e *endpoint) {
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookTwoEventIDs})
			charge(t, s, 1)
			idle(t, s)
			got := e.received()
			if len(got) != 2 || got[0].event.ID == got[1].event.ID || got[0].event.Data.Object["id"] != got[1].event.Data.Object["id"] {
				t.Errorf("want one change under two ids, got %v", s.Events(""))
			}
			equal(t, "events", len(s.Events("")), 2)
		},
		sim.WebhookDelay: func(t *testing.T, s *sim.Server, e *endpoint) {
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookDelay, Delay: 2 * time.Hour})
			charge(t, s, 1)
			idle(t, s)
			equal(t, "at once", len(e.received()), 0)
			s.Advance(2 * time.Hour)
			eventually(t, "two hours later", func() bool { return len(e.received()) == 1 })
		},
		sim.WebhookBeforeAnswer: func(t *testing.T, s *sim.Server, e *endpoint) {
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookBeforeAnswer})
			answered := make(chan struct{})
			e.answer(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-answered:
					t.Error("the answer came first")
				case <-time.After(50 * time.Millisecond):
				}
			})
			charge(t, s, 1)
			close(answered)
			equal(t, "delivered", len(e.received()), 1)
		},
		sim.WebhookAPIVersion: func(t *testing.T, s *sim.Server, e *endpoint) {
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookAPIVersion, Version: "2019-12-03"})
			charge(t, s, 1)
			idle(t, s)
			d := e.received()[0]
			equal(t, "version", d.event.APIVersion, "2019-12-03")
			if _, err := webhook.ConstructEvent(d.body, d.signature, secret); err == nil {
				t.Error("stripe-go takes another version")
			}
		},
		sim.WebhookBadSignature: func(t *testing.T, s *sim.Server, e *endpoint) {
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookBadSignature})
			e.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) })
			charge(t, s, 1)
			idle(t, s)
			e.answer(nil)
			s.Advance(5 * time.Minute)
			eventually(t, "again", func() bool { return len(e.received()) == 2 })
			for i, d := range e.received() {
				_, err := webhook.ConstructEvent(d.body, d.signature, secret)
				equal(t, "verifies", err == nil, i == 1)
			}
		},
		sim.WebhookOldTimestamp: func(t *testing.T, s *sim.Server, e *endpoint) {
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookOldTimestamp})
			charge(t, s, 1)
			idle(t, s)
			d := e.received()[0]
			if _, err := webhook.ConstructEvent(d.body, d.signature, secret); !errors.Is(err, webhook.ErrTooOld) {
				t.Errorf("got %v, want %v", err, webhook.ErrTooOld)
			}
			if _, err := webhook.ConstructEventIgnoringTolerance(d.body, d.signature, secret); err != nil {
				t.Errorf("but for its age: %v", err)
			}
		},
		sim.WebhookForeignAccount: func(t *testing.T, s *sim.Server, e *endpoint) {
			rule(t, s, sim.WebhookRule{Fault: sim.WebhookForeignAccount, Account: "acct_1Other"})
			charge(t, s, 2)
			idle(t, s)
			accounts := []string{e.received()[0].event.Account, e.received()[1].event.Account}
			slices.Sort(accounts)
			if !slices.Equal(accounts, []string{"", "acct_1Other"}) {
				t.Errorf("accounts %q", accounts)
			}
		},
	}
	for _, fault := range sim.WebhookFaults() {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			test, ok := tests[fault]
			if !ok {
				t.Fatal("no test")
			}
			s, e := hooked(t, sim.Options{})
			test(t, s, e)
		})
	}
}

// The bad news of an old attempt may come after the good news of a later one.
func TestLateBadNews(t *testing.T) {
	t.Parallel()
	s, e := hooked(t, sim.Options{})
	c := clientOf(t, s, nil)
	rule(t, s, sim.WebhookRule{Fault: sim.WebhookDelay, Type: "*failed", Customer: "cus_A", Times: -1, Delay: time.Hour})
	pi := create(t, c, "create")
	for n, method := range []string{"pm_card_chargeCustomerFail", "pm_card_visa"} {
		c.PaymentIntents.Confirm(pi.ID, confirmParams(keyN(n), method)) //nolint:errcheck // the first declines
	}
	idle(t, s)
	equal(t, "good news", e.types()["payment_intent.succeeded"], 1)
	equal(t, "bad news", e.types()["payment_intent.payment_failed"], 0)
	s.Advance(time.Hour)
	eventually(t, "late bad news", func() bool { return e.types()["payment_intent.payment_failed"] == 1 })
}

func TestWebhookRulesByControl(t *testing.T) {
	t.Parallel()
	s, e := hooked(t, sim.Options{})
	var armed struct {
		ID    string
		Rules []struct {
			Action string
			Times  int
			Delay  string
			Hits   int
		}
	}
	equal(t, "arm", control(t, s, "POST", "/control/webhooks", `{"action":"delay","type":"charge.*","times":2,"delay":"1h"}`, &armed), 200)
	equal(t, "rules", len(armed.Rules), 1)
	post(t, s, "/v1/charges", "k", chargeForm)
	control(t, s, "GET", "/control/webhooks", "", &armed)
	if r := armed.Rules[0]; r.Action != "delay" || r.Delay != "1h0m0s" || r.Times != 2 || r.Hits != 1 {
		t.Errorf("the rule reads as %+v", r)
	}
	for _, body := range []string{
		`{"action":"explode"}`, `{}`, `{"action":"delay"}`, `{"action":"drop","delay":"1h"}`, `{"action":"reorder"}`, `{"action":"drop","type":"["}`,
		`{"action":"drop","event":"evt_1"}`, `{"action":"replay","times":2}`, `{"action":"release","type":"charge.*"}`, `{"action":"drop","version":"x"}`,
	} {
		equal(t, body, control(t, s, "POST", "/control/webhooks", body, nil), 400)
	}
	equal(t, "disarm", control(t, s, "DELETE", "/control/webhooks/"+armed.ID, "", nil), 200)
	equal(t, "disarm again", control(t, s, "DELETE", "/control/webhooks/"+armed.ID, "", nil), 404)
	equal(t, "hold", control(t, s, "POST", "/control/webhooks", `{"action":"reorder","times":5}`, nil), 200)
	post(t, s, "/v1/charges", "held", chargeForm)
	equal(t, "disarm all", control(t, s, "DELETE", "/control/webhooks", "", nil), 200)
	eventually(t, "what was held is sent", func() bool { return len(e.received()) == 1 })
	equal(t, "reset", control(t, s, "POST", "/control/reset", "", nil), 200)
	post(t, s, "/v1/charges", "k", chargeForm)
	eventually(t, "the endpoint is still there", func() bool { return len(e.received()) == 2 })
}

// An endpoint that does not answer costs the API nothing.
func TestASlowEndpointDoesNotSlowTheAPI(t *testing.T) {
	t.Parallel()
	s, e := hooked(t, sim.Options{Settings: sim.Settings{WebhookTimeout: time.Minute}})
	stuck := make(chan struct{})
	defer close(stuck)
	e.answer(func(http.ResponseWriter, *http.Request) { <-stuck })
	for n := range 40 {
		equal(t, "status", post(t, s, "/v1/charges", keyN(n), chargeForm).status, 200)
	}
	eventually(t, "as many at a time as are allowed", func() bool { return len(e.received()) == 8 })
	equal(t, "waiting", len(s.Deliveries(sim.DeliveryFilter{State: "waiting"})), 32)
}
