package sim_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// The objects have stripe-go's fields: none that it does not know, and all that
// it reads but those listed, which belong to what this stand-in does not have.
func TestObjectsHaveTheFieldsOfStripeGo(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	refund, err := c.Refunds.New(&stripe.RefundParams{PaymentIntent: stripe.String(pi.ID)})
	if err != nil {
		t.Fatal(err)
	}
	dispute, err := s.OpenDispute(sim.Dispute{Charge: refund.Charge.ID, Status: "warning_needs_response"})
	if err != nil {
		t.Fatal(err)
	}
	setup, err := c.SetupIntents.New(setupParams("setup", "pm_card_visa"))
	if err != nil {
		t.Fatal(err)
	}
	cards := stripe.PaymentMethod{}
	var otherMethods []string
	for f := range reflect.TypeOf(cards).Fields() {
		name := tag(f)
		if f.Type.Kind() == reflect.Pointer && name != "card" && name != "billing_details" && name != "customer" {
			otherMethods = append(otherMethods, name)
		}
	}
	for path, object := range map[string]struct {
		of      any
		without []string
		more    []string // at Stripe, though stripe-go does not read them
	}{
		"/v1/payment_intents/" + pi.ID:                             {of: stripe.PaymentIntent{}},
		"/v1/charges/" + s.Ledger()[0].Charge:                      {stripe.Charge{}, []string{"authorization_code", "level3", "radar_options", "refunds", "transfer"}, []string{"destination", "dispute"}},
		"/v1/refunds/" + refund.ID:                                 {stripe.Refund{}, []string{"description", "destination_details", "failure_balance_transaction", "failure_reason", "instructions_email", "next_action"}, nil},
		"/v1/disputes/" + dispute.ID:                               {of: stripe.Dispute{}},
		"/v1/setup_intents/" + setup.ID:                            {stripe.SetupIntent{}, []string{"attach_to_self"}, nil},
		"/v1/events/" + s.Events("")[0].ID:                         {stripe.Event{}, []string{"account"}, nil},
		"/v1/balance_transactions/" + refund.BalanceTransaction.ID: {of: stripe.BalanceTransaction{}},
		"/v1/customers/cus_A":                                      {stripe.Customer{}, []string{"cash_balance", "deleted", "invoice_credit_balance", "sources", "subscriptions", "tax", "tax_ids"}, nil},
		"/v1/payment_methods/pm_1Any":                              {stripe.PaymentMethod{}, otherMethods, nil},
		"/v1/account":                                              {stripe.Account{}, []string{"company", "deleted", "external_accounts", "future_requirements", "individual", "requirements", "tos_acceptance"}, nil},
	} {
		var got map[string]any
		if err := json.Unmarshal([]byte(get(t, s, path).body), &got); err != nil {
			t.Fatal(err)
		}
		known := make(map[string]bool)
		for f := range reflect.TypeOf(object.of).Fields() {
			if name := tag(f); name != "" {
				known[name] = true
			}
		}
		for name := range got {
			if !known[name] && !slices.Contains(object.more, name) {
				t.Errorf("%s: the field %s is not Stripe's", path, name)
			}
		}
		for name := range known {
			if _, ok := got[name]; !ok && !slices.Contains(object.without, name) {
				t.Errorf("%s: no field %s", path, name)
			}
		}
	}
}

func tag(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "-" {
		return ""
	}
	return name
}
