package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
)

const webhookSecret = "whsec_house"

func withSecret(secret string) func(*config.Config) {
	return func(c *config.Config) { c.WebhookSecret = settings.NewSecret(secret) }
}

// signed is a Stripe-Signature header, made by hand.
func signed(payload string, at time.Time, secrets ...string) string {
	header := "t=" + strconv.FormatInt(at.Unix(), 10)
	for _, s := range secrets {
		mac := hmac.New(sha256.New, []byte(s))
		fmt.Fprintf(mac, "%d.%s", at.Unix(), payload)
		header += ",v1=" + hex.EncodeToString(mac.Sum(nil))
	}
	return header
}

// deliver posts an event as Stripe does.
func (r *replica) deliver(payload string, header http.Header) (status int, body string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+"/webhooks/stripe", strings.NewReader(payload))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header = header.Clone()
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func signature(values ...string) http.Header { return http.Header{"Stripe-Signature": values} }

// succeeded is an event by which a charge, or its intent, went through.
func succeeded(event, kind, customer, charge, intent string) string {
	markers := fmt.Sprintf(`{"customer_id":%q,"billing_period":"2026-11","billing_key":%q}`, customer,
		domain.ChargeKey(domain.CustomerID(customer), domain.PeriodOf(domain.Monthly, 2026, 11), 1))
	object := fmt.Sprintf(`{"id":%q,"object":"charge","amount":5000,"currency":"usd","paid":true,"captured":true,"status":"succeeded","payment_intent":%q,"customer":"cus_%s","created":1794700000,"metadata":%s}`,
		charge, intent, customer, markers)
	if kind == "payment_intent.succeeded" {
		object = fmt.Sprintf(`{"id":%q,"object":"payment_intent","amount":5000,"amount_received":5000,"currency":"usd","status":"succeeded","latest_charge":%q,"customer":"cus_%s","created":1794700000,"metadata":%s}`,
			intent, charge, customer, markers)
	}
	return fmt.Sprintf(`{"id":%q,"object":"event","api_version":"2023-10-16","created":1794700001,"livemode":false,"type":%q,"request":{"id":null,"idempotency_key":null},"data":{"object":%s}}`,
		event, kind, object)
}

// number reads one number out of the database.
func (h *house) number(sql string, args ...any) (n int) {
	h.t.Helper()
	conn, err := pgx.Connect(context.Background(), h.dsn)
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		h.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func billed(id string) (sql, arg string) {
	return `SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND sequence_key = $1`, id
}

// TestC058_UnsignedNewsIsRefused tries every way to pass off a success without
// Stripe's signature: the bill, which its card has declined, stays as it is.
func TestC058_UnsignedNewsIsRefused(t *testing.T) {
	h := newHouse(t)
	if err := h.stripe.SetCustomer("cus_acme", sim.CustomerState{Card: "insufficient_funds"}); err != nil {
		t.Fatal(err)
	}
	r := h.start(withSecret(webhookSecret))
	r.register("acme")
	if a, err := r.post(t.Context(), "/v1/commands/charge-billing?wait=60s", chargeBody("acme")); err != nil || a.Bill.Status != "declined" {
		t.Fatalf("charge: %+v, %v", a, err)
	}
	news := succeeded("evt_forged", "charge.succeeded", "acme", "ch_forged", "pi_forged")
	now := time.Now()
	var answers []string
	for what, header := range map[string]http.Header{
		"no header":                    {},
		"an empty header":              signature(""),
		"garbage":                      signature("garbage"),
		"no signature in it":           signature("t=" + strconv.FormatInt(now.Unix(), 10)),
		"another secret":               signature(signed(news, now, "whsec_other")),
		"the empty secret":             signature(signed(news, now, "")),
		"another body":                 signature(signed(news+" ", now, webhookSecret)),
		"the header twice":             signature(signed(news, now, webhookSecret), signed(news, now, webhookSecret)),
		"an hour ago":                  signature(signed(news, now.Add(-time.Hour), webhookSecret)),
		"an hour ahead":                signature(signed(news, now.Add(time.Hour), webhookSecret)),
		"a bearer token instead of it": {"Authorization": {"Bearer " + webhookSecret}},
	} {
		status, body := r.deliver(news, header)
		if status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", what, status, body)
		}
		var p struct{ Code, Detail string }
		if err := json.Unmarshal([]byte(body), &p); err != nil {
			t.Fatalf("%s: %v in %s", what, err, body)
		}
		answers = append(answers, p.Code+p.Detail)
	}
	for _, a := range answers[1:] {
		if a != answers[0] {
			t.Errorf("answers differ, so they tell what is wrong: %q and %q", answers[0], a)
		}
	}
	sql, id := billed("acme")
	if kept, facts := h.number(`SELECT count(*) FROM webhook_inbox`), h.number(sql, id); kept != 0 || facts != 0 {
		t.Errorf("%d events were kept and %d bills paid", kept, facts)
	}
	// The same, signed, is taken: the endpoint does work.
	if status, body := r.deliver(news, signature(signed(news, time.Now(), webhookSecret))); status != http.StatusOK {
		t.Fatalf("signed: %d %s", status, body)
	}
	await(t, "the bill is paid", func() bool { return h.number(sql, id) == 1 })
}

// TestWebhooksAreOffWithoutASecret: nothing is verified against nothing.
func TestWebhooksAreOffWithoutASecret(t *testing.T) {
	h := newHouse(t)
	r := h.start(nil)
	news := succeeded("evt_1", "charge.succeeded", "acme", "ch_1", "pi_1")
	status, body := r.deliver(news, signature(signed(news, time.Now(), "")))
	if status != http.StatusNotFound || !strings.Contains(body, `"webhooks_off"`) || !strings.Contains(body, "STRIPE_WEBHOOK_SECRET") {
		t.Errorf("got %d %s", status, body)
	}
}

// TestC091_TheCallerCannotChooseTheSecret rolls a secret: both are good for a
// time, then the old one is not. What a caller says about secrets is not heard.
func TestC091_TheCallerCannotChooseTheSecret(t *testing.T) {
	h := newHouse(t)
	both, after := h.start(withSecret("whsec_old,whsec_new")), h.start(withSecret("whsec_new"))
	n := 0
	try := func(r *replica, want int, what string, secrets ...string) {
		t.Helper()
		n++
		news := succeeded(fmt.Sprintf("evt_%d", n), "charge.succeeded", "acme", "ch_1", "pi_1")
		header := signature(signed(news, time.Now(), secrets...))
		header.Set("X-Stripe-Secret", "whsec_mine")
		header.Set("Stripe-Webhook-Secret", "whsec_mine")
		header.Set("X-Webhook-Secret", "whsec_mine")
		header.Set("Stripe-Signature-Algorithm", "none")
		if status, body := r.deliver(news, header); status != want {
			t.Errorf("%s: got %d %s, want %d", what, status, body, want)
		}
	}
	try(both, http.StatusOK, "while it is rolled, by the old one", "whsec_old")
	try(both, http.StatusOK, "while it is rolled, by the new one", "whsec_new")
	try(both, http.StatusOK, "while it is rolled, by both", "whsec_old", "whsec_new")
	try(both, http.StatusBadRequest, "while it is rolled, by the caller's", "whsec_mine")
	try(both, http.StatusBadRequest, "by the whole setting", "whsec_old,whsec_new")
	try(after, http.StatusBadRequest, "afterwards, by the old one", "whsec_old")
	try(after, http.StatusOK, "afterwards, by the new one", "whsec_new")
	try(after, http.StatusOK, "afterwards, by both", "whsec_old", "whsec_new")
	try(after, http.StatusBadRequest, "afterwards, by the caller's", "whsec_mine")
	if kept := h.number(`SELECT count(*) FROM webhook_inbox`); kept != 5 {
		t.Errorf("%d events were kept, want 5", kept)
	}
}

// TestC087_TheSameNewsInTwoDialects tells ten times each, of a bill that is
// charged meanwhile, that its charge and that its intent went through; to three
// replicas at once. It is one fact.
func TestC087_TheSameNewsInTwoDialects(t *testing.T) {
	h := newHouse(t)
	replicas := []*replica{h.start(withSecret(webhookSecret)), h.start(withSecret(webhookSecret)), h.start(withSecret(webhookSecret))}
	replicas[0].register("acme")
	if a, err := replicas[0].post(t.Context(), "/v1/commands/charge-billing?wait=60s", chargeBody("acme")); err != nil || a.Bill.Status != "paid" {
		t.Fatalf("charge: %+v, %v", a, err)
	}
	m := h.stripe.Ledger()[0]
	var deliveries sync.WaitGroup
	for i := range 10 {
		for _, kind := range []string{"charge.succeeded", "payment_intent.succeeded"} {
			for k, r := range replicas {
				deliveries.Go(func() {
					// Half of them are the same event again, half say the same under an id of their own.
					event := "evt_" + strings.ReplaceAll(kind, ".", "")
					if i%2 == 1 {
						event += fmt.Sprintf("%d%d", i, k)
					}
					news := succeeded(event, kind, "acme", m.Charge, m.Intent)
					if status, body := r.deliver(news, signature(signed(news, time.Now(), webhookSecret))); status != http.StatusOK {
						t.Errorf("%s: %d %s", kind, status, body)
					}
				})
			}
		}
	}
	deliveries.Wait()
	await(t, "everything is applied", func() bool { return h.number(`SELECT count(*) FROM webhook_inbox WHERE state <> 'applied'`) == 0 })
	if n := h.number(`SELECT count(*) FROM webhook_inbox`); n != 2+2*5*3 {
		t.Errorf("%d events were kept", n)
	}
	sql, id := billed("acme")
	if n := h.number(sql, id); n != 1 {
		t.Errorf("%d billed facts", n)
	}
	if n := h.number(`SELECT count(*) FROM events WHERE event_type IN ('charge.outcome_surprise.v1', 'refund.proposed.v1')`); n != 0 {
		t.Errorf("%d surprises or proposals", n)
	}
}

// TestC088_NewsBeforeTheAnswer lets Stripe deliver the success before it
// answers the confirm, and for half of the customers never answer. No bill is
// left behind, and none is charged twice.
func TestC088_NewsBeforeTheAnswer(t *testing.T) {
	h := newHouse(t)
	r := h.start(withSecret(webhookSecret))
	// A front of our own, since the stand-in must know the address before it starts.
	var taken atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		payload, _ := io.ReadAll(req.Body)
		status, body := r.deliver(string(payload), req.Header)
		if taken.Add(1); status != http.StatusOK {
			t.Errorf("a delivery got %d %s", status, body)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(front.Close)
	if err := h.stripe.SetWebhook(front.URL, webhookSecret); err != nil {
		t.Fatal(err)
	}
	if _, err := h.stripe.AddWebhookRule(sim.WebhookRule{Fault: sim.WebhookBeforeAnswer, Times: -1}); err != nil {
		t.Fatal(err)
	}
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = fmt.Sprintf("acme%02d", i)
		r.register(ids[i])
		if i%2 == 1 {
			if _, err := h.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/confirm", Customer: "cus_" + ids[i]}, Kind: sim.CommitThenHang, Times: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range ids {
		if a, err := r.post(t.Context(), "/v1/commands/charge-billing", chargeBody(id)); err != nil || a.Status >= 300 {
			t.Fatalf("charge %s: %+v, %v", id, a, err)
		}
	}
	await(t, "all rows are succeeded", func() bool {
		return h.number(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == len(ids)
	})
	await(t, "all news is applied", func() bool {
		return h.stripe.WebhooksIdle() && h.number(`SELECT count(*) FROM webhook_inbox WHERE state NOT IN ('applied', 'unknown_kind')`) == 0
	})
	for _, id := range ids {
		sql, arg := billed(id)
		if charges, facts := h.charges(id), h.number(sql, arg); len(charges) != 1 || facts != 1 {
			t.Errorf("%s: charges %v, %d billed facts", id, charges, facts)
		}
	}
	if n := h.number(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND payload->>'source' = 'webhook'`); n == 0 {
		t.Errorf("no bill was paid by news, of %d deliveries", taken.Load())
	}
}

// TestNewsOfOtherVersionsAndAccounts: another API version is counted and
// applied; an event of a connected account, one of live money beside a test key,
// and one of a kind that nobody acts on, are kept and not applied.
func TestNewsOfOtherVersionsAndAccounts(t *testing.T) {
	h := newHouse(t)
	r := h.start(withSecret(webhookSecret))
	deliver := func(news string) {
		t.Helper()
		if status, body := r.deliver(news, signature(signed(news, time.Now(), webhookSecret))); status != http.StatusOK {
			t.Fatalf("got %d %s", status, body)
		}
	}
	deliver(strings.Replace(succeeded("evt_a", "charge.succeeded", "other", "ch_a", "pi_a"), "2023-10-16", "2020-08-27", 1))
	deliver(strings.Replace(succeeded("evt_b", "charge.succeeded", "foreign", "ch_b", "pi_b"), `"object":"event"`, `"object":"event","account":"acct_foreign"`, 1))
	deliver(strings.Replace(succeeded("evt_c", "charge.succeeded", "third", "ch_c", "pi_c"), `"type":"charge.succeeded"`, `"type":"invoice.paid"`, 1))
	deliver(strings.Replace(succeeded("evt_d", "charge.succeeded", "live", "ch_d", "pi_d"), `"livemode":false`, `"livemode":true`, 1))
	november, never := domain.PeriodOf(domain.Monthly, 2026, 11), domain.PeriodOf(domain.Monthly, 9999, 12)
	deliver(strings.NewReplacer(november.String(), never.String(), string(domain.ChargeKey("far", november, 1)), string(domain.ChargeKey("far", never, 1))).
		Replace(succeeded("evt_e", "charge.succeeded", "far", "ch_e", "pi_e")))
	await(t, "all are looked at", func() bool { return h.number(`SELECT count(*) FROM webhook_inbox WHERE state = 'received'`) == 0 })
	for id, want := range map[string]int{"other": 1, "foreign": 0, "third": 0, "live": 0, "far": 0} {
		sql, arg := billed(id)
		if n := h.number(sql, arg); n != want {
			t.Errorf("%s has %d billed facts, want %d", id, n, want)
		}
	}
	if n := h.number(`SELECT count(*) FROM webhook_inbox WHERE state = 'unknown_kind'`); n != 3 {
		t.Errorf("%d events are of unknown kinds, want 3", n)
	}
	res, err := http.Get(r.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`billonce_webhooks_total{result="other_version",type="charge.succeeded"} 1`,
		`billonce_webhooks_total{result="applied",type="charge.succeeded"} 1`,
		`billonce_webhooks_total{result="unknown_kind",type="other"} 1`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not among the metrics", want)
		}
	}
}
