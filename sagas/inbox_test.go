package sagas_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

var eventNo struct {
	sync.Mutex
	n int
}

func nextEvent() string {
	eventNo.Lock()
	defer eventNo.Unlock()
	eventNo.n++
	return fmt.Sprintf("evt_%06d", eventNo.n)
}

// chargeNews is news of a charge of a bill of 50.00.
func chargeNews(kind string, id domain.CustomerID, p domain.Period, charge, intent, status string) sagas.News {
	m := markers(id, p)
	f := &sagas.Found{
		ID: charge, IntentID: intent, ChargeID: charge, Status: status, Succeeded: status == "succeeded", Amount: usd(5000),
		CustomerID: m["customer_id"], Period: m["billing_period"], BillingKey: m["billing_key"], Created: time.Unix(1794700000, 0).UTC(),
	}
	object := charge
	if kind[:8] == "payment_" {
		f.ID, object = intent, intent
	}
	return sagas.News{EventID: nextEvent(), Type: kind, Created: f.Created, ObjectID: object, Charge: f}
}

func refundNews(kind, refund, charge, intent, status string) sagas.News {
	return sagas.News{EventID: nextEvent(), Type: kind, Created: time.Unix(1794700000, 0).UTC(), ObjectID: refund,
		Refund: &sagas.FoundRefund{ID: refund, ChargeID: charge, IntentID: intent, Status: status, Amount: usd(2000), Created: time.Unix(1794700000, 0).UTC()}}
}

func disputeNews(kind, dispute, charge, intent, status string) sagas.News {
	return sagas.News{EventID: nextEvent(), Type: kind, Created: time.Unix(1794700000, 0).UTC(), ObjectID: dispute,
		Dispute: &sagas.FoundDispute{ID: dispute, ChargeID: charge, IntentID: intent, Status: status, Reason: "fraudulent", Amount: usd(5000), Created: time.Unix(1794700000, 0).UTC()}}
}

func (r *rig) awaitNews(n int) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d events are applied", n), func() bool { return r.count(`SELECT count(*) FROM webhook_inbox WHERE state = 'applied'`) == n })
}

// TestStoredNews: what is told again is noticed, by its id and by what it says,
// and is kept before anything is done with it.
func TestStoredNews(t *testing.T) {
	r := newRig(t)
	d := r.start(options{noCollector: true}).desk(nil)
	n := chargeNews("charge.succeeded", "acme", november, "ch_1", "pi_1", "succeeded")
	same := n
	same.EventID = nextEvent()
	later := n
	later.EventID, later.Type = nextEvent(), "charge.captured"
	other := sagas.News{EventID: nextEvent(), Type: "invoice.paid", ObjectID: "in_1", Created: n.Created, APIVersion: "2020-08-27"}
	for i, test := range []struct {
		news sagas.News
		want sagas.Stored
	}{{n, sagas.StoredNew}, {n, sagas.StoredDuplicate}, {same, sagas.StoredRepeated}, {later, sagas.StoredNew}, {other, sagas.StoredUnknown}, {other, sagas.StoredDuplicate}} {
		if got := d.told(t, test.news); got != test.want {
			t.Errorf("%d: %s, want %s", i, got, test.want)
		}
	}
	if n := r.count(`SELECT count(*) FROM webhook_inbox WHERE payload->>'id' = event_id AND customer_id IS NOT DISTINCT FROM CASE WHEN type LIKE 'charge%' THEN 'acme' END`); n != 4 {
		t.Errorf("%d events are kept with their payloads and bills, want 4", n)
	}
	if n := d.counts.of("other_version"); n != 1 {
		t.Errorf("%d events of another version are counted, want 1", n)
	}
	if n := r.facts("acme", "customer.billed.v1"); n != 0 {
		t.Errorf("%d facts before anything is applied", n)
	}
	d.run(t)
	r.awaitNews(3)
	if n := r.facts("acme", "customer.billed.v1"); n != 1 || d.counts.of("charge.succeeded applied") != 2 {
		t.Errorf("%d billed facts, counted %v", n, d.counts.n)
	}
}

// TestNewsOfFailures: a failure decides nothing. If it may be about the attempt
// under way, the collector reads the intent. A paid bill stays paid; that its
// own charge failed afterwards becomes a fact.
func TestNewsOfFailures(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	s.owe("open", "old", "stranger", "paid", "cancelled")
	r.eventually("rows are there", func() bool { return r.count(`SELECT count(*) FROM billing_records`) == 5 })
	if _, err := r.pool.Exec(t.Context(), `UPDATE billing_records SET state = 'unknown', next_try_at = 'infinity', intent_id = 'pi_' || customer_id, latest_charge = 'ch_before'`); err != nil {
		t.Fatal(err)
	}
	s.must(commands.Of(commands.NewRecordChargeOutcome("paid", november, 1, 0, domain.Outcome{Class: domain.Paid, ChargeID: "ch_good", IntentID: "pi_paid", Money: usd(5000)})))
	r.awaitState("paid", november, "succeeded")
	d := s.desk(nil)
	d.told(t, chargeNews("charge.failed", "open", november, "ch_new", "pi_open", "failed"))
	d.told(t, chargeNews("charge.failed", "old", november, "ch_before", "pi_old", "failed"))
	d.told(t, chargeNews("payment_intent.payment_failed", "stranger", november, "ch_new", "pi_other", "requires_payment_method"))
	d.told(t, chargeNews("payment_intent.payment_failed", "paid", november, "ch_bad", "pi_paid", "requires_payment_method"))
	d.told(t, chargeNews("payment_intent.canceled", "cancelled", november, "ch_before", "pi_cancelled", "canceled"))
	d.told(t, chargeNews("charge.failed", "paid", november, "ch_good", "pi_paid", "failed"))
	d.told(t, chargeNews("charge.pending", "paid", november, "ch_good", "pi_paid", "pending"))
	d.run(t)
	r.awaitNews(7)
	for id, read := range map[domain.CustomerID]bool{"open": true, "cancelled": true, "old": false, "stranger": false} {
		if n := r.count(`SELECT count(*) FROM billing_records WHERE customer_id = $1 AND next_try_at IS NULL AND state = 'unknown'`, string(id)); (n == 1) != read {
			t.Errorf("the intent of %s is to be read: %t, want %t", id, n == 1, read)
		}
	}
	if r.state("paid", november) != "succeeded" || r.facts("paid", "charge.declined.v1")+r.facts("open", "charge.declined.v1") != 0 {
		t.Errorf("paid is %s, and there are declines", r.state("paid", november))
	}
	if n := r.facts("paid", "charge.outcome_surprise.v1"); n != 1 {
		t.Errorf("%d facts tell that the paying charge failed, want 1", n)
	}
}

// TestLateFailureOfAnOldAttempt is told by the stand-in itself: the first
// attempt's failure arrives after the second has succeeded.
func TestLateFailureOfAnOldAttempt(t *testing.T) {
	r := newRig(t)
	if err := r.stripe.SetCustomer("cus_acme", sim.CustomerState{Card: "insufficient_funds"}); err != nil {
		t.Fatal(err)
	}
	s := r.start(options{})
	s.owe("acme")
	r.awaitState("acme", november, "declined")
	if err := r.stripe.SetCustomer("cus_acme", sim.CustomerState{Card: "good"}); err != nil {
		t.Fatal(err)
	}
	s.must(commands.Of(commands.NewRetryCharge("acme", november, 2, "manual")))
	r.once(november, "acme")
	var failed, intent string
	for _, m := range r.stripe.Ledger() {
		if m.Status != "succeeded" {
			failed, intent = m.Charge, m.Intent
		}
	}
	d := s.desk(nil)
	d.told(t, chargeNews("charge.failed", "acme", november, failed, intent, "failed"))
	d.told(t, chargeNews("payment_intent.payment_failed", "acme", november, failed, intent, "requires_payment_method"))
	d.run(t)
	r.awaitNews(2)
	r.once(november, "acme")
	if n := r.facts("acme", "charge.declined.v1"); n != 1 {
		t.Errorf("%d declines, want the one of attempt 1", n)
	}
}

// TestNewsOfRefundsAndDisputes become facts, late failures too, in whatever
// order they come.
func TestNewsOfRefundsAndDisputes(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	ids := customers(12)
	s.owe(ids...)
	r.once(november, ids...)
	desks := []*desk{s.desk(nil), r.start(options{noCollector: true}).desk(nil)}
	for _, d := range desks {
		d.run(t)
	}
	rng := rand.New(rand.NewPCG(85, 88))
	n := 0
	for _, m := range r.stripe.Ledger() {
		id := m.Metadata["customer_id"]
		news := []sagas.News{
			refundNews("refund.created", "re_"+id, m.Charge, m.Intent, "pending"), refundNews("charge.refund.updated", "re_"+id, m.Charge, m.Intent, "succeeded"),
			refundNews("refund.failed", "re_"+id, m.Charge, m.Intent, "failed"), refundNews("refund.updated", "re_"+id, m.Charge, m.Intent, "failed"),
			disputeNews("charge.dispute.created", "dp_"+id, m.Charge, m.Intent, "needs_response"), disputeNews("charge.dispute.closed", "dp_"+id, m.Charge, m.Intent, "lost"),
			chargeNews("charge.succeeded", domain.CustomerID(id), november, m.Charge, m.Intent, "succeeded"),
		}
		rng.Shuffle(len(news), func(i, k int) { news[i], news[k] = news[k], news[i] })
		for _, x := range news {
			desks[rng.IntN(2)].told(t, x)
			n++
			if rng.IntN(3) == 0 {
				desks[rng.IntN(2)].told(t, x)
			}
		}
	}
	r.awaitNews(n)
	for _, id := range ids {
		c, err := s.d.Customer(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		back := c.MoneyBack(november)
		refund, ok := back.Refund("", "re_"+string(id))
		if !ok || refund.State != domain.RefundStateFailed {
			t.Errorf("the refund of %s is %+v", id, refund)
		}
		dispute, ok := back.Dispute("dp_" + string(id))
		if !ok || dispute.Status != "lost" {
			t.Errorf("the dispute of %s is %+v", id, dispute)
		}
		if r.facts(id, "customer.billed.v1") != 1 || r.facts(id, "charge.disputed.v1") > 2 || r.facts(id, "refund.recorded.v1") > 3 {
			t.Errorf("%s has facts told twice", id)
		}
	}
}

// TestNewsOfAnUnknownBillWaits until the reconciler has met its charge.
func TestNewsOfAnUnknownBillWaits(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	d := s.desk(nil)
	m := r.plant(sim.Plant{Customer: "cus_acme", Metadata: markers("acme", november), WithIntent: true})
	d.told(t, refundNews("refund.created", "re_1", m.Charge, m.Intent, "succeeded"))
	d.run(t)
	r.eventually("it is put aside", func() bool { return r.count(`SELECT count(*) FROM webhook_inbox WHERE state = 'deferred'`) == 1 })
	if _, err := r.pool.Exec(t.Context(), `UPDATE webhook_inbox SET next_try_at = 'infinity'`); err != nil { // days later
		t.Fatal(err)
	}
	v := d.books(t, sagas.Scope{})
	if v.Orphans != 1 || v.Repaired != 1 {
		t.Errorf("the reconciliation found %+v", v)
	}
	r.awaitNews(1)
	if n := r.facts("acme", "refund.recorded.v1"); n != 1 {
		t.Errorf("%d refund facts", n)
	}
}

// TestOneBadEventKeepsNoOtherBack: a customer whose facts cannot be read fails
// alone, and is tried again.
func TestOneBadEventKeepsNoOtherBack(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	s.register("pm_card_visa", "broken")
	if _, err := r.pool.Exec(t.Context(), `INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
		SELECT partition, stream_id, stream_version + 1, 'from.tomorrow.v1', sequence_key, '{}' FROM events WHERE sequence_key = 'broken'`); err != nil {
		t.Fatal(err)
	}
	d := s.desk(nil)
	ids := []domain.CustomerID{"a", "broken", "b", "c"}
	for _, id := range ids {
		d.told(t, chargeNews("charge.succeeded", id, november, "ch_"+string(id), "pi_"+string(id), "succeeded"))
	}
	d.run(t)
	r.awaitNews(3)
	r.eventually("the other one is kept as failed", func() bool {
		return r.count(`SELECT count(*) FROM webhook_inbox WHERE state = 'failed' AND customer_id = 'broken' AND attempts > 0 AND note <> ''`) == 1
	})
	if _, err := r.pool.Exec(t.Context(), `ALTER TABLE events DISABLE TRIGGER ALL; DELETE FROM events WHERE event_type = 'from.tomorrow.v1'; ALTER TABLE events ENABLE TRIGGER ALL`); err != nil {
		t.Fatal(err)
	}
	r.awaitNews(4)
}

// TestEventsMissedByWebhooks: refunds and disputes that no delivery told are
// read from Stripe's list, once.
func TestEventsMissedByWebhooks(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.owe("acme", "other")
	r.once(november, "acme", "other")
	var charge string
	for _, m := range r.stripe.Ledger() {
		if m.Metadata["customer_id"] == "acme" {
			charge = m.Charge
		}
	}
	if _, err := r.stripe.OpenDispute(sim.Dispute{Charge: charge, Reason: "fraudulent"}); err != nil {
		t.Fatal(err)
	}
	d := s.desk(nil)
	v := d.books(t, sagas.Scope{Period: november})
	if v.Events == 0 || v.Unrepaired+v.Repaired != 0 {
		t.Errorf("the reconciliation found %+v", v)
	}
	if n := r.facts("acme", "charge.disputed.v1"); n != 1 {
		t.Errorf("%d disputes are facts", n)
	}
	if n := r.count(`SELECT count(*) FROM webhook_inbox WHERE source = 'events' AND payload IS NULL`); n != r.count(`SELECT count(*) FROM webhook_inbox`) || n == 0 {
		t.Errorf("%d events are kept from the list", n)
	}
	kept := r.count(`SELECT count(*) FROM webhook_inbox`)
	if d.books(t, sagas.Scope{Period: november}); r.count(`SELECT count(*) FROM webhook_inbox`) != kept || r.facts("acme", "charge.disputed.v1") != 1 {
		t.Error("the second time something is new")
	}
}
