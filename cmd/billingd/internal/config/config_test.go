package config_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/internal/settings"
)

// clear unsets every setting and gives the two that are needed.
func clear(t *testing.T) {
	t.Helper()
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "BILLING_") || strings.HasPrefix(name, "STRIPE_") || strings.HasPrefix(name, "PG") || name == "DATABASE_URL" || name == "XDG_DATA_HOME" {
			t.Setenv(name, "") // so that it comes back
			os.Unsetenv(name)
		}
	}
	t.Setenv("HOME", "/home/billing")
	t.Setenv("STRIPE_API_KEY", "sk_test_123")
}

func load(args ...string) (config.Config, error) { return config.Load(args, io.Discard) }

// faults are the settings that Load complains of.
func faults(t *testing.T, err error) (names []string) {
	t.Helper()
	e, ok := errors.AsType[*settings.Error](err)
	if !ok {
		t.Fatalf("got %v, want an *Error", err)
	}
	for _, fault := range e.Faults {
		name, _, _ := strings.Cut(fault.Error(), ":")
		names = append(names, name)
	}
	return names
}

func TestDefaults(t *testing.T) {
	clear(t)
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if !c.DatabaseURL.IsZero() || c.DataDir != "/home/billing/.local/share/billonce" || c.Listen != "127.0.0.1:8080" || !c.Tokens.Open() ||
		c.StripeBase != "https://api.stripe.com" || c.StripeTimeout != 30*time.Second || c.Lease != 40*time.Second || c.Grace != 30*time.Second ||
		c.Poll != time.Second || c.ReconcileEvery != 24*time.Hour || !c.WebhookSecret.IsZero() || c.LogLevel != slog.LevelInfo || c.Environment != "development" || c.DBPool == 0 || c.Concurrency == 0 ||
		!c.LookSince.IsZero() || c.ClockURL != "" || c.PortFile != "" || c.StripeKey.Reveal() != "sk_test_123" || c.StripeAPI != "payment_intents" ||
		!c.RefundKey.IsZero() || c.ProxyAdmin != nil || !c.ProxyToken.IsZero() {
		t.Errorf("the defaults are %+v", c)
	}
}

func TestEnvironmentAndFlags(t *testing.T) {
	clear(t)
	hash := sha256.Sum256([]byte("token"))
	for name, value := range map[string]string{
		"DATABASE_URL": "postgres://u:p@db:5432/billing", "BILLING_LISTEN": "0.0.0.0:80", "BILLING_TOKENS": "ci:read:" + hex.EncodeToString(hash[:]),
		"STRIPE_API_BASE": "http://127.0.0.1:12121", "STRIPE_API_KEY": "vk_abc", "STRIPE_WEBHOOK_SECRET": "whsec_1", "BILLING_STRIPE_TIMEOUT": "1s", "BILLING_LEASE": "2s",
		"BILLING_LOOK_SINCE": "2026-01-01", "BILLING_CLOCK_URL": "http://127.0.0.1:12122/control/clock", "BILLING_STRIPE_RATE": "0", "BILLING_STRIPE_ENDPOINT_RATE": "12.5", "BILLING_LOG_LEVEL": "debug",
		"STRIPE_API": "charges", "STRIPE_REFUND_KEY": "vk_refunds", "BILLING_PROXY_ADMIN_URL": "http://spendproxy:8090/", "BILLING_PROXY_TOKEN": "a-token-of-the-service",
	} {
		t.Setenv(name, value)
	}
	c, err := load("--listen=127.0.0.1:0", "--port-file", "/run/a b/port", "--log-level=warn")
	if err != nil {
		t.Fatal(err)
	}
	if c.DatabaseURL.Reveal() != "postgres://u:p@db:5432/billing" || c.DataDir != "" || c.Listen != "127.0.0.1:0" || c.PortFile != "/run/a b/port" || c.Tokens.Open() ||
		c.StripeBase != "http://127.0.0.1:12121" || c.StripeKey.Reveal() != "vk_abc" || c.WebhookSecret.Reveal() != "whsec_1" || c.StripeTimeout != time.Second || c.Lease != 2*time.Second ||
		!c.LookSince.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) || c.ClockURL == "" || c.StripeRate != 0 || c.StripeEndpointRate != 12.5 || c.LogLevel != slog.LevelWarn || c.StripeAPI != "charges" ||
		c.RefundKey.Reveal() != "vk_refunds" || c.ProxyAdmin.String() != "http://spendproxy:8090" || c.ProxyToken.Reveal() != "a-token-of-the-service" {
		t.Errorf("got %+v", c)
	}
}

// Webhooks are off without a secret, however that is said; two may be in use
// while one is rolled.
func TestWebhookSecrets(t *testing.T) {
	for value, want := range map[string]string{"": "", " ": "", "whsec_1": "whsec_1", " whsec_1 , whsec_2 ": "whsec_1,whsec_2"} {
		clear(t)
		t.Setenv("STRIPE_WEBHOOK_SECRET", value)
		c, err := load()
		if err != nil || c.WebhookSecret.Reveal() != want || c.WebhookSecret.IsZero() != (want == "") {
			t.Errorf("%q is read as %q, %v", value, c.WebhookSecret.Reveal(), err)
		}
	}
}

// A spend proxy is set as a whole: its address and its token, and vault keys
// alone beside them.
func TestProxySettings(t *testing.T) {
	const token = "hunter2-hunter2-hunter2"
	for _, c := range []struct {
		name string
		set  map[string]string
		want []string
	}{
		{"the whole", map[string]string{"BILLING_PROXY_ADMIN_URL": "http://127.0.0.1:8090", "BILLING_PROXY_TOKEN": token, "STRIPE_API_KEY": "vk_1"}, nil},
		{"over the network", map[string]string{"BILLING_PROXY_ADMIN_URL": "https://proxy.example.com", "BILLING_PROXY_TOKEN": token, "STRIPE_API_KEY": "vk_1"}, nil},
		{"no token", map[string]string{"BILLING_PROXY_ADMIN_URL": "http://127.0.0.1:8090", "STRIPE_API_KEY": "vk_1"}, []string{"BILLING_PROXY_TOKEN"}},
		{"a blank token", map[string]string{"BILLING_PROXY_ADMIN_URL": "http://127.0.0.1:8090", "BILLING_PROXY_TOKEN": " ", "STRIPE_API_KEY": "vk_1"}, []string{"BILLING_PROXY_TOKEN"}},
		{"a short token", map[string]string{"BILLING_PROXY_ADMIN_URL": "http://127.0.0.1:8090", "BILLING_PROXY_TOKEN": "hunter2", "STRIPE_API_KEY": "vk_1"}, []string{"BILLING_PROXY_TOKEN"}},
		{"no address", map[string]string{"BILLING_PROXY_TOKEN": token, "STRIPE_API_KEY": "vk_1"}, []string{"BILLING_PROXY_ADMIN_URL"}},
		{"a blank address", map[string]string{"BILLING_PROXY_ADMIN_URL": "", "BILLING_PROXY_TOKEN": token, "STRIPE_API_KEY": "vk_1"}, []string{"BILLING_PROXY_ADMIN_URL"}},
		{"no URL", map[string]string{"BILLING_PROXY_ADMIN_URL": "hunter2", "BILLING_PROXY_TOKEN": token, "STRIPE_API_KEY": "vk_1"}, []string{"BILLING_PROXY_ADMIN_URL"}},
		{"a password in it", map[string]string{"BILLING_PROXY_ADMIN_URL": "https://u:hunter2@proxy.example.com", "BILLING_PROXY_TOKEN": token, "STRIPE_API_KEY": "vk_1"}, []string{"BILLING_PROXY_ADMIN_URL"}},
		{"in the clear over the network", map[string]string{"BILLING_PROXY_ADMIN_URL": "http://proxy.example.com", "BILLING_PROXY_TOKEN": token, "STRIPE_API_KEY": "vk_1"}, []string{"BILLING_PROXY_ADMIN_URL"}},
		{"Stripe's key beside it", map[string]string{"BILLING_PROXY_ADMIN_URL": "http://127.0.0.1:8090", "BILLING_PROXY_TOKEN": token, "STRIPE_API_KEY": "sk_test_hunter2"}, []string{"STRIPE_API_KEY"}},
		{"Stripe's key for refunds", map[string]string{"BILLING_PROXY_ADMIN_URL": "http://127.0.0.1:8090", "BILLING_PROXY_TOKEN": token, "STRIPE_API_KEY": "vk_1", "STRIPE_REFUND_KEY": "rk_test_hunter2"}, []string{"STRIPE_REFUND_KEY"}},
		{"a live key for refunds in the clear", map[string]string{"STRIPE_API_BASE": "http://stripe:8080", "STRIPE_REFUND_KEY": "sk_live_hunter2"}, []string{"STRIPE_REFUND_KEY"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clear(t)
			for name, value := range c.set {
				t.Setenv(name, value)
			}
			_, err := load()
			if c.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if got := faults(t, err); !slices.Equal(got, c.want) {
				t.Errorf("the faults are %v, want %v", err, c.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a value is quoted: %v", err)
			}
		})
	}
}

func TestEachFault(t *testing.T) {
	for name, values := range map[string][]string{
		"DATABASE_URL":                 {"", " ", "postgres://u:hunter2@[db/x", "mysql://x", "host=a port=hunter2"},
		"STRIPE_API_BASE":              {"", "api.stripe.com", "ftp://x", "https://u:hunter2@api.stripe.com", "https://x?y=1", "http://api.stripe.com"},
		"STRIPE_API":                   {"", "intents", "Charges", "charges "},
		"STRIPE_API_KEY":               {"", " ", "hunter2", "pk_test_1", "sk_test_1 ", "sk_test_\n1"},
		"STRIPE_REFUND_KEY":            {"", " ", "hunter2", "pk_test_1"},
		"STRIPE_WEBHOOK_SECRET":        {"hunter2,", ",hunter2", "hunter2,,hunter3", "hunter2,hunter3,hunter4"},
		"BILLING_RECONCILE_EVERY":      {"", "-1h", "5s", "daily"},
		"BILLING_LISTEN":               {"", " ", "8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", ":8080", "0.0.0.0:8080", "10.0.0.1:80", "[::]:80", "billing:80"},
		"BILLING_TOKENS":               {"", " ", "hunter2", "ci:read:hunter2"},
		"BILLING_ENVIRONMENT":          {"", "Production", "a b", "-x"},
		"BILLING_DATA_DIR":             {"", " "},
		"BILLING_PORT_FILE":            {"", " "},
		"BILLING_STRIPE_TIMEOUT":       {"", "0", "0s", "30", "-1s", "1h", "soon"},
		"BILLING_LEASE":                {"", "40", "30s", "10s", "2h"},
		"BILLING_SHUTDOWN_GRACE":       {"", "0s", "30", "1h"},
		"BILLING_POLL":                 {"", "0s", "1", "1h"},
		"BILLING_DB_POOL":              {"", "0", "-1", "1.5", "many", "100000"},
		"BILLING_CONCURRENCY":          {"", "0", "-1", "1e3"},
		"BILLING_STRIPE_RATE":          {"", "-1", "NaN", "Inf", "fast"},
		"BILLING_STRIPE_ENDPOINT_RATE": {"", " ", "-1", "fast"},
		"BILLING_CLOCK_URL":            {"", "x", "ftp://x", "http://u:hunter2@x/"},
		"BILLING_LOOK_SINCE":           {"", "yesterday", "2026-13-01", "2026-01-01 00:00"},
		"BILLING_LOG_LEVEL":            {"", "trace", "INFO"},
	} {
		for _, value := range values {
			t.Run(fmt.Sprintf("%s=%q", name, value), func(t *testing.T) {
				clear(t)
				t.Setenv(name, value)
				_, err := load()
				if got := faults(t, err); len(got) != 1 || got[0] != name {
					t.Errorf("the faults are %v", err)
				}
				if strings.Contains(err.Error(), "hunter2") {
					t.Errorf("the fault shows the value: %v", err)
				}
			})
		}
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	clear(t)
	os.Unsetenv("STRIPE_API_KEY")
	t.Setenv("BILLING_LEASE", "1s")
	t.Setenv("BILLING_TOKENS", "a:b,c")
	t.Setenv("BILLING_POLL", "")
	_, err := load("--concurrency=none", "--stripe-api-base=x", "--whatever=hunter2")
	got := strings.Join(faults(t, err), " ")
	for _, name := range []string{"STRIPE_API_KEY", "BILLING_LEASE", "BILLING_TOKENS BILLING_TOKENS", "BILLING_POLL", "command line"} {
		if !strings.Contains(got, name) {
			t.Errorf("%s is not among %s", name, got)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a value shows: %v", err)
	}
	_, err = load("--concurrency=none", "--log-level=x", "--grace=1s")
	if _, ok := errors.AsType[*settings.Error](err); !ok {
		t.Errorf("got %v", err)
	}
	_, err = load("--concurrency=none", "--log-level=x")
	if got := strings.Join(faults(t, err), " "); !strings.Contains(got, "BILLING_CONCURRENCY") || !strings.Contains(got, "BILLING_LOG_LEVEL") {
		t.Errorf("the flags' faults are %s", got)
	}
}

func TestLiveKeys(t *testing.T) {
	for _, key := range []string{"sk_live_1", "rk_live_1"} {
		clear(t)
		t.Setenv("STRIPE_API_KEY", key)
		if _, err := load(); err != nil {
			t.Errorf("a live key to Stripe itself got %v", err)
		}
		t.Setenv("BILLING_CLOCK_URL", "http://127.0.0.1:12122/control/clock")
		_, err := load()
		if got := faults(t, err); len(got) != 1 || got[0] != "BILLING_CLOCK_URL" {
			t.Errorf("with a stand-in's clock got %v", err)
		}
		os.Unsetenv("BILLING_CLOCK_URL")
		t.Setenv("STRIPE_API_BASE", "http://10.0.0.1")
		_, err = load()
		if got := faults(t, err); len(got) != 1 || got[0] != "STRIPE_API_KEY" {
			t.Errorf("over plain http got %v", err)
		}
	}
}

func TestHelp(t *testing.T) {
	clear(t)
	var out strings.Builder
	_, err := config.Load([]string{"--help"}, &out)
	if !errors.Is(err, settings.ErrHelp) || !strings.Contains(out.String(), "--listen") || !strings.Contains(out.String(), "BILLING_LISTEN") {
		t.Errorf("got %v\n%s", err, out.String())
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	clear(t)
	t.Setenv("DATABASE_URL", "postgres://u:mark3r@db/billing")
	t.Setenv("STRIPE_API_KEY", "sk_test_mark3r")
	t.Setenv("STRIPE_WEBHOOK_SECRET", "whsec_mark3r")
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	hidden := struct{ c config.Config }{c}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+" "+verb+" "+verb+"\n", c, &c, hidden)
		fmt.Fprintf(&out, verb+"\n", c.StripeKey)
	}
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("settings", "config", c, "key", c.StripeKey, "hidden", hidden)
	}
	if text, err := json.Marshal(c); err == nil {
		out.Write(text)
	}
	if s := out.String(); strings.Contains(s, "mark3r") || strings.Contains(s, fmt.Sprintf("%x", "mark3r")) || !strings.Contains(s, "(secret)") {
		t.Errorf("it prints as\n%s", s)
	}
}
