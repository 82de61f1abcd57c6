package main

import (
	"net/url"
	"testing"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// A bill goes through: create, confirm, and the books say what Stripe's do.
func TestABillGoesThrough(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key, b := r.run(2), billOf(0)
	created := r.post(key, "/v1/payment_intents", b.createKey(), b.form())
	created.want(t, "create", 200, "")
	confirmed := r.post(key, "/v1/payment_intents/"+created.ID+"/confirm", b.confirmKey(), offSession)
	confirmed.want(t, "confirm", 200, "")
	if confirmed.Status != "succeeded" {
		t.Fatalf("confirm: %s", confirmed.body)
	}
	if minor, charges := r.taken(); minor != 2900 || charges != 1 {
		t.Errorf("Stripe took %d in %d charges", minor, charges)
	}
	if sum := r.books("usd"); sum.Settled != 2900 || sum.SettledCount != 1 || sum.Held != 0 {
		t.Errorf("the books: %+v", sum)
	}
	for _, at := range r.stripe.Requests() {
		if at.Method == "POST" && at.Key == "" {
			t.Errorf("%s without a key", at.Path)
		}
	}

	// For ever: Stripe has forgotten the key, the ledger has not.
	r.stripe.ForgetKeys("")
	again := r.post(key, "/v1/payment_intents/"+created.ID+"/confirm", b.confirmKey(), offSession)
	if again.status != 200 || again.body != confirmed.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the confirm again: %d %v %s", again.status, again.header, again.body)
	}
	other := r.post(key, "/v1/payment_intents/"+created.ID+"/confirm", b.confirmKey()+"-again-1", offSession)
	if other.status != 200 || other.body != confirmed.body {
		t.Errorf("the confirm under another key: %d %s", other.status, other.body)
	}
	if again := r.post(key, "/v1/payment_intents", b.createKey(), b.form()); again.status != 200 || again.body != created.body {
		t.Errorf("the create again: %d %s", again.status, again.body)
	}
	if minor, charges := r.taken(); minor != 2900 || charges != 1 {
		t.Errorf("Stripe took %d in %d charges after the repeats", minor, charges)
	}
	if got := r.get(key, "/v1/payment_intents/"+created.ID+"?expand[]=latest_charge"); got.status != 200 || got.ID != created.ID {
		t.Errorf("read: %d %s", got.status, got.body)
	}
	r.post(key, "/v1/payment_intents", b.createKey(), url.Values{"amount": {"2901"}, "currency": {"usd"}}).want(t, "another request under the key", 400, "idempotency_key_reused")
	if f := r.stripe.LedgerWhere(sim.LedgerFilter{}); len(f) != 1 {
		t.Errorf("%d movements", len(f))
	}
}
