package selftest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/demo"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// row is where a bill stands in billing_records.
type row struct {
	Customer string
	State    string
	Attempt  int
	Reason   string
}

// waitsForTime reports whether the bill rests until the business clock moves on.
func (r row) waitsForTime() bool {
	return (r.State == "unknown" || r.State == "sending") && (strings.Contains(r.Reason, "quiet period") || r.Reason == "processing")
}

// request is one that came to the stand-in.
type request struct {
	At          time.Time `json:"at"`
	Method      string    `json:"method"`
	Path        string    `json:"path"`
	Key         string    `json:"key"`
	Fingerprint string    `json:"fingerprint"`
	Status      int       `json:"status"`
	Executed    bool      `json:"executed"`
	Replayed    bool      `json:"replayed"`
	Received    time.Time `json:"received"`
	Fault       string    `json:"fault"`
}

// charge is one of the service's own books.
type charge struct {
	CustomerID string `json:"customer_id"`
	Status     string `json:"status"`
	ChargeID   string `json:"charge_id"`
}

// evidence is what is known when a run is over.
type evidence struct {
	customers []demo.Customer
	movements []parts.Movement // the stand-in's ledger
	requests  []request        // every request that came to it
	leaps     []leap           // of the business clock
	counters  parts.Counters
	rows      []row
	settled   []string         // customers whose bill was settled outside Stripe, whatever came after
	charges   []charge         // the service's books
	taken     map[string]int64 // per currency, in minor units, by the service's books
	replayed  []string         // what a replay of the processors has led to
	open      string           // why the run did not come to rest; empty: it did
}

// verdict is what is wrong with a run, a line each.
type verdict struct {
	Doubled, Lost, Wrong []string
}

func (v verdict) right() bool { return len(v.Doubled)+len(v.Lost)+len(v.Wrong) == 0 }

// keyLife is how long Stripe keeps a key at least.
const keyLife = 24 * time.Hour

// judge compares the ledger with what is owed, and the service's books with the
// ledger. It believes the ledger.
func judge(e evidence) (v verdict) {
	say := func(to *[]string, format string, args ...any) { *to = append(*to, fmt.Sprintf(format, args...)) }
	rows, books, owners := map[string]row{}, map[string]charge{}, map[string]bool{}
	for _, r := range e.rows {
		rows[r.Customer] = r
	}
	for _, c := range e.charges {
		if c.Status == "paid" {
			books[c.CustomerID] = c
		}
	}
	succeeded := map[string][]parts.Movement{}
	taken := map[string]int64{}
	for _, m := range e.movements {
		if m.Moved() {
			succeeded[m.Customer] = append(succeeded[m.Customer], m)
			taken[m.Currency] += m.Amount
		}
	}
	for _, c := range e.customers {
		owners[c.StripeCustomerID] = true
		got, r, known := succeeded[c.StripeCustomerID], rows[c.CustomerID], books[c.CustomerID]
		for _, m := range got {
			if m.Money() != c.Owes() || m.Metadata["customer_id"] != c.CustomerID || m.Metadata["billing_period"] != period {
				say(&v.Wrong, "%s owes %s for %s and was charged %s as %s %s (%s)", c.CustomerID, c.Owes(), period, m.Money(), m.Metadata["customer_id"], m.Metadata["billing_period"], m.Charge)
			}
		}
		switch {
		case len(got) > 1:
			say(&v.Doubled, "%s was charged %d times: %s", c.CustomerID, len(got), ids(got))
		case len(got) == 1 && (r.State == "void" || slices.Contains(e.settled, c.CustomerID)):
			say(&v.Doubled, "%s was charged (%s) although the bill was settled outside Stripe", c.CustomerID, got[0].Charge)
		case len(got) == 0 && r.State == "succeeded":
			say(&v.Lost, "%s counts as paid and was not charged", c.CustomerID)
		case r.State == "":
			say(&v.Lost, "%s owes %s and there is no bill", c.CustomerID, c.Owes())
		case len(got) == 1 && r.State != "succeeded":
			say(&v.Lost, "%s was charged (%s) and the bill is %s", c.CustomerID, got[0].Charge, r.State)
		case r.State != "succeeded" && r.State != "void":
			say(&v.Lost, "the bill of %s is %s, attempt %d: %s", c.CustomerID, r.State, r.Attempt, r.Reason)
		case len(got) == 1 && known.ChargeID != got[0].Charge:
			say(&v.Wrong, "the service's books have charge %q for %s, the ledger %s", known.ChargeID, c.CustomerID, got[0].Charge)
		case len(got) == 0 && known.ChargeID != "":
			say(&v.Wrong, "the service's books have charge %q for %s, the ledger none", known.ChargeID, c.CustomerID)
		}
	}
	for name, got := range succeeded {
		if !owners[name] {
			say(&v.Wrong, "%q owes nothing and was charged: %s", name, ids(got))
		}
	}
	if e.open == "" {
		for currency, minor := range taken {
			if e.taken[currency] != minor {
				say(&v.Wrong, "the service's books have %d %s, the ledger %d", e.taken[currency], currency, minor)
			}
		}
	}
	if n := e.counters.UnkeyedPOSTs; n > 0 {
		say(&v.Wrong, "%d POSTs came without an Idempotency-Key", n)
	}
	v.Wrong = append(v.Wrong, keys(e.requests, e.leaps)...)
	v.Wrong = append(v.Wrong, e.replayed...)
	if e.open != "" && len(v.Lost) == 0 {
		say(&v.Lost, "%s", e.open)
	}
	slices.Sort(v.Wrong)
	return v
}

// leap is a move of the business clock.
type leap struct {
	at time.Time // real time
	by time.Duration
}

// keys checks that a key stands for one request: it never came with other
// parameters, and was never executed twice within its life. A request that came
// before a leap may have been executed behind it, if its sender was frozen in
// the middle of it.
func keys(requests []request, leaps []leap) (wrong []string) {
	leapt := func(since time.Time) (by time.Duration) {
		for _, l := range leaps {
			if l.at.After(since) {
				by += l.by
			}
		}
		return by
	}
	within := func(a, b request) bool { return b.At.Sub(a.At) < keyLife && leapt(a.Received) < keyLife }
	prints, executed := map[string]request{}, map[string]request{}
	for _, r := range requests {
		if r.Method != "POST" || r.Key == "" || r.Fingerprint == "" { // cut off before it could be read
			continue
		}
		if before, seen := prints[r.Key]; seen && before.Fingerprint != r.Fingerprint && within(before, r) && !strings.HasSuffix(r.Path, "/cancel") { // whose reason may differ
			wrong = append(wrong, fmt.Sprintf("key %s came with other parameters to %s", r.Key, r.Path))
		}
		prints[r.Key] = r
		if !r.Executed {
			continue
		}
		if before, seen := executed[r.Key]; seen && within(before, r) {
			wrong = append(wrong, fmt.Sprintf("key %s was executed twice within %s: %s", r.Key, r.At.Sub(before.At).Round(time.Second), r.Path))
		}
		executed[r.Key] = r
	}
	return wrong
}

func ids(movements []parts.Movement) string {
	names := make([]string, len(movements))
	for i, m := range movements {
		names[i] = fmt.Sprintf("%s of %s under key %s", m.Charge, m.Intent, m.Key)
	}
	return strings.Join(names, ", ")
}
