package main

import (
	"maps"
	"net/url"
	"testing"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// A program with a key of its own cannot pay, block or falsify a bill by naming
// it: not at once, not as an intent to be confirmed, not as a legacy charge, not
// before the manifest holds the bill, and in no mode.
func TestAnotherProgramNamesABill(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	enforced := r.free(100_000)
	open, _ := r.issue(ledger.Issue{Label: "open", Grant: policy.Grant{Rules: freeRules, Mode: policy.Open}, Caps: []ledger.CapTerms{{Currency: "usd", Minor: 100_000}}})
	b := billOf(0)
	named := url.Values{"amount": {"100"}, "currency": {"usd"}, "customer": {"cus_other"}}
	for name, value := range b.form() {
		if len(name) > 8 && name[:8] == "metadata" {
			named[name] = value
		}
	}
	with := func(more url.Values) url.Values {
		form := maps.Clone(named)
		maps.Copy(form, more)
		return form
	}
	for what, key := range map[string]string{"enforce": enforced, "open": open} {
		r.post(key, "/v1/payment_intents", what+"-1", with(url.Values{"confirm": {"true"}, "off_session": {"true"}, "payment_method": {"pm_card_visa"}})).want(t, what+": at once", 403, "bill_of_a_run")
		r.post(key, "/v1/payment_intents", what+"-2", named).want(t, what+": an intent", 403, "bill_of_a_run")
		r.post(key, "/v1/charges", what+"-3", with(url.Values{"source": {"pm_card_visa"}})).want(t, what+": a legacy charge", 403, "bill_of_a_run")
	}

	run := r.run(1)
	created := r.post(run, "/v1/payment_intents", b.createKey(), b.form())
	created.want(t, "create", 200, "")
	for what, key := range map[string]string{"enforce": enforced, "open": open} {
		r.post(key, "/v1/payment_intents/"+created.ID+"/confirm", what+"-4", offSession).want(t, what+": the run's intent", 403, "bill_of_a_run")
	}
	confirmed := r.post(run, "/v1/payment_intents/"+created.ID+"/confirm", b.confirmKey(), offSession)
	confirmed.want(t, "confirm", 200, "")
	if minor, charges := r.taken(); minor != 2900 || charges != 1 {
		t.Errorf("Stripe took %d in %d charges", minor, charges)
	}
	if sum := r.books("usd"); sum.Settled != 2900 || sum.Held != 0 {
		t.Errorf("the books: %+v", sum)
	}
}

// A program with a key of its own cannot use a bill's idempotency keys, with
// whatever parameters: Stripe would answer the bill's own calls with a mismatch.
// Cancels and refunds of the bill itself go by such keys; keys that only look
// like one are anybody's.
func TestAnotherProgramUsesABillsKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	enforced := r.free(1_000_000)
	open, _ := r.issue(ledger.Issue{Label: "open", Grant: policy.Grant{Rules: freeRules, Mode: policy.Open}, Caps: []ledger.CapTerms{{Currency: "usd", Minor: 1_000_000}}})
	run, b, other := r.run(2), billOf(0), billOf(1)
	plain := url.Values{"amount": {"100"}, "currency": {"usd"}, "customer": {"cus_other"}}
	plainCharge := url.Values{"amount": {"100"}, "currency": {"usd"}, "customer": {"cus_free"}, "source": {"pm_card_visa"}}
	foreign := r.post(enforced, "/v1/payment_intents", "of another program", plain)
	foreign.want(t, "an intent of its own", 200, "")
	keys := []string{
		b.createKey(), b.confirmKey(), b.createKey() + "-2", b.createKey() + "-again-1", b.confirmKey() + "-i2", b.confirmKey() + "-anything",
		string(domain.ConfirmKey(b.customer, b.period, 2, 1, 0)), string(domain.ConfirmKey(b.customer, b.period, 8, 2, 3)),
		string(domain.CancelKey(b.customer, b.period, "pi_other")), string(domain.RefundKey(b.customer, b.period, "r1")),
	}
	for what, secret := range map[string]string{"enforce": enforced, "open": open} {
		for _, key := range keys {
			r.post(secret, "/v1/payment_intents", key, plain).want(t, what+": create under "+key, 403, "bill_of_a_run")
			r.post(secret, "/v1/payment_intents/"+foreign.ID+"/confirm", key, offSession).want(t, what+": confirm under "+key, 403, "bill_of_a_run")
			r.post(secret, "/v1/payment_intents/"+foreign.ID+"/cancel", key, nil).want(t, what+": cancel under "+key, 403, "bill_of_a_run")
			r.post(secret, "/v1/charges", key, plainCharge).want(t, what+": charge under "+key, 403, "bill_of_a_run")
		}
	}
	r.post(enforced, "/v1/charges", "0123456789abcdef0123456789abcdef", plainCharge).want(t, "a key that looks like a bill's", 200, "")

	created := r.post(run, "/v1/payment_intents", b.createKey(), b.form())
	created.want(t, "the bill's own create", 200, "")
	r.post(run, "/v1/payment_intents/"+created.ID+"/confirm", b.confirmKey(), offSession).want(t, "the bill's own confirm", 200, "")
	r.post(enforced, "/v1/payment_intents/"+created.ID+"/confirm", b.confirmKey(), offSession).want(t, "the bill's answer, asked by another", 403, "bill_of_a_run")
	refund := string(domain.RefundKey(b.customer, b.period, "r1"))
	r.post(enforced, "/v1/refunds", string(domain.RefundKey(other.customer, other.period, "r1")), url.Values{"payment_intent": {created.ID}}).
		want(t, "a refund under another bill's key", 403, "bill_of_a_run")
	r.post(enforced, "/v1/refunds", refund, url.Values{"payment_intent": {created.ID}, "amount": {"900"}}).want(t, "a refund under the bill's key", 200, "")

	abandoned := r.post(run, "/v1/payment_intents", other.createKey(), other.form())
	abandoned.want(t, "another bill's create", 200, "")
	r.post(enforced, "/v1/payment_intents/"+abandoned.ID+"/cancel", string(domain.CancelKey(other.customer, other.period, abandoned.ID)), nil).
		want(t, "its cancel", 200, "")
}
