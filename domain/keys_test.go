package domain_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
)

// The keys of one bill, written down. A change of any of them would charge
// customers twice: a bill that was sent under the old key would be sent again
// under the new one.
func TestPublishedKeys(t *testing.T) {
	t.Parallel()
	const c = domain.CustomerID("cust_123")
	p := period("2026-11")
	for _, k := range []struct {
		what string
		got  domain.Key
		want string
	}{
		{"charge", domain.ChargeKey(c, p, 1), "78add715f5445db3d7f8c24b1df859b6"},
		{"charge, 2nd attempt", domain.ChargeKey(c, p, 2), digest32("cust_123:2026-11:axon-billing:2")},
		{"charge, 11th attempt", domain.ChargeKey(c, p, 11), digest32("cust_123:2026-11:axon-billing:11")},
		{"create", domain.CreateKey(c, p, 1, 0), "78add715f5445db3d7f8c24b1df859b6-intent"},
		{"create of the 2nd intent", domain.CreateKey(c, p, 2, 0), "78add715f5445db3d7f8c24b1df859b6-intent-2"},
		{"create after a stored 500", domain.CreateKey(c, p, 1, 1), "78add715f5445db3d7f8c24b1df859b6-intent-again-1"},
		{"create of the 2nd intent, again", domain.CreateKey(c, p, 2, 3), "78add715f5445db3d7f8c24b1df859b6-intent-2-again-3"},
		{"confirm", domain.ConfirmKey(c, p, 1, 1, 0), "78add715f5445db3d7f8c24b1df859b6"},
		{"confirm of the 2nd intent", domain.ConfirmKey(c, p, 1, 2, 0), "78add715f5445db3d7f8c24b1df859b6-i2"},
		{"confirm after a quiet period", domain.ConfirmKey(c, p, 1, 1, 1), "78add715f5445db3d7f8c24b1df859b6-again-1"},
		{"confirm of the 2nd intent, again", domain.ConfirmKey(c, p, 1, 2, 3), "78add715f5445db3d7f8c24b1df859b6-i2-again-3"},
		{"confirm of the 2nd attempt", domain.ConfirmKey(c, p, 2, 1, 0), digest32("cust_123:2026-11:axon-billing:2")},
		{"cancel", domain.CancelKey(c, p, "pi_9"), "78add715f5445db3d7f8c24b1df859b6-cancel-pi_9"},
		{"charge of a quarter", domain.ChargeKey(c, period("2026-Q3"), 1), digest32("cust_123:2026-Q3:axon-billing")},
		{"charge of a year", domain.ChargeKey(c, period("2026"), 1), digest32("cust_123:2026:axon-billing")},
	} {
		if string(k.got) != k.want {
			t.Errorf("%s: %s, want %s", k.what, k.got, k.want)
		}
	}
}

// digest32 is the recipe of a charge key, by hand.
func digest32(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:32]
}

// Different calls to Stripe have different keys, and equal ones equal keys,
// whatever the ids look like: no two bills, attempts or intents ever share one.
func TestStripeKeysAreInjective(t *testing.T) {
	t.Parallel()
	type call struct {
		what                     string
		customer                 domain.CustomerID
		period                   domain.Period
		attempt, intentNo, again int
		intent                   string
	}
	draw := func(t *rapid.T, label string) (call, domain.Key) {
		c := call{
			customer: domain.CustomerID(rapid.StringMatching(`[a12][a12_-]{0,3}`).Draw(t, label+" customer")),
			period:   anyPeriod().Draw(t, label+" period"),
		}
		switch rapid.IntRange(0, 2).Draw(t, label+" call") {
		case 0:
			c.what = "create"
			c.intentNo, c.again = rapid.IntRange(1, 12).Draw(t, label+" intent number"), rapid.IntRange(0, 12).Draw(t, label+" again")
			return c, domain.CreateKey(c.customer, c.period, c.intentNo, c.again)
		case 1:
			c.what = "confirm"
			c.attempt, c.intentNo, c.again = rapid.IntRange(1, 12).Draw(t, label+" attempt"), rapid.IntRange(1, 3).Draw(t, label+" intent number"), rapid.IntRange(0, 12).Draw(t, label+" again")
			return c, domain.ConfirmKey(c.customer, c.period, c.attempt, c.intentNo, c.again)
		}
		c.what, c.intent = "cancel", rapid.StringMatching(`pi_[a-c0-2]{1,3}`).Draw(t, label+" intent")
		return c, domain.CancelKey(c.customer, c.period, c.intent)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, ka := draw(t, "first")
		b, kb := draw(t, "second")
		if (a == b) != (ka == kb) {
			t.Fatalf("%+v has %s, %+v has %s", a, ka, b, kb)
		}
		if len(ka) == 0 || len(ka) > 255 {
			t.Fatalf("%s has %d characters", ka, len(ka))
		}
	})
}

// Pairs that a plain joining of id and period would merge are refused at the
// door, or have different keys.
func TestSeparatorsMergeNoBills(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2][2]string{
		{{"a:2026-10", "2026-11"}, {"a", "2026-10:2026-11"}},
		{{"a|2026-10", "2026-11"}, {"a", "2026-10|2026-11"}},
		{{"a/2026-10", "2026-11"}, {"a", "2026-10/2026-11"}},
		{{"a%3A2026-10", "2026-11"}, {"a", "2026-10%3A2026-11"}},
		{{"a-2026-10", "2026-11"}, {"a", "2026-10-2026-11"}},
		{{"", "2026-11"}, {"2026-11", ""}},
		{{"a", "2026"}, {"a-2026", "2026"}},
		{{"a1", "2026-11"}, {"a", "2026-11"}},
	} {
		keys := map[domain.Key]bool{}
		accepted := 0
		for _, bill := range pair {
			c, err1 := domain.ParseCustomerID(bill[0])
			p, err2 := domain.ParsePeriod(bill[1])
			if err1 == nil && err2 == nil {
				accepted++
				keys[domain.ChargeKey(c, p, 1)] = true
			}
		}
		if len(keys) != accepted {
			t.Errorf("%q: %d bills share %d keys", pair, accepted, len(keys))
		}
	}
}

func TestKeyOfIsInjective(t *testing.T) {
	t.Parallel()
	// The last part is a caller's key and may hold anything, long or short; the
	// others are ids and periods, which hold no slash.
	parts := rapid.Custom(func(t *rapid.T) []string {
		n := rapid.IntRange(0, 2).Draw(t, "ids")
		var ps []string
		for range n {
			ps = append(ps, rapid.StringMatching(`sha256|[ab2-]{1,3}`).Draw(t, "id"))
		}
		return append(ps, rapid.OneOf(
			rapid.StringMatching(`[ab/-]{1,4}`),
			rapid.StringMatching(`[ab/-]{230,255}`),
			rapid.StringMatching(`[0-9a-f]{64}`),
		).Draw(t, "caller's key"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := parts.Draw(t, "first"), parts.Draw(t, "second")
		if len(a) != len(b) {
			return // one command always has the same number of parts
		}
		ka, kb := domain.KeyOf("settle-billing", a...), domain.KeyOf("settle-billing", b...)
		if (strings.Join(a, "/") == strings.Join(b, "/")) != (ka == kb) {
			t.Fatalf("%q has %s, %q has %s", a, ka, b, kb)
		}
		if len(ka) > 255 || !strings.HasPrefix(string(ka), "settle-billing/") {
			t.Fatalf("%s has %d characters", ka, len(ka))
		}
	})
}

// The hashed form of a long key cannot be spelled by another customer's parts.
func TestLongKeyCannotBeForged(t *testing.T) {
	t.Parallel()
	long := domain.KeyOf("change-payment-method", "cust_123", strings.Repeat("k", 255))
	_, rest, _ := strings.Cut(string(long), "/")
	customer, hash, found := strings.Cut(rest, "/")
	if _, err := domain.ParseCustomerID(customer); found && err == nil {
		t.Errorf("customer %q with key %q has the key of another customer's command", customer, hash)
	}
}

func TestCallersKey(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"k", "a b", "0b1c/2:3|4", "~!@#$%^&*()", strings.Repeat("k", 255)} {
		if k, err := domain.ParseKey(s); err != nil || string(k) != s {
			t.Errorf("%q: %q, %v", s, k, err)
		}
	}
	for _, s := range []string{"", " ", " k", "k ", "k\n", "k\tk", "k\x00", "k\x7f", "schlüssel", "k\u00a0", "\xff", strings.Repeat("k", 256)} {
		_, err := domain.ParseKey(s)
		refused(t, err, "Idempotency-Key")
	}
}
