package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/internal/settings"
)

// set sets the environment to what is needed, and to more.
func set(t *testing.T, more map[string]string) {
	t.Helper()
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "SPENDPROXY_") {
			t.Setenv(name, "") // so that it comes back
			os.Unsetenv(name)
		}
	}
	t.Setenv("SPENDPROXY_STRIPE_KEY", "rk_test_MARKER")
	t.Setenv("SPENDPROXY_DATABASE_URL", "postgres://u:MARKER@127.0.0.1:5432/x")
	for name, value := range more {
		t.Setenv(name, value)
	}
}

func TestDefaults(t *testing.T) {
	set(t, nil)
	c, err := Load(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:8081" || c.AdminListen != "" || c.Upstream.String() != "https://api.stripe.com" || c.Timeout != 80*time.Second ||
		c.DBPool != 16 || c.Grace != 90*time.Second || c.Tokens.Admin != "" || c.ClockURL != "" || c.AuditKeep != 0 || c.IdleConnections != 1000 {
		t.Errorf("%+v", c)
	}
	if c.Key.Reveal() != "rk_test_MARKER" || strings.Contains(fmt.Sprintf("%v %+v %#v", c, c, c), "MARKER") {
		t.Errorf("a secret prints: %+v", c)
	}
}

func TestSettings(t *testing.T) {
	set(t, map[string]string{
		"SPENDPROXY_LISTEN": "0.0.0.0:0", "SPENDPROXY_ADMIN_LISTEN": "127.0.0.1:9", "SPENDPROXY_UPSTREAM": "http://127.0.0.1:12121/v1/", "SPENDPROXY_TIMEOUT": "5s",
		"SPENDPROXY_ADMIN_TOKEN": "an-admin-token-of-some-length", "SPENDPROXY_SERVICE_TOKEN": "a-service-token-of-some-length", "SPENDPROXY_CLOCK_URL": "http://127.0.0.1:1/control/clock",
		"SPENDPROXY_AUDIT_KEEP": "90d",
	})
	c, err := Load([]string{"--timeout=6s"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if c.Upstream.String() != "http://127.0.0.1:12121" || c.Timeout != 6*time.Second || c.Tokens.Service != "a-service-token-of-some-length" || c.AdminListen != "127.0.0.1:9" ||
		c.AuditKeep != 2160*time.Hour {
		t.Errorf("%+v", c)
	}
}

// Every fault is named at once, with its setting and without its value.
func TestFaults(t *testing.T) {
	for name, values := range map[string][]string{
		"SPENDPROXY_LISTEN":           {"", " ", "MARKER", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"},
		"SPENDPROXY_ADMIN_LISTEN":     {"", "MARKER"},
		"SPENDPROXY_PORT_FILE":        {"", " "},
		"SPENDPROXY_UPSTREAM":         {"", "MARKER", "ftp://MARKER", "https://u:MARKER@x/", "https://x/?MARKER", "https://x/#MARKER", "https://x/a%2fb", "https://x//a", "http://api.stripe.com", "http://8.8.8.8"},
		"SPENDPROXY_STRIPE_KEY":       {"", " ", "MARKER", "pk_test_MARKER", "vk_MARKER", "sk_test_MARKER x", "sk_"},
		"SPENDPROXY_DATABASE_URL":     {"", "postgres://u:MARKER@[x/y", "MARKER://x"},
		"SPENDPROXY_DB_POOL":          {"", "MARKER", "0", "-1", "3", "99999"},
		"SPENDPROXY_TIMEOUT":          {"", "MARKER", "0", "-1s", "1h"},
		"SPENDPROXY_CLOCK_URL":        {"", "MARKER", "ftp://x", "http://u:MARKER@x/"},
		"SPENDPROXY_LOG_LEVEL":        {"", "MARKER", "INFO"},
		"SPENDPROXY_SHUTDOWN_GRACE":   {"", "MARKER", "0s"},
		"SPENDPROXY_IDLE_CONNECTIONS": {"", "MARKER", "0", "15", "-1"},
		"SPENDPROXY_AUDIT_KEEP":       {"", " ", "MARKER", "0", "-1d", "1h", "23h59m", "0d", "1.5d", "70000d"},
		"SPENDPROXY_ADMIN_TOKEN":      {"", " ", "MARKER", "null"},
		"SPENDPROXY_SERVICE_TOKEN":    {"", "MARKER short"},
	} {
		for _, value := range values {
			t.Run(name+"="+value, func(t *testing.T) {
				set(t, map[string]string{name: value})
				named(t, name)
			})
		}
	}
	t.Run("all", func(t *testing.T) {
		set(t, map[string]string{"SPENDPROXY_LISTEN": "MARKER", "SPENDPROXY_STRIPE_KEY": "MARKER", "SPENDPROXY_TIMEOUT": "MARKER", "SPENDPROXY_ADMIN_TOKEN": ""})
		os.Unsetenv("SPENDPROXY_DATABASE_URL")
		named(t, "SPENDPROXY_LISTEN", "SPENDPROXY_STRIPE_KEY", "SPENDPROXY_TIMEOUT", "SPENDPROXY_DATABASE_URL", "SPENDPROXY_ADMIN_TOKEN")
	})
	t.Run("tokens alike", func(t *testing.T) {
		set(t, map[string]string{"SPENDPROXY_ADMIN_TOKEN": "MARKER-0123456789", "SPENDPROXY_SERVICE_TOKEN": "MARKER-0123456789"})
		named(t, "SPENDPROXY_SERVICE_TOKEN")
	})
}

// A live key goes to no clock that anybody can move, and over no network in the
// clear.
func TestLiveKeys(t *testing.T) {
	for _, key := range []string{"rk_live_MARKER", "sk_live_MARKER"} {
		set(t, map[string]string{"SPENDPROXY_STRIPE_KEY": key, "SPENDPROXY_CLOCK_URL": "http://127.0.0.1:1/", "SPENDPROXY_UPSTREAM": "http://10.0.0.1"})
		named(t, "SPENDPROXY_CLOCK_URL", "SPENDPROXY_UPSTREAM")
		set(t, map[string]string{"SPENDPROXY_STRIPE_KEY": key, "SPENDPROXY_UPSTREAM": "http://127.0.0.1:1"})
		os.Unsetenv("SPENDPROXY_CLOCK_URL")
		if _, err := Load(nil, io.Discard); err != nil {
			t.Error(err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	set(t, nil)
	if _, err := Load([]string{"--MARKER=1"}, io.Discard); err == nil || strings.Contains(err.Error(), "MARKER") || !strings.Contains(err.Error(), "command line: ") {
		t.Errorf("an unknown flag: %v", err)
	}
	var help bytes.Buffer
	if _, err := Load([]string{"--help"}, &help); !errors.Is(err, settings.ErrHelp) || !strings.Contains(help.String(), "SPENDPROXY_UPSTREAM") {
		t.Errorf("help: %v\n%s", err, help.String())
	}
}

// named fails unless exactly these settings are at fault.
func named(t *testing.T, want ...string) {
	t.Helper()
	_, err := Load(nil, io.Discard)
	var faults *settings.Error
	if !errors.As(err, &faults) {
		t.Fatalf("no fault: %v", err)
	}
	if strings.Contains(err.Error(), "MARKER") {
		t.Errorf("a value is printed: %v", err)
	}
	var got []string
	for _, fault := range faults.Faults {
		name, _, _ := strings.Cut(fault.Error(), ": ")
		if !slices.Contains(got, name) {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("at fault: %v, want %v", got, want)
	}
}
