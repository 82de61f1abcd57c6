package domain_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
)

func TestCustomerID(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"a", "7", "cust_123", "A-b_C-9", strings.Repeat("x", 64)} {
		if id, err := domain.ParseCustomerID(s); err != nil || string(id) != s {
			t.Errorf("%q: %q, %v", s, id, err)
		}
	}
	for name, s := range map[string]string{
		"nothing":                 "",
		"a space":                 " ",
		"spaces around":           " cust_123 ",
		"a line break at the end": "cust_123\n",
		"a zero byte":             "cust\x00123",
		"the key's separator":     "a:2026-10",
		"a tenant":                "t:1",
		"a bar":                   "a|b",
		"a slash":                 "a/b",
		"an escaped colon":        "a%3Ab",
		"a dot":                   "a.b",
		"a comma":                 "a,b",
		"a dash in front":         "-a",
		"an underscore in front":  "_a",
		"full-width letters":      "ｃｕｓｔ",
		"full-width digits":       "cust_１２３",
		"a look-alike":            "сust_123", // a Cyrillic es
		"an umlaut":               "müller",
		"a combining mark":        "u\u0308",
		"four-byte characters":    "cust_😀",
		"a zero-width joiner":     "cust\u200d1",
		"invalid UTF-8":           "cust_\xff",
		"65 characters":           strings.Repeat("x", 65),
		"255 characters":          strings.Repeat("x", 255),
		"256 characters":          strings.Repeat("x", 256),
		"10,000 characters":       strings.Repeat("x", 10_000),
	} {
		id, err := domain.ParseCustomerID(s)
		refused(t, err, "customer_id")
		if id != "" {
			t.Errorf("%s: refused and still gives %q", name, id)
		}
	}
}

func TestCustomerIDIsNeverNormalised(t *testing.T) {
	t.Parallel()
	shape := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.StringN(0, 70, 300), rapid.StringMatching(`[A-Za-z0-9_:|/%.-]{0,70}`)).Draw(t, "id")
		id, err := domain.ParseCustomerID(s)
		if (err == nil) != (shape.MatchString(s) && len(s) <= 64) {
			t.Fatalf("%q: %v", s, err)
		}
		if err == nil && string(id) != s {
			t.Fatalf("%q became %q", s, id)
		}
	})
}

func TestStripeID(t *testing.T) {
	t.Parallel()
	for prefix, ids := range map[string][]string{
		"cus_": {"cus_9s6XKzkNRiz8i3", "cus_1", "cus_a_b", "cus_" + strings.Repeat("x", 196)},
		"pm_":  {"pm_card_visa", "pm_1MqLiJLkdIwHu7ixUEgbFdYF"},
	} {
		for _, s := range ids {
			if id, err := domain.ParseStripeID("some_field", prefix, s); err != nil || id != s {
				t.Errorf("%q: %q, %v", s, id, err)
			}
		}
	}
	for _, s := range []string{"", "cus_", "cus", "Cus_1", "cus-1", "pm_1", " cus_1", "cus_1 ", "cus_1\n", "cus_1/../x", "cus_é", "cus_1?a=b", "cus_" + strings.Repeat("x", 197)} {
		_, err := domain.ParseStripeID("some_field", "cus_", s)
		refused(t, err, "some_field")
	}
}

func TestStreamOfCustomer(t *testing.T) {
	t.Parallel()
	if s := domain.CustomerID("cust_123").Stream(); s != "customer/cust_123" || s.SequenceKey() != "cust_123" {
		t.Errorf("stream %q, sequence %q", s, s.SequenceKey())
	}
	if s := domain.StreamID("run/2026-11"); s.SequenceKey() != "run/2026-11" {
		t.Errorf("another stream's sequence is %q", s.SequenceKey())
	}
}

func TestParsePaymentMethodID(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"pm_1", "pm_card_visa", "card_1", "src_1"} {
		if id, err := domain.ParsePaymentMethodID("payment_method_id", s); err != nil || id != s {
			t.Errorf("%q gives %q, %v", s, id, err)
		}
	}
	for _, s := range []string{"", "pm_", "card_", "cus_1", "tok_visa", "PM_1", "pm 1"} {
		_, err := domain.ParsePaymentMethodID("payment_method_id", s)
		if e, ok := errors.AsType[*domain.Error](err); !ok || len(e.Fields) != 1 || e.Fields[0].Field != "payment_method_id" {
			t.Errorf("%q gives %v", s, err)
		}
	}
}
