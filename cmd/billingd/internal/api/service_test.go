package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/billonce/billonce/eventstore/tracking"
)

func TestReadiness(t *testing.T) {
	t.Parallel()
	var looked error = errors.New("the look at Stripe is not complete")
	i := start(t, func(d *Deps, l *Limits) {
		d.Running = []string{"bills", "billing"}
		d.Ready = []Check{
			{"look", func(context.Context) error { return looked }},
			{"hangs", func(ctx context.Context) error { <-ctx.Done(); return errors.New("the clock does not answer") }},
		}
		d.Processors = func(context.Context) ([]tracking.ProcessorStatus, error) {
			return []tracking.ProcessorStatus{
				{Processor: "bills", BehindEvents: 12, BehindSeconds: 90}, {Processor: "old", BehindSeconds: 1e6}, {Processor: "paused", Paused: true, BehindSeconds: 1e6},
			}, nil
		}
	})
	a := i.get("/readyz")
	var r Readiness
	a.json(t, &r)
	want := []CheckResult{
		{"database", true, ""}, {"processors", false, "bills is 12 events and 1m30s behind; billing has not begun"},
		{"look", false, "the look at Stripe is not complete"}, {"hangs", false, "the clock does not answer"},
	}
	if a.status != 503 || r.Ready || !slices.Equal(r.Checks, want) {
		t.Errorf("got %d %+v", a.status, r)
	}
	if a := i.get("/healthz"); a.status != 200 {
		t.Errorf("/healthz got %d", a.status)
	}
}

func TestReadyOnceProcessorsRun(t *testing.T) {
	t.Parallel()
	i := start(t, func(d *Deps, _ *Limits) { d.Running = []string{"bills", "charges", "customers", "revenue", "runs"} })
	if a := i.get("/readyz"); a.status != 503 || !strings.Contains(a.body, "bills has not begun") {
		t.Errorf("before they run got %d %s", a.status, a.body)
	}
	i.project()
	eventually(t, "it is ready", func() bool { return i.get("/readyz").status == 200 })
}

func TestReadinessOfTheDatabase(t *testing.T) {
	t.Parallel()
	i := start(t)
	if err := i.checkDatabase(t.Context()); err != nil {
		t.Errorf("got %v", err)
	}
	for _, older := range []string{`DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`, `DROP TABLE goose_db_version`} {
		if _, err := i.pool.Exec(t.Context(), older); err != nil {
			t.Fatal(err)
		}
		if err := i.checkDatabase(t.Context()); !errors.Is(err, errNotMigrated) {
			t.Errorf("after %s got %v", older, err)
		}
	}
	if _, err := i.pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`); err != nil {
		t.Fatal(err)
	}
	i.pool.Reset()
	eventually(t, "it is read-only", func() bool { return errors.Is(i.checkDatabase(t.Context()), errReadOnly) })
	a := i.send("register-customer", `{"customer_id":"alice","stripe_customer_id":"cus_1","payment_method_id":"pm_1"}`)
	if p := a.problem(t); a.status != 503 || p.Code != "try_again" || a.header.Get("Retry-After") == "" {
		t.Errorf("a command to a read-only database got %d %s", a.status, a.body)
	}
}

func TestMetricsAndIndex(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	i.register("alice")
	i.send("charge-billing", chargeBody("nobody", "2026-11", 5000))
	i.get("/invented/by/a/caller")
	a := i.get("/metrics")
	for _, want := range []string{
		`billonce_http_commands_total{command="register-customer",outcome="recorded"} 1`,
		`billonce_http_commands_total{command="register-customer",outcome="replayed"} 1`,
		`billonce_http_commands_total{command="charge-billing",outcome="unknown_customer"} 1`,
		`billonce_http_request_seconds_count{method="POST",route="/v1/commands/register-customer",status="200"} 2`,
		`billonce_http_request_seconds_count{method="GET",route="unmatched",status="404"} 1`,
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("there is no %s", want)
		}
	}
	if strings.Contains(a.body, "invented") {
		t.Error("a caller's own text is a label")
	}
	index := i.get("/").body
	for _, want := range []string{"/v1/commands/charge-billing", "/v1/commands:batch", "/v1/charges", "/readyz", "/openapi.json"} {
		if !strings.Contains(index, want) {
			t.Errorf("the index does not name %s", want)
		}
	}
}

func TestRequestLine(t *testing.T) {
	t.Parallel()
	i := start(t, tokensOf(t, "ci:dispatch:"+hashOf("s3cret")))
	i.send("register-customer", `{"customer_id":"alice","stripe_customer_id":"cus_1","payment_method_id":"pm_1"}`, "Authorization", "Bearer s3cret", "X-Request-Id", "r1").receipt(t)
	var lines []map[string]any
	eventually(t, "the line is written", func() bool { lines = i.logs.lines("request"); return len(lines) == 1 })
	want := map[string]any{"method": "POST", "route": "/v1/commands/register-customer", "status": float64(200), "request_id": "r1", "actor": "ci", "command": "register-customer", "key": "register-customer/alice"}
	for name, value := range want {
		if lines[0][name] != value {
			t.Errorf("%s is %v, want %v", name, lines[0][name], value)
		}
	}
}
