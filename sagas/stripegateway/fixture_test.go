package stripegateway

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// secret stands where Stripe puts what must never come out again.
const secret = "MARKER-4242424242424242"

func anOrder() sagas.Order {
	period, err := domain.ParsePeriod("2026-11")
	if err != nil {
		panic(err)
	}
	return sagas.Order{
		CustomerID: "cust_123", Period: period, Attempt: 1, Amount: domain.Money{Minor: 2900, Currency: "usd"},
		StripeCustomerID: "cus_0001", PaymentMethodID: "pm_1", IntentNo: 1, IntentID: "pi_1",
	}
}

// object is a JSON object as Stripe would send it, to be bent by a test.
type object map[string]any

func (o object) String() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// with returns a copy with other fields.
func (o object) with(pairs ...any) object {
	c := maps.Clone(o)
	for i := 0; i < len(pairs); i += 2 {
		c[pairs[i].(string)] = pairs[i+1]
	}
	return c
}

// without returns a copy that lacks a field.
func (o object) without(name string) object {
	c := maps.Clone(o)
	delete(c, name)
	return c
}

func (o object) open() object {
	return o.with("status", "requires_payment_method", "amount_received", 0, "latest_charge", nil)
}

// anIntent is anOrder's intent after it succeeded, in the size that Stripe
// gives it.
func anIntent() object {
	return object{
		"id": "pi_1", "object": "payment_intent", "amount": 2900, "amount_capturable": 0,
		"amount_details": object{"tip": object{}}, "amount_received": 2900, "application": nil,
		"application_fee_amount": nil, "automatic_payment_methods": nil, "canceled_at": nil,
		"cancellation_reason": nil, "capture_method": "automatic", "client_secret": "pi_1_secret_" + secret,
		"confirmation_method": "automatic", "created": 1700000000, "currency": "usd", "customer": "cus_0001",
		"description": secret, "invoice": nil, "last_payment_error": nil, "latest_charge": "ch_1",
		"livemode": false, "metadata": object{
			"billing_key": "78add715f5445db3d7f8c24b1df859b6", "billing_period": "2026-11", "customer_id": "cust_123",
		},
		"next_action": nil, "on_behalf_of": nil, "payment_method": "pm_1",
		"payment_method_configuration_details": nil,
		"payment_method_options":               object{"card": object{"installments": nil, "network": nil, "request_three_d_secure": "automatic"}},
		"payment_method_types":                 []string{"card"}, "processing": nil, "receipt_email": nil,
		"review": nil, "setup_future_usage": nil, "shipping": nil, "source": nil, "statement_descriptor": nil,
		"statement_descriptor_suffix": nil, "status": "succeeded", "transfer_data": nil, "transfer_group": nil,
	}
}

// aCharge is the intent's charge.
func aCharge() object {
	return object{
		"id": "ch_1", "object": "charge", "amount": 2900, "amount_captured": 2900, "captured": true, "paid": true,
		"refunded": false, "created": 1700000001, "currency": "usd", "customer": "cus_0001", "payment_intent": "pi_1",
		"status": "succeeded", "failure_code": nil, "failure_message": nil, "metadata": anIntent()["metadata"],
		"outcome": object{"reason": nil}, "billing_details": object{"name": secret},
	}
}

// stripeError is a body with an error in Stripe's form. Every message is
// marked.
func stripeError(kind, code string, pairs ...any) string {
	e := object{"type": kind, "message": "secret " + secret}
	if code != "" {
		e["code"] = code
	}
	return fmt.Sprintf(`{"error":%s}`, e.with(pairs...))
}
