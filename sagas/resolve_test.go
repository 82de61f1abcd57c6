package sagas_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

const confirmPath = "/v1/payment_intents/*/confirm"

// fault arms a fault at the stand-in.
func (r *rig) fault(f sim.Fault) (id string) {
	r.t.Helper()
	id, err := r.stripe.AddFault(f)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// byHand sends a request to Stripe that Billonce knows nothing of, and gives the
// id of what Stripe answers with.
func (r *rig) byHand(path, key string, form url.Values) (id string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.stripe.APIURL+path, strings.NewReader(form.Encode()))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer sk_test_rig")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	var made struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(res.Body).Decode(&made); err != nil || res.StatusCode != http.StatusOK || made.ID == "" {
		r.t.Fatalf("%s by hand: %s, %v", path, res.Status, err)
	}
	return made.ID
}

// intentOf is the committed intent of a bill.
func (r *rig) intentOf(id domain.CustomerID) (intent string) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.WithoutCancel(r.t.Context()), `SELECT intent_id FROM billing_records WHERE customer_id = $1 AND intent_id IS NOT NULL`, string(id)).Scan(&intent); err != nil {
		r.t.Fatalf("intent of %s: %v", id, err)
	}
	return intent
}

// confirms are the keys under which confirms arrived, in their order.
func (r *rig) confirms() (keys []string) {
	for _, q := range r.stripe.Requests() {
		if q.Method == http.MethodPost && strings.HasSuffix(q.Path, "/confirm") {
			keys = append(keys, q.Key)
		}
	}
	return keys
}

func (r *rig) facts(id domain.CustomerID, name string) int {
	r.t.Helper()
	return r.count(`SELECT count(*) FROM events WHERE stream_id = $1 AND event_type = $2`, string(id.Stream()), name)
}

// TestC001_AnswerLostThreeTimes: Stripe takes the money and loses the answer,
// and those to the reads that follow, or gives it after the caller has gone.
// Every request carries the one key, and the bill counts as nothing but paid.
func TestC001_AnswerLostThreeTimes(t *testing.T) {
	confirm, create, read := sim.Match{Method: "POST", Path: confirmPath}, sim.Match{Method: "POST", Path: "/v1/payment_intents"}, sim.Match{Method: "GET", Path: "/v1/payment_intents/*"}
	for name, faults := range map[string][]sim.Fault{
		"three answers lost":             {{Match: confirm, Kind: sim.CommitThenDrop, Times: 3}},
		"of the create, too":             {{Match: create, Kind: sim.CommitThenDrop, Times: 3}, {Match: confirm, Kind: sim.CommitThenDrop, Times: 3}},
		"and of the reads":               {{Match: confirm, Kind: sim.CommitThenDrop, Times: 3}, {Match: read, Kind: sim.CommitThenDrop, Times: 3}},
		"answered after the limit":       {{Match: confirm, Kind: sim.DelayBeforeCommit, Delay: 2 * testTimeout}},
		"taken, answered when it's late": {{Match: confirm, Kind: sim.DelayAfterCommit, Delay: 2 * testTimeout}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for _, f := range faults {
				r.fault(f)
			}
			s := r.start(options{})
			s.owe("acme")
			r.once(november, "acme")
			for _, key := range r.confirms() {
				if key != string(domain.ChargeKey("acme", november, 1)) {
					t.Errorf("a confirm under the key %s", key)
				}
			}
			if n := r.facts("acme", "charge.declined.v1") + r.facts("acme", "charge.rejected.v1"); n != 0 {
				t.Errorf("%d facts say that it failed", n)
			}
			if c := r.stripe.Counters(); c.Mismatches != 0 || c.Creates != 1 {
				t.Errorf("%d mismatches, %d intents", c.Mismatches, c.Creates)
			}
		})
	}
}

// TestC003_DeathBeforeTheCall: what is reserved, or claimed, and was never sent
// is not lost.
func TestC003_DeathBeforeTheCall(t *testing.T) {
	t.Run("reserved", func(t *testing.T) {
		r := newRig(t)
		s := r.start(options{noCollector: true})
		s.owe("acme")
		r.awaitState("acme", november, "reserved")
		s.stop()
		r.start(options{})
		r.once(november, "acme")
	})
	t.Run("claimed", func(t *testing.T) {
		r := newRig(t)
		wrap, frozen, _ := freezeOnce(t, "before", "create")
		s := r.start(options{gateway: wrap})
		s.owe("acme")
		<-frozen // and never wakes up
		if n := r.posts(); n != 0 {
			t.Fatalf("%d POSTs", n)
		}
		r.start(options{})
		r.once(november, "acme")
	})
}

// TestProcessing waits for a payment that Stripe is still processing, and
// records how it ends.
func TestProcessing(t *testing.T) {
	for end, state := range map[string]string{"succeeds": "succeeded", "insufficient_funds": "declined"} {
		t.Run(end, func(t *testing.T) {
			r := newRig(t)
			s := r.start(options{})
			s.register("pm_sim_processing_2h_"+end, "acme")
			s.charge("acme", november)
			r.awaitState("acme", november, "unknown")
			r.stripe.Advance(90 * time.Minute) // past the quiet period: processing is no silence
			r.release("acme")
			r.eventually("it was read again", func() bool { return r.count(`SELECT tries FROM billing_records`) >= 2 })
			if n := len(r.confirms()); n != 1 {
				t.Errorf("%d confirms", n)
			}
			r.stripe.Advance(time.Hour)
			r.release("acme")
			r.awaitState("acme", november, state)
			if state == "succeeded" {
				r.once(november, "acme")
			}
		})
	}
}

// TestDeclinedByANewCharge loses the answer that said no: the intent's new
// charge says it, and the decline names that charge.
func TestDeclinedByANewCharge(t *testing.T) {
	r := newRig(t)
	r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: sim.CommitThenDrop})
	s := r.start(options{})
	s.register("pm_sim_declines_insufficient_funds", "acme")
	s.charge("acme", november)
	r.awaitState("acme", november, "declined")
	ledger := r.stripe.Ledger()
	if len(ledger) != 1 {
		t.Fatalf("%d movements", len(ledger))
	}
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'charge.declined.v1' AND payload->>'charge_id' = $1 AND payload->>'decline_code' = 'insufficient_funds'`, ledger[0].Charge); n != 1 {
		t.Errorf("%d declines name the charge %s", n, ledger[0].Charge)
	}
}

// TestUnchanged finds the committed intent as it was before the lost confirm:
// inside the safe window the same key goes again; past it, after the quiet
// period, the same intent under the next key, whose number is recorded first.
func TestUnchanged(t *testing.T) {
	key := string(domain.ChargeKey("acme", november, 1))
	for name, c := range map[string]struct {
		passes time.Duration
		want   []string
	}{
		"inside the window": {0, []string{key, key}},
		"past the window":   {25 * time.Hour, []string{key, key + "-again-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: sim.DropBeforeCommit})
			wrap, frozen, thaw := freezeOnce(t, "before", "find")
			s := r.start(options{gateway: wrap, lease: time.Minute})
			s.owe("acme")
			<-frozen
			if c.passes > 0 {
				r.stripe.Advance(c.passes)
				moved := time.Now() // a move of the stand-in's clock is noticed within a fifth of a second
				r.eventually("the clock was asked again", func() bool { return time.Since(moved) > 300*time.Millisecond })
			}
			thaw()
			r.once(november, "acme")
			got := r.confirms()
			if strings.Join(got, " ") != strings.Join(c.want, " ") {
				t.Errorf("confirms under %v, want %v", got, c.want)
			}
			if n := r.count(`SELECT count(DISTINCT intent_id) FROM billing_records`) + int(r.stripe.Counters().Creates); n != 2 {
				t.Errorf("another intent was made")
			}
			if n := r.facts("acme", "charge.attempt_started.v1"); n < 2 {
				t.Errorf("%d starts recorded", n)
			}
		})
	}
}

// TestCancelledIntent finds the committed intent cancelled, by nobody of ours:
// the next one is made, as a fact, and takes the money once.
func TestCancelledIntent(t *testing.T) {
	r := newRig(t)
	r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: sim.DropBeforeCommit})
	wrap, frozen, thaw := freezeOnce(t, "before", "find")
	s := r.start(options{gateway: wrap, lease: time.Minute})
	s.owe("acme")
	<-frozen
	r.byHand("/v1/payment_intents/"+r.intentOf("acme")+"/cancel", "by hand", url.Values{"cancellation_reason": {"abandoned"}})
	thaw()
	r.once(november, "acme")
	if n := r.facts("acme", "charge.intent_committed.v1"); n != 2 {
		t.Errorf("%d intents are committed by facts, want 2", n)
	}
	if keys := r.confirms(); len(keys) != 2 || keys[1] != string(domain.ChargeKey("acme", november, 1))+"-i2" {
		t.Errorf("confirms under %v", keys)
	}
}

// TestLostCreate makes the intent again under the same key, and gets the same.
func TestLostCreate(t *testing.T) {
	r := newRig(t)
	r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: "/v1/payment_intents"}, Kind: sim.CommitThenDrop})
	s := r.start(options{})
	s.owe("acme")
	r.once(november, "acme")
	if n := r.stripe.Counters().Creates; n != 1 {
		t.Errorf("%d intents were made", n)
	}
}

// TestProvenNotSent: an answer that proves non-execution begins the key's
// window anew; the bill goes back to where it was before.
func TestProvenNotSent(t *testing.T) {
	r := newRig(t)
	id := r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: sim.RateLimit429, Times: -1})
	s := r.start(options{})
	s.owe("acme")
	r.eventually("it is reserved again, and nothing counts as sent", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE state = 'reserved' AND tries > 0 AND first_sent_at IS NULL AND intent_id IS NOT NULL`) == 1
	})
	if n := r.facts("acme", "charge.not_sent.v1"); n == 0 {
		t.Error("no fact says that nothing was sent")
	}
	r.stripe.ClearFaults(id)
	r.release("acme")
	r.once(november, "acme")
}

// TestMissingIntent: an intent that Stripe does not know is a contradiction for
// a person to look at. It is never replaced.
func TestMissingIntent(t *testing.T) {
	r := newRig(t)
	r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: sim.DropBeforeCommit})
	r.fault(sim.Fault{Match: sim.Match{Method: "GET", Path: "/v1/payment_intents/*"}, Kind: sim.Error404, Times: -1})
	s := r.start(options{})
	s.owe("acme")
	r.awaitState("acme", november, "needs_review")
	if n := r.stripe.Counters().Creates; n != 1 {
		t.Errorf("%d intents were made", n)
	}
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'charge.needs_review.v1' AND payload->>'evidence' LIKE '%' || $1 || '%'`, r.intentOf("acme")); n != 1 {
		t.Errorf("%d facts name the intent as evidence", n)
	}
}

// refusing answers the second confirm without asking Stripe.
type refusing struct {
	sagas.Gateway
	takes  atomic.Int64
	answer domain.Outcome
}

func (g *refusing) Take(ctx context.Context, o sagas.Order) domain.Outcome {
	if g.takes.Add(1) == 2 {
		return g.answer
	}
	return g.Gateway.Take(ctx, o)
}

// TestNoClearsOnlyItsOwn: a send is unknown, and the next one is refused in
// every way that proves that it, and only it, did nothing. The bill stays
// unknown, and in the end it is charged once.
func TestNoClearsOnlyItsOwn(t *testing.T) {
	for _, kind := range []sim.Kind{sim.Error401, sim.Error403, sim.Error404, sim.RateLimit429, sim.LockTimeout429, "dial error"} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath}, Kind: sim.DropBeforeCommit})
			o := options{}
			if kind == "dial error" {
				o.gateway = func(g sagas.Gateway) sagas.Gateway {
					return &refusing{Gateway: g, answer: domain.Outcome{Class: domain.RetrySameKey, Reason: "not sent: no connection"}}
				}
			} else {
				r.fault(sim.Fault{Match: sim.Match{Method: "POST", Path: confirmPath, Nth: 2}, Kind: kind})
			}
			s := r.start(o)
			s.owe("acme")
			r.once(november, "acme")
			if n := r.count(`SELECT count(*) FROM events WHERE event_type IN ('charge.held.v1', 'charge.not_sent.v1', 'charge.rejected.v1', 'charge.declined.v1')`); n != 0 {
				t.Errorf("%d facts clear more than their own request", n)
			}
			if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'charge.unknown.v1' AND payload->>'reason' LIKE 'an earlier send is unresolved%'`); n != 1 {
				t.Errorf("%d facts say that an earlier send is unresolved", n)
			}
			for _, key := range r.confirms() {
				if key != string(domain.ChargeKey("acme", november, 1)) {
					t.Errorf("a confirm under the key %s", key)
				}
			}
		})
	}
}

// TestC064_KeyInUseMeansWait: the first request is still running when the
// second meets it. That is no answer about the bill, and no reason for another
// key.
func TestC064_KeyInUseMeansWait(t *testing.T) {
	for name, faults := range map[string][]sim.Fault{
		"the first comes to nothing": {{Kind: sim.DropBeforeCommit}, {Match: sim.Match{Nth: 2}, Kind: sim.KeyInUse409, Times: 3}},
		"the first takes its time":   {{Kind: sim.DelayBeforeCommit, Delay: 3 * testTimeout}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for _, f := range faults {
				f.Match.Method, f.Match.Path = "POST", confirmPath
				r.fault(f)
			}
			s := r.start(options{})
			s.owe("acme")
			r.once(november, "acme")
			keys, inUse := r.confirms(), 0
			for _, key := range keys {
				if key != string(domain.ChargeKey("acme", november, 1)) {
					t.Errorf("confirms under %v", keys)
				}
			}
			for _, q := range r.stripe.Requests() {
				if q.Status == http.StatusConflict {
					inUse++
				}
			}
			if inUse == 0 || len(keys) < 2 {
				t.Errorf("%d confirms, of which %d met their key in use", len(keys), inUse)
			}
			if n := r.facts("acme", "charge.declined.v1") + r.facts("acme", "charge.rejected.v1"); n != 0 {
				t.Errorf("%d facts say that it failed", n)
			}
		})
	}
}

// TestDeclineIsReadAgain: a confirm that was still travelling when its bill
// counted as declined executes after all. A day later the intent is read again,
// and the success is recorded; a decline that stays one is read once.
func TestDeclineIsReadAgain(t *testing.T) {
	r := newRig(t)
	s := r.start(options{})
	s.register("pm_sim_declines_insufficient_funds", "late", "stays")
	s.charge("late", november)
	s.charge("stays", november)
	r.awaitState("late", november, "declined")
	r.awaitState("stays", november, "declined")
	r.byHand("/v1/payment_intents/"+r.intentOf("late")+"/confirm", "travelling", url.Values{"payment_method": {"pm_card_visa"}, "off_session": {"true"}})
	if n := r.charged("late", november); n != 1 {
		t.Fatalf("%d charges", n)
	}
	r.stripe.Advance(25 * time.Hour)
	r.once(november, "late")
	r.eventually("the other was read", func() bool {
		return r.count(`SELECT count(*) FROM billing_records WHERE customer_id = 'stays' AND state = 'declined' AND read_again_at IS NULL`) == 1
	})
	if n := r.facts("stays", "charge.declined.v1"); n != 1 {
		t.Errorf("%d declines are recorded", n)
	}
}
