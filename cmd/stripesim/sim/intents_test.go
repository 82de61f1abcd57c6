package sim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// The way of a bill: an unconfirmed intent, one confirm, money once.
func TestIntentIsCreatedThenConfirmed(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	equal(t, "status", pi.Status, stripe.PaymentIntentStatusRequiresPaymentMethod)
	equal(t, "movements after create", len(s.Ledger()), 0)
	if !strings.HasPrefix(pi.ID, "pi_") || !strings.HasPrefix(pi.ClientSecret, pi.ID+"_secret_") || pi.Livemode || pi.LatestCharge != nil {
		t.Errorf("not like a fresh intent: %+v", pi)
	}

	paid, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("confirm", "pm_card_visa"))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status", paid.Status, stripe.PaymentIntentStatusSucceeded)
	equal(t, "amount received", paid.AmountReceived, 5000)
	equal(t, "customer", paid.Customer.ID, "cus_A")
	equal(t, "metadata", paid.Metadata["billing_period"], "2026-11")
	if paid.PaymentMethod == nil || !strings.HasPrefix(paid.PaymentMethod.ID, "pm_") || paid.PaymentMethod.ID == "pm_card_visa" {
		t.Errorf("payment method %v: an alias becomes a method of its own", paid.PaymentMethod)
	}

	ledger := s.Ledger()
	if len(ledger) != 1 {
		t.Fatalf("%d movements, want 1", len(ledger))
	}
	m := ledger[0]
	equal(t, "charge", m.Charge, paid.LatestCharge.ID)
	equal(t, "ledger amount", m.Amount, 5000)
	equal(t, "ledger key", m.Key, "confirm")
	equal(t, "ledger intent", m.Intent, pi.ID)
	equal(t, "ledger period", m.Metadata["billing_period"], "2026-11")

	ch, err := c.Charges.Get(m.Charge, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "charge paid", ch.Paid && ch.Captured, true)
	equal(t, "charge metadata", ch.Metadata["customer_id"], "A")
	equal(t, "charge intent", ch.PaymentIntent.ID, pi.ID)
}

// One intent succeeds once, for ever, whatever key comes with it.
func TestIntentSucceedsOnce(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("one", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	s.Advance(72 * time.Hour)
	for _, key := range []string{"two", "one"} { // the first key is forgotten by now
		_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams(key, "pm_card_visa"))
		e := stripeError(t, err, 400, "payment_intent_unexpected_state")
		if e.PaymentIntent == nil || e.PaymentIntent.ID != pi.ID || e.PaymentIntent.Status != stripe.PaymentIntentStatusSucceeded {
			t.Errorf("the error does not show the intent: %+v", e.PaymentIntent)
		}
		if !strings.Contains(e.Msg, "already succeeded") {
			t.Errorf("the message does not say that it was paid: %s", e.Msg)
		}
	}
	equal(t, "taken", taken(s), 1)
}

// A decline is a 402 that shows the intent, leaves a failed charge with the
// markers, and keeps the intent open for the next attempt.
func TestIntentDeclined(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("attempt-1", "pm_card_visa_chargeDeclinedInsufficientFunds"))
	e := stripeError(t, err, 402, "card_declined")
	equal(t, "type", e.Type, stripe.ErrorTypeCard)
	equal(t, "decline code", e.DeclineCode, stripe.DeclineCodeInsufficientFunds)
	if e.PaymentIntent == nil || e.PaymentIntent.Status != stripe.PaymentIntentStatusRequiresPaymentMethod {
		t.Fatalf("the error shows %+v", e.PaymentIntent)
	}
	equal(t, "charge of the error", e.ChargeID, e.PaymentIntent.LatestCharge.ID)
	equal(t, "last error", e.PaymentIntent.LastPaymentError.DeclineCode, stripe.DeclineCodeInsufficientFunds)

	failed, err := c.Charges.Get(e.ChargeID, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "charge status", failed.Status, stripe.ChargeStatusFailed)
	equal(t, "charge failure", failed.FailureCode, "card_declined")
	equal(t, "charge paid", failed.Paid, false)
	equal(t, "charge metadata", failed.Metadata["billing_period"], "2026-11")

	// The same key keeps declining; a new one may succeed.
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("attempt-1", "pm_card_visa_chargeDeclinedInsufficientFunds"))
	stripeError(t, err, 402, "card_declined")
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("attempt-2", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	ledger := s.Ledger()
	equal(t, "movements", len(ledger), 2)
	equal(t, "first", ledger[0].Status, "failed")
	equal(t, "second", ledger[1].Status, "succeeded")
}

// Which code a test card declines with, and as which error code.
func TestTestCards(t *testing.T) {
	t.Parallel()
	for method, want := range map[string][2]string{
		"pm_card_chargeCustomerFail":                       {"card_declined", "generic_decline"},
		"pm_card_visa_chargeDeclined":                      {"card_declined", "generic_decline"},
		"pm_card_visa_chargeDeclinedLostCard":              {"card_declined", "lost_card"},
		"pm_card_visa_chargeDeclinedStolenCard":            {"card_declined", "stolen_card"},
		"pm_card_chargeDeclinedExpiredCard":                {"expired_card", "expired_card"},
		"pm_card_chargeDeclinedProcessingError":            {"processing_error", "processing_error"},
		"pm_card_visa_chargeDeclinedVelocityLimitExceeded": {"card_declined", "card_velocity_exceeded"},
		"pm_card_authenticationRequired":                   {"authentication_required", "authentication_required"},
		"pm_sim_declines_do_not_honor":                     {"card_declined", "do_not_honor"},
		"pm_card_mastercard":                               {},
		"pm_card_authenticationRequiredSetupForOffSession": {},
		"pm_1Nobody": {},
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			_, c := start(t, sim.Options{})
			_, err := c.PaymentIntents.Confirm(create(t, c, "create").ID, confirmParams("k", method))
			if want[0] == "" {
				if err != nil {
					t.Fatalf("declined: %v", err)
				}
				return
			}
			e := stripeError(t, err, 402, want[0])
			equal(t, "decline code", string(e.DeclineCode), want[1])
		})
	}
}

func TestUnknownTestCards(t *testing.T) {
	t.Parallel()
	_, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	for i, method := range []string{"pm_card_nosuch", "pm_sim_declines_n_x_lost_card", "pm_sim_declines_until_2026_lost_card", "pm_sim_processing_soon_succeeds", "tok_visa", "pm_"} {
		_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams(keyN(i), method))
		stripeError(t, err, 400, "resource_missing")
	}
}

// The n-th attempt succeeds; the intent is the same all the way.
func TestCardThatSucceedsAtTheThirdAttempt(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	for n := 1; n <= 3; n++ {
		_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams(keyN(n), "pm_sim_declines_n_3_insufficient_funds"))
		if n < 3 {
			stripeError(t, err, 402, "card_declined")
		} else if err != nil {
			t.Errorf("attempt %d: %v", n, err)
		}
	}
	equal(t, "taken", taken(s), 1)
	equal(t, "movements", len(s.Ledger()), 3)
}

func TestCardThatDeclinesUntilADay(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{Clock: time.Date(2026, 11, 4, 23, 0, 0, 0, time.UTC)})
	pi := create(t, c, "create")
	const method = "pm_sim_declines_until_20261105_insufficient_funds"
	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("a", method))
	stripeError(t, err, 402, "card_declined")
	s.Advance(2 * time.Hour)
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("b", method)); err != nil {
		t.Error(err)
	}
}

// Processing is neither paid nor failed, until its time is over.
func TestProcessing(t *testing.T) {
	t.Parallel()
	for end, want := range map[string]stripe.PaymentIntentStatus{
		"succeeds":           stripe.PaymentIntentStatusSucceeded,
		"insufficient_funds": stripe.PaymentIntentStatusRequiresPaymentMethod,
	} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			s, c := start(t, sim.Options{})
			pi := create(t, c, "create")
			under, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_sim_processing_2h_"+end))
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "status", under.Status, stripe.PaymentIntentStatusProcessing)
			equal(t, "ledger while processing", s.Ledger()[0].Status, "pending")
			_, err = c.PaymentIntents.Cancel(pi.ID, &stripe.PaymentIntentCancelParams{})
			stripeError(t, err, 400, "payment_intent_unexpected_state")
			s.Advance(3 * time.Hour)
			after, err := c.PaymentIntents.Get(pi.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "status afterwards", after.Status, want)
			equal(t, "taken", taken(s) == 1, end == "succeeds")
			equal(t, "movements", len(s.Ledger()), 1)
		})
	}
}

// On-session, the customer is asked; off-session or with
// error_on_requires_action, the attempt fails.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	confirm := func(key string, change func(*stripe.PaymentIntentConfirmParams)) (string, *stripe.PaymentIntent, error) {
		pi := create(t, c, "create-"+key)
		p := confirmParams(key, "pm_card_authenticationRequired")
		p.OffSession = nil
		change(p)
		got, err := c.PaymentIntents.Confirm(pi.ID, p)
		return pi.ID, got, err
	}
	for key, passed := range map[string]bool{"passes": true, "fails": false} {
		id, pi, err := confirm(key, func(*stripe.PaymentIntentConfirmParams) {})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "status", pi.Status, stripe.PaymentIntentStatusRequiresAction)
		if pi.NextAction == nil || pi.NextAction.Type != stripe.PaymentIntentNextActionTypeUseStripeSDK {
			t.Errorf("next action %+v", pi.NextAction)
		}
		if err := s.Authenticate(id, passed); err != nil {
			t.Fatal(err)
		}
		after, _ := c.PaymentIntents.Get(id, nil)
		want := stripe.PaymentIntentStatusRequiresPaymentMethod
		if passed {
			want = stripe.PaymentIntentStatusSucceeded
		}
		equal(t, "status after "+key, after.Status, want)
	}
	equal(t, "taken", taken(s), 1)

	_, _, err := confirm("error", func(p *stripe.PaymentIntentConfirmParams) { p.ErrorOnRequiresAction = stripe.Bool(true) })
	stripeError(t, err, 402, "authentication_required")
	_, _, err = confirm("off", func(p *stripe.PaymentIntentConfirmParams) { p.OffSession = stripe.Bool(true) })
	e := stripeError(t, err, 402, "authentication_required")
	equal(t, "decline code", e.DeclineCode, "authentication_required")
	if err := s.Authenticate("pi_none", true); err == nil {
		t.Error("an intent that does not exist was authenticated")
	}
}

func TestCreateAndConfirmAtOnce(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	p := createParams("k")
	p.Confirm, p.OffSession, p.PaymentMethod = stripe.Bool(true), stripe.Bool(true), stripe.String("pm_card_visa")
	p.AddExpand("latest_charge")
	pi, err := c.PaymentIntents.New(p)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status", pi.Status, stripe.PaymentIntentStatusSucceeded)
	equal(t, "expanded charge amount", pi.LatestCharge.Amount, 5000)

	p = createParams("k2")
	p.Confirm, p.OffSession, p.PaymentMethod = stripe.Bool(true), stripe.Bool(true), stripe.String("pm_card_chargeCustomerFail")
	_, err = c.PaymentIntents.New(p)
	e := stripeError(t, err, 402, "card_declined")
	if _, err := c.PaymentIntents.Get(e.PaymentIntent.ID, nil); err != nil {
		t.Errorf("the intent of a declined create is gone: %v", err)
	}
	equal(t, "taken", taken(s), 1)

	p = createParams("k3")
	p.Confirm = stripe.Bool(true)
	_, err = c.PaymentIntents.New(p)
	stripeError(t, err, 400, "payment_intent_unexpected_state")
}

func TestCancel(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	gone, err := c.PaymentIntents.Cancel(pi.ID, &stripe.PaymentIntentCancelParams{CancellationReason: stripe.String("duplicate")})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status", gone.Status, stripe.PaymentIntentStatusCanceled)
	equal(t, "reason", gone.CancellationReason, stripe.PaymentIntentCancellationReasonDuplicate)
	if gone.CanceledAt == 0 {
		t.Error("no canceled_at")
	}
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
	e := stripeError(t, err, 400, "payment_intent_unexpected_state")
	equal(t, "status in the error", e.PaymentIntent.Status, stripe.PaymentIntentStatusCanceled)
	equal(t, "movements", len(s.Ledger()), 0)

	paid := create(t, c, "create-2")
	if _, err := c.PaymentIntents.Confirm(paid.ID, confirmParams("k2", "pm_card_visa")); err != nil {
		t.Fatal(err)
	}
	_, err = c.PaymentIntents.Cancel(paid.ID, &stripe.PaymentIntentCancelParams{})
	e = stripeError(t, err, 400, "payment_intent_unexpected_state")
	equal(t, "status of a paid one", e.PaymentIntent.Status, stripe.PaymentIntentStatusSucceeded)
	_, err = c.PaymentIntents.Cancel(pi.ID, &stripe.PaymentIntentCancelParams{CancellationReason: stripe.String("because")})
	stripeError(t, err, 400, "")
}

func TestManualCapture(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	authorise := func(key string) *stripe.PaymentIntent {
		p := createParams(key)
		p.CaptureMethod, p.Confirm, p.PaymentMethod = stripe.String("manual"), stripe.Bool(true), stripe.String("pm_card_visa")
		pi, err := c.PaymentIntents.New(p)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "status", pi.Status, stripe.PaymentIntentStatusRequiresCapture)
		return pi
	}
	pi := authorise("a")
	equal(t, "ledger before capture", s.Ledger()[0].Status, "authorized")
	_, err := c.PaymentIntents.Capture(pi.ID, &stripe.PaymentIntentCaptureParams{AmountToCapture: stripe.Int64(5001)})
	stripeError(t, err, 400, "amount_too_large")
	got, err := c.PaymentIntents.Capture(pi.ID, &stripe.PaymentIntentCaptureParams{AmountToCapture: stripe.Int64(3000)})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "received", got.AmountReceived, 3000)
	m := s.Ledger()[0]
	equal(t, "ledger", fmt.Sprintf("%s %d %d", m.Status, m.Amount, m.Refunded), "succeeded 5000 2000")

	pi = authorise("b")
	if _, err := c.PaymentIntents.Cancel(pi.ID, &stripe.PaymentIntentCancelParams{}); err != nil {
		t.Fatal(err)
	}
	m = s.Ledger()[1]
	equal(t, "given back", fmt.Sprintf("%s %d", m.Status, m.Refunded), "released 5000")
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	_, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	p := &stripe.PaymentIntentParams{Amount: stripe.Int64(7000), PaymentMethod: stripe.String("pm_card_visa")}
	p.AddMetadata("billing_period", "")
	p.AddMetadata("note", "x")
	got, err := c.PaymentIntents.Update(pi.ID, p)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "amount", got.Amount, 7000)
	equal(t, "status", got.Status, stripe.PaymentIntentStatusRequiresConfirmation)
	equal(t, "metadata", fmt.Sprint(got.Metadata), "map[customer_id:A note:x]")
	_, err = c.PaymentIntents.Update(pi.ID, &stripe.PaymentIntentParams{Customer: stripe.String("cus_B")})
	stripeError(t, err, 400, "")
	if _, err := c.PaymentIntents.Confirm(pi.ID, &stripe.PaymentIntentConfirmParams{OffSession: stripe.Bool(true)}); err != nil {
		t.Fatal(err)
	}
	_, err = c.PaymentIntents.Update(pi.ID, &stripe.PaymentIntentParams{Amount: stripe.Int64(1)})
	stripeError(t, err, 400, "payment_intent_unexpected_state")
	late := &stripe.PaymentIntentParams{}
	late.AddMetadata("late", "yes")
	got, err = c.PaymentIntents.Update(pi.ID, late)
	if err != nil {
		t.Fatal(err)
	}
	ch, _ := c.Charges.Get(got.LatestCharge.ID, nil)
	equal(t, "late metadata on the charge", ch.Metadata["late"], "")
}

// Past the limit of attempts the intent is cancelled.
func TestConfirmLimit(t *testing.T) {
	t.Parallel()
	_, c := start(t, sim.Options{Settings: sim.Settings{ConfirmLimit: 3}})
	pi := create(t, c, "create")
	for n := range 3 {
		_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams(keyN(n), "pm_card_chargeCustomerFail"))
		stripeError(t, err, 402, "card_declined")
	}
	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("last", "pm_card_visa"))
	e := stripeError(t, err, 400, "payment_intent_unexpected_state")
	equal(t, "status", e.PaymentIntent.Status, stripe.PaymentIntentStatusCanceled)
}

func TestConfirmNeedsAMethodAndAReturnURL(t *testing.T) {
	t.Parallel()
	_, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	_, err := c.PaymentIntents.Confirm(pi.ID, &stripe.PaymentIntentConfirmParams{OffSession: stripe.Bool(true)})
	stripeError(t, err, 400, "payment_intent_unexpected_state")

	p := createParams("automatic")
	p.PaymentMethodTypes = nil
	automatic, err := c.PaymentIntents.New(p)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.PaymentIntents.Confirm(automatic.ID, confirmParams("k", "pm_card_visa"))
	equal(t, "param", stripeError(t, err, 400, "").Param, "return_url")
	withURL := confirmParams("k2", "pm_card_visa")
	withURL.ReturnURL = stripe.String("https://example.com")
	if _, err := c.PaymentIntents.Confirm(automatic.ID, withURL); err != nil {
		t.Error(err)
	}
}

// What Stripe refuses before it executes anything.
func TestValidation(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{Settings: sim.Settings{RefuseUnknownCustomers: true}})
	long := strings.Repeat("x", 501)
	many := ""
	for n := range 51 {
		many += fmt.Sprintf("&metadata[k%d]=v", n)
	}
	for form, want := range map[string]string{
		"currency=usd":                     "parameter_missing",
		"amount=5000":                      "parameter_missing",
		"amount=&currency=usd":             "parameter_invalid_empty",
		"amount=50.5&currency=usd":         "parameter_invalid_integer",
		"amount=-5000&currency=usd":        "parameter_invalid_integer",
		"amount=5e3&currency=usd":          "parameter_invalid_integer",
		"amount=49&currency=usd":           "amount_too_small",
		"amount=0&currency=usd":            "parameter_invalid_integer",
		"amount=100000000&currency=usd":    "amount_too_large",
		"amount=29&currency=gbp":           "amount_too_small",
		"amount=49&currency=jpy":           "amount_too_small",
		"amount=5125&currency=kwd":         "parameter_invalid_integer",
		"amount=5050&currency=isk":         "invalid_charge_amount_no_decimal_compatible",
		"amount=5000&currency=zzz":         `"param":"currency"`,
		"amount=5000&currency=usd&foo=bar": "parameter_unknown",
		"amount=5000&currency=usd&automatic_payment_methods[foo]=bar":                                  "parameter_unknown",
		"amount=5000&currency=usd&off_session=true":                                                    `"param":"off_session"`,
		"amount=5000&currency=usd&confirm=yes":                                                         "Invalid boolean",
		"amount=5000&currency=usd&payment_method_types[]=sepa":                                         "payment_method_types",
		"amount=5000&currency=usd&payment_method_types[]=card&automatic_payment_methods[enabled]=true": "parameters_exclusive",
		"amount=5000&currency=usd&metadata[a]=" + long:                                                 "up to 500",
		"amount=5000&currency=usd&metadata[" + long[:41] + "]=x":                                       "under 40",
		"amount=5000&currency=usd&metadata[a[b]]=x":                                                    "square brackets",
		"amount=5000&currency=usd" + many:                                                              "up to 50 metadata keys",
		"amount=5000&currency=usd&expand[]=invoice":                                                    "cannot be expanded",
		"amount=5000&currency=usd&customer=cus_nobody":                                                 "No such customer",
		"amount=5000&currency=usd&description=%zz":                                                     "could not be decoded",
		"amount=5000&currency=usd&capture_method=maybe":                                                "Invalid capture_method",
	} {
		got := post(t, s, "/v1/payment_intents", "-", form)
		if got.status != 400 || !strings.Contains(got.body, want) {
			t.Errorf("%.80s: got %d %s, want 400 with %s", form, got.status, got.body, want)
		}
	}
	equal(t, "creates", s.Counters().Creates, 0)
	for _, form := range []string{"amount=50&currency=USD", "amount=500&currency=jpy", "amount=5120&currency=kwd", "amount=99999999&currency=eur", "amount=1&amount=5000&currency=usd", "amount=500&currency=isk"} {
		if got := post(t, s, "/v1/payment_intents", "-", form); got.status != 200 {
			t.Errorf("%s: got %d %s, want 200", form, got.status, got.body)
		}
	}
}

// A customer whose card control turns good or bad, who is detached or deleted.
func TestCustomerOverride(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	pi := create(t, c, "create")
	set := func(state sim.CustomerState) {
		t.Helper()
		if err := s.SetCustomer("cus_A", state); err != nil {
			t.Fatal(err)
		}
	}
	set(sim.CustomerState{Card: "stolen_card"})
	_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("a", "pm_card_visa"))
	equal(t, "decline code", stripeError(t, err, 402, "card_declined").DeclineCode, "stolen_card")
	set(sim.CustomerState{Detached: true})
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("b", "pm_card_visa"))
	stripeError(t, err, 400, "payment_method_unexpected_state")
	set(sim.CustomerState{Deleted: true})
	_, err = c.PaymentIntents.Confirm(pi.ID, confirmParams("c", "pm_card_visa"))
	stripeError(t, err, 400, "resource_missing")
	set(sim.CustomerState{Card: "good"})
	if _, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("d", "pm_card_chargeCustomerFail")); err != nil {
		t.Error(err)
	}
	if err := s.SetCustomer("cus_A", sim.CustomerState{Card: "Not A Code"}); err == nil {
		t.Error("a card that is neither good nor a code was taken")
	}
}

func TestStripesDoorway(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	account, err := c.Accounts.Get()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "account", account.ID, sim.DefaultAccount)
	equal(t, "unknown URL", get(t, s, "/v1/nothing").status, 404)
	equal(t, "wrong method", post(t, s, "/v1/account", "-", "").status, 404)
	equal(t, "doubled slashes", post(t, s, "//v1//charges/", "-", chargeForm).status, 200)
	equal(t, "escaped id", get(t, s, "/v1/payment_intents/pi%2F..%2Fx").status, 404)
}

func TestAuthenticationOfRequests(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	limited, _ := start(t, sim.Options{APIKeys: []string{"sk_test_right"}})
	for _, c := range []struct {
		server *sim.Server
		header string
		want   int
	}{
		{s, "", 401}, {s, "Bearer ", 401}, {s, "Bearer sk_live_123", 401}, {s, "Bearer vk_123", 401}, {s, "Bearer sk_test_", 401},
		{s, "Bearer rk_test_1", 200}, {limited, "Bearer sk_test_wrong", 401}, {limited, "Bearer sk_test_right", 200},
	} {
		got := sendWith(t, c.server, map[string]string{"Authorization": c.header})
		equal(t, c.header, got.status, c.want)
		if strings.Contains(got.body, "live_123") || strings.Contains(got.body, "wrong") {
			t.Errorf("the answer shows the key: %s", got.body)
		}
	}
	got := sendWith(t, s, map[string]string{"Authorization": "Bearer sk_test_1", "Stripe-Account": "acct_other"})
	equal(t, "foreign account", got.status, 403)
}
