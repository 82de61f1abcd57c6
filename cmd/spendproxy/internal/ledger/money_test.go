package ledger_test

import (
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

// A key that succeeded is answered byte for byte, for ever, and nothing of it is
// forwarded or reserved again.
func TestAnswersAreGivenAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(10_000)
	id := r.forward(k, charge("k1", 4000))
	r.wantBooks(k, 0, 4000, 1)
	first := paid(id, ch("ch_1", 4000))
	first.Answer.Body = []byte("{\"id\": \"ch_1\",\n \"odd\": \"\\u0000\xff\x00 bytes\"}")
	r.finish(first)
	r.wantBooks(k, 4000, 0, 1)
	r.clock.advance(400 * 24 * time.Hour)
	for _, l := range []*ledger.Ledger{r.Ledger, r.beside(r.dsn)} {
		d, err := l.Begin(t.Context(), ask(k, charge("k1", 4000)))
		if err != nil || d.Forward || d.Answer == nil || !equalAnswer(*d.Answer, first.Answer) {
			t.Errorf("the answer is not the same: %+v, %v", d.Answer, err)
		}
	}
	r.wantBooks(k, 4000, 0, 1)
	r.refused(k, charge("k1", 4001), policy.CodeReused)
}

// An intent that succeeded is answered under whatever key: with the answer that
// was given first, or in Stripe's words of a read.
func TestSucceededIntentIsAnsweredUnderAnyKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(10_000)
	if _, d := r.begin(k, confirm("c1", "pi_1")); d.Learn != "pi_1" {
		t.Fatalf("an unknown intent is not learnt: %+v", d)
	}
	r.observe(intent("pi_1", policy.Unpaid, 3000))
	id := r.forward(k, confirm("c1", "pi_1"))
	answer := paid(id, intent("pi_1", policy.Succeeded, 3000))
	r.finish(answer)
	for _, key := range []string{"c1", "c1-again-1", "other"} {
		if _, d := r.begin(k, confirm(key, "pi_1")); d.Answer == nil || !equalAnswer(*d.Answer, answer.Answer) {
			t.Errorf("%s: %+v", key, d)
		}
	}

	r.observe(intent("pi_2", policy.Succeeded, 500)) // of a list: its own words are not known
	if _, d := r.begin(k, confirm("c2", "pi_2")); d.Learn != "pi_2" {
		t.Fatalf("%+v", d)
	}
	whole := intent("pi_2", policy.Succeeded, 500)
	whole.Raw = []byte(`{"id":"pi_2"}`)
	r.observe(whole)
	if _, d := r.begin(k, confirm("c2", "pi_2")); d.Answer == nil || d.Answer.Status != 200 || string(d.Answer.Body) != `{"id":"pi_2"}` {
		t.Errorf("%+v", d)
	}
	r.wantBooks(k, 3000, 0, 1)
}

// Definite failures of every kind give the room back.
func TestC092_FailedCallsGiveTheRoomBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(100_000)
	id := r.forward(k, charge("real", 30_000))
	r.finish(paid(id, ch("ch_real", 30_000)))
	for i := range 100 {
		c := charge("f"+string(rune('a'+i%26))+time.Duration(i).String(), 50_000)
		id := r.forward(k, c)
		switch i % 5 {
		case 0:
			r.finish(declined(id))
		case 1:
			r.finish(refusal(id, 400))
		case 2:
			r.finish(refusal(id, 429))
		case 3:
			r.finish(unsent(id))
		case 4:
			r.finish(refusal(id, 401))
		}
	}
	r.wantBooks(k, 30_000, 0, 1)
	r.refused(k, charge("much", 70_001), policy.CodeCapExceeded)
	r.finish(paid(r.forward(k, charge("valid", 50_000)), ch("ch_valid", 50_000)))
	r.wantBooks(k, 80_000, 0, 2)
}

// What is unknown stays held, and its resends pass, also when nothing is left.
func TestResendsPass(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(5000)
	r.finish(lost(r.forward(k, charge("k1", 5000))))
	r.wantBooks(k, 0, 5000, 1)
	r.refused(k, charge("k2", 1), policy.CodeCapExceeded)
	r.forward(k, charge("k1", 5000)) // and nothing comes back
	id := r.forward(k, charge("k1", 5000))
	r.wantBooks(k, 0, 5000, 1)
	zero := int64(0)
	if _, err := r.Raise(t.Context(), ledger.Raise{Key: k, Currency: "usd", To: &zero, Reason: "stop"}); err != nil {
		t.Fatal(err)
	}
	r.finish(refusal(r.forward(k, charge("k1", 5000)), 429)) // clears itself alone
	r.wantBooks(k, 0, 5000, 1)
	r.finish(paid(id, ch("ch_1", 5000)))
	r.wantBooks(k, 5000, 0, 1)
}

// A decline is the key layer's word on every send of its key that Stripe cannot
// have forgotten, and on no other key.
func TestDeclineClearsItsKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(5000)
	r.finish(lost(r.forward(k, charge("k1", 5000))))
	r.finish(declined(r.forward(k, charge("k1", 5000))))
	r.wantBooks(k, 0, 0, 0)

	r.finish(lost(r.forward(k, charge("k2", 5000))))
	r.clock.advance(25 * time.Hour) // Stripe may have forgotten the first, and executed the second anew
	r.finish(declined(r.forward(k, charge("k2", 5000))))
	r.wantBooks(k, 0, 5000, 1)
	if err := r.Release(t.Context(), "key:k2", "looked it up", "ada"); err != nil {
		t.Fatal(err)
	}

	r.observe(intent("pi_1", policy.Unpaid, 5000))
	r.finish(lost(r.forward(k, confirm("a", "pi_1"))))
	r.finish(declined(r.forward(k, confirm("a-again-1", "pi_1"))))
	r.wantBooks(k, 0, 5000, 1)
	r.clock.advance(15 * time.Minute)
	r.observe(intent("pi_1", policy.Unpaid, 5000))
	r.wantBooks(k, 0, 0, 0)
}

// A read that shows no payment proves something only after the quiet time: 15
// minutes after the last send that is not proven, a day after a 500.
func TestQuietTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(5000)
	unpaid := intent("pi_1", policy.Unpaid, 5000)
	r.observe(unpaid)
	r.finish(lost(r.forward(k, confirm("a", "pi_1"))))
	r.clock.advance(10 * time.Minute)
	r.finish(lost(r.forward(k, confirm("a", "pi_1"))))
	r.clock.advance(15*time.Minute - time.Second)
	r.observe(unpaid)
	r.wantBooks(k, 0, 5000, 1)
	if doubts, err := r.Doubts(t.Context(), 10); err != nil || len(doubts) != 0 {
		t.Errorf("a doubt before its time: %+v, %v", doubts, err)
	}
	r.clock.advance(time.Second)
	doubts, err := r.Doubts(t.Context(), 10)
	if err != nil || len(doubts) != 1 || doubts[0].Intent != "pi_1" || doubts[0].Subject != "pi_1" {
		t.Errorf("%+v, %v", doubts, err)
	}
	r.observe(unpaid)
	r.wantBooks(k, 0, 0, 0)

	id := r.forward(k, confirm("a", "pi_1")) // reserves anew
	r.wantBooks(k, 0, 5000, 1)
	r.finish(ledger.Result{ID: id, Fate: ledger.Answered, Answer: ledger.Answer{Status: 500}})
	r.clock.advance(24*time.Hour - time.Second)
	r.observe(unpaid)
	r.wantBooks(k, 0, 5000, 1)
	r.clock.advance(time.Second)
	r.observe(unpaid)
	r.wantBooks(k, 0, 0, 0)
}

// What the customer must act on stays held, however long, until it succeeded or
// is cancelled; a look at it is due again and again, and starves no other doubt.
func TestActionStaysHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(10_000)
	for _, pi := range []string{"pi_1", "pi_2"} {
		r.observe(intent(pi, policy.Unpaid, 4000))
		r.finish(shows(r.forward(k, confirm(pi+"c", pi)), intent(pi, policy.Action, 4000)))
	}
	for range 3 {
		r.clock.advance(10 * 24 * time.Hour)
		first, err := r.Doubts(t.Context(), 1)
		if err != nil || len(first) != 1 {
			t.Fatalf("%+v, %v", first, err)
		}
		second, err := r.Doubts(t.Context(), 1)
		if err != nil || len(second) != 1 || second[0].Subject == first[0].Subject {
			t.Errorf("%+v after %+v, %v", second, first, err)
		}
		r.observe(intent("pi_1", policy.Action, 4000), intent("pi_2", policy.Processing, 4000))
		r.wantBooks(k, 0, 8000, 2)
	}
	r.finish(shows(r.forward(k, cancel("x", "pi_1")), intent("pi_1", policy.Cancelled, 4000)))
	r.observe(intent("pi_2", policy.Succeeded, 4000))
	r.wantBooks(k, 4000, 0, 1)
}

// A success is the truth, also when it comes late, above what was reserved or in
// another currency.
func TestLateAndLargeSuccesses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(5000)
	r.observe(intent("pi_1", policy.Unpaid, 5000))
	r.finish(refusal(r.forward(k, confirm("a", "pi_1")), 404))
	r.wantBooks(k, 0, 0, 0)
	r.observe(intent("pi_1", policy.Succeeded, 6000))
	r.wantBooks(k, 6000, 0, 1)
	r.observe(intent("pi_1", policy.Succeeded, 6000))
	r.wantBooks(k, 6000, 0, 1)
	r.refused(k, charge("more", 1), policy.CodeCapExceeded)

	other := r.key(5000)
	e := ch("ch_yen", 900)
	e.Amount.Currency = "jpy"
	r.finish(paid(r.forward(other, charge("yen", 5000)), e))
	r.wantBooks(other, 0, 0, 0)
	sums, err := r.Books(t.Context(), ledger.BooksFilter{VaultKey: other})
	if err != nil || len(sums) != 1 || sums[0].Currency != "jpy" || sums[0].Settled != 900 || sums[0].SettledCount != 1 {
		t.Errorf("%+v, %v", sums, err)
	}
}

// A create that confirms reserves under its key, then under its intent's id.
func TestCreateThatConfirms(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(5000)
	c := create("cc", policy.BillID{}, 5000)
	c.Confirms = true
	r.finish(lost(r.forward(k, c)))
	r.wantBooks(k, 0, 5000, 1)
	r.finish(shows(r.forward(k, c), intent("pi_1", policy.Action, 5000)))
	r.forward(k, confirm("other", "pi_1")) // shares what is reserved
	r.wantBooks(k, 0, 5000, 1)
	r.observe(intent("pi_1", policy.Succeeded, 5000))
	r.wantBooks(k, 5000, 0, 1)
}

// The answer of a create comes after its intent was seen and confirmed: both
// reservations become one.
func TestCreateIsFoundBeforeItsAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.key(10_000)
	c := create("cc", policy.BillID{}, 5000)
	c.Confirms = true
	id := r.forward(k, c)
	r.observe(intent("pi_1", policy.Unpaid, 5000))
	r.finish(lost(r.forward(k, confirm("b", "pi_1"))))
	r.wantBooks(k, 0, 10_000, 2)
	r.finish(shows(id, intent("pi_1", policy.Processing, 5000)))
	r.wantBooks(k, 0, 5000, 1)
	r.observe(intent("pi_1", policy.Succeeded, 5000))
	r.wantBooks(k, 5000, 0, 1)
}

// Refunds have the caps of their own key, in the charge's currency, and give no
// room back.
func TestRefundsDoNotRefill(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k, back := r.key(5000), r.key(3000)
	r.finish(paid(r.forward(k, charge("k1", 5000)), ch("ch_1", 5000)))
	refund := func(key string, minor int64) policy.Call {
		return policy.Call{Method: "POST", Path: "/v1/refunds", Rule: policy.RefundsCreate, Key: key, Fingerprint: fingerprint(key, minor), Charge: "ch_1", Amount: minor}
	}
	r.finish(paid(r.forward(back, refund("r1", 2000)), policy.Evidence{Object: "re_1", State: policy.Processing, Amount: usd(2000), LatestCharge: "ch_1"}))
	r.wantBooks(back, 0, 2000, 1)
	r.observe(policy.Evidence{Object: "re_1", State: policy.Succeeded, Amount: usd(2000), Received: 2000})
	r.wantBooks(back, 2000, 0, 1)
	r.refused(back, refund("r2", 1001), policy.CodeCapExceeded)
	r.refused(back, refund("r3", 0), policy.CodeCapExceeded) // all of it
	r.wantBooks(k, 5000, 0, 1)
	r.refused(k, charge("k2", 1), policy.CodeCapExceeded)
	if _, d := r.begin(back, policy.Call{Method: "POST", Rule: policy.RefundsCreate, Key: "r4", Charge: "ch_9", Amount: 5}); d.Learn != "ch_9" {
		t.Errorf("%+v", d)
	}
	r.finish(lost(r.forward(back, refund("r5", 1000))))
	r.observe(policy.Evidence{Object: "re_5", State: policy.Unpaid, Amount: usd(1000), Key: "r5"})
	r.wantBooks(back, 2000, 0, 1)
	sums, err := r.Books(t.Context(), ledger.BooksFilter{})
	if err != nil || len(sums) != 1 || sums[0].Settled != 5000 || sums[0].Refunded != 2000 || sums[0].RefundedCount != 1 {
		t.Errorf("%+v, %v", sums, err)
	}
}

// Caps count by currency; one without a cap is refused, and amounts that cannot
// be counted are.
func TestCurrenciesAndOverflow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.keyOf(ledger.Issue{Caps: []ledger.CapTerms{{Currency: "usd", Minor: 1 << 62, Ceiling: 1 << 62}, {Currency: "eur", Minor: 100, Ceiling: 60}}}, 0)
	euro := func(key string, minor int64, c domain.Currency) policy.Call {
		call := charge(key, minor)
		call.Currency, call.Fingerprint = c, fingerprint(key, minor, c)
		return call
	}
	r.refused(k, euro("yen", 1, "jpy"), policy.CodeCurrency)
	r.refused(k, euro("e1", 61, "eur"), policy.CodeCeiling)
	r.refused(k, euro("e0", 0, "eur"), policy.CodeParameter)
	r.refused(k, euro("e-1", -5, "eur"), policy.CodeParameter)
	r.forward(k, euro("e2", 60, "eur"))
	r.refused(k, euro("e3", 41, "eur"), policy.CodeCapExceeded)
	r.forward(k, charge("u1", 1<<61))
	r.forward(k, charge("u2", 1<<61))
	r.refused(k, charge("u3", 1), policy.CodeCapExceeded)

	open := r.keyOf(ledger.Issue{Grant: policy.Grant{Mode: policy.Open}}, 1)
	r.forward(open, charge("o1", 1<<62))
	r.refused(open, charge("o2", 1<<62), policy.CodeParameter)
	r.wantBooks(open, 0, 1<<62, 1)
	third, fourth := r.forward(open, charge("o3", 1<<61)), r.forward(open, charge("o4", 1<<60))
	r.finish(paid(third, ch("ch_o", 1<<62)))
	r.finish(paid(fourth, ch("ch_p", 1<<62)))
	r.wantBooks(open, 1<<63-1, 1<<62, 3) // and no sum wraps around
}

// The number of charges counts over all currencies, in the window.
func TestCountCapsAndDays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.keyOf(ledger.Issue{CountCap: 2, Grant: policy.Grant{Window: policy.Day}, Caps: []ledger.CapTerms{{Currency: "usd", Minor: 1000}, {Currency: "eur", Minor: 1000}}}, 0)
	r.clock.advance(12*time.Hour - time.Second) // 23:59:59
	late := r.forward(k, charge("d1", 600))
	c := charge("d2", 600)
	c.Currency = "eur"
	second := r.forward(k, c)
	r.refused(k, charge("d3", 1), policy.CodeCountExceeded)
	r.finish(declined(second))
	r.refused(k, charge("d4", 401), policy.CodeCapExceeded)
	r.clock.advance(time.Second) // the next day
	r.finish(paid(late, ch("ch_1", 600)))
	r.wantBooks(k, 0, 0, 0) // it counts where it was reserved
	r.finish(paid(r.forward(k, charge("d5", 1000)), ch("ch_2", 1000)))
	r.refused(k, charge("d6", 1), policy.CodeCapExceeded)
	r.clock.advance(24 * time.Hour)
	r.forward(k, charge("d7", 1000))
	r.wantBooks(k, 0, 1000, 1)
}

// The modes: enforce refuses, report and open let pass what gives way, and book
// it; what cannot be read and a key that is not valid bind in each.
func TestModes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, mode := range []policy.Mode{policy.Open, policy.Report} {
		k := r.keyOf(ledger.Issue{Grant: policy.Grant{Mode: mode}}, 100)
		name := string(mode)
		r.forward(k, charge(name+"1", 150))
		r.wantBooks(k, 0, 150, 1)
		a := ask(k, charge(name+"2", 10))
		a.Verdict = policy.Refuse(403, policy.CodeRule, "not permitted")
		if d, err := r.Begin(t.Context(), a); err != nil || !d.Forward || !d.Verdict.Allow || d.Verdict.Code != policy.CodeRule {
			t.Errorf("%+v, %v", d, err)
		}
		a = ask(k, charge(name+"3", 10))
		a.Verdict = policy.Refuse(403, policy.CodeTarget, "not canonical")
		if d, err := r.Begin(t.Context(), a); err != nil || d.Forward || d.Verdict.Code != policy.CodeTarget {
			t.Errorf("%+v, %v", d, err)
		}
		calls, _, err := r.Calls(t.Context(), ledger.CallFilter{VaultKey: k, Refused: true})
		if err != nil || len(calls) != 3 || calls[0].Verdict != "would_refuse" || calls[0].Code != policy.CodeCapExceeded || calls[2].Verdict != "refuse" {
			t.Errorf("%+v, %v", calls, err)
		}
		if err := r.Revoke(t.Context(), k, "over", "ada"); err != nil {
			t.Fatal(err)
		}
		r.refused(k, charge(name+"1", 150), policy.CodeVaultKey)
	}
}

// A daily cap counts by the database's clock where there is no other.
func TestADayOfTheDatabasesClock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := ledger.New(r.pool, ledger.Options{Log: discard})
	r.Ledger = l
	k := r.keyOf(ledger.Issue{Grant: policy.Grant{Window: policy.Day}}, 1000)
	eventually(t, "no midnight comes within the test", func() bool {
		now, err := l.Clock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return now.Truncate(24*time.Hour) == now.Add(30*time.Second).Truncate(24*time.Hour)
	})
	r.finish(paid(r.forward(k, charge("k1", 700)), ch("ch_1", 700)))
	r.refused(k, charge("k2", 301), policy.CodeCapExceeded)
	r.forward(k, charge("k3", 300))
	if _, err := r.pool.Exec(t.Context(), `UPDATE spendproxy.books SET day = '2026-01-01'`); err != nil { // it was another day
		t.Fatal(err)
	}
	r.forward(k, charge("k4", 1000))
	r.refused(k, charge("k5", 1), policy.CodeCapExceeded)
}
