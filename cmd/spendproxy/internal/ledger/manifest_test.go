package ledger_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
	"github.com/billonce/billonce/domain"
)

func createKey(b policy.BillID, n int) string {
	return string(domain.CreateKey(b.Customer, b.Period, n, 0))
}

func confirmKey(b policy.BillID, attempt, n int) string {
	return string(domain.ConfirmKey(b.Customer, b.Period, attempt, n, 0))
}

func intentOf(id string, b policy.BillID, state policy.ObjectState, minor int64) policy.Evidence {
	e := intent(id, state, minor)
	e.Bill, e.StripeCustomer = b, "cus_"+string(b.Customer)
	return e
}

// A bill's way through a run's key: its create fixes it, its confirm is judged by
// what Stripe holds, and it is charged once, for ever, by whatever key.
func TestOneSuccessABill(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := bill("a")
	k := r.runKey("2026-11", entry("a", 1000), entry("b", 100_000))
	r.refused(k, create("random", a, 1000), policy.CodeKey)
	r.refused(k, create(createKey(a, 1), a, 1001), policy.CodeMismatch)
	r.refused(k, create(createKey(bill("x"), 1), bill("x"), 1000), policy.CodeObligation)
	r.wantBooks(k, 0, 0, 0)

	made := r.forward(k, create(createKey(a, 1), a, 1000))
	answer := shows(made, intentOf("pi_1", a, policy.Unpaid, 1000))
	r.finish(answer)
	if _, d := r.begin(k, create(createKey(a, 1), a, 1000)); d.Answer == nil || !equalAnswer(*d.Answer, answer.Answer) {
		t.Errorf("the create is not answered again: %+v", d)
	}
	if done := r.register(k, entry("a", 999)); done.RefusedCount != 1 || done.Refused[0].Code != "entry_fixed" || done.Refused[0].Line != 1 {
		t.Errorf("a fixed entry: %+v", done)
	}
	r.refused(k, confirm("random", "pi_1"), policy.CodeKey)
	r.finish(lost(r.forward(k, confirm(confirmKey(a, 1, 1), "pi_1"))))
	r.wantBooks(k, 0, 1000, 1)

	// Another intent of the bill is no way round while the first may succeed …
	r.finish(shows(r.forward(k, create(createKey(a, 2), a, 1000)), intentOf("pi_2", a, policy.Unpaid, 1000)))
	r.refused(k, confirm(confirmKey(a, 1, 2), "pi_2"), policy.CodeInFlight)
	legacy := charge(string(domain.ChargeKey(a.Customer, a.Period, 1)), 1000)
	legacy.Bill, legacy.StripeCustomer, legacy.Key = a, "cus_a", string(domain.ChargeKey(a.Customer, a.Period, 2))
	r.refused(k, legacy, policy.CodeInFlight)
	r.forward(k, confirm(confirmKey(a, 1, 1), "pi_1"))

	// … nor once it has, for a renewed key as little.
	r.observe(intentOf("pi_1", a, policy.Succeeded, 1000))
	r.wantBooks(k, 1000, 0, 1)
	renewed := r.runKey("2026-11 renewed", entry("a", 1000))
	for _, key := range []string{k, renewed} {
		if key == renewed {
			r.clock.advance(time.Hour)
		}
		code := policy.CodePaid
		if key == k {
			code = policy.CodeObligation // the bill is the newer key's now
		}
		r.refused(key, confirm(confirmKey(a, 1, 2), "pi_2"), code)
		r.refused(key, legacy, code)
		r.refused(key, create(createKey(a, 3), a, 1000), code)
	}
	r.wantBooks(renewed, 0, 0, 0)
}

// After a charge of a bill is proven to have taken nothing, another may be made.
func TestCancelledIntentIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := bill("a")
	k := r.runKey("2026-11", entry("a", 1000))
	r.finish(shows(r.forward(k, create(createKey(a, 1), a, 1000)), intentOf("pi_1", a, policy.Unpaid, 1000)))
	r.finish(lost(r.forward(k, confirm(confirmKey(a, 1, 1), "pi_1"))))
	r.finish(shows(r.forward(k, create(createKey(a, 2), a, 1000)), intentOf("pi_2", a, policy.Unpaid, 1000)))
	r.refused(k, confirm(confirmKey(a, 1, 2), "pi_2"), policy.CodeInFlight)
	r.finish(shows(r.forward(k, cancel(string(domain.CancelKey(a.Customer, a.Period, "pi_1")), "pi_1")), intentOf("pi_1", a, policy.Cancelled, 1000)))
	r.wantBooks(k, 0, 0, 0)
	r.finish(paid(r.forward(k, confirm(confirmKey(a, 1, 2), "pi_2")), intentOf("pi_2", a, policy.Succeeded, 1000)))
	r.wantBooks(k, 1000, 0, 1)
	if _, d := r.begin(k, confirm("x", "pi_of_another")); d.Learn != "pi_of_another" {
		t.Errorf("%+v", d)
	}
	r.observe(intent("pi_of_another", policy.Unpaid, 5))
	r.refused(k, confirm("x", "pi_of_another"), policy.CodeObligation)
	r.refused(k, cancel("x", "pi_of_another"), policy.CodeObligation)
}

// A legacy charge whose answer was lost is found by its bill, in a list.
func TestLegacyChargeIsFoundByItsBill(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := bill("a")
	k := r.runKey("2026-11", entry("a", 1000))
	c := charge(string(domain.ChargeKey(a.Customer, a.Period, 1)), 1000)
	c.Bill, c.StripeCustomer = a, "cus_a"
	r.finish(lost(r.forward(k, c)))
	now, _ := r.clock.Now(t.Context())
	e := ch("ch_1", 1000)
	e.Bill, e.Created = a, now
	r.clock.advance(time.Hour)
	doubts, err := r.Doubts(t.Context(), 10)
	if err != nil || len(doubts) != 1 || doubts[0].StripeCustomer != "cus_a" || doubts[0].Bill != a || doubts[0].Charge != "" {
		t.Fatalf("%+v, %v", doubts, err)
	}
	r.observe(e)
	r.wantBooks(k, 1000, 0, 1)
	if _, d := r.begin(k, c); d.Learn != "ch_1" { // never forwarded again
		t.Errorf("%+v", d)
	}
	e.Raw = []byte(`{"id":"ch_1"}`)
	r.observe(e)
	if _, d := r.begin(k, c); d.Answer == nil || string(d.Answer.Body) != `{"id":"ch_1"}` {
		t.Errorf("%+v", d)
	}
}

// Manifests may be repeated; what is fixed stays, what moves goes to the newer
// key, and the caps of runs follow until an operator sets them.
func TestManifests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := r.runKey("first")
	yen := ledger.Entry{Obligation: policy.Obligation{Bill: bill("y"), Amount: domain.Money{Minor: 501, Currency: "jpy"}}}
	entries := []ledger.Entry{entry("a", 1000), entry("b", 2001), yen}
	done := r.register(k, entries...)
	want := []ledger.Expected{{Currency: "jpy", Bills: 1, Minor: 501, Cap: 552}, {Currency: "usd", Bills: 2, Minor: 3001, Cap: 3302}}
	if done.New != 3 || done.Received != 3 || fmt.Sprint(done.Expected) != fmt.Sprint(want) {
		t.Errorf("%+v", done)
	}
	if done := r.register(k, entries...); done.Unchanged != 3 || fmt.Sprint(done.Expected) != fmt.Sprint(want) {
		t.Errorf("again: %+v", done)
	}
	bad := entry("no good id", 5000)
	gone := ledger.Entry{Obligation: policy.Obligation{Bill: bill("y")}, Withdrawn: true}
	fixed := entry("a", 1000)
	fixed.Fixed = true
	done = r.register(k, bad, gone, entry("b", 5000), fixed, entry("a", 1200), entry("a", 1000), entry("c", -1))
	if done.RefusedCount != 3 || done.Withdrawn != 1 || done.Changed != 2 || done.Unchanged != 1 || done.Refused[1].Code != "entry_fixed" || done.Refused[1].Line != 5 {
		t.Errorf("%+v", done)
	}
	if c := r.books(k); c.Minor != 6600 || c.ByOperator {
		t.Errorf("%+v", c)
	}

	r.clock.advance(time.Minute)
	second := r.runKey("second", entry("a", 1000), entry("b", 5000))
	if c := r.books(second); c.Minor != 6600 {
		t.Errorf("the newer key: %+v", c)
	}
	if c := r.books(k); c.Minor != 0 {
		t.Errorf("the older key: %+v", c)
	}
	if done := r.register(k, entry("b", 5000)); done.RefusedCount != 1 || done.Refused[0].Code != "entry_moved" {
		t.Errorf("%+v", done)
	}
	third := r.runKey("third", entry("a", 1)) // fixed elsewhere, and differs
	if c := r.books(third); c.Minor != 0 {
		t.Errorf("%+v", c)
	}

	to := int64(10)
	if _, err := r.Raise(t.Context(), ledger.Raise{Key: second, Currency: "usd", To: &to, Reason: "enough", By: "ada"}); err != nil {
		t.Fatal(err)
	}
	done = r.register(second, entry("d", 7000))
	if c := r.books(second); c.Minor != 10 || !c.ByOperator || done.Expected[0].Minor != 13_000 || done.Expected[0].Cap != 10 {
		t.Errorf("%+v, %+v", c, done)
	}
	changes, err := r.Raises(t.Context(), second)
	if err != nil || len(changes) != 2 || changes[0].What != "manifest" || changes[0].To != 6600 || changes[1].By != "ada" || changes[1].From != 6600 {
		t.Errorf("%+v, %v", changes, err)
	}
}

// Manifests are refused where none belongs, and end where their stream does.
func TestManifestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.Register(t.Context(), r.key(1), all(nil)); !errors.Is(err, ledger.ErrInvalid) {
		t.Error(err)
	}
	if _, err := r.Register(t.Context(), "0123456789abcdef", all(nil)); !errors.Is(err, ledger.ErrNoKey) {
		t.Error(err)
	}
	k := r.runKey("run")
	torn := errors.New("the stream is torn")
	_, err := r.Register(t.Context(), k, func(yield func(ledger.Entry, error) bool) {
		if yield(entry("a", 1000), nil) {
			yield(ledger.Entry{}, torn)
		}
	})
	if !errors.Is(err, torn) {
		t.Error(err)
	}
	if err := r.Revoke(t.Context(), k, "over", "ada"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Register(t.Context(), k, all([]ledger.Entry{entry("a", 1000)})); !errors.Is(err, ledger.ErrRevoked) {
		t.Error(err)
	}
}

// A bill that was paid before the manifest held it is not charged.
func TestPaidBeforeItWasKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := bill("a")
	r.observe(intentOf("pi_9", a, policy.Succeeded, 1000))
	k := r.runKey("run", entry("a", 1000))
	r.refused(k, create(createKey(a, 1), a, 1000), policy.CodePaid)
	if done := r.register(k, ledger.Entry{Obligation: policy.Obligation{Bill: a}, Withdrawn: true}); done.RefusedCount != 1 {
		t.Errorf("%+v", done)
	}
}
