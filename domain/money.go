package domain

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Money is an amount in the currency's minor units (cents, yen, fils).
type Money struct {
	Minor    int64    `json:"amount_minor"`
	Currency Currency `json:"currency"`
}

// Currency is a lower-case ISO 4217 code out of the table in currency.go.
type Currency string

// ParseCurrency accepts the lower-case code of a known currency. Upper and
// mixed case are refused rather than folded: one spelling each. The error is
// an invalid field currency.
func ParseCurrency(s string) (Currency, error) {
	if _, ok := currencies[Currency(s)]; ok {
		return Currency(s), nil
	}
	if _, ok := currencies[Currency(strings.ToLower(s))]; ok {
		return "", InvalidField("currency", "must be lower case")
	}
	return "", InvalidField("currency", "is not a currency that can be charged")
}

// ParseMoney accepts what Stripe would charge: a known currency and an amount
// between that currency's minimum and maximum; three-decimal amounts must end
// in 0 (https://docs.stripe.com/currencies#three-decimal). Errors name
// amount_minor or currency, or both.
func ParseMoney(minor int64, currency string) (Money, error) {
	c, err := ParseCurrency(currency)
	if err != nil {
		if minor <= 0 {
			return Money{}, InvalidFields(FieldError{"amount_minor", "must be positive"}, FieldError{"currency", "is not a currency that can be charged (lower-case ISO code)"})
		}
		return Money{}, err
	}
	rule := currencies[c]
	switch {
	case minor <= 0:
		return Money{}, InvalidField("amount_minor", "must be positive")
	case minor < rule.min:
		return Money{}, InvalidField("amount_minor", "is below the minimum of %s", Money{rule.min, c})
	case minor > rule.max:
		return Money{}, InvalidField("amount_minor", "is above the maximum of %s", Money{rule.max, c})
	case rule.exponent == 3 && minor%10 != 0:
		return Money{}, InvalidField("amount_minor", "must end in 0: %s amounts are charged in steps of 10 minor units", c)
	}
	return Money{minor, c}, nil
}

// Exponent is the number of decimals: 0, 2 or 3.
func (c Currency) Exponent() int { return currencies[c].exponent }

// Add is m+n. It returns ErrOverflow, or ErrCurrencyMismatch.
func (m Money) Add(n Money) (Money, error) {
	if m.Currency != n.Currency {
		return Money{}, ErrCurrencyMismatch.With("cannot add %s to %s", n.Currency, m.Currency)
	}
	if (n.Minor > 0 && m.Minor > math.MaxInt64-n.Minor) || (n.Minor < 0 && m.Minor < math.MinInt64-n.Minor) {
		return Money{}, ErrOverflow
	}
	return Money{m.Minor + n.Minor, m.Currency}, nil
}

// String is the amount for people: a symbol where one is usual ($5.00, ¥500),
// else the upper-case code (KWD 1.230).
func (m Money) String() string {
	rule := currencies[m.Currency]
	sign, minor := "", uint64(m.Minor)
	if m.Minor < 0 {
		sign, minor = "-", -minor
	}
	digits := strconv.FormatUint(minor, 10)
	if e := rule.exponent; e > 0 {
		if len(digits) <= e {
			digits = strings.Repeat("0", e+1-len(digits)) + digits
		}
		digits = digits[:len(digits)-e] + "." + digits[len(digits)-e:]
	}
	if rule.symbol != "" {
		return sign + rule.symbol + digits
	}
	return fmt.Sprintf("%s%s %s", sign, strings.ToUpper(string(m.Currency)), digits)
}
