package domain_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
)

// Every price from 0.01 to 100.00 is an integer of minor units and reads as
// itself: none of them goes through a binary fraction.
func TestTenThousandPrices(t *testing.T) {
	t.Parallel()
	for minor := int64(1); minor <= 10_000; minor++ {
		want := fmt.Sprintf("$%d.%02d", minor/100, minor%100)
		if got := (domain.Money{Minor: minor, Currency: "usd"}).String(); got != want {
			t.Fatalf("%d cents read %s, want %s", minor, got, want)
		}
		m, err := domain.ParseMoney(minor, "usd")
		switch {
		case minor >= 50 && (err != nil || m.Minor != minor):
			t.Fatalf("%d cents: %v, %v", minor, m, err)
		case minor < 50:
			refused(t, err, "amount_minor")
		}
	}
}

func TestMoneyReads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		minor    int64
		currency domain.Currency
		want     string
	}{
		{500, "jpy", "¥500"},
		{500, "krw", "₩500"},
		{500, "usd", "$5.00"},
		{1230, "kwd", "KWD 1.230"},
		{10, "kwd", "KWD 0.010"},
		{5, "usd", "$0.05"},
		{0, "usd", "$0.00"},
		{0, "jpy", "¥0"},
		{-5, "usd", "-$0.05"},
		{-12345, "eur", "-€123.45"},
		{100000, "chf", "CHF 1000.00"},
		{math.MaxInt64, "usd", "$92233720368547758.07"},
		{math.MinInt64, "usd", "-$92233720368547758.08"},
		{math.MinInt64, "jpy", "-¥9223372036854775808"},
	} {
		if got := (domain.Money{Minor: c.minor, Currency: c.currency}).String(); got != c.want {
			t.Errorf("%d %s reads %s, want %s", c.minor, c.currency, got, c.want)
		}
	}
}

func TestMoneyThatCanBeCharged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		minor    int64
		currency string
		fields   string // that are refused
	}{
		{5000, "usd", ""},
		{50, "usd", ""}, {49, "usd", "amount_minor"},
		{30, "gbp", ""}, {29, "gbp", "amount_minor"},
		{50, "jpy", ""}, {49, "jpy", "amount_minor"},
		{17500, "huf", ""}, {17499, "huf", "amount_minor"},
		{99_999_999, "usd", ""}, {100_000_000, "usd", "amount_minor"},
		{math.MaxInt64, "usd", "amount_minor"},
		{0, "usd", "amount_minor"}, {-1, "usd", "amount_minor"}, {math.MinInt64, "usd", "amount_minor"},

		// Three-decimal currencies are charged in steps of ten.
		{5000, "kwd", ""}, {5010, "kwd", ""}, {5001, "kwd", "amount_minor"}, {5009, "kwd", "amount_minor"},
		{1239, "bhd", "amount_minor"}, {1230, "bhd", ""}, {1235, "omr", "amount_minor"},
		{5001, "usd", ""}, {5001, "jpy", ""},

		// One spelling of a currency; no default.
		{5000, "", "currency"}, {5000, "us", "currency"}, {5000, "USD", "currency"}, {5000, "uSd", "currency"},
		{5000, "usd ", "currency"}, {5000, " usd", "currency"}, {5000, "USD ", "currency"}, {5000, "xxx", "currency"},
		{5000, "XXX", "currency"}, {5000, "usdt", "currency"}, {5000, "€", "currency"}, {5000, "ｕｓｄ", "currency"},
		{0, "xxx", "amount_minor currency"}, {-5, "USD", "amount_minor currency"},

		// Charged by Stripe in hundredths although ISO has none: left out.
		{5000, "isk", "currency"}, {5000, "ugx", "currency"},
	} {
		m, err := domain.ParseMoney(c.minor, c.currency)
		if c.fields != "" {
			refused(t, err, strings.Fields(c.fields)...)
			continue
		}
		if err != nil || m != (domain.Money{Minor: c.minor, Currency: domain.Currency(c.currency)}) {
			t.Errorf("%d %s: %v, %v", c.minor, c.currency, m, err)
		}
	}
}

func TestExponents(t *testing.T) {
	t.Parallel()
	for currencies, want := range map[string]int{
		"jpy krw clp vnd xof bif djf gnf kmf mga pyg rwf vuv xaf xpf": 0,
		"usd eur gbp chf mxn inr idr huf twd":                         2,
		"kwd bhd jod omr tnd":                                         3,
	} {
		for _, s := range strings.Fields(currencies) {
			c, err := domain.ParseCurrency(s)
			if err != nil || c.Exponent() != want {
				t.Errorf("%s has %d decimals (%v), want %d", s, c.Exponent(), err, want)
			}
		}
	}
}

func TestMoneyAddsExactlyOrRefuses(t *testing.T) {
	t.Parallel()
	near := rapid.OneOf(
		rapid.Int64(),
		rapid.Int64Range(math.MaxInt64-5, math.MaxInt64),
		rapid.Int64Range(math.MinInt64, math.MinInt64+5),
		rapid.Int64Range(-5, 5),
	)
	rapid.Check(t, func(t *rapid.T) {
		a, b := near.Draw(t, "a"), near.Draw(t, "b")
		exact := new(big.Int).Add(big.NewInt(a), big.NewInt(b))
		sum, err := domain.Money{Minor: a, Currency: "usd"}.Add(domain.Money{Minor: b, Currency: "usd"})
		switch {
		case exact.IsInt64() && (err != nil || sum != domain.Money{Minor: exact.Int64(), Currency: "usd"}):
			t.Fatalf("%d + %d: %v, %v", a, b, sum, err)
		case !exact.IsInt64() && !errors.Is(err, domain.ErrOverflow):
			t.Fatalf("%d + %d: %v, %v, want an overflow", a, b, sum, err)
		}
	})
	if _, err := (domain.Money{Minor: 1, Currency: "usd"}).Add(domain.Money{Minor: 1, Currency: "eur"}); !errors.Is(err, domain.ErrCurrencyMismatch) {
		t.Errorf("dollars and euros: %v", err)
	}
}
