package sim_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// start runs a stand-in for one test and gives it stripe-go's own client.
func start(t testing.TB, o sim.Options) (*sim.Server, *client.API) {
	t.Helper()
	server, err := sim.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return server, clientOf(t, server, nil)
}

// clientOf is stripe-go without retries and telemetry, on connections of its own.
func clientOf(t testing.TB, server *sim.Server, transport http.RoundTripper) *client.API {
	t.Helper()
	if transport == nil {
		own := &http.Transport{MaxIdleConnsPerHost: 64}
		t.Cleanup(own.CloseIdleConnections)
		transport = own
	}
	return client.New("sk_test_123", &stripe.Backends{
		API: stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
			URL:               stripe.String(server.APIURL),
			HTTPClient:        &http.Client{Transport: transport, Timeout: 5 * time.Second},
			MaxNetworkRetries: stripe.Int64(0),
			LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
			EnableTelemetry:   stripe.Bool(false),
		}),
	})
}

// createParams are what a bill creates: an unconfirmed intent with markers.
func createParams(key string) *stripe.PaymentIntentParams {
	p := &stripe.PaymentIntentParams{
		Amount: stripe.Int64(5000), Currency: stripe.String("usd"), Customer: stripe.String("cus_A"),
		PaymentMethodTypes: []*string{stripe.String("card")},
	}
	p.AddMetadata("customer_id", "A")
	p.AddMetadata("billing_period", "2026-11")
	if key != "" {
		p.SetIdempotencyKey(key)
	}
	return p
}

func confirmParams(key, method string) *stripe.PaymentIntentConfirmParams {
	p := &stripe.PaymentIntentConfirmParams{PaymentMethod: stripe.String(method), OffSession: stripe.Bool(true)}
	if key != "" {
		p.SetIdempotencyKey(key)
	}
	return p
}

// create makes an unconfirmed intent and fails the test if it cannot.
func create(t testing.TB, c *client.API, key string) *stripe.PaymentIntent {
	t.Helper()
	pi, err := c.PaymentIntents.New(createParams(key))
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return pi
}

// stripeError asserts that err is Stripe's error with that status and code.
func stripeError(t testing.TB, err error, status int, code string) *stripe.Error {
	t.Helper()
	var e *stripe.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v (%T), want a Stripe error %d %s", err, err, status, code)
	}
	if e.HTTPStatusCode != status || string(e.Code) != code {
		t.Fatalf("got status %d code %q (%s), want %d %q", e.HTTPStatusCode, e.Code, e.Msg, status, code)
	}
	return e
}

// taken counts the succeeded movements in the ledger.
func taken(s *sim.Server) int {
	return len(s.LedgerWhere(sim.LedgerFilter{Status: "succeeded"}))
}

func arm(t testing.TB, s *sim.Server, f sim.Fault) {
	t.Helper()
	if _, err := s.AddFault(f); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// atWork waits until the request with the key executes: it holds its key, and its
// object's lock if it is to be delayed.
func atWork(t testing.TB, s *sim.Server, key string) {
	t.Helper()
	eventually(t, key+" is at work", func() bool {
		state, ok := s.Key(key)
		return ok && !state.Finished
	})
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func escape(s string) string { return url.QueryEscape(s) }

func keyN(n int) string { return fmt.Sprintf("key-%d", n) }

// sendWith asks for the account with these headers and no others.
func sendWith(t testing.TB, s *sim.Server, headers map[string]string) answer {
	t.Helper()
	r, err := http.NewRequest("GET", s.APIURL+"/v1/account", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	return send(t, r)
}
