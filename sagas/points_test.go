package sagas_test

import (
	"sync"
	"testing"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// TestEveryCrashPointIsReached lives through a month in which one bill is paid,
// one confirm is lost, one bill is settled after a decline, one charge was there
// before the service was, and one goes back. Every named point is passed, and no
// other.
func TestEveryCrashPointIsReached(t *testing.T) {
	var mu sync.Mutex
	reached := map[string]int{}
	defer crashpoint.Watch(func(name string) {
		mu.Lock()
		reached[name]++
		mu.Unlock()
	})()
	r := newRig(t)
	if _, err := r.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/confirm", Customer: "cus_lost"}, Kind: sim.DropBeforeCommit}); err != nil {
		t.Fatal(err)
	}
	quiet := r.start(options{noCollector: true})
	quiet.owe("planted")
	if _, err := r.stripe.PlantCharge(sim.Plant{
		Customer: "cus_planted", Amount: 5000, Currency: "usd", WithIntent: true,
		Metadata: map[string]string{"customer_id": "planted", "billing_period": november.String(), "billing_key": string(domain.ChargeKey("planted", november, 1))},
	}); err != nil {
		t.Fatal(err)
	}
	s := r.start(options{dunning: domain.DunningDays{1}})
	s.register("pm_card_visa", "due", "lost")
	s.must(activate("due"))
	s.charge("lost", november)
	s.register("pm_sim_declines_insufficient_funds", "settled")
	s.charge("settled", november)
	r.awaitState("settled", november, "declined")
	s.must(commands.Of(commands.NewSettleBilling("settled", november, "wire 77", "op-1")))
	r.awaitState("settled", november, "void")
	r.once(november, "due", "lost", "planted")
	s.refunding()
	s.giveBack("due", "r1", 2000)
	s.awaitRefund("due", "r1", domain.RefundStateSucceeded)

	mu.Lock()
	defer mu.Unlock()
	for _, p := range crashpoint.Points {
		if reached[p.Name] == 0 {
			t.Errorf("%s is not reached: %s", p.Name, p.Doc)
		}
		delete(reached, p.Name)
	}
	delete(reached, "") // writes that have no name
	for name := range reached {
		t.Errorf("%s is reached and not in the list", name)
	}
}
