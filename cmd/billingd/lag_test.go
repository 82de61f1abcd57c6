package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/billonce/billonce/eventstore/tracking"
)

// get reads an answer of the service into a value; nil: it is not wanted.
func (r *replica) get(path string, into any) (status int) {
	r.t.Helper()
	res, err := http.Get(r.url + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	if into != nil {
		if err := json.NewDecoder(res.Body).Decode(into); err != nil {
			r.t.Fatalf("%s got %d: %v", path, res.StatusCode, err)
		}
	}
	return res.StatusCode
}

// processor is how a processor stands, as the service tells.
func (r *replica) processor(name string) tracking.ProcessorStatus {
	r.t.Helper()
	var list struct{ Items []tracking.ProcessorStatus }
	r.get("/v1/processors", &list)
	for _, p := range list.Items {
		if p.Processor == name {
			return p
		}
	}
	r.t.Fatalf("there is no processor %s", name)
	return tracking.ProcessorStatus{}
}

// gauge is a metric of a processor.
func (r *replica) gauge(name, processor string) float64 {
	r.t.Helper()
	res, err := http.Get(r.url + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), fmt.Sprintf("%s{processor=%q} ", name, processor)); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				r.t.Fatal(err)
			}
			return value
		}
	}
	r.t.Fatalf("there is no metric %s of %s", name, processor)
	return 0
}

// TestC134_CaughtUpIsTrue holds a read model up by a trigger: as long as a fact
// is missing in it, no read shows the old as the new, and status, metrics and
// waiting reads all say that it is behind.
func TestC134_CaughtUpIsTrue(t *testing.T) {
	h := newHouse(t)
	r := h.start(nil)
	r.register("acme")
	await(t, "the customer is in the read model", func() bool { return r.get("/v1/customers/acme", nil) == http.StatusOK })
	await(t, "it is caught up", func() bool {
		return r.processor("customers").CaughtUp && r.gauge("billonce_processor_caught_up", "customers") == 1
	})

	conn := connect(t, h.dsn)
	for _, sql := range []string{
		`SELECT pg_advisory_lock(134)`,
		`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(134); RETURN NEW; END $$`,
		`CREATE TRIGGER slow BEFORE INSERT OR UPDATE ON customers FOR EACH ROW EXECUTE FUNCTION slow()`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/commands/change-payment-method", strings.NewReader(`{"customer_id":"acme","payment_method_id":"pm_new"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "c134")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var receipt struct{ Position string }
	if err := json.NewDecoder(res.Body).Decode(&receipt); err != nil || receipt.Position == "" {
		t.Fatalf("the receipt is %+v, %v", receipt, err)
	}
	type shown struct {
		PaymentMethodID string                    `json:"payment_method_id"`
		AsOf            struct{ Position string } `json:"as_of"`
	}
	for n := range 20 {
		var now shown
		if r.get("/v1/customers/acme", &now); now.AsOf.Position == receipt.Position || now.PaymentMethodID == "pm_new" {
			t.Fatalf("while it is held up before %s it shows %+v", receipt.Position, now)
		}
		s := r.processor("customers")
		if s.CaughtUp || s.BehindEvents == 0 || s.BehindSeconds <= 0 {
			t.Fatalf("look %d: caught up %t, %d events and %f s behind", n, s.CaughtUp, s.BehindEvents, s.BehindSeconds)
		}
	}
	var waited struct {
		Code string
		AsOf string `json:"as_of"`
	}
	if status := r.get("/v1/customers/acme?wait=300ms&after_position="+receipt.Position, &waited); status != http.StatusGatewayTimeout || waited.Code != "not_caught_up" || waited.AsOf == "" || waited.AsOf == receipt.Position {
		t.Errorf("waiting got %d %+v", status, waited)
	}
	for name, min := range map[string]float64{"billonce_processor_lag_events": 1, "billonce_processor_lag_seconds": 0.001} {
		if lag := r.gauge(name, "customers"); lag < min {
			t.Errorf("%s is %f", name, lag)
		}
	}
	if r.gauge("billonce_processor_caught_up", "customers") != 0 {
		t.Error("the metric says that it is caught up")
	}

	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock(134)`); err != nil {
		t.Fatal(err)
	}
	var now shown
	if status := r.get("/v1/customers/acme?wait=20s&after_position="+receipt.Position, &now); status != http.StatusOK || now.PaymentMethodID != "pm_new" {
		t.Errorf("after it went on, waiting got %d %+v", status, now)
	}
	await(t, "it is caught up again", func() bool {
		s := r.processor("customers")
		return s.CaughtUp && s.BehindEvents == 0 && s.BehindSeconds == 0 && s.EventsPerSecond > 0
	})
}
