package config_test

import (
	"strings"
	"testing"
)

// What makes a process die on purpose is accepted on a stand-in alone.
func TestCrashPointsAreForStandIns(t *testing.T) {
	for name, good := range map[string]string{"BILLING_CRASH": "confirm.answered:2:stop", "BILLING_BREAK": "adopt"} {
		for _, test := range []struct {
			what, key, base, value string
			refused                bool
		}{
			{"a stand-in", "sk_test_1", "http://127.0.0.1:12121", good, false},
			{"a vault key on this machine, which may lead to a live one", "vk_1", "http://[::1]:12121", good, true},
			{"a live key", "sk_live_1", "https://127.0.0.1:12121", good, true},
			{"a live restricted key", "rk_live_1", "https://localhost:12121", good, true},
			{"Stripe itself", "sk_test_1", "https://api.stripe.com", good, true},
			{"a stand-in by IPv6", "rk_test_1", "http://[::1]:12121", good, false},
			{"another machine", "sk_test_1", "https://10.0.0.1:12121", good, true},
			{"an unknown name", "sk_test_1", "http://127.0.0.1:12121", "hunter2", true},
			{"a blank", "sk_test_1", "http://127.0.0.1:12121", " ", true},
		} {
			t.Run(name+" with "+test.what, func(t *testing.T) {
				clear(t)
				t.Setenv("STRIPE_API_KEY", test.key)
				t.Setenv("STRIPE_API_BASE", test.base)
				t.Setenv(name, test.value)
				c, err := load()
				if !test.refused {
					if err != nil || c.Crash.IsZero() {
						t.Errorf("got %v, %q", err, c.Crash)
					}
					return
				}
				if got := faults(t, err); len(got) != 1 || got[0] != name || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("got %v", err)
				}
			})
		}
	}
	clear(t)
	if c, err := load(); err != nil || !c.Crash.IsZero() {
		t.Errorf("without the variables: %v, %q", err, c.Crash)
	}
}
