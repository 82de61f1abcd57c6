package selftest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// good is the evidence of a month that went well.
func good() evidence {
	e := evidence{customers: customersOf(), taken: map[string]int64{}}
	for _, c := range e.customers {
		id := "ch_" + c.CustomerID
		e.movements = append(e.movements, parts.Movement{Charge: id, Customer: c.StripeCustomerID, Amount: c.AmountMinor, Currency: c.Currency, Status: "succeeded",
			Metadata: map[string]string{"customer_id": c.CustomerID, "billing_period": period}})
		e.rows = append(e.rows, row{Customer: c.CustomerID, State: "succeeded", Attempt: 1})
		e.charges = append(e.charges, charge{CustomerID: c.CustomerID, Status: "paid", ChargeID: id})
		e.taken[c.Currency] += c.AmountMinor
	}
	return e
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)
	post := func(key, print string, at time.Duration) request {
		return request{At: now.Add(at), Received: now.Add(at), Method: "POST", Path: "/v1/payment_intents", Key: key, Fingerprint: print, Executed: true}
	}
	for _, test := range []struct {
		name                 string
		change               func(*evidence)
		doubled, lost, wrong int
	}{
		{"all is well", func(*evidence) {}, 0, 0, 0},
		{"a decline besides", func(e *evidence) {
			m := e.movements[0]
			m.Status, m.Charge = "failed", "ch_0"
			e.movements = append(e.movements, m)
		}, 0, 0, 0},
		{"charged twice", func(e *evidence) {
			m := e.movements[5]
			m.Charge = "ch_again"
			e.movements = append(e.movements, m)
			e.taken[m.Currency] += m.Amount
		}, 1, 0, 0},
		{"charged although settled", func(e *evidence) { e.rows[5].State = "void" }, 1, 0, 0},
		{"charged although settled, and taken for paid since", func(e *evidence) { e.settled = []string{e.customers[5].CustomerID} }, 1, 0, 0},
		{"settled, not charged", func(e *evidence) {
			e.taken[e.movements[5].Currency] -= e.movements[5].Amount
			e.movements, e.charges = slices.Delete(e.movements, 5, 6), slices.Delete(e.charges, 5, 6)
			e.rows[5].State = "void"
		}, 0, 0, 0},
		{"paid by the books alone", func(e *evidence) {
			e.taken[e.movements[5].Currency] -= e.movements[5].Amount
			e.movements = slices.Delete(e.movements, 5, 6)
		}, 0, 1, 0},
		{"charged, and nobody knows", func(e *evidence) { e.rows[5].State = "unknown" }, 0, 1, 0},
		{"no bill", func(e *evidence) { e.rows = slices.Delete(e.rows, 5, 6) }, 0, 1, 0},
		{"another amount", func(e *evidence) {
			e.movements[5].Amount++
			e.taken[e.movements[5].Currency]++
		}, 0, 0, 1},
		{"books differ in a sum", func(e *evidence) { e.taken["usd"]++ }, 0, 0, 1},
		{"books differ in an id", func(e *evidence) { e.charges[5].ChargeID = "ch_other" }, 0, 0, 1},
		{"a stranger", func(e *evidence) {
			e.movements = append(e.movements, parts.Movement{Charge: "ch_x", Customer: "cus_x", Amount: 1, Currency: "usd", Status: "succeeded"})
			e.taken["usd"]++
		}, 0, 0, 1},
		{"a POST without a key", func(e *evidence) { e.counters.UnkeyedPOSTs = 1 }, 0, 0, 1},
		{"a replay that called", func(e *evidence) { e.replayed = []string{"a replay led to 1 POST"} }, 0, 0, 1},
		{"a key of two requests", func(e *evidence) {
			e.requests = []request{post("k", "a", 0), {At: now, Method: "POST", Key: "k", Fingerprint: "b"}}
		}, 0, 0, 1},
		{"a key executed twice", func(e *evidence) { e.requests = []request{post("k", "a", 0), post("k", "a", time.Hour)} }, 0, 0, 1},
		{"a key executed again when it was forgotten", func(e *evidence) { e.requests = []request{post("k", "a", 0), post("k", "b", 25*time.Hour)} }, 0, 0, 0},
		{"a key executed again by one who was frozen across a leap", func(e *evidence) {
			e.requests, e.leaps = []request{post("k", "a", 0), post("k", "a", time.Second)}, []leap{{now.Add(2 * time.Second), 25 * time.Hour}}
		}, 0, 0, 0},
		{"a request that was cut off", func(e *evidence) {
			e.requests = []request{post("k", "a", 0), {At: now, Method: "POST", Key: "k", Status: 400}}
		}, 0, 0, 0},
		{"never at rest", func(e *evidence) { e.open = "it goes on" }, 0, 1, 0},
	} {
		e := good()
		test.change(&e)
		if v := judge(e); len(v.Doubled) != test.doubled || len(v.Lost) != test.lost || len(v.Wrong) != test.wrong {
			t.Errorf("%s: %+v", test.name, v)
		}
	}
}

// A script is its seed's alone; a series plays every plot.
func TestScripts(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for seed := range uint64(200) {
		s := write(seed, nil)
		if again := write(seed, nil); s.String() != again.String() {
			t.Fatalf("seed %d gives\n%s\nand\n%s", seed, s, again)
		}
		seen[s.plot] = true
	}
	for _, name := range plotNames() {
		if !seen[name] {
			t.Errorf("plot %s is never played", name)
		}
		if s := write(7, []string{name}); s.plot != name || !strings.HasPrefix(s.String(), "seed 7: "+name) {
			t.Errorf("asked for %s, got %s", name, s)
		}
	}
}
