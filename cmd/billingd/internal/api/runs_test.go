package api

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// A run that waits for somebody makes the service degraded, with figures; the
// process is alive all the same, and so is one whose database is away.
func TestHealthTellsOfRunsThatWait(t *testing.T) {
	t.Parallel()
	november := domain.PeriodOf(domain.Monthly, 2026, 11)
	var troubles []sagas.RunTrouble
	var broken error
	i := start(t, func(d *Deps, _ *Limits) {
		d.Troubles = func(context.Context) ([]sagas.RunTrouble, error) { return troubles, broken }
	})
	if a := i.get("/healthz"); a.status != 200 || strings.TrimSpace(a.body) != `{"status":"ok"}` {
		t.Errorf("well: %d %s", a.status, a.body)
	}
	troubles = []sagas.RunTrouble{{
		Period: november, Paused: true, Reason: "the spend cap is reached: $10.00 asked, $0.00 left of $600.00",
		Refusal: &domain.RunRefusal{Code: "spend_cap_exceeded", Currency: "usd", AskedMinor: 1000, CapMinor: new(int64(60_000)), LeftMinor: new(int64(0))},
		Held:    []sagas.HeldBills{{Currency: "usd", Bills: 40, Minor: 40_000}},
	}}
	var h Health
	i.get("/healthz").json(t, &h)
	if h.Status != "degraded" || len(h.Degraded) != 1 {
		t.Fatalf("degraded: %+v", h)
	}
	d := h.Degraded[0]
	if d.Reason != "run 2026-11 is paused: the spend cap is reached: $10.00 asked, $0.00 left of $600.00; 40 bills held, $400.00" ||
		d.Code != "spend_cap_exceeded" || *d.Asked != 1000 || *d.Left != 0 || *d.Cap != 60_000 || d.Held[0].Bills != 40 || d.Held[0].Minor != 40_000 {
		t.Errorf("it says %+v", d)
	}
	broken = errors.New("the database is away")
	if a := i.get("/healthz"); a.status != 200 || !strings.Contains(a.body, `"ok"`) {
		t.Errorf("without a database: %d %s", a.status, a.body)
	}
}

// A story shows what the proxy decided, and is told without it where it does not
// answer in time.
func TestAStoryShowsTheProxysVerdicts(t *testing.T) {
	t.Parallel()
	verdicts := func(context.Context, domain.CustomerID, domain.Period) ([]sagas.Verdict, error) {
		return []sagas.Verdict{{Call: "c1", Phase: "before", Method: "POST", Path: "/v1/payment_intents/pi_1/confirm", Verdict: "refuse", Code: "spend_cap_exceeded", Reason: "1000 asked; 0 left of 60000", VaultKey: "9f2c"}}, nil
	}
	i := start(t, func(d *Deps, _ *Limits) {
		d.Verdicts = func(ctx context.Context, c domain.CustomerID, p domain.Period) ([]sagas.Verdict, error) {
			return verdicts(ctx, c, p)
		}
	})
	i.register("acme")
	i.send("charge-billing", `{"customer_id":"acme","billing_period":"2026-11","amount_minor":1000,"currency":"usd"}`)
	const path = "/v1/customers/acme/periods/2026-11"
	var story BillStory
	i.get(path).json(t, &story)
	if story.Proxy == nil || len(story.Proxy.Calls) != 1 || story.Proxy.Calls[0].Code != "spend_cap_exceeded" || story.Proxy.Unavailable != "" || len(story.Facts) == 0 {
		t.Errorf("the story has %+v", story.Proxy)
	}
	verdicts = func(ctx context.Context, _ domain.CustomerID, _ domain.Period) ([]sagas.Verdict, error) {
		<-ctx.Done()
		return nil, errors.New("the spend proxy did not answer in time")
	}
	began := time.Now()
	story = BillStory{}
	i.get(path).json(t, &story)
	if story.Proxy == nil || len(story.Proxy.Calls) != 0 || story.Proxy.Unavailable != "the spend proxy did not answer in time" || len(story.Facts) == 0 || time.Since(began) > 20*time.Second {
		t.Errorf("without the proxy, after %s, the story has %+v", time.Since(began), story.Proxy)
	}
	var none map[string]json.RawMessage
	plain := start(t)
	plain.register("acme")
	plain.send("charge-billing", `{"customer_id":"acme","billing_period":"2026-11","amount_minor":1000,"currency":"usd"}`)
	plain.get(path).json(t, &none)
	if _, there := none["proxy"]; there || none["facts"] == nil {
		t.Errorf("where there is no proxy the story speaks of one: %s", none["proxy"])
	}
}

// A run is paused and resumed by whoever may operate, under a key.
func TestPausingARunNeedsOperate(t *testing.T) {
	t.Parallel()
	i := start(t, tokensOf(t, "clerk:read+dispatch:"+hashOf("c")+",operator:read+dispatch+operate:"+hashOf("o")))
	const body = `{"billing_period":"2026-11","reason":"to be checked"}`
	i.auth = "Bearer c"
	if a := i.send("pause-run", body, "Idempotency-Key", "k1"); a.status != 403 {
		t.Errorf("without the scope: %d %s", a.status, a.body)
	}
	i.auth = "Bearer o"
	if a := i.send("pause-run", body); a.status != 400 || !strings.Contains(a.body, "idempotency_key_required") {
		t.Errorf("without a key: %d %s", a.status, a.body)
	}
	for n, want := range []string{`"replayed":false`, `"replayed":true`} {
		if a := i.send("pause-run", body, "Idempotency-Key", "k1"); a.status != 200 || !strings.Contains(a.body, want) || !strings.Contains(a.body, `"run/2026-11"`) {
			t.Errorf("time %d: %d %s", n+1, a.status, a.body)
		}
	}
	if a := i.send("resume-run", `{"billing_period":"2026-11"}`, "Idempotency-Key", "k2"); a.status != 200 || !strings.Contains(a.body, "run.resumed.v1") {
		t.Errorf("resume: %d %s", a.status, a.body)
	}
}
