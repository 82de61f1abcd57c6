package stripegateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// keysOf gives keys of runs as a test has it.
type keysOf struct {
	secret, renewed string
	err, errRenew   error
	renewals        int
}

func (k *keysOf) Secret(context.Context, domain.Period) (string, error) { return k.secret, k.err }

func (k *keysOf) Renew(_ context.Context, _ domain.Period, refused string) (string, error) {
	if k.renewals++; refused != k.secret {
		return "", fmt.Errorf("asked to renew %q", refused)
	}
	return k.renewed, k.errRenew
}

// seen is what a server was asked, in order: method, path and key.
type seen struct {
	mu    sync.Mutex
	calls []string
}

func (s *seen) note(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
}

func keyed(t *testing.T, runs RunKeys, h http.HandlerFunc) (*Gateway, *seen) {
	t.Helper()
	s := &seen{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.note(r)
		h(w, r)
	}))
	t.Cleanup(server.Close)
	g, err := New(Config{BaseURL: server.URL, Key: "vk_reads", RefundKey: "vk_refunds", Runs: runs, Timeout: 20 * time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g, s
}

// A run's money goes by the run's key, refunds by theirs, all else by the base
// key.
func TestWhichKeyACallGoesBy(t *testing.T) {
	t.Parallel()
	g, s := keyed(t, &keysOf{secret: "vk_run"}, answers(500, `{}`))
	o := anOrder()
	fresh := o
	fresh.IntentID = ""
	g.Prepare(t.Context(), fresh)
	g.Take(t.Context(), o)
	g.Find(t.Context(), o)
	g.Cancel(t.Context(), o, "abandoned")
	charge := o
	charge.IntentID = chargeName(o)
	g.Take(t.Context(), charge)
	r := sagas.RefundOrder{CustomerID: o.CustomerID, Period: o.Period, RefundID: "r-1", ChargeID: "ch_1", Amount: o.Amount}
	g.Refund(t.Context(), r)
	g.FindRefund(t.Context(), r)
	want := []string{
		"POST /v1/payment_intents Bearer vk_run", "POST /v1/payment_intents/pi_1/confirm Bearer vk_run",
		"GET /v1/payment_intents/pi_1 Bearer vk_reads", "POST /v1/payment_intents/pi_1/cancel Bearer vk_reads",
		"POST /v1/charges Bearer vk_run", "POST /v1/refunds Bearer vk_refunds", "GET /v1/refunds Bearer vk_reads",
	}
	if !slices.Equal(s.calls, want) {
		t.Errorf("the calls were\n%q\nwant\n%q", s.calls, want)
	}
}

// A secret that is not accepted any more is replaced, and the call made once
// more, under the same Idempotency-Key; only the proxy's own 401 does that.
func TestARefusedSecretIsRenewedOnce(t *testing.T) {
	t.Parallel()
	const invalid = `{"error":{"type":"invalid_request_error","code":"vault_key_invalid","message":"no"}}`
	other := errors.New("the proxy is away")
	for _, c := range []struct {
		name     string
		keys     keysOf
		status   int // of every secret but the renewed one
		body     string
		calls    int
		renewals int
		class    domain.OutcomeClass
		code     string
	}{
		{"rotated", keysOf{secret: "vk_old", renewed: "vk_new"}, 401, invalid, 2, 1, domain.Paid, ""},
		{"revoked", keysOf{secret: "vk_old", errRenew: fmt.Errorf("no: %w", sagas.ErrVaultRefused)}, 401, invalid, 1, 1, domain.Held, "vault_key_invalid"},
		{"refused once more", keysOf{secret: "vk_old", renewed: "vk_other"}, 401, invalid, 2, 1, domain.Held, "vault_key_invalid"},
		{"the proxy's API is away", keysOf{secret: "vk_old", errRenew: other}, 401, invalid, 1, 1, domain.RetrySameKey, ""},
		{"Stripe's 401", keysOf{secret: "vk_old", renewed: "vk_new"}, 401, `{"error":{"type":"invalid_request_error","message":"Invalid API Key"}}`, 1, 0, domain.Held, ""},
		{"no key yet", keysOf{err: other}, 200, "", 0, 0, domain.RetrySameKey, ""},
		{"no key for good", keysOf{err: sagas.ErrVaultRefused}, 200, "", 0, 0, domain.Held, "vault_key_invalid"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			keys := map[string]bool{}
			g, s := keyed(t, &c.keys, func(w http.ResponseWriter, r *http.Request) {
				keys[r.Header.Get("Idempotency-Key")] = true
				_, _ = io.Copy(io.Discard, r.Body)
				if r.Header.Get("Authorization") == "Bearer vk_new" {
					_, _ = io.WriteString(w, anIntent().String())
					return
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			out := g.Take(t.Context(), anOrder())
			if out.Class != c.class || out.Code != c.code {
				t.Errorf("got %+v", out)
			}
			if len(s.calls) != c.calls || c.keys.renewals != c.renewals || len(keys) > 1 {
				t.Errorf("calls %q, %d renewals, %d keys", s.calls, c.keys.renewals, len(keys))
			}
			if c.calls == 0 && out.Class == domain.Paid {
				t.Error("nothing was sent, and it is paid")
			}
		})
	}
}
