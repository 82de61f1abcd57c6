package sagas_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// TestTwelveMonths (C009) bills one customer for a year: the guard belongs to the
// period, so no month silences or re-keys the next.
func TestTwelveMonths(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.register("pm_card_visa", "acme")
	s.must(activate("acme"))
	p := november
	for range 12 {
		y, m := p.Start()
		r.stripe.SetClock(time.Date(y, time.Month(m), 2, 12, 0, 0, 0, time.UTC))
		r.once(p, "acme")
		p = p.Next()
	}
	keys := map[string]bool{}
	for _, m := range r.stripe.Ledger() {
		keys[m.Key] = true
	}
	if n := len(r.stripe.Ledger()); n != 12 || len(keys) != 12 {
		t.Errorf("%d charges under %d keys; want 12 and 12", n, len(keys))
	}
	for _, kind := range []string{"billing.due.v1", "customer.billed.v1"} {
		if n := r.count(`SELECT count(DISTINCT payload->>'billing_period') FROM events WHERE event_type = $1`, kind); n != 12 {
			t.Errorf("%s for %d periods, want 12", kind, n)
		}
	}
}

// TestDowntimeOverMonthEnds: after months away each missed period is billed
// once, under its own label, oldest first.
func TestDowntimeOverMonthEnds(t *testing.T) {
	r := newRig(t)
	s := r.start(options{noCollector: true})
	s.register("pm_card_visa", "acme")
	s.must(activate("acme"))
	r.awaitState("acme", november, "reserved")
	s.stop()
	r.stripe.SetClock(time.Date(2027, 2, 10, 0, 0, 0, 0, time.UTC))
	r.start(options{})
	for p, n := november, 0; n < 4; p, n = p.Next(), n+1 {
		r.once(p, "acme")
	}
	var order string
	if err := r.pool.QueryRow(t.Context(), `SELECT string_agg(payload->>'billing_period', ' ' ORDER BY position) FROM events WHERE event_type = 'billing.due.v1'`).Scan(&order); err != nil {
		t.Fatal(err)
	}
	if order != "2026-11 2026-12 2027-01 2027-02" {
		t.Errorf("dues in the order %s", order)
	}
}

// TestThreeReplicas lets three replicas share a database, a schedule and one
// Stripe, while identical commands arrive at all of them.
func TestThreeReplicas(t *testing.T) {
	r := newRig(t)
	replicas := []*service{r.start(options{concurrency: 4}), r.start(options{concurrency: 4}), r.start(options{concurrency: 4})}
	ids := customers(30)
	replicas[0].register("pm_card_visa", ids...)
	for i, id := range ids {
		replicas[i%3].must(activate(id))
	}
	dues := func() int { return r.count(`SELECT count(*) FROM events WHERE event_type = 'billing.due.v1'`) }
	r.eventually("all are due", func() bool { return dues() >= len(ids) }) // a charge that comes first needs no due
	var callers sync.WaitGroup
	charges := make([]string, 50)
	for i := range charges {
		callers.Go(func() {
			receipt, err := replicas[i%3].send(commands.Of(commands.NewChargeBilling(ids[0], november, usd(5000))))
			if err != nil {
				t.Errorf("identical command %d: %v", i, err)
				return
			}
			charges[i] = fmt.Sprint(receipt.Key)
		})
	}
	callers.Wait()
	r.once(november, ids...)
	for _, key := range charges {
		if key != string(domain.ChargeKey(ids[0], november, 1)) {
			t.Errorf("a receipt under key %q", key)
		}
	}
	if n := dues(); n != len(ids) {
		t.Errorf("%d dues for %d customers", n, len(ids))
	}
	if n := r.count(`SELECT count(*) FROM (SELECT 1 FROM events GROUP BY stream_id HAVING max(stream_version) <> count(*)) AS gaps`); n != 0 {
		t.Errorf("%d streams have gaps in their versions", n)
	}
}

// TestC006_LostTokens deletes the tokens of saga and pre-flight after three months,
// when Stripe has forgotten the keys: the log is read again, and nothing old
// is called.
func TestC006_LostTokens(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	ids := customers(100)
	s.register("pm_card_visa", ids...)
	p := november
	for range 3 {
		for _, id := range ids {
			s.charge(id, p)
		}
		r.once(p, ids...)
		p = p.Next()
	}
	s.stop()
	r.stripe.Advance(48 * time.Hour)
	posts := r.posts()
	facts := r.count(`SELECT count(*) FROM events`)
	if _, err := r.pool.Exec(t.Context(), `DELETE FROM processor_tokens WHERE processor IN ('billing', 'preflight', 'schedule')`); err != nil {
		t.Fatal(err)
	}
	first, second := r.start(options{}), r.start(options{})
	r.eventually("the processors have caught up again", first.caughtUp)
	if now := r.posts(); now != posts {
		t.Errorf("%d POSTs for bills of the past", now-posts)
	}
	if now := r.count(`SELECT count(*) FROM events`); now != facts {
		t.Errorf("%d new facts by reading old ones", now-facts)
	}
	for _, id := range ids[:5] {
		second.charge(id, p)
	}
	r.once(p, ids[:5]...)
	if n := len(r.stripe.Ledger()); n != 305 {
		t.Errorf("%d charges, want 305", n)
	}
}

// caughtUp reports whether every processor is at the end of the log.
func (s *service) caughtUp() bool {
	status, err := s.runtime.Status(context.WithoutCancel(s.t.Context()))
	if err != nil || len(status) == 0 {
		return false
	}
	for _, p := range status {
		if !p.CaughtUp {
			return false
		}
	}
	return true
}

func (r *rig) posts() (n int) {
	for _, q := range r.stripe.Requests() {
		if q.Method == "POST" {
			n++
		}
	}
	return n
}

// TestDueWrittenTwice puts a second due for the same bill into the log, as no
// command ever would: the saga sees a duplicate.
func TestDueWrittenTwice(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.register("pm_card_visa", "acme")
	s.must(activate("acme"))
	r.once(november, "acme")
	forge := func() {
		if _, err := r.pool.Exec(t.Context(), `
			INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
			SELECT partition, stream_id, (SELECT max(stream_version) + 1 FROM events WHERE stream_id = e.stream_id), event_type, sequence_key, payload
			FROM events e WHERE event_type = 'billing.due.v1' ORDER BY position LIMIT 1`); err != nil {
			t.Fatal(err)
		}
	}
	forge()
	r.stripe.Advance(25 * time.Hour)
	forge()
	r.eventually("the saga has seen both", func() bool {
		return r.count(`SELECT count(*) FROM sagas WHERE id = 'acme/2026-11' AND state->>'dues' = '3'`) == 1
	})
	r.once(november, "acme")
	if n := r.count(`SELECT count(*) FROM dead_letters`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// TestC042_AmountIsFrozen changes the price while an answer is lost, of a confirm
// that was executed and of one that was not: what follows carries the amount and
// the key that it began with, and the next period has the new price.
func TestC042_AmountIsFrozen(t *testing.T) {
	for _, kind := range []sim.Kind{sim.CommitThenDrop, sim.DropBeforeCommit} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: kind})
			wrap, frozen, thaw := freezeOnce(t, "before", "find")
			s := r.start(options{gateway: wrap, lease: time.Minute})
			s.register("pm_card_visa", "acme")
			s.must(activate("acme"))
			<-frozen
			s.must(commands.Of(commands.NewChangeSubscriptionAmount("acme", 6000, "usd", domain.Period{}, time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC), "op-1")))
			thaw()
			r.once(november, "acme")
			if n := r.stripe.Counters().Mismatches; n != 0 {
				t.Errorf("%d mismatches", n)
			}
			for _, key := range r.confirms() {
				if key != string(domain.ChargeKey("acme", november, 1)) {
					t.Errorf("a confirm under the key %s", key)
				}
			}
			r.stripe.SetClock(time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC))
			r.awaitState("acme", november.Next(), "succeeded")
			amounts := map[string]int64{}
			for _, m := range r.stripe.Ledger() {
				amounts[m.Metadata["billing_period"]] += m.Amount
			}
			if amounts["2026-11"] != 5000 || amounts["2026-12"] != 6000 {
				t.Errorf("charged by period: %v", amounts)
			}
		})
	}
}

// TestC039_LookAdopts plants what the log does not know at Stripe: charges and open
// intents with our markers. Nothing is created over them.
func TestC039_LookAdopts(t *testing.T) {
	r := newRig(t)
	marks := func(id domain.CustomerID) map[string]string {
		return map[string]string{"customer_id": string(id), "billing_period": november.String(), "billing_key": string(domain.ChargeKey(id, november, 1))}
	}
	for id, intent := range map[domain.CustomerID]bool{"known": false, "unasked": true} {
		if _, err := r.stripe.PlantCharge(sim.Plant{Customer: "cus_" + string(id), Amount: 5000, Currency: "usd", Metadata: marks(id), WithIntent: intent}); err != nil {
			t.Fatal(err)
		}
	}
	foreign := marks("foreign")
	foreign["billing_key"] = "something else"
	if _, err := r.stripe.PlantCharge(sim.Plant{Customer: "cus_foreign", Amount: 5000, Currency: "usd", Metadata: foreign}); err != nil {
		t.Fatal(err)
	}
	quiet := r.start(options{noCollector: true})
	quiet.owe("known", "other")
	r.awaitState("known", november, "reserved")
	creates := r.stripe.Counters().Creates
	s := r.start(options{})
	r.once(november, "known", "other")
	if n := r.stripe.Counters().Creates - creates; n != 1 {
		t.Errorf("%d intents were created, want 1", n)
	}
	r.eventually("the charge that nobody had asked for is recorded", func() bool {
		return r.count(`SELECT count(*) FROM events WHERE stream_id = 'customer/unasked' AND event_type = 'customer.billed.v1' AND (payload->>'recovered')::bool`) == 1
	})
	s.register("pm_card_visa", "unasked")
	receipt := s.must(commands.Of(commands.NewChargeBilling("unasked", november, usd(5000))))
	if len(receipt.Events) != 0 {
		t.Errorf("a bill that is paid was requested again: %+v", receipt)
	}
	if n := r.count(`SELECT count(*) FROM events WHERE stream_id = 'customer/foreign'`); n != 0 {
		t.Errorf("%d facts about somebody else's charge", n)
	}
}

// TestC063_RateLimitIsNotADecline answers a third of the POSTs with 429 of both
// kinds, with and without Retry-After: every bill is charged, each call under
// its one key, and none counts as declined.
func TestC063_RateLimitIsNotADecline(t *testing.T) {
	r := newRig(t)
	for seed, after := range []int{0, 1} {
		r.fault(sim.Fault{Match: sim.Match{Method: "POST"}, Seed: uint64(seed + 7), Rate: 0.15, Kinds: []sim.Kind{sim.RateLimit429, sim.LockTimeout429}, RetryAfter: after})
	}
	s := r.start(options{})
	ids := customers(500)
	s.owe(ids...)
	r.within(5*time.Minute, "all are charged", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == len(ids)
	})
	r.once(november, ids...)
	if n := r.count(`SELECT count(*) FROM events WHERE event_type IN ('charge.declined.v1', 'charge.rejected.v1')`); n != 0 {
		t.Errorf("%d bills count as declined or rejected", n)
	}
	keys, refused := map[string]bool{}, 0
	for _, q := range r.stripe.Requests() {
		if q.Method == "POST" {
			keys[q.Key] = true
		}
		if q.Status == 429 {
			refused++
		}
	}
	if len(keys) != 2*len(ids) || refused < len(ids)/4 { // a create and a confirm each
		t.Errorf("%d keys for %d bills, %d calls refused", len(keys), len(ids), refused)
	}
}

// TestRandomFaults is the whole thing under a seeded storm: answers lost on
// both sides of the commit, 429s, 500s, 502s, delays, a replica that comes and
// goes. Each bill is charged once.
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed+1), func(t *testing.T) {
			r := newRig(t)
			if _, err := r.stripe.AddFault(sim.Fault{Match: sim.Match{Method: "POST"}, Seed: seed + 1, Rate: 0.25, Kinds: []sim.Kind{
				sim.CommitThenDrop, sim.DropBeforeCommit, sim.RateLimit429, sim.Gateway502, sim.Gateway504AfterCommit, sim.TruncateBody, sim.KeyInUse409, sim.Empty200AfterCommit,
			}}); err != nil {
				t.Fatal(err)
			}
			random := rand.New(rand.NewPCG(seed, 1))
			steady := r.start(options{})
			ids := customers(40)
			steady.register("pm_card_visa", ids...)
			for i, id := range ids {
				steady.charge(id, november)
				if i%13 == 0 {
					guest := r.start(options{concurrency: 1 + random.IntN(8)})
					t.Cleanup(guest.stop)
					if random.IntN(2) == 0 {
						guest.stop()
					}
				}
			}
			r.within(2*time.Minute, "all are charged", func() bool {
				return r.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == len(ids)
			})
			r.once(november, ids...)
		})
	}
}

// TestForgetfulStripe is the negative control: with a stand-in that ignores
// idempotency keys and forgets what it made, doubles are seen by the check
// that the other tests rely on.
func TestForgetfulStripe(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.owe("acme")
	r.once(november, "acme")
	m := r.stripe.Ledger()[0]
	if _, err := r.stripe.PlantCharge(sim.Plant{Customer: m.Customer, Amount: m.Amount, Currency: m.Currency, Metadata: m.Metadata}); err != nil {
		t.Fatal(err)
	}
	if n := r.charged("acme", november); n != 2 {
		t.Errorf("the ledger's check sees %d charges, want 2: it could not fail", n)
	}
}

// TestOneBadFact puts something unreadable into one customer's stream: the
// others are billed, the bad one is parked with a reason, and after the repair
// it is billed too.
func TestOneBadFact(t *testing.T) {
	r := newRig(t)
	quiet := r.start(options{noCollector: true})
	ids := customers(20)
	quiet.register("pm_card_visa", ids...)
	if _, err := r.pool.Exec(t.Context(), `UPDATE events SET payload = '{"customer_id": 7}' WHERE stream_id = $1`, string(ids[3].Stream())); err != nil {
		t.Fatal(err)
	}
	quiet.stop()
	s := r.start(options{}) // a process that has the good facts in no cache
	for i, id := range ids {
		if i != 3 {
			s.must(activate(id))
		}
	}
	r.eventually("something is due", func() bool {
		return r.count(`SELECT count(*) FROM events WHERE event_type = 'billing.due.v1'`) > 0
	})
	if _, err := r.pool.Exec(t.Context(), `
		INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload)
		SELECT e.partition, e.stream_id, 2, 'billing.due.v1', e.sequence_key, jsonb_set(d.payload::jsonb, '{customer_id}', to_jsonb($2::text))::json
		FROM events e, (SELECT payload FROM events WHERE event_type = 'billing.due.v1' LIMIT 1) d WHERE e.stream_id = $1`,
		string(ids[3].Stream()), string(ids[3])); err != nil {
		t.Fatal(err)
	}
	good := append(append([]domain.CustomerID{}, ids[:3]...), ids[4:]...)
	r.once(november, good...)
	r.eventually("the bad one is parked", func() bool {
		return r.count(`SELECT count(*) FROM dead_letters WHERE processor = 'billing' AND sequence_key = $1 AND error <> ''`, string(ids[3])) > 0
	})
	if _, err := r.pool.Exec(t.Context(), `UPDATE events SET payload = $2 WHERE stream_id = $1 AND stream_version = 1`, string(ids[3].Stream()),
		fmt.Sprintf(`{"customer_id": %q, "stripe_customer_id": "cus_%s", "payment_method_id": "pm_card_visa"}`, ids[3], "cust003")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.runtime.Retry(t.Context(), "billing", string(ids[3]), "test"); err != nil {
		t.Fatal(err)
	}
	r.once(november, ids...)
}
