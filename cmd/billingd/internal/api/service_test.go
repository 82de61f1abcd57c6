package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/eventstore/tracking"
)

// Everything that is served is documented, and everything that is documented
// is served.
func TestDocumentMatchesRoutes(t *testing.T) {
	t.Parallel()
	i := start(t)
	var document struct {
		OpenAPI string `json:"openapi"`
		Paths   map[string]map[string]struct {
			OperationID string                      `json:"operationId"`
			Security    []map[string][]string       `json:"security"`
			Parameters  []struct{ Name, In string } `json:"parameters"`
			RequestBody struct {
				Content map[string]struct {
					Schema struct {
						Ref string `json:"$ref"`
					} `json:"schema"`
				} `json:"content"`
			} `json:"requestBody"`
			Responses map[string]any `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]struct {
				Properties           map[string]any `json:"properties"`
				Required             []string       `json:"required"`
				AdditionalProperties *bool          `json:"additionalProperties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	a := i.get("/openapi.json")
	a.json(t, &document)
	if !strings.HasPrefix(document.OpenAPI, "3.1") || a.header.Get("Content-Type") != "application/openapi+json" {
		t.Errorf("it is OpenAPI %s as %s", document.OpenAPI, a.header.Get("Content-Type"))
	}
	documented := map[string]bool{}
	for path, item := range document.Paths {
		for method, op := range item {
			pattern := strings.ToUpper(method) + " " + path
			documented[pattern] = true
			if !slices.Contains(i.mux.patterns, pattern) {
				t.Errorf("%s is documented and not served", pattern)
			}
			if op.OperationID == "" || op.Responses["default"] == nil {
				t.Errorf("%s has the id %q and the default response %v", pattern, op.OperationID, op.Responses["default"])
			}
			public := len(op.Security) == 0
			if wantPublic := !strings.HasPrefix(path, "/v1/"); public != wantPublic {
				t.Errorf("%s needs %v", pattern, op.Security)
			}
		}
	}
	undocumented := []string{"POST /v1/commands/{name}", "GET /{$}", "GET /openapi.json", "GET /v1/events/stream", "POST /webhooks/stripe"}
	for _, pattern := range i.mux.patterns {
		if !documented[pattern] && !slices.Contains(undocumented, pattern) {
			t.Errorf("%s is served and not documented", pattern)
		}
	}
	for spec := range commands.All() {
		op := document.Paths["/v1/commands/"+spec.Name]["post"]
		ref := strings.TrimPrefix(op.RequestBody.Content["application/json"].Schema.Ref, "#/components/schemas/")
		schema := document.Components.Schemas[ref]
		if !slices.Contains(schema.Required, "customer_id") || schema.AdditionalProperties == nil || *schema.AdditionalProperties {
			t.Errorf("the body of %s is %s: %+v", spec.Name, ref, schema)
		}
	}
	for _, name := range []string{"Problem", "Receipt"} {
		if len(document.Components.Schemas[name].Properties) < 5 {
			t.Errorf("the schema %s is %+v", name, document.Components.Schemas[name])
		}
	}
}

func TestOneShapeOfErrors(t *testing.T) {
	t.Parallel()
	i := start(t)
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/nowhere", 404, "not_found"}, {"GET", "/v1", 404, "not_found"}, {"GET", "/v1/customers/", 404, "not_found"},
		{"GET", "//v1/customers", 404, "not_found"}, {"POST", "/v1/../v1/commands/register-customer", 404, "not_found"}, {"GET", "/v1/./customers", 404, "not_found"},
		{"GET", "/v1/commands/register-customer", 405, "method_not_allowed"}, {"DELETE", "/v1/customers", 405, "method_not_allowed"},
		{"OPTIONS", "/v1/commands/charge-billing", 405, "method_not_allowed"}, {"BREW", "/healthz", 405, "method_not_allowed"},
		{"GET", "/v1/events/stream", 501, "not_available"}, {"POST", "/webhooks/stripe", 501, "not_available"},
		{"GET", "/v1/runs/2026-11", 404, "unknown_run"}, {"GET", "/v1/customers/nobody", 404, "unknown_customer"},
		{"GET", "/v1/customers/nobody/periods", 404, "unknown_customer"}, {"GET", "/v1/customers/nobody/periods/2026-11", 404, "unknown_customer"},
	} {
		r := i.request(c.method, "/", "")
		r.URL.Opaque = "//" + r.URL.Host + c.path // as it is, without cleaning
		r.Method = c.method
		a := i.do(r)
		if p := a.problem(t); a.status != c.status || p.Code != c.code {
			t.Errorf("%s %s got %d %s, want %d %s", c.method, c.path, a.status, p.Code, c.status, c.code)
		}
		if c.status == 405 && a.header.Get("Allow") == "" {
			t.Errorf("%s %s does not say what is allowed", c.method, c.path)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	i := start(t)
	for given, kept := range map[string]bool{"abc-123": true, "0194f2c0-8f0c-7a6e-a3a1-1f1f1f1f1f1f": true, "": false, "two words": false, "a\"b": false, strings.Repeat("x", 129): false, "ümlaut": false} {
		a := i.get("/healthz", "X-Request-Id", given)
		got := a.header.Get("X-Request-Id")
		if (got == given) != kept || got == "" {
			t.Errorf("%q came back as %q", given, got)
		}
	}
	if a := i.get("/healthz", "X-Request-Id", "one", "X-Request-Id", "two"); !strings.HasPrefix(a.header.Get("X-Request-Id"), "req_") {
		t.Errorf("two ids came back as %q", a.header.Get("X-Request-Id"))
	}
}

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

func TestPanics(t *testing.T) {
	t.Parallel()
	i := start(t, func(d *Deps, _ *Limits) {
		d.Clock = func(context.Context) (time.Time, error) { panic("marker-in-a-panic") }
	})
	i.handle(operation("half", http.MethodGet, "/v1/half", tagService, "", access.Read), func(w http.ResponseWriter, _ *http.Request) error {
		fmt.Fprint(w, "half an ans")
		panic(errors.New("marker-in-a-panic"))
	})
	body := `{"customer_id":"alice","stripe_customer_id":"cus_1","payment_method_id":"pm_1"}`
	if p := i.send("register-customer", body).problem(t); p.Status != 500 || p.Code != "internal" {
		t.Errorf("got %+v", p)
	}
	res, err := client.Do(i.request(http.MethodGet, "/v1/half", ""))
	if err == nil {
		defer res.Body.Close()
		if err := json.NewDecoder(res.Body).Decode(new(any)); err == nil {
			t.Error("half an answer passed for a whole one")
		}
	}
	if !strings.Contains(i.logs.String(), "a request panicked") || strings.Contains(i.logs.String(), "marker-in-a-panic") {
		t.Errorf("the log says\n%s", i.logs)
	}
	// A panic in one line of a batch is that line's.
	if n := i.events(); n != 0 {
		t.Errorf("%d facts came of it", n)
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	waited := make(chan answer, 1)
	go func() {
		waited <- i.do(i.request(http.MethodPost, "/v1/commands/charge-billing?wait=1m", chargeBody("alice", "2026-11", 5000)))
	}()
	eventually(t, "the charge is recorded", func() bool { return i.events() == 2 })
	begun := time.Now()
	i.stop()
	a := <-waited
	if r := a.receipt(t); a.status != http.StatusAccepted || r.Bill == nil || time.Since(begun) > 4*time.Second {
		t.Errorf("after %s the wait got %d %s", time.Since(begun), a.status, a.body)
	}
	if _, err := client.Do(i.request(http.MethodGet, "/healthz", "")); err == nil {
		t.Error("it still listens")
	}
}

func TestDrainingRefusesWork(t *testing.T) {
	t.Parallel()
	i := start(t)
	hold := make(chan struct{})
	entered := make(chan struct{})
	i.handle(public("slow", http.MethodGet, "/slow", tagService, ""), func(w http.ResponseWriter, _ *http.Request) error {
		close(entered)
		<-hold
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
	// Two requests on one connection: the second comes while the service stops.
	c := i.raw(t)
	fmt.Fprint(c, "GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/customers HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		i.stop()
	}()
	eventually(t, "it drains", i.isDraining)
	close(hold)
	<-stopped
	if a := (&instance{Server: i.Server, t: t}).serve("/v1/customers"); a.problem(t).Code != "shutting_down" || a.header.Get("Connection") != "close" || a.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if a := (&instance{Server: i.Server, t: t}).serve("/healthz"); a.status != 200 {
		t.Errorf("/healthz got %d", a.status)
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a port file")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Listen("127.0.0.1:0", file)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	written, err := os.ReadFile(file)
	if err != nil || string(written) != l.Addr().String()+"\n" {
		t.Errorf("the port file holds %q (%v), want %s", written, err, l.Addr())
	}
	other := filepath.Join(t.TempDir(), "other")
	if _, err := Listen(l.Addr().String(), other); err == nil {
		t.Error("a taken port was taken again")
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("there is a port file for an address that nobody listens on")
	}
	if _, err := Listen("127.0.0.1:0", filepath.Join(t.TempDir(), "missing", "file")); err == nil {
		t.Error("a port file that cannot be written was passed over")
	}
}
