package sim_test

import (
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

func chargeParams(key string) *stripe.ChargeParams {
	p := &stripe.ChargeParams{Amount: stripe.Int64(5000), Currency: stripe.String("usd"), Customer: stripe.String("cus_A")}
	p.AddMetadata("billing_key", "b1")
	p.SetIdempotencyKey(key)
	return p
}

func TestLegacyCharge(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	ch, err := c.Charges.New(chargeParams("k"))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status", ch.Status, stripe.ChargeStatusSucceeded)
	equal(t, "customer", ch.Customer.ID, "cus_A")
	equal(t, "metadata", ch.Metadata["billing_key"], "b1")
	got, err := c.Charges.Get(ch.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "amount", got.Amount, 5000)

	p := chargeParams("declined")
	p.Source = &stripe.PaymentSourceSourceParams{Token: stripe.String("tok_visa_chargeDeclinedInsufficientFunds")}
	_, err = c.Charges.New(p)
	e := stripeError(t, err, 402, "card_declined")
	failed, err := c.Charges.Get(e.ChargeID, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "failed status", failed.Status, stripe.ChargeStatusFailed)
	equal(t, "failed metadata", failed.Metadata["billing_key"], "b1")
	_, err = c.Charges.Get("ch_none", nil)
	stripeError(t, err, 404, "resource_missing")
	equal(t, "taken", taken(s), 1)
}

// The third charge of the customer with this card goes through.
func TestLegacyChargeAtTheThirdAttempt(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	for n := 1; n <= 3; n++ {
		p := chargeParams(keyN(n))
		p.Source = &stripe.PaymentSourceSourceParams{Token: stripe.String("pm_sim_declines_n_3_insufficient_funds")}
		_, err := c.Charges.New(p)
		equal(t, "succeeded", err == nil, n == 3)
	}
	equal(t, "taken", taken(s), 1)
}

func TestCustomers(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{Settings: sim.Settings{RefuseUnknownCustomers: true}})
	p := &stripe.CustomerParams{Name: stripe.String("Ann"), PaymentMethod: stripe.String("pm_card_chargeCustomerFail")}
	p.SetIdempotencyKey("k")
	ann, err := c.Customers.New(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Customers.New(&stripe.CustomerParams{}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Customers.Get(ann.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "name", got.Name, "Ann")
	// Without a source the default card is charged: the one that declines.
	cp := chargeParams("declined")
	cp.Customer = stripe.String(ann.ID)
	_, err = c.Charges.New(cp)
	stripeError(t, err, 402, "card_declined")

	_, err = c.Customers.Get("cus_nobody", nil)
	stripeError(t, err, 404, "resource_missing")
	gone, err := c.Customers.Del(ann.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "deleted", gone.Deleted, true)
	if got, err = c.Customers.Get(ann.ID, nil); err != nil || !got.Deleted {
		t.Errorf("a deleted customer reads as %+v, %v", got, err)
	}
	_, err = c.Charges.New(cp) // the stored decline, byte for byte, although the customer is gone
	stripeError(t, err, 402, "card_declined")
	cp.SetIdempotencyKey("another")
	_, err = c.Charges.New(cp)
	stripeError(t, err, 400, "resource_missing")
	n := 0
	for it := c.Customers.List(&stripe.CustomerListParams{}); it.Next(); n++ {
	}
	equal(t, "listed", n, 1)
	equal(t, "taken", taken(s), 0)
}

func TestUnknownCustomersExist(t *testing.T) {
	t.Parallel()
	_, c := start(t, sim.Options{})
	got, err := c.Customers.Get("cus_demo_1", nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "id", got.ID, "cus_demo_1")
	_, err = c.Customers.Get("customer_1", nil)
	stripeError(t, err, 404, "resource_missing")
}

func TestPaymentMethods(t *testing.T) {
	t.Parallel()
	_, c := start(t, sim.Options{})
	attach := func(id, customer string) (*stripe.PaymentMethod, error) {
		return c.PaymentMethods.Attach(id, &stripe.PaymentMethodAttachParams{Customer: stripe.String(customer)})
	}
	pm, err := attach("pm_card_chargeCustomerFail", "cus_A")
	if err != nil {
		t.Fatal(err)
	}
	if pm.ID == "pm_card_chargeCustomerFail" || pm.Customer.ID != "cus_A" {
		t.Errorf("attached as %s to %v: an alias becomes a method of its own", pm.ID, pm.Customer)
	}
	got, err := c.PaymentMethods.Get(pm.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "customer", got.Customer.ID, "cus_A")
	_, err = attach("pm_card_visa_chargeDeclined", "cus_A")
	stripeError(t, err, 402, "card_declined")
	_, err = attach(pm.ID, "cus_B")
	stripeError(t, err, 400, "payment_method_unexpected_state")

	pi := create(t, c, "create")
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("a", pm.ID))
	stripeError(t, err, 402, "card_declined")
	other := createParams("create-B")
	other.Customer = stripe.String("cus_B")
	piB, err := c.PaymentIntents.New(other)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.PaymentIntents.Confirm(piB.ID, confirmParams("b", pm.ID))
	equal(t, "param", stripeError(t, err, 400, "").Param, "payment_method")

	good, err := attach("pm_1SomeCard", "cus_A")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "id of an unknown method", good.ID, "pm_1SomeCard")
	if _, err := c.PaymentMethods.Detach(good.ID, nil); err != nil {
		t.Fatal(err)
	}
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("c", good.ID))
	stripeError(t, err, 400, "payment_method_unexpected_state")
	_, err = attach(good.ID, "cus_A")
	stripeError(t, err, 400, "payment_method_unexpected_state")
}

func TestRefunds(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	refund := func(key string, amount int64) (*stripe.Refund, error) {
		p := &stripe.RefundParams{PaymentIntent: stripe.String(pi.ID)}
		if amount > 0 {
			p.Amount = stripe.Int64(amount)
		}
		p.SetIdempotencyKey(key)
		return c.Refunds.New(p)
	}
	first, err := refund("r1", 2000)
	if err != nil {
		t.Fatal(err)
	}
	again, err := refund("r1", 2000)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "refund under the same key", again.ID, first.ID)
	_, err = refund("r2", 3001)
	stripeError(t, err, 400, "")
	if _, err := refund("r3", 0); err != nil { // the rest
		t.Fatal(err)
	}
	_, err = refund("r4", 0)
	stripeError(t, err, 400, "charge_already_refunded")
	equal(t, "refunded", s.Ledger()[0].Refunded, 5000)
	n := 0
	for it := c.Refunds.List(&stripe.RefundListParams{PaymentIntent: stripe.String(pi.ID)}); it.Next(); n++ {
	}
	equal(t, "refunds", n, 2)
	ch, _ := c.Charges.Get(s.Ledger()[0].Charge, nil)
	equal(t, "charge refunded", ch.Refunded, true)
}

// A charge nobody asked for is found by lists, and by search when it is old.
func TestPlantedCharge(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	create(t, c, "create")
	m, err := s.PlantCharge(sim.Plant{
		Customer: "cus_A", Amount: 5000, Currency: "usd", Created: s.Now().Add(-time.Hour),
		Metadata: map[string]string{"billing_key": "b1"}, WithIntent: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "planted", m.Planted, true)
	it := c.Charges.List(&stripe.ChargeListParams{Customer: stripe.String("cus_A")})
	if !it.Next() || it.Charge().ID != m.Charge || it.Charge().Metadata["billing_key"] != "b1" {
		t.Errorf("list shows %+v", it.Charge())
	}
	ids := intentIDs(t, c, &stripe.PaymentIntentListParams{})
	if len(ids) != 2 || ids[1] != m.Intent {
		t.Errorf("intents %v: the planted one is the older one", ids)
	}
	if _, err := s.PlantCharge(sim.Plant{Customer: "cus_A", Amount: 1, Currency: "usd"}); err == nil {
		t.Error("an amount below the minimum was planted")
	}
}
