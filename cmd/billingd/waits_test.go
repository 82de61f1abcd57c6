package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// TestWhatIsStuckIsSeen: three bills stand still, each for a reason of its own.
// Health is degraded and says which, why and what to look at, naming nobody;
// metrics count them; the log says it aloud, once. When the causes are mended
// all of it ends, and each is charged once.
func TestWhatIsStuckIsSeen(t *testing.T) {
	h := newHouse(t)
	var app *App
	said := &heard{}
	r := h.open(twoTokens(t), func(a *App) { app = a }, said)
	r.token = "operator"
	await(t, "health is ok", func() bool { return r.read("/healthz") == `{"status":"ok"}`+"\n" })

	if _, err := app.pool.Exec(t.Context(), `INSERT INTO sagas (saga, id, state, step, version, last_position) VALUES ('billing', 'carl/2026-11', '"spoiled"', 'due', 1, 0)`); err != nil {
		t.Fatal(err)
	}
	arm := func(f sim.Fault) string {
		id, err := h.stripe.AddFault(f)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	confirm := sim.Match{Method: "POST", Path: confirms}
	arm(sim.Fault{Match: confirm, Kind: sim.DropBeforeCommit})
	unknown := arm(sim.Fault{Match: sim.Match{Method: "GET", Path: "/v1/payment_intents/*"}, Kind: sim.Error404, Times: -1})
	r.subscribe("bolt")
	has := func(document string, all ...string) func() bool {
		return func() bool {
			text := r.read(document)
			for _, want := range all {
				if !strings.Contains(text, want) {
					return false
				}
			}
			return true
		}
	}
	show := func() string { return r.read("/healthz") }
	awaitFor(t, time.Minute, "a bill needs review", has("/healthz", `"what":"bills"`, `"state":"needs_review"`), show)
	refused := arm(sim.Fault{Match: confirm, Kind: sim.Error403, Times: -1})
	r.subscribe("acme", "carl")
	awaitFor(t, time.Minute, "all three are told of", has("/healthz", `"status":"degraded"`,
		`"what":"bills","next":"GET /v1/charges?status=held","count":1`, "the key or a policy does not permit the request",
		`"next":"GET /v1/charges?status=needs_review","count":1`, "Stripe does not know the committed intent",
		`"what":"dead_letters","next":"billingctl dead-letters list","count":1`, "1 events of 1 customers wait in the dead letters of billing"), show)
	if text := show(); strings.Contains(text, "acme") || strings.Contains(text, "bolt") || strings.Contains(text, "carl") {
		t.Errorf("health names a customer: %s", text)
	}
	await(t, "metrics count them", has("/metrics", `billonce_bills_waiting{state="held"} 1`, `billonce_bills_waiting{state="needs_review"} 1`,
		`billonce_stuck_since_seconds{of="bills",state="needs_review"}`, `billonce_refunds_waiting{state="needs_review"} 0`))
	if n := strings.Count(said.errors(), "needs review"); n != 1 {
		t.Errorf("the log says %d times that a bill needs review: %s", n, said.errors())
	}

	h.stripe.ClearFaults(unknown)
	h.stripe.ClearFaults(refused)
	if _, err := app.pool.Exec(t.Context(), `DELETE FROM sagas WHERE id = 'carl/2026-11'`); err != nil {
		t.Fatal(err)
	}
	if _, err := app.runtime.Retry(t.Context(), "billing", "carl", "operator"); err != nil {
		t.Fatal(err)
	}
	if status := r.dispatch("release-billing", "r1", `{"customer_id":"bolt","billing_period":"2026-11","reason":"it was the wrong key"}`); status != http.StatusOK {
		t.Fatalf("release: %d", status)
	}
	awaitFor(t, 2*time.Minute, "each is charged once", func() bool {
		return len(h.charges("acme")) == 1 && len(h.charges("bolt")) == 1 && len(h.charges("carl")) == 1
	}, show)
	await(t, "health is ok again", func() bool { return r.read("/healthz") == `{"status":"ok"}`+"\n" }, show)
	await(t, "metrics are zero again", has("/metrics", `billonce_bills_waiting{state="held"} 0`, `billonce_bills_waiting{state="needs_review"} 0`))
}

// TestReadinessSaysWhyTheLookWaits: the key lacks the right to list charges, and
// then is not accepted at all. Nothing is collected, and readiness says what
// Stripe answered; once it is repaired the service goes on by itself.
func TestReadinessSaysWhyTheLookWaits(t *testing.T) {
	for kind, why := range map[sim.Kind]string{sim.Error403: "the key or a policy does not permit the request", sim.Error401: "the key is not accepted"} {
		t.Run(string(kind), func(t *testing.T) {
			h := newHouse(t)
			id, err := h.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "GET", Path: "/v1/charges"}, Kind: kind, Times: -1})
			if err != nil {
				t.Fatal(err)
			}
			r := h.start(nil)
			r.register("acme")
			r.begin("acme")
			ready := func() string { return r.read("/readyz") }
			awaitFor(t, time.Minute, "it says why", func() bool { return strings.Contains(ready(), "list /v1/charges: "+why) }, ready)
			if h.posts() != 0 {
				t.Errorf("%d POSTs before the look was complete", h.posts())
			}
			h.stripe.ClearFaults(id)
			awaitFor(t, time.Minute, "it is charged", func() bool { return len(h.charges("acme")) == 1 }, ready)
			await(t, "it is ready", func() bool { return strings.Contains(ready(), `"ready":true`) }, ready)
		})
	}
}
