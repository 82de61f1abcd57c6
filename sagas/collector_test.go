package sagas_test

import (
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

func TestAMonthIsBilledOnce(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	ids := customers(50)
	s.owe(ids...)
	r.once(november, ids...)
	if n := r.stripe.Counters().UnkeyedPOSTs; n != 0 {
		t.Errorf("%d POSTs without a key", n)
	}
}

func TestDueToCharge(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.register("pm_card_visa", "acme")
	s.must(commands.Of(commands.NewActivateSubscription("acme", usd(5000), domain.Schedule{
		Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "Europe/Berlin", StartsOn: domain.Date{Year: 2026, Month: 11, Day: 1},
	})))
	r.once(november, "acme") // the stand-in's clock says 15 November
}
