package stripegateway

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
)

// A call that would have to wait too long for Stripe's limits is not made, which
// proves that nothing was executed: the same key goes on later. Another endpoint
// has a bucket of its own.
func TestCallsWithoutRoomAreNotMade(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 8)
	r := newRig(t, time.Second, func(w http.ResponseWriter, req *http.Request) {
		seen <- req.Method + " " + req.URL.Path
		answers(500, "{}")(w, req)
	})
	g, err := New(Config{BaseURL: r.base.String(), Key: apiKey, Timeout: time.Second, EndpointRate: 0.01, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	o := anOrder()
	if first := g.Take(t.Context(), o); first.Class != domain.Unknown {
		t.Errorf("the first: %+v", first)
	}
	if second := g.Take(t.Context(), o); second.Class != domain.RetrySameKey || second.Reason == "" {
		t.Errorf("the second: %+v", second)
	}
	if n := len(seen); n != 1 {
		t.Errorf("%d confirms were sent, want 1", n)
	}
	g.Find(t.Context(), o)
	if n := len(seen); n != 2 {
		t.Errorf("%d calls were made, want the read as well", n)
	}
	for path, want := range map[string]string{
		"/v1/payment_intents": "POST payment_intents", "/v1/payment_intents/pi_1/confirm": "POST payment_intents/*/confirm", "/v1/payment_intents/pi_1": "POST payment_intents/*",
	} {
		if got := post(path, "k").endpoint(); got != want {
			t.Errorf("%s is of the endpoint %q, want %q", path, got, want)
		}
	}
}
