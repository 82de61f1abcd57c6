package stripegateway

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestConfigListsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Timeout: -1, MaxConns: -1})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, field := range []string{"BaseURL", "Key", "Timeout", "Log", "MaxConns"} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not among the faults: %v", field, err)
		}
	}
}

func TestConfigAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url, key string
		ok       bool
	}{
		{"https://api.stripe.com", "sk_live_x", true},
		{"https://proxy.example.com/stripe/v1/", "vk_x", true},
		{"http://127.0.0.1:8080", "vk_x", true},
		{"http://127.0.0.1:8080", "sk_live_x", true},
		{"http://[::1]:8080/v1", "vk_x", true},
		{"http://localhost:8080", "rk_live_x", true},
		{"http://10.1.2.3:8080", "vk_x", true},
		{"http://192.168.1.1", "vk_x", true},
		{"http://spendproxy:8080", "vk_x", true},
		{"http://spendproxy.billing.internal", "vk_x", true},
		{"http://10.1.2.3:8080", "sk_live_x", false},
		{"http://spendproxy:8080", "rk_live_x", false},
		{"http://api.stripe.com", "sk_test_x", false},
		{"http://8.8.8.8", "vk_x", false},
		{"http://127.0.0.1.example.com", "vk_x", false},
		{"http://localhost.example.com", "vk_x", false},
		{"", "vk_x", false},
		{"api.stripe.com", "vk_x", false},
		{"ftp://localhost", "vk_x", false},
		{"https://", "vk_x", false},
		{"https://user:pass@api.stripe.com", "vk_x", false},
		{"https://api.stripe.com?x=1", "vk_x", false},
		{"https://api.stripe.com#x", "vk_x", false},
		{"https://api.stripe.com/a%2Fb", "vk_x", false},
		{"https://api.stripe.com//v1", "vk_x", false},
		{"https://api.stripe.com\x00", "vk_x", false},
		{"https://api.stripe.com", "", false},
		{"https://api.stripe.com", "vk x", false},
		{"https://api.stripe.com", "vk\r\nX-Evil: 1", false},
		{"https://api.stripe.com", "vk_ü", false},
		{"https://api.stripe.com", strings.Repeat("k", 256), false},
	} {
		_, err := New(Config{BaseURL: c.url, Key: c.key, Log: slog.New(slog.DiscardHandler)})
		if (err == nil) != c.ok {
			t.Errorf("%q with %q: %v", c.url, c.key, err)
		}
		if err != nil && c.key != "" && strings.Contains(err.Error(), c.key) || err != nil && strings.Contains(err.Error(), "pass@") {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	c, _, err := Config{BaseURL: "https://api.stripe.com", Key: "vk_x", Log: slog.New(slog.DiscardHandler)}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if c.Timeout != 30*time.Second || c.MaxConns != 64 {
		t.Errorf("got %v %d", c.Timeout, c.MaxConns)
	}
}

func TestKeyIsNeverPrinted(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := Config{BaseURL: "https://user:" + secret + "@api.stripe.com", Key: apiKey, Log: slog.New(slog.NewTextHandler(&out, nil))}
	fmt.Fprintf(&out, "%v %+v %#v %s\n", c, c, c, c)
	c.Log.Info("config", "config", c)
	c.BaseURL = "https://api.stripe.com"
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "%v %+v %#v %s\n", g, g, g, g)
	c.Log.Info("gateway", "gateway", g)
	noSecret(t, "text", out.String())
	if !strings.Contains(out.String(), "api.stripe.com") {
		t.Errorf("nothing was printed: %s", out.String())
	}
}
