package main

import (
	"maps"
	"net/url"
	"testing"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
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
