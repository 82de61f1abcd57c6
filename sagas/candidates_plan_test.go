package sagas

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore/pgtest"
)

// Looking for bills to claim reads as many rows as it gives, whatever else is
// waiting: a hundred thousand bills of a run that is paused, or of one that the
// proxy has not been told of.
func TestLookingForBillsReadsNoMoreThanItGives(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	ctx := t.Context()
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	const fill = `INSERT INTO billing_records (customer_id, billing_period, partition, attempt, key, amount, currency, stripe_customer_id, payment_method, params, state, last_position)
		SELECT 'c' || n, $1, 0, 1, 'k', 5000, 'usd', 'cus_1', 'pm_1', '{}', $2, n FROM generate_series(1, $3::int) n`
	const rows = 20_000
	exec(fill, "2026-07", "succeeded", rows)
	exec(fill, "2026-08", "reserved", rows) // paused by a person
	exec(fill, "2026-09", "held", rows)     // paused, since the proxy refuses
	exec(`UPDATE billing_records SET next_try_at = 'infinity' WHERE state = 'held'`)
	exec(fill, "2026-10", "reserved", rows) // without a key
	exec(fill, "2026-11", "reserved", rows)
	exec(`INSERT INTO run_manifest (billing_period, customer_id, amount_minor, currency, stripe_customer_id, fixed, version, registered, pending)
		SELECT billing_period, customer_id, amount, currency, stripe_customer_id, true, 1, true, false FROM billing_records`)
	exec(`INSERT INTO billing_runs (billing_period, paused, refusal, vault_key, expires_at) VALUES
		('2026-08', true, NULL, 'a', 'infinity'), ('2026-09', true, '{}', 'b', 'infinity'), ('2026-10', false, NULL, NULL, NULL), ('2026-11', false, NULL, 'c', 'infinity')`)
	exec(`VACUUM ANALYZE billing_records, run_manifest, billing_runs`)
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, c := range []struct{ name, types, sql, args string }{
		{"plain", "int, text[], int[]", candidatesSQL, "64, '{2026-10}', '{0}'"},
		{"proxied", "int, text[], int[], timestamptz", proxiedSQL, "64, '{}', '{}', now()"},
	} {
		for _, sql := range []string{`SET plan_cache_mode = force_generic_plan`, `PREPARE ` + c.name + ` (` + c.types + `) AS ` + c.sql} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		rows, err := conn.Query(ctx, `EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE `+c.name+` (`+c.args+`)`, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		given := false
		for _, line := range plan {
			_, read, scans := strings.Cut(line, "(actual rows=")
			if !scans || !strings.Contains(line, "Scan") {
				continue
			}
			var n float64
			if _, err := fmt.Sscanf(read, "%f", &n); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			given = given || n == 64
			if n > 64 || strings.Contains(line, "Seq Scan on run_manifest") || strings.Contains(line, "Seq Scan on billing_records") {
				t.Errorf("%s reads too much: %s", c.name, strings.TrimSpace(line))
			}
		}
		if t.Failed() || !given {
			t.Fatalf("%s: no bills, or too many rows:\n%s", c.name, strings.Join(plan, "\n"))
		}
	}
}
