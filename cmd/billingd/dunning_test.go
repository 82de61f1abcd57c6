package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
)

// dunned is a replica that tries declined bills again after 1, 3, 5 and 7 days.
func (h *house) dunned() *replica {
	h.t.Helper()
	return h.start(func(c *config.Config) { c.DunningDays = domain.DunningDays{1, 3, 5, 7} })
}

// poor lets the customer's confirms be declined with code, so many times; -1:
// always.
func (h *house) poor(id, code string, times int) {
	h.fault(sim.Fault{Kind: "decline", Code: code, Times: times, Match: sim.Match{Method: "POST", Path: confirms, Customer: "cus_" + id}})
}

// facts is how often the log has a fact about the customer.
func (h *house) facts(name, id string) int {
	return h.count(`SELECT count(*) FROM events WHERE event_type = $1 AND stream_id = 'customer/' || $2`, name, id)
}

// timers is how many commands are scheduled for the customer.
func (h *house) timers(id string) int {
	return h.count(`SELECT count(*) FROM scheduled_commands WHERE customer_id = $1 AND command = 'retry-charge'`, id)
}

// day lets it be the n-th day after the due day, a minute past midnight.
func (h *house) day(n int) { h.stripe.SetClock(time.Date(2026, 11, 1+n, 0, 1, 0, 0, time.UTC)) }

func (h *house) reaches(what string, want int, of func() int) {
	h.t.Helper()
	got := -1
	awaitFor(h.t, time.Minute, fmt.Sprintf("%s: %d", what, want), func() bool { got = of(); return got == want }, func() string { return fmt.Sprint(got) })
}

// A soft decline is tried again on the first day, by two replicas, once, under
// a key of its own; the bill is paid by the one charge that there is (C013).
func TestASoftDeclineIsTriedAgainOnTheNextDay(t *testing.T) {
	h := newHouse(t)
	r, _ := h.dunned(), h.dunned()
	h.poor("acme", "insufficient_funds", 1)
	r.subscribe("acme", "bolt")
	h.november()
	h.reaches("a retry is scheduled", 1, func() int { return h.timers("acme") })
	var story struct {
		Bill struct {
			Dunning struct {
				NextAttempt   int       `json:"next_attempt"`
				NextAttemptAt time.Time `json:"next_attempt_at"`
				Reason        string    `json:"reason"`
			} `json:"dunning"`
		} `json:"bill"`
	}
	if r.get("/v1/customers/acme/periods/2026-11", &story); story.Bill.Dunning.NextAttempt != 2 ||
		!story.Bill.Dunning.NextAttemptAt.Equal(time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)) || story.Bill.Dunning.Reason == "" {
		t.Errorf("the story tells of %+v", story.Bill)
	}
	h.day(1)
	awaitFor(t, time.Minute, "paid", func() bool { return r.bill("acme") == "paid" }, func() string { return r.bill("acme") })
	if charges := h.charges("acme"); len(charges) != 1 {
		t.Errorf("Stripe has the charges %v", charges)
	}
	h.reaches("no timer is left", 0, func() int { return h.timers("acme") })
	for name, want := range map[string]int{"charge.requested.v1": 2, "charge.declined.v1": 1, "dunning.scheduled.v1": 1, "customer.billed.v1": 1} {
		if n := h.facts(name, "acme"); n != want {
			t.Errorf("%d facts %s, want %d", n, name, want)
		}
	}
	if n := h.count(`SELECT count(DISTINCT payload->>'key') FROM events WHERE event_type = 'charge.requested.v1' AND stream_id = 'customer/acme'`); n != 2 {
		t.Errorf("the two attempts have %d keys", n)
	}
	// The trigger once more, and later days, change nothing.
	posts := h.posts()
	if a, err := r.post(t.Context(), "/v1/commands/retry-charge", `{"customer_id":"acme","billing_period":"2026-11","attempt":2}`); err != nil || a.Status != http.StatusConflict && a.Status != http.StatusUnprocessableEntity {
		t.Errorf("a retry of a paid bill is answered %+v, %v", a, err)
	}
	h.day(9)
	h.reaches("nothing is scheduled", 0, func() int { return h.count(`SELECT count(*) FROM scheduled_commands`) })
	if n := h.posts(); n != posts {
		t.Errorf("%d calls of a paid bill", n-posts)
	}
}

// Soft declines are tried again on the days of the schedule and no more; then
// the bill is uncollectible and the subscription delinquent, and the log has the
// reason of each decision. Hard ones are not tried again before the payment
// method changes, and then once (C080).
func TestDeclinesInThirtyDays(t *testing.T) {
	h := newHouse(t)
	r := h.dunned()
	hard := map[string]string{"stolen": "stolen_card", "pickup": "pickup_card", "expired": "expired_card"}
	soft := map[string]string{"funds": "insufficient_funds", "honor": "do_not_honor"}
	var ids []string
	for id, code := range hard {
		ids = append(ids, id)
		h.poor(id, code, 1)
	}
	for id, code := range soft {
		ids = append(ids, id)
		h.poor(id, code, -1)
	}
	r.subscribe(ids...)
	h.november()
	for id := range hard {
		h.reaches(id+" waits", 1, func() int { return h.facts("dunning.waiting.v1", id) })
	}
	for i, day := range []int{1, 3, 5, 7} {
		for id := range soft {
			h.reaches(id+" is scheduled", i+1, func() int { return h.facts("dunning.scheduled.v1", id) })
			h.reaches(id+" has a timer", 1, func() int { return h.timers(id) })
		}
		h.day(day)
		for id := range soft {
			h.reaches(id+" is declined", i+2, func() int { return h.facts("charge.declined.v1", id) })
		}
	}
	for id := range soft {
		h.reaches(id+" is uncollectible", 1, func() int { return h.facts("bill.uncollectible.v1", id) })
		if n := h.facts("subscription.delinquent.v1", id); n != 1 {
			t.Errorf("%s is delinquent %d times", id, n)
		}
	}
	h.day(29)
	h.reaches("nothing is scheduled", 0, func() int { return h.count(`SELECT count(*) FROM scheduled_commands`) })
	for id := range soft {
		if n := h.facts("charge.requested.v1", id); n != 5 || r.bill(id) != "uncollectible" {
			t.Errorf("%s was tried %d times and is %s", id, n, r.bill(id))
		}
	}
	if n := h.count(`SELECT count(*) FROM events WHERE event_type LIKE 'dunning.%' AND coalesce(payload->>'reason', '') = ''`); n != 0 {
		t.Errorf("%d decisions have no reason", n)
	}
	for id := range hard {
		if n := h.facts("charge.requested.v1", id); n != 1 {
			t.Errorf("%s was tried %d times before its card was changed", id, n)
		}
		if status := r.dispatch("change-payment-method", "card-"+id, fmt.Sprintf(`{"customer_id":%q,"payment_method_id":"pm_card_mastercard"}`, id)); status != http.StatusOK {
			t.Errorf("change of the card of %s: %d", id, status)
		}
	}
	for id := range hard {
		awaitFor(t, time.Minute, id+" is paid", func() bool { return r.bill(id) == "paid" }, func() string { return r.bill(id) })
		if n := h.facts("charge.requested.v1", id); n != 2 || len(h.charges(id)) != 1 {
			t.Errorf("%s was tried %d times, and has the charges %v", id, n, h.charges(id))
		}
	}
}

// standing is what a bill's reader is told of what comes next.
type standing struct {
	Bill struct {
		Status  string
		Dunning struct {
			Awaits string
		}
		CustomerAction struct {
			Kind     string
			IntentID string `json:"intent_id"`
		} `json:"customer_action"`
	}
}

func (r *replica) standing(id string) (s standing) {
	r.get("/v1/customers/"+id+"/periods/2026-11", &s)
	return s
}

// A payment that the bank wants authenticated waits for the customer: the bill
// names the intent, and nothing is sent meanwhile. The customer's success is
// found at Stripe, or somebody asks for another attempt; either way one charge.
func TestACustomerMustAuthenticate(t *testing.T) {
	h := newHouse(t)
	r := h.dunned()
	h.poor("acme", "authentication_required", 1)
	r.subscribe("acme")
	h.november()
	awaitFor(t, time.Minute, "it waits for the customer", func() bool { return r.standing("acme").Bill.Dunning.Awaits == "customer" })
	s := r.standing("acme")
	if s.Bill.CustomerAction.Kind != "authenticate" || s.Bill.CustomerAction.IntentID == "" {
		t.Errorf("the bill says %+v", s.Bill)
	}
	if n := h.count(`SELECT count(*) FROM events WHERE payload::text LIKE '%_secret_%' OR metadata::text LIKE '%_secret_%'`); n != 0 {
		t.Errorf("%d facts hold a client secret", n)
	}
	posts := h.posts()
	h.day(20)
	h.reaches("nothing is scheduled", 0, func() int { return h.count(`SELECT count(*) FROM scheduled_commands`) })
	if n := h.posts(); n != posts {
		t.Errorf("%d calls while the customer has not acted", n-posts)
	}
	if a, err := r.post(t.Context(), "/v1/commands/retry-charge?wait=30s", `{"customer_id":"acme","billing_period":"2026-11","attempt":2}`); err != nil || a.Bill.Status != "paid" {
		t.Errorf("the retry is answered %+v, %v", a, err)
	}
	if s := r.standing("acme"); s.Bill.CustomerAction.Kind != "" || len(h.charges("acme")) != 1 {
		t.Errorf("paid, the bill says %+v, and there are the charges %v", s.Bill, h.charges("acme"))
	}
}

// The customer authenticates on a page of the shop, which confirms the intent that
// the bill names: Stripe's news of it makes the bill paid, without a call of ours,
// and whatever else asks for the bill then finds it paid.
func TestACustomersAuthenticationIsHeardOf(t *testing.T) {
	h := newHouse(t)
	r := h.start(func(c *config.Config) {
		c.DunningDays = domain.DunningDays{1, 3, 5, 7}
		withSecret(webhookSecret)(c)
	})
	if err := h.stripe.SetWebhook(r.url+"/webhooks/stripe", webhookSecret); err != nil {
		t.Fatal(err)
	}
	if status, err := h.control(http.MethodPut, "/control/customers/cus_acme", `{"card":"authentication_required"}`); err != nil || status != http.StatusOK {
		t.Fatalf("the bank wants to see the customer: %d, %v", status, err)
	}
	r.subscribe("acme")
	h.november()
	awaitFor(t, time.Minute, "it waits for the customer", func() bool { return r.standing("acme").Bill.Dunning.Awaits == "customer" })
	intent := r.standing("acme").Bill.CustomerAction.IntentID
	ours := h.posts()

	form := url.Values{"payment_method": {"pm_card_visa"}, "return_url": {"https://shop.example/paid"}}
	page, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.stripe.APIURL+"/v1/payment_intents/"+intent+"/confirm", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	page.SetBasicAuth("sk_test_house", "")
	page.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	page.Header.Set("Idempotency-Key", "the shop's page")
	res, err := http.DefaultClient.Do(page)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if status, err := h.control(http.MethodPost, "/control/intents/"+intent+"/authenticate", `{"result":"succeed"}`); err != nil || status != http.StatusOK {
		t.Fatalf("authenticate: %d, %v; the page's confirm got %d", status, err, res.StatusCode)
	}

	awaitFor(t, time.Minute, "paid", func() bool { return r.bill("acme") == "paid" }, func() string { return r.bill("acme") })
	if n := h.number(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND payload->>'source' = 'webhook'`); n != 1 {
		t.Errorf("%d bills were paid by news", n)
	}
	if a, err := r.post(t.Context(), "/v1/commands/retry-charge?wait=30s", `{"customer_id":"acme","billing_period":"2026-11","attempt":2}`); err == nil && a.Status == http.StatusOK && a.Bill.Status != "paid" {
		t.Errorf("a retry of the paid bill is answered %+v", a)
	}
	h.day(20)
	if n := h.posts() - ours - 1; n != 0 || len(h.charges("acme")) != 1 {
		t.Errorf("%d calls of ours after the customer's, and the charges %v", n, h.charges("acme"))
	}
	if n := h.number(`SELECT (SELECT count(*) FROM events WHERE payload::text ~ '_secret_[A-Za-z0-9]') + (SELECT count(*) FROM webhook_inbox i WHERE i::text ~ '_secret_[A-Za-z0-9]')`); n != 0 {
		t.Errorf("a client secret is kept in %d places", n)
	}
}

// C084: a method that is gone from its customer, or a customer who is gone from
// Stripe, is told of once, and nothing is tried meanwhile; with another method the
// bill is paid once.
func TestC084_APaymentMethodIsGone(t *testing.T) {
	h := newHouse(t)
	r := h.dunned()
	if status, err := h.control(http.MethodPut, "/control/customers/cus_acme", `{"detached":true}`); err != nil || status != http.StatusOK {
		t.Fatalf("detach: %d, %v", status, err)
	}
	if status, err := h.control(http.MethodPut, "/control/customers/cus_bolt", `{"deleted":true}`); err != nil || status != http.StatusOK {
		t.Fatalf("delete: %d, %v", status, err)
	}
	r.subscribe("acme", "bolt")
	h.november()
	for _, id := range []string{"acme", "bolt"} {
		awaitFor(t, time.Minute, id+" waits for a method", func() bool { return r.standing(id).Bill.Dunning.Awaits == "payment_method" }, func() string { return fmt.Sprintf("%+v", r.standing(id)) })
	}
	posts := h.posts()
	h.day(20)
	h.reaches("nothing is scheduled", 0, func() int { return h.count(`SELECT count(*) FROM scheduled_commands`) })
	for _, id := range []string{"acme", "bolt"} {
		if n := h.facts("dunning.waiting.v1", id); n != 1 || h.posts() != posts {
			t.Errorf("%s: it was said %d times that a method is needed; %d calls meanwhile", id, n, h.posts()-posts)
		}
	}
	if status, err := h.control(http.MethodPut, "/control/customers/cus_acme", `{"card":"good"}`); err != nil || status != http.StatusOK {
		t.Fatalf("attach: %d, %v", status, err)
	}
	if status := r.dispatch("change-payment-method", "new-card", `{"customer_id":"acme","payment_method_id":"pm_card_mastercard"}`); status != http.StatusOK {
		t.Fatalf("change of the card: %d", status)
	}
	awaitFor(t, time.Minute, "paid", func() bool { return r.bill("acme") == "paid" }, func() string { return r.bill("acme") })
	if charges := h.charges("acme"); len(charges) != 1 {
		t.Errorf("Stripe has the charges %v", charges)
	}
	if charges := h.charges("bolt"); len(charges) != 0 || r.standing("bolt").Bill.Dunning.Awaits != "payment_method" {
		t.Errorf("bolt, who is gone, has the charges %v and stands as %+v", charges, r.standing("bolt"))
	}
}

// After a cancellation with immediate effect nothing is sent for the bill, and
// its timer is gone (C046).
func TestNoAttemptAfterACancellation(t *testing.T) {
	h := newHouse(t)
	r := h.dunned()
	h.poor("acme", "insufficient_funds", 1)
	r.subscribe("acme")
	h.november()
	h.reaches("a retry is scheduled", 1, func() int { return h.timers("acme") })
	if status := r.dispatch("cancel-subscription", "leaves", `{"customer_id":"acme","at":"now"}`); status != http.StatusOK {
		t.Fatalf("cancel: %d", status)
	}
	awaitFor(t, time.Minute, "void", func() bool { return r.bill("acme") == "void" }, func() string { return r.bill("acme") })
	h.reaches("the timer is cancelled", 0, func() int { return h.timers("acme") })
	posts := h.posts()
	h.day(10)
	r.command("register-customer", `{"customer_id":"later","stripe_customer_id":"cus_later","payment_method_id":"pm_card_visa"}`)
	if n := h.facts("charge.requested.v1", "acme"); n != 1 || h.posts() != posts || len(h.charges("acme")) != 0 {
		t.Errorf("%d attempts, %d calls after the cancellation, the charges %v", n, h.posts()-posts, h.charges("acme"))
	}
}

// C046: people settle bills and cancel subscriptions at the very moment at which
// the next attempt is made. Whoever comes first, Stripe takes a bill's money at
// most once; what ended before its attempt left is not charged, and what was
// charged after all is known as paid.
func TestC046_BillsEndWhileTheirRetriesFire(t *testing.T) {
	h := newHouse(t)
	r := h.start(func(c *config.Config) {
		c.DunningDays = domain.DunningDays{1, 3, 5, 7}
		twoTokens(t)(c)
	})
	r.token = "operator"
	ids := make([]string, 10)
	for i := range ids {
		ids[i] = fmt.Sprint("c", i)
		h.poor(ids[i], "insufficient_funds", 1)
	}
	r.subscribe(ids...)
	h.november()
	for _, id := range ids {
		h.reaches("a retry of "+id+" is scheduled", 1, func() int { return h.timers(id) })
	}
	var people sync.WaitGroup
	people.Go(func() { h.day(1) })
	for i, id := range ids {
		people.Go(func() {
			if i >= len(ids)/2 { // some come when the next attempt has just been asked for
				awaitFor(t, time.Minute, id+" is tried again", func() bool { return h.facts("charge.requested.v1", id) == 2 })
			}
			if i%2 == 0 {
				r.dispatch("settle-billing", "wire-"+id, fmt.Sprintf(`{"customer_id":%q,"billing_period":"2026-11","reference":"wire"}`, id))
			} else {
				r.dispatch("cancel-subscription", "leaves-"+id, fmt.Sprintf(`{"customer_id":%q,"at":"now"}`, id))
			}
		})
	}
	people.Wait()
	for _, id := range ids {
		status := ""
		awaitFor(t, time.Minute, id+" has ended", func() bool {
			var s standing
			_ = json.Unmarshal([]byte(r.read("/v1/customers/"+id+"/periods/2026-11")), &s)
			status = s.Bill.Status
			return status == "paid" || status == "settled" || status == "void"
		}, func() string { return status })
		h.reaches("nothing is scheduled for "+id, 0, func() int { return h.timers(id) })
		charges := h.charges(id)
		if paid := status == "paid"; len(charges) > 1 || paid != (len(charges) == 1) {
			t.Errorf("%s is %s, and Stripe has the charges %v", id, status, charges)
		}
	}
}

// control speaks to the stand-in.
func (h *house) control(method, path, body string) (status int, err error) {
	req, err := http.NewRequestWithContext(h.t.Context(), method, h.stripe.ControlURL+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// An operator stops the dunning of a bill, and lets it be tried again at
// another time; the timer of its token goes and comes with that.
func TestAnOperatorSteersTheDunning(t *testing.T) {
	h := newHouse(t)
	r := h.start(func(c *config.Config) {
		c.DunningDays = domain.DunningDays{1, 3, 5, 7}
		twoTokens(t)(c)
	})
	r.token = "operator"
	h.poor("acme", "insufficient_funds", 1)
	r.subscribe("acme")
	h.november()
	h.reaches("a retry is scheduled", 1, func() int { return h.timers("acme") })
	if status := r.dispatch("stop-dunning", "k1", `{"customer_id":"acme","billing_period":"2026-11","reason":"pays by wire"}`); status != http.StatusOK {
		t.Fatalf("stop: %d", status)
	}
	h.reaches("its timer is cancelled", 0, func() int { return h.timers("acme") })
	if status := r.dispatch("reschedule-dunning", "k2", `{"customer_id":"acme","billing_period":"2026-11","at":"2026-11-20T09:00:00Z","reason":"no wire came"}`); status != http.StatusOK {
		t.Fatalf("reschedule: %d", status)
	}
	h.reaches("it is scheduled", 1, func() int {
		return h.count(`SELECT count(*) FROM scheduled_commands WHERE token = 'dunning/acme/2026-11' AND due_at = '2026-11-20T09:00:00Z'`)
	})
	h.day(20)
	h.reaches("paid", 1, func() int { return h.facts("customer.billed.v1", "acme") })
	if n := h.facts("charge.requested.v1", "acme"); n != 2 || len(h.charges("acme")) != 1 {
		t.Errorf("%d attempts, the charges %v", n, h.charges("acme"))
	}
}
