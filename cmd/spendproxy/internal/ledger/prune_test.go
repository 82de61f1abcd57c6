package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// Old rows of the audit go, in parts; those about what is reserved or held stay
// until it is settled, and so does everything that is not old.
func TestAuditIsPruned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := ledger.New(r.pool, ledger.Options{Now: r.clock.Now, AuditKeep: 90 * 24 * time.Hour, Log: discard})
	k, a, b := r.key(1_000_000), bill("a"), bill("b")
	run := r.runKey("run", entry("a", 1000), entry("b", 1000))

	r.finish(paid(r.forward(k, charge("settled", 100)), ch("ch_settled", 100)))
	r.finish(declined(r.forward(k, charge("declined", 100))))
	r.finish(lost(r.forward(k, charge("held", 100)))) // two rows that stay
	r.forward(k, charge("dead", 100))                 // one: its proxy died
	for _, one := range []policy.BillID{a, b} {
		id := "pi_" + string(one.Customer)
		r.finish(shows(r.forward(run, create(createKey(one, 1), one, 1000)), intentOf(id, one, policy.Unpaid, 1000)))
	}
	r.finish(paid(r.forward(run, confirm(confirmKey(a, 1, 1), "pi_a")), intentOf("pi_a", a, policy.Succeeded, 1000)))
	r.finish(lost(r.forward(run, confirm(confirmKey(b, 1, 1), "pi_b")))) // with its create four rows that stay
	if _, err := r.pool.Exec(t.Context(), `INSERT INTO spendproxy.audit (call, phase, at, vault_key, method, path, rule, verdict, code, reason, customer_id, billing_period, object,
			amount_minor, currency, idempotency_key, reservation, status, request_id, latency_ms)
		SELECT 'read-' || n, 'after', $1, $2, 'GET', '/v1/charges', '', 'allow', '', '', '', '', '', 0, '', '', 'none', 200, '', 1 FROM generate_series(1, 12000) n`,
		r.clock.now, k); err != nil {
		t.Fatal(err)
	}
	kept := func() (all []string) {
		t.Helper()
		for after := ""; ; {
			calls, next, err := r.Calls(t.Context(), ledger.CallFilter{After: after, Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range calls {
				all = append(all, c.Phase+" "+c.IdempotencyKey)
			}
			if after = next; after == "" {
				return all
			}
		}
	}
	prune := func() {
		t.Helper()
		if err := l.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	const rows = 2 + 2 + 2 + 1 + 4 + 2 + 2 + 12000
	r.clock.advance(90 * 24 * time.Hour)
	if prune(); len(kept()) != rows {
		t.Fatalf("%d rows are left of %d that are not too old", len(kept()), rows)
	}
	r.clock.advance(time.Second)
	r.finish(paid(r.forward(k, charge("new", 100)), ch("ch_new", 100)))
	prune()
	want := []string{
		"before held", "after held", "before dead", "before " + createKey(b, 1), "after " + createKey(b, 1),
		"before " + confirmKey(b, 1, 1), "after " + confirmKey(b, 1, 1), "before new", "after new",
	}
	if got := kept(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("left are %q,\nwant %q", got, want)
	}
	r.observe(intentOf("pi_b", b, policy.Succeeded, 1000))
	prune()
	if got := kept(); fmt.Sprint(got) != fmt.Sprint(append(want[:3:3], want[7:]...)) {
		t.Errorf("after it is settled %q are left", got)
	}
	r.wantBooks(run, 2000, 0, 2)
}
