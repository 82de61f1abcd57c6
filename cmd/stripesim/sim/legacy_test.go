package sim_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// A legacy charge obeys its key as an intent does: lost answers, mismatches,
// declines, pruning.
func TestLegacyChargesObeyTheirKeys(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{})
	// Connections of its own each time, or Go's transport would repeat what was lost.
	c := clientOf(t, s, &http.Transport{DisableKeepAlives: true})
	charge := func(key, method string) (*stripe.Charge, error) {
		p := chargeParams(key)
		p.Source = &stripe.PaymentSourceSourceParams{Token: stripe.String(method)}
		return c.Charges.New(p)
	}
	arm(t, s, sim.Fault{Kind: sim.CommitThenDrop, Times: 2, Match: sim.Match{Path: "/v1/charges"}})
	arm(t, s, sim.Fault{Kind: sim.DropBeforeCommit, Match: sim.Match{Path: "/v1/charges", Nth: 3}})
	for range 3 {
		if _, err := charge("k", "pm_1Card"); err == nil {
			t.Fatal("answered")
		}
	}
	first, err := charge("k", "pm_1Card")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "replayed", first.LastResponse.Header.Get("Idempotent-Replayed"), "true")
	equal(t, "taken", taken(s), 1)
	_, err = charge("k", "pm_2Card")
	stripeError(t, err, 400, "")
	equal(t, "taken after a mismatch", taken(s), 1)

	for range 2 {
		_, err = charge("declined", "pm_card_chargeCustomerFail")
		e := stripeError(t, err, 402, "card_declined")
		equal(t, "decline code", string(e.DeclineCode), "generic_decline")
	}
	equal(t, "failed", len(s.LedgerWhere(sim.LedgerFilter{Status: "failed"})), 1)
	_, err = charge("action", "pm_card_authenticationRequired")
	stripeError(t, err, 402, "authentication_required")

	for _, kind := range []sim.Kind{sim.Error500BeforeCommit, sim.Error500AfterCommit} {
		arm(t, s, sim.Fault{Kind: kind, Match: sim.Match{Key: string(kind)}})
		for range 2 {
			_, err = charge(string(kind), "pm_1Card")
			stripeError(t, err, 500, "")
		}
		equal(t, string(kind), len(s.LedgerWhere(sim.LedgerFilter{Key: string(kind)})) == 1, kind == sim.Error500AfterCommit)
	}
	s.Advance(25 * time.Hour)
	again, err := charge("k", "pm_1Card")
	if err != nil {
		t.Fatal(err)
	}
	if again.ID == first.ID {
		t.Error("a key is remembered for ever")
	}
}

// Many senders of one key make one charge between them.
func TestLegacyChargesAtOnce(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	arm(t, s, sim.Fault{Kind: sim.DelayBeforeCommit, Delay: 20 * time.Millisecond, Match: sim.Match{Path: "/v1/charges"}})
	var senders sync.WaitGroup
	for range 20 {
		senders.Go(func() {
			for {
				_, err := c.Charges.New(chargeParams("k"))
				if err == nil {
					return
				}
				if e := (*stripe.Error)(nil); !errors.As(err, &e) || e.HTTPStatusCode != 409 {
					t.Error(err)
					return
				}
			}
		})
	}
	senders.Wait()
	equal(t, "taken", taken(s), 1)
	equal(t, "movements", len(s.Ledger()), 1)
}

// Legacy charges are listed by customer and by time, with those of intents, and
// change in nothing that money depends on.
func TestLegacyChargesAreListed(t *testing.T) {
	t.Parallel()
	s, c := start(t, sim.Options{})
	var mine []string
	for n, customer := range []string{"cus_A", "cus_B", "cus_A"} {
		p := chargeParams(keyN(n))
		p.Customer = stripe.String(customer)
		ch, err := c.Charges.New(p)
		if err != nil {
			t.Fatal(err)
		}
		if customer == "cus_A" {
			mine = append(mine, ch.ID)
		}
		s.Advance(time.Minute)
	}
	pi := create(t, c, "create")
	pi, err := c.PaymentIntents.Confirm(pi.ID, confirmParams("k", "pm_card_visa"))
	if err != nil {
		t.Fatal(err)
	}
	mine = append(mine, pi.LatestCharge.ID)
	slices.Reverse(mine)
	list := func(p *stripe.ChargeListParams) (ids []string) {
		t.Helper()
		p.Limit = stripe.Int64(1)
		it := c.Charges.List(p)
		for it.Next() {
			ids = append(ids, it.Charge().ID)
		}
		if err := it.Err(); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	if got := list(&stripe.ChargeListParams{Customer: stripe.String("cus_A")}); !slices.Equal(got, mine) {
		t.Errorf("of the customer: %v, want %v", got, mine)
	}
	since := s.LedgerWhere(sim.LedgerFilter{Customer: "cus_B"})[0].At.Unix()
	recent := list(&stripe.ChargeListParams{Customer: stripe.String("cus_A"), CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: since}})
	if !slices.Equal(recent, mine[:2]) {
		t.Errorf("since the other one: %v, want %v", recent, mine[:2])
	}
	update := &stripe.ChargeParams{}
	update.AddMetadata("note", "x")
	changed, err := c.Charges.Update(mine[2], update)
	if err != nil {
		t.Fatal(err)
	}
	if changed.Metadata["note"] != "x" || changed.Metadata["billing_key"] != "b1" {
		t.Errorf("metadata is %v", changed.Metadata)
	}
	equal(t, "the customer stays", post(t, s, "/v1/charges/"+mine[2], "-", "customer=cus_B").status, 400)
	equal(t, "the amount stays", post(t, s, "/v1/charges/"+mine[2], "-", "amount=1").status, 400)
	equal(t, "nothing", post(t, s, "/v1/charges/ch_none", "-", "description=x").status, 404)
}

// A legacy charge may be pending for a time, then succeed or fail.
func TestLegacyChargesThatEndLater(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]stripe.ChargeStatus{
		"pm_sim_processing_1h_succeeds": stripe.ChargeStatusSucceeded, "pm_sim_processing_1h_insufficient_funds": stripe.ChargeStatusFailed,
	} {
		s, c := start(t, sim.Options{})
		p := chargeParams("k")
		p.Source = &stripe.PaymentSourceSourceParams{Token: stripe.String(method)}
		ch, err := c.Charges.New(p)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "at once", ch.Status, stripe.ChargeStatusPending)
		equal(t, "paid at once", ch.Paid, false)
		s.Advance(time.Hour)
		if ch, err = c.Charges.Get(ch.ID, nil); err != nil {
			t.Fatal(err)
		}
		equal(t, method, ch.Status, want)
	}
}

// A customer made with a test token is charged without naming it.
func TestCustomerWithASource(t *testing.T) {
	t.Parallel()
	s, _ := start(t, sim.Options{Settings: sim.Settings{RefuseUnknownCustomers: true}})
	var cu struct {
		ID            string
		DefaultSource string `json:"default_source"`
	}
	if err := json.Unmarshal([]byte(post(t, s, "/v1/customers", "c", "source=tok_chargeCustomerFail").body), &cu); err != nil {
		t.Fatal(err)
	}
	const amount = "amount=5000&currency=usd&customer="
	equal(t, "the card of the token", post(t, s, "/v1/charges", "k1", amount+cu.ID).status, 402)
	equal(t, "a good card", post(t, s, "/v1/customers/"+cu.ID, "c2", "source=tok_visa&metadata[a]=b").status, 200)
	equal(t, "charged", post(t, s, "/v1/charges", "k2", amount+cu.ID).status, 200)
	equal(t, "by its id", post(t, s, "/v1/charges", "k3", amount+cu.ID+"&source="+cu.DefaultSource).status, 402)
	equal(t, "a card that cannot be attached", post(t, s, "/v1/customers", "c3", "source=tok_chargeDeclined").status, 402)
	equal(t, "no such token", post(t, s, "/v1/customers", "c4", "source=tok_nothing").status, 400)
	equal(t, "nobody", post(t, s, "/v1/customers/cus_nobody", "c5", "name=x").status, 404)
}
