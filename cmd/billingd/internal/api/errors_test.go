package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
)

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
		{"GET", "/v1/events/stream?after=soon", 400, "invalid_input"}, {"POST", "/webhooks/stripe", 404, "webhooks_off"},
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
	for _, l := range i.batch(customers(2)).lines(t) { // it ends as it should, line by line
		if l.Status != 500 || l.Code != "internal" {
			t.Errorf("a line got %+v", l)
		}
	}
	if n := i.events(); n != 0 {
		t.Errorf("%d facts came of it", n)
	}
}
