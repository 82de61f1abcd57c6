package sim_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// answer is a raw HTTP answer, for what stripe-go does not show.
type answer struct {
	status int
	header http.Header
	body   string
}

// post sends a form with a key; a key of "-" sends no header at all.
func post(t testing.TB, s *sim.Server, path, key, form string) answer {
	t.Helper()
	r, err := http.NewRequest("POST", s.APIURL+path, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Authorization", "Bearer sk_test_123")
	if key != "-" {
		r.Header["Idempotency-Key"] = []string{key}
	}
	return send(t, r)
}

func get(t testing.TB, s *sim.Server, path string) answer {
	t.Helper()
	r, err := http.NewRequest("GET", s.APIURL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer sk_test_123")
	return send(t, r)
}

func send(t testing.TB, r *http.Request) answer {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

const chargeForm = "amount=5000&currency=usd&customer=cus_A&source=tok_visa"

// A repeat gets status and body byte for byte, marked as replayed, and nothing
// moves a second time: for a success, a decline and an execution-time refusal.
func TestKeyReplaysTheFirstAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, form string
		status     int
		moved      int
	}{
		"success":       {"/v1/charges", chargeForm, 200, 1},
		"decline":       {"/v1/charges", "amount=5000&currency=usd&customer=cus_A&source=pm_card_chargeCustomerFail", 402, 0},
		"unknown id":    {"/v1/payment_intents/pi_none/confirm", "payment_method=pm_card_visa", 404, 0},
		"unknown param": {"/v1/payment_intents", "amount=5000&currency=usd&customer=other", 400, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := start(t, sim.Options{})
			first := post(t, s, c.path, "k", c.form)
			equal(t, "status", first.status, c.status)
			equal(t, "replayed at first", first.header.Get("Idempotent-Replayed"), "")
			again := post(t, s, c.path, "k", c.form)
			equal(t, "status again", again.status, first.status)
			equal(t, "body again", again.body, first.body)
			equal(t, "replayed", again.header.Get("Idempotent-Replayed"), "true")
			equal(t, "original request", again.header.Get("Original-Request"), first.header.Get("Request-Id"))
			if again.header.Get("Request-Id") == first.header.Get("Request-Id") {
				t.Error("the repeat has the first one's Request-Id")
			}
			equal(t, "succeeded movements", taken(s), c.moved)
			equal(t, "replays", s.Counters().Replays, 1)
		})
	}
}

// The order of parameters, and whether they come in the body or the query, is
// not a difference; anything else is.
func TestKeyComparesDecodedParameters(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	first := post(t, s, "/v1/charges", "k", "amount=5000&currency=usd&customer=cus_A&metadata[a]=x+y&metadata[b]=2")
	equal(t, "status", first.status, 200)
	same := post(t, s, "/v1/charges?customer=cus_A", "k", "metadata%5Bb%5D=2&metadata[a]=x%20y&currency=usd&amount=5000")
	equal(t, "same parameters otherwise written", same.body, first.body)
	for _, form := range []string{
		"amount=5001&currency=usd&customer=cus_A&metadata[a]=x+y&metadata[b]=2",
		"amount=5000&currency=usd&customer=cus_A&metadata[a]=x+y",
		"amount=5000&currency=usd&customer=cus_A&metadata[a]=x+y&metadata[b]=2&expand[]=customer",
	} {
		other := post(t, s, "/v1/charges", "k", form)
		equal(t, "status of "+form, other.status, 400)
		if !strings.Contains(other.body, `"type":"idempotency_error"`) || strings.Contains(other.body, `"code"`) {
			t.Errorf("got %s, want an idempotency_error without a code", other.body)
		}
	}
	equal(t, "movements", len(s.Ledger()), 1)
	equal(t, "mismatches", s.Counters().Mismatches, 3)
}

// One key space over all endpoints.
func TestKeyIsSharedBetweenEndpoints(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "k")
	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
	e := stripeError(t, err, 400, "")
	equal(t, "type", e.Type, stripe.ErrorTypeIdempotency)
	if !strings.Contains(e.Msg, "same endpoint") {
		t.Errorf("message does not name the reason: %s", e.Msg)
	}
	equal(t, "movements", len(s.Ledger()), 0)
}

// Two keys of the account see the same key space.
func TestKeyIsSharedBetweenAPIKeys(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	first := post(t, s, "/v1/charges", "k", chargeForm)
	r, _ := http.NewRequest("POST", s.APIURL+"/v1/charges", strings.NewReader(chargeForm))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Idempotency-Key", "k")
	r.SetBasicAuth("rk_test_other", "")
	again := send(t, r)
	equal(t, "body", again.body, first.body)
	equal(t, "movements", len(s.Ledger()), 1)
}

// While the first request runs the others get 409 at once; none is queued.
func TestKeyInProgressConflicts(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	arm(t, s, sim.Fault{Kind: sim.DelayBeforeCommit, Delay: 3 * time.Second, Match: sim.Match{Key: "k"}})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa")); err != nil {
			t.Errorf("the first: %v", err)
		}
	})
	atWork(t, s, "k")
	asked := time.Now()
	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
	stripeError(t, err, 409, "idempotency_key_in_use")
	if waited := time.Since(asked); waited > 2*time.Second {
		t.Errorf("the conflict took %v; it must not wait for the first", waited)
	}
	wg.Wait()
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa")); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
	equal(t, "taken", taken(s), 1)
	equal(t, "conflicts", s.Counters().Conflicts, 1)
}

// Twenty at once with one key: one charge, and nobody hears of another.
func TestKeyUnderConcurrency(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	ids := make(chan string, 20)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			p := &stripe.ChargeParams{Amount: stripe.Int64(5000), Currency: stripe.String("usd"), Customer: stripe.String("cus_A")}
			p.SetIdempotencyKey("k")
			ch, err := c.Charges.New(p)
			if err != nil {
				stripeError(t, err, 409, "idempotency_key_in_use")
				return
			}
			ids <- ch.ID
		})
	}
	wg.Wait()
	close(ids)
	ledger := s.Ledger()
	equal(t, "movements", len(ledger), 1)
	for id := range ids {
		equal(t, "charge id", id, ledger[0].Charge)
	}
}

// What never began to execute is not stored: the key is free for the repaired
// request. Under the harsh switch a validation error is kept.
func TestKeyDoesNotStoreValidationErrors(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	equal(t, "bad amount", post(t, s, "/v1/charges", "k", "amount=x&currency=usd&customer=cus_A").status, 400)
	equal(t, "repaired", post(t, s, "/v1/charges", "k", chargeForm).status, 200)

	harsh, _ := start(t, sim.Options{Settings: sim.Settings{StoreValidationErrors: true}})
	equal(t, "bad amount", post(t, harsh, "/v1/charges", "k", "amount=x&currency=usd&customer=cus_A").status, 400)
	equal(t, "repaired under the switch", post(t, harsh, "/v1/charges", "k", chargeForm).status, 400)
	equal(t, "movements under the switch", len(harsh.Ledger()), 0)
}

func TestKeyLength(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	equal(t, "255", post(t, s, "/v1/charges", strings.Repeat("k", 255), chargeForm).status, 200)
	equal(t, "256", post(t, s, "/v1/charges", strings.Repeat("k", 256), chargeForm).status, 400)
	equal(t, "empty", post(t, s, "/v1/charges", "", chargeForm).status, 400)
	equal(t, "unkeyed so far", s.Counters().UnkeyedPOSTs, 0)
	equal(t, "none", post(t, s, "/v1/charges", "-", chargeForm).status, 200)
	equal(t, "unkeyed", s.Counters().UnkeyedPOSTs, 1)
	equal(t, "movements", len(s.Ledger()), 2)
}

// A key lives 24 hours on the stand-in's clock; then the same request is new.
// The three ways to forget are all within Stripe's promise.
func TestKeyRetention(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		prune   sim.Prune
		kept    []time.Duration // ages at which the key still answers
		expired time.Duration
	}{
		{sim.PruneExact, []time.Duration{0, 24*time.Hour - time.Minute}, 24*time.Hour + time.Minute},
		{sim.PruneLate, []time.Duration{25 * time.Hour, 30*time.Hour - time.Minute}, 30*time.Hour + time.Minute},
		{sim.PruneRandom, []time.Duration{24*time.Hour - time.Minute}, 73 * time.Hour},
	} {
		t.Run(string(c.prune), func(t *testing.T) {
			t.Parallel()
			s, _ := start(t, sim.Options{Settings: sim.Settings{Prune: c.prune}})
			began := s.Now()
			first := post(t, s, "/v1/charges", "k", chargeForm)
			for _, age := range c.kept {
				s.SetClock(began.Add(age))
				equal(t, fmt.Sprintf("body at %v", age), post(t, s, "/v1/charges", "k", chargeForm).body, first.body)
			}
			s.SetClock(began.Add(c.expired))
			again := post(t, s, "/v1/charges", "k", chargeForm)
			equal(t, "replayed after its life", again.header.Get("Idempotent-Replayed"), "")
			equal(t, "movements", len(s.Ledger()), 2)
			state, _ := s.Key("k")
			equal(t, "executions under the key", state.Executions, 2)
		})
	}
}

// Random pruning really differs from key to key.
func TestKeyRetentionAtRandom(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{Settings: sim.Settings{Prune: sim.PruneRandom}})
	for n := range 40 {
		post(t, s, "/v1/customers", keyN(n), "name=x")
	}
	s.Advance(48 * time.Hour)
	kept := 0
	for n := range 40 {
		if _, ok := s.Key(keyN(n)); ok {
			kept++
		}
	}
	if kept == 0 || kept == 40 {
		t.Errorf("%d of 40 keys are kept after 48 h; want some and not all", kept)
	}
}

func TestForgetKey(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	post(t, s, "/v1/charges", "k", chargeForm)
	equal(t, "forgotten", s.ForgetKeys("k"), 1)
	equal(t, "forgotten again", s.ForgetKeys("k"), 0)
	post(t, s, "/v1/charges", "k", chargeForm)
	equal(t, "movements", len(s.Ledger()), 2)
}

// GET and DELETE take no part.
func TestKeyMeansNothingOnReads(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	p := &stripe.PaymentIntentParams{}
	p.SetIdempotencyKey("create")
	if _, err := c.PaymentIntents.Get(pi.ID, p); err != nil {
		t.Errorf("get under a used key: %v", err)
	}
	equal(t, "mismatches", s.Counters().Mismatches, 0)
	r, _ := http.NewRequest("GET", s.APIURL+"/v1/account", nil)
	r.Header.Set("Authorization", "Bearer sk_test_1")
	r.Header.Set("Idempotency-Key", "on-a-read")
	equal(t, "status", send(t, r).status, 200)
	found, _ := s.RequestsWhere(sim.RequestFilter{Key: "on-a-read"})
	equal(t, "logged with its key", len(found), 1)
	equal(t, "keys held", s.Counters().KeysHeld, 1)
}
