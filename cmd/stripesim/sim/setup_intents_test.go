package sim_test

import (
	"slices"
	"testing"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

func setupParams(key, method string) *stripe.SetupIntentParams {
	p := &stripe.SetupIntentParams{
		Customer: stripe.String("cus_A"), PaymentMethod: stripe.String(method), Confirm: stripe.Bool(true),
		PaymentMethodTypes: stripe.StringSlice([]string{"card"}),
	}
	p.SetIdempotencyKey(key)
	return p
}

// A SetupIntent gives a card to a customer, who can then be charged with it.
func TestSetupIntents(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	si, err := c.SetupIntents.New(setupParams("s1", "pm_card_visa"))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status", si.Status, stripe.SetupIntentStatusSucceeded)
	m, err := c.PaymentMethods.Get(si.PaymentMethod.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "attached to", m.Customer.ID, "cus_A")
	pi := create(t, c, "create")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", m.ID)); err != nil {
		t.Fatal(err)
	}

	_, err = c.SetupIntents.New(setupParams("s2", "pm_card_chargeDeclined"))
	e := stripeError(t, err, 402, "card_declined")
	equal(t, "after a decline", e.SetupIntent.Status, stripe.SetupIntentStatusRequiresPaymentMethod)

	slow, err := c.SetupIntents.New(setupParams("s3", "pm_card_authenticationRequired"))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "to be authenticated", slow.Status, stripe.SetupIntentStatusRequiresAction)
	if err := s.Authenticate(slow.ID, true); err != nil {
		t.Fatal(err)
	}
	if slow, err = c.SetupIntents.Get(slow.ID, nil); err != nil || slow.Status != stripe.SetupIntentStatusSucceeded {
		t.Errorf("authenticated: %v, %v", slow.Status, err)
	}
	_, err = c.SetupIntents.Confirm(slow.ID, &stripe.SetupIntentConfirmParams{})
	stripeError(t, err, 400, "setup_intent_unexpected_state")

	open := &stripe.SetupIntentParams{Customer: stripe.String("cus_B")}
	open.SetIdempotencyKey("s4")
	si, err = c.SetupIntents.New(open)
	if err != nil {
		t.Fatal(err)
	}
	if si, err = c.SetupIntents.Cancel(si.ID, nil); err != nil || si.Status != stripe.SetupIntentStatusCanceled {
		t.Errorf("cancelled: %v, %v", si.Status, err)
	}
	it := c.SetupIntents.List(&stripe.SetupIntentListParams{Customer: stripe.String("cus_A")})
	n := 0
	for it.Next() {
		n++
	}
	if it.Err() != nil || n != 3 {
		t.Errorf("listed %d of the customer, want 3 (%v)", n, it.Err())
	}
	var told []string
	for _, e := range s.Events("setup_intent.*") {
		told = append(told, e.Type)
	}
	want := []string{
		"setup_intent.created", "setup_intent.succeeded", "setup_intent.created", "setup_intent.setup_failed",
		"setup_intent.created", "setup_intent.requires_action", "setup_intent.succeeded", "setup_intent.created", "setup_intent.canceled",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	before := get(t, s, "/v1/setup_intents").body
	equal(t, "restore", control(t, s, "POST", "/control/restore", snapshotOf(t, s), nil), 200)
	equal(t, "after a restore", get(t, s, "/v1/setup_intents").body, before)
	equal(t, "events after a restore", len(s.Events("setup_intent.*")), len(want))
}

// The balance transactions that objects name can be read, and add up.
func TestBalanceTransactions(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	ch, err := c.Charges.New(chargeParams("k"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Refunds.New(&stripe.RefundParams{Charge: stripe.String(ch.ID), Amount: stripe.Int64(2000)})
	if err != nil {
		t.Fatal(err)
	}
	net := func(id string) int64 {
		t.Helper()
		b, err := c.BalanceTransactions.Get(id, nil)
		if err != nil {
			t.Fatal(err)
		}
		return b.Net
	}
	equal(t, "net", net(ch.BalanceTransaction.ID)+net(r.BalanceTransaction.ID), 3000)
	if _, err := s.ChangeRefund(sim.RefundChange{Refund: r.ID, Status: "failed"}); err != nil {
		t.Fatal(err)
	}
	if r, err = c.Refunds.Get(r.ID, nil); err != nil {
		t.Fatal(err)
	}
	equal(t, "given back", net(r.FailureBalanceTransaction.ID), 2000)
	_, err = c.BalanceTransactions.Get("txn_none", nil)
	stripeError(t, err, 404, "resource_missing")
}
