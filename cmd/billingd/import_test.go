package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/archive"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/migrations"
)

// TestAnImportedLogChargesNobodyAgain carries a log to another database in the
// middle of a month, while one confirm is under way and before another charge
// is made, and goes on there. What was paid, declined, declined twice and
// settled stays so; the confirm under way and the charge that the file does not
// know of are found at Stripe; and all of it without one POST.
func TestAnImportedLogChargesNobodyAgain(t *testing.T) {
	h := newHouse(t)
	first := h.spawn(time.Second, "BILLING_TOKENS="+operatorTokens())
	methods := map[string]string{
		"p0": "pm_card_visa", "p1": "pm_card_visa", "flight": "pm_card_visa", "after": "pm_card_visa",
		"declined": "pm_sim_declines_insufficient_funds", "twice": "pm_sim_declines_insufficient_funds", "settled": "pm_sim_declines_insufficient_funds",
	}
	for id, method := range methods {
		first.command("register-customer", registerBody(id, method))
	}
	for _, id := range []string{"p0", "p1", "declined", "twice", "settled"} {
		first.command("charge-billing?wait=30s", chargeBody(id))
	}
	for _, id := range []string{"declined", "twice", "settled"} {
		await(t, id+" is declined", func() bool { return first.bill(id) == "declined" })
	}
	first.command("retry-charge?wait=30s", `{"customer_id":"twice","billing_period":"2026-11","attempt":2}`)
	first.command("settle-billing", `{"customer_id":"settled","billing_period":"2026-11","reference":"wire 77"}`)
	await(t, "the settlement is through", func() bool { return h.count(`SELECT count(*) FROM events WHERE event_type = 'bill.settled.v1'`) == 1 })
	await(t, "the second decline is recorded", func() bool {
		return h.count(`SELECT count(*) FROM events WHERE event_type = 'charge.declined.v1' AND stream_id = 'customer/twice'`) == 2
	})

	h.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirms, Customer: "cus_flight"}, Kind: sim.CommitThenHang, Times: -1})
	h.fault(sim.Fault{Match: sim.Match{Method: "GET", Path: "/v1/payment_intents/*"}, Kind: sim.Hang, Times: -1})
	first.command("charge-billing", chargeBody("flight"))
	await(t, "money is taken, and nobody knows", func() bool { return len(h.charges("flight")) == 1 })
	store := eventstore.New(pgtest.Connect(t, h.dsn, 2), eventstore.NewCodec(domain.Events()), slog.New(slog.DiscardHandler))
	defer store.Close()
	var file bytes.Buffer
	if _, err := archive.Export(t.Context(), store, &file, archive.Selection{}); err != nil {
		t.Fatal(err)
	}
	first.command("charge-billing?wait=30s", chargeBody("after"))
	await(t, "the charge after the export is made", func() bool { return len(h.charges("after")) == 1 })
	first.signal(9)
	first.exited(time.Minute)
	if n := h.count(`SELECT count(*) FROM events WHERE stream_id = 'customer/flight' AND event_type = 'customer.billed.v1'`); n != 0 {
		t.Fatal("the confirm under way was recorded")
	}
	h.stripe.ClearFaults("")

	there := &house{t, pgtest.Empty(t), h.stripe}
	if err := migrations.Up(t.Context(), there.dsn); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Import(t.Context(), pgtest.Connect(t, there.dsn, 2), &file, nil, nil); err != nil {
		t.Fatal(err)
	}
	posts := h.posts()
	second := there.start(operated(t))
	second.isReady()
	for _, id := range []string{"p0", "p1", "flight", "after"} {
		var a answer
		awaitFor(t, time.Minute, id+" is paid", func() bool {
			_ = json.Unmarshal([]byte(second.command("charge-billing?wait=5s", chargeBody(id))), &a)
			return a.Bill.Status == "paid"
		}, func() string { return fmt.Sprintf("%+v", a) })
		if charges := h.charges(id); len(charges) != 1 || charges[0] != a.Bill.ChargeID {
			t.Errorf("%s: charges %v, the answer names %s", id, charges, a.Bill.ChargeID)
		}
		if !a.Replayed && id != "after" { // whose command came after the export
			t.Errorf("%s: the command was decided again: %+v", id, a)
		}
	}
	// Every row is built again, and none has anything left to do. What was found
	// at Stripe before it was asked for needs no row.
	const left = `SELECT count(*) FROM billing_records WHERE state IN ('reserved', 'sending', 'unknown', 'held')`
	awaitFor(t, time.Minute, "the rows are where their bills are", func() bool {
		return there.count(`SELECT count(*) FROM billing_records`) == len(methods)-1 && there.count(left) == 0 &&
			there.count(`SELECT count(*) FROM billing_records WHERE customer_id = 'twice' AND attempt = 2 AND state = 'declined'`) == 1
	}, func() string {
		return fmt.Sprintf("%d rows, %d left, %d parked", there.count(`SELECT count(*) FROM billing_records`), there.count(left), there.count(`SELECT count(*) FROM dead_letters`))
	})
	for id, want := range map[string]string{"p0": "paid", "flight": "paid", "after": "paid", "declined": "declined", "twice": "declined", "settled": "settled"} {
		if got := second.bill(id); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	if n := there.count(`SELECT count(*) FROM dead_letters WHERE status IN ('parked', 'behind')`); n != 0 {
		t.Errorf("%d letters are parked", n)
	}
	if now := h.posts(); now != posts {
		t.Errorf("%d POSTs went to Stripe", now-posts)
	}
}
