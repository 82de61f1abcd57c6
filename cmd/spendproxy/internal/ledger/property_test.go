package ledger_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// plain is the ledger as it is meant: a few maps and no database.
type plain struct {
	cap     int64
	things  map[string]*thing
	answers map[string]ledger.Answer // by key
	calls   map[string]*sent
}

// thing is an intent, or a legacy charge.
type thing struct {
	id         string
	intent     bool
	amount     int64
	state      string // "", open, settled, released
	final      policy.ObjectState
	answer     *ledger.Answer // of the intent that succeeded
	sends      map[string]*sent
	quietUntil time.Time
}

// sent is a call that was forwarded.
type sent struct {
	id, key  string
	thing    *thing
	at       time.Time
	instance int
}

func (m *plain) sums() (held, spent, charges int64) {
	for _, x := range m.things {
		switch x.state {
		case "open":
			held, charges = held+x.amount, charges+1
		case "settled":
			spent, charges = spent+x.amount, charges+1
		}
	}
	return held, spent, charges
}

func (x *thing) settle() {
	x.state, x.sends, x.final = "settled", map[string]*sent{}, policy.Succeeded
}

func (x *thing) release() { x.state, x.sends = "released", map[string]*sent{} }

func (x *thing) proven() {
	if x.state == "open" && len(x.sends) == 0 {
		x.release()
	}
}

func (x *thing) quiet(until time.Time) {
	if until.After(x.quietUntil) {
		x.quietUntil = until
	}
}

// trial is one random history: three proxies on one database against the model.
type trial struct {
	*rig
	t       *rapid.T
	proxies []*ledger.Ledger
	key     string
	m       *plain
	now     time.Time
}

var histories atomic.Int64

// Whatever the order in which calls are begun, answered, lost, repeated, observed
// and forgotten by proxies that die: what is held and spent is what the plain
// model says, nothing is reserved above the cap, one answer stands for ever, and
// room comes back when, and only when, it is proven that nothing was taken.
func TestLedgerAgainstAPlainModel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rapid.Check(t, func(rt *rapid.T) {
		n := histories.Add(1)
		k := r.keyOf(ledger.Issue{Label: fmt.Sprint(n)}, 1000)
		h := &trial{rig: r, t: rt, key: k, m: &plain{cap: 1000, things: map[string]*thing{}, answers: map[string]ledger.Answer{}, calls: map[string]*sent{}}}
		for range 3 {
			h.proxies = append(h.proxies, ledger.New(r.pool, ledger.Options{Now: r.clock.Now, Log: discard}))
		}
		for i := range 5 {
			x := &thing{id: fmt.Sprintf("pi_%d_%d", n, i), intent: i < 3, amount: int64(150 + 100*i)}
			if x.intent {
				r.observe(intent(x.id, policy.Unpaid, x.amount))
			} else {
				x.id = fmt.Sprintf("charge_%d_%d", n, i)
			}
			h.m.things[x.id] = x
		}
		rt.Repeat(map[string]func(*rapid.T){
			"begin": h.doBegin, "begin more": h.doBegin, "finish": h.doFinish, "finish more": h.doFinish, "observe": h.doObserve,
			"raise": h.doRaise, "crash": h.doCrash, "wait": h.doWait, "": h.check,
		})
	})
}

func (h *trial) draw() *thing {
	return h.m.things[rapid.SampledFrom(slices.Sorted(maps.Keys(h.m.things))).Draw(h.t, "thing")]
}

func (h *trial) doBegin(t *rapid.T) {
	x := h.draw()
	h.now, _ = h.clock.Now(h.Context())
	c := charge(x.id, x.amount)
	if x.intent {
		c = confirm(x.id+rapid.SampledFrom([]string{"", "-again-1", "-other"}).Draw(t, "key"), x.id)
	}
	held, spent, _ := h.m.sums()
	at := rapid.IntRange(0, 2).Draw(t, "proxy")
	a := ask(h.key, c)
	d, err := h.proxies[at].Begin(h.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	answer, known := h.m.answers[c.Key]
	if !known && x.answer != nil {
		answer, known = *x.answer, true
	}
	switch {
	case known:
		if d.Answer == nil || !equalAnswer(*d.Answer, answer) {
			t.Fatalf("%s has succeeded: %+v", c.Key, d)
		}
		return
	case x.state != "open" && x.amount > h.m.cap-held-spent:
		if d.Forward || d.Verdict.Code != policy.CodeCapExceeded {
			t.Fatalf("%d of %d, %d held and %d spent: %+v", x.amount, h.m.cap, held, spent, d)
		}
		return
	case !d.Forward:
		t.Fatalf("%s, %s: %+v", c.Key, x.state, d)
	}
	if x.state != "open" {
		x.state, x.sends, x.quietUntil = "open", map[string]*sent{}, h.now
	}
	s := &sent{id: a.ID, key: c.Key, thing: x, at: h.now, instance: at}
	x.sends[s.id], h.m.calls[s.id] = s, s
	x.quiet(h.now.Add(15 * time.Minute))
	if held, spent, _ := h.m.sums(); held+spent > h.m.cap && len(x.sends) == 1 {
		t.Fatalf("%d held and %d spent of %d", held, spent, h.m.cap)
	}
}

func (h *trial) doFinish(t *rapid.T) {
	if len(h.m.calls) == 0 {
		return // nothing is under way
	}
	// Ids are random: calls are drawn in the order in which they were sent.
	calls := slices.SortedFunc(maps.Values(h.m.calls), func(a, b *sent) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return slices.Compare([]string{a.key, a.id}, []string{b.key, b.id})
	})
	s := rapid.SampledFrom(calls).Draw(t, "call")
	x := s.thing
	h.now, _ = h.clock.Now(h.Context())
	fates := []string{"unsent", "refused", "lost", "failed"}
	_, answered := h.m.answers[s.key]
	switch {
	case x.final == "":
		fates = append(fates, "paid", "paid", "declined")
		if x.intent {
			fates = append(fates, "action")
		}
	case !x.intent && answered:
		fates = append(fates, "replayed")
	}
	var res ledger.Result
	mine := func(*sent) bool { return false }
	switch fate := rapid.SampledFrom(fates).Draw(t, "fate"); fate {
	case "unsent", "refused":
		res = unsent(s.id)
		if fate == "refused" {
			res = refusal(s.id, rapid.SampledFrom([]int{400, 401, 403, 404, 429}).Draw(t, "status"))
		}
		mine = func(o *sent) bool { return o == s }
	case "declined":
		res = declined(s.id)
		mine = func(o *sent) bool { return o == s || o.key == s.key && h.now.Sub(o.at) < 23*time.Hour }
	case "lost", "action", "failed":
		res = lost(s.id)
		until := h.now.Add(15 * time.Minute)
		if fate == "action" {
			res = shows(s.id, intent(x.id, policy.Action, x.amount))
		}
		if fate == "failed" {
			res = ledger.Result{ID: s.id, Fate: ledger.Answered, Answer: ledger.Answer{Status: http.StatusInternalServerError}}
			until = h.now.Add(24 * time.Hour)
		}
		if x.state == "open" {
			x.quiet(until)
		}
	case "paid":
		e := intent(x.id, policy.Succeeded, x.amount)
		if !x.intent {
			e = ch("ch_"+x.id, x.amount)
		}
		res = paid(s.id, e)
		h.m.answers[s.key] = res.Answer
		if x.settle(); x.intent {
			x.answer = &res.Answer
		}
	case "replayed":
		res = paid(s.id, ch("ch_"+x.id, x.amount))
		res.Answer = h.m.answers[s.key]
	}
	maps.DeleteFunc(x.sends, func(_ string, o *sent) bool { return mine(o) })
	x.proven()
	if err := h.proxies[s.instance].Finish(h.Context(), res); err != nil {
		t.Fatal(err)
	}
	delete(h.m.calls, s.id)
}

func (h *trial) doObserve(t *rapid.T) {
	x := h.draw()
	if !x.intent {
		return // no read shows it
	}
	h.now, _ = h.clock.Now(h.Context())
	states := []policy.ObjectState{x.final}
	if x.final == "" {
		states = []policy.ObjectState{policy.Unpaid, policy.Unpaid, policy.Action, policy.Succeeded, policy.Cancelled}
	}
	state := rapid.SampledFrom(states).Draw(t, "state")
	e := intent(x.id, state, x.amount)
	switch {
	case state == policy.Succeeded:
		e.Raw = []byte("raw " + x.id)
		if x.answer == nil {
			x.answer = &ledger.Answer{Status: 200, ContentType: "application/json", Body: e.Raw}
		}
		if x.state != "" {
			x.settle()
		}
		x.final = policy.Succeeded
	case state == policy.Cancelled, state == policy.Unpaid && !h.now.Before(x.quietUntil):
		if x.state == "open" {
			x.release()
		}
	}
	if state == policy.Cancelled {
		x.final = policy.Cancelled
	}
	if err := h.proxies[rapid.IntRange(0, 2).Draw(t, "proxy")].Observe(h.Context(), []policy.Evidence{e}); err != nil {
		t.Fatal(err)
	}
}

func (h *trial) doRaise(t *rapid.T) {
	to := rapid.Int64Range(0, 2000).Draw(t, "cap")
	if _, err := h.Raise(h.Context(), ledger.Raise{Key: h.key, Currency: "usd", To: &to, Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	h.m.cap = to
}

// doCrash ends a proxy in the middle of its calls, and starts another.
func (h *trial) doCrash(t *rapid.T) {
	at := rapid.IntRange(0, 2).Draw(t, "proxy")
	h.proxies[at] = ledger.New(h.pool, ledger.Options{Now: h.clock.Now, Log: discard})
	maps.DeleteFunc(h.m.calls, func(_ string, s *sent) bool { return s.instance == at })
}

func (h *trial) doWait(t *rapid.T) {
	h.clock.advance(rapid.SampledFrom([]time.Duration{time.Minute, 16 * time.Minute, 25 * time.Hour}).Draw(t, "time"))
}

func (h *trial) check(t *rapid.T) {
	k, err := h.Key(h.Context(), h.key)
	if err != nil {
		t.Fatal(err)
	}
	held, spent, charges := h.m.sums()
	if c := k.Caps[0]; c.Held != held || c.Spent != spent || c.Charges != charges || c.Minor != h.m.cap {
		t.Fatalf("the ledger has %d held, %d spent, %d charges, cap %d; the model %d, %d, %d, %d", c.Held, c.Spent, c.Charges, c.Minor, held, spent, charges, h.m.cap)
	}
}
