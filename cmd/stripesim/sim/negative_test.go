package sim_test

import (
	"testing"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// chargeUntilAnswered is the smallest client that loses answers and retries: it
// keeps its key, and takes any error for "try again".
func chargeUntilAnswered(t *testing.T, set sim.Settings) int {
	t.Helper()
	s, c := start(t, sim.Options{Settings: set})
	arm(t, s, sim.Fault{Kind: sim.CommitThenDrop, Times: 3, Match: sim.Match{Path: "/v1/charges"}})
	for range 10 {
		p := &stripe.ChargeParams{Amount: stripe.Int64(5000), Currency: stripe.String("usd"), Customer: stripe.String("cus_A")}
		p.SetIdempotencyKey("78add715f5445db3d7f8c24b1df859b6")
		if _, err := c.Charges.New(p); err == nil {
			return taken(s)
		}
	}
	t.Fatal("never answered")
	return 0
}

// With the key rules on, three lost answers cost one charge. With them off they
// cost four: a suite that counts charges can fail.
func TestNegativeControlIgnoreKeys(t *testing.T) {
	t.Parallel()
	equal(t, "charges with keys", chargeUntilAnswered(t, sim.Settings{}), 1)
	if n := chargeUntilAnswered(t, sim.Settings{IgnoreKeys: true}); n < 2 {
		t.Errorf("%d charges although keys are ignored: this control shows nothing", n)
	}
}

// With a key space per path, a client that reuses a key elsewhere is not told.
func TestNegativeControlKeyPerPath(t *testing.T) {
	t.Parallel()
	for _, perPath := range []bool{false, true} {
		s, c := start(t, sim.Options{Settings: sim.Settings{KeyPerPath: perPath}})
		pi := create(t, c, "k")
		_, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
		equal(t, "accepted elsewhere", err == nil, perPath)
		equal(t, "taken", taken(s) == 1, perPath)
	}
}
