package sim

import (
	"fmt"
	"math"
	"strings"
)

// maxAmount is the largest amount of one charge: eight digits, in every
// currency.
const maxAmount = 99_999_999

// currency is what Stripe knows of one: how many decimals its amounts carry,
// the smallest charge, and the step that amounts must be a multiple of.
type currency struct {
	minimum int64
	step    int64
}

// currencies is Stripe's list of presentment currencies for cards. Zero-decimal
// currencies count whole units, three-decimal ones must end in 0, and isk and
// ugx are written with two decimals that must be 00.
var currencies = func() map[string]currency {
	const (
		two = `usd aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bmd bnd bob brl bsd bwp byn bzd
			cad cdf chf cny cop crc cve czk dkk dop dzd egp etb eur fjd fkp gbp gel gip gmd gtq gyd hkd hnl
			hrk htg huf idr ils inr jmd kes kgs khr kyd kzt lak lbp lkr lrd lsl mad mdl mkd mmk mnt mop mur
			mvr mwk mxn myr mzn nad ngn nio nok npr nzd pab pen pgk php pkr pln qar ron rsd rub sar sbd scr
			sek sgd shp sle sll sos srd std szl thb tjs top try ttd twd tzs uah uyu uzs wst xcd yer zar zmw`
		zero     = `bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf`
		three    = `bhd jod kwd omr tnd`
		hundreds = `isk ugx`
	)
	all := make(map[string]currency, 160)
	add := func(names string, c currency) {
		for name := range strings.FieldsSeq(names) {
			all[name] = c
		}
	}
	add(two, currency{minimum: 50, step: 1})
	add(zero, currency{minimum: 50, step: 1})
	add(three, currency{minimum: 100, step: 10})
	add(hundreds, currency{minimum: 100, step: 100})
	for name, minimum := range map[string]int64{
		"aed": 200, "bgn": 100, "czk": 1500, "dkk": 250, "gbp": 30, "hkd": 400, "huf": 17500,
		"mxn": 1000, "myr": 200, "nok": 300, "pln": 200, "ron": 200, "sek": 300, "thb": 1000,
	} {
		c := all[name]
		c.minimum = minimum
		all[name] = c
	}
	return all
}()

// checkAmount holds an amount against Stripe's limits for the currency.
func checkAmount(amount int64, code string) *apiError {
	c, ok := currencies[code]
	if !ok {
		return invalid("currency", "", fmt.Sprintf("Invalid currency: %s.", code))
	}
	switch {
	case amount < 1:
		return invalid("amount", "parameter_invalid_integer", "This value must be greater than or equal to 1.")
	case amount < c.minimum:
		return invalid("amount", "amount_too_small",
			fmt.Sprintf("Amount must be at least %d (minor units) %s", c.minimum, code))
	case amount > maxAmount:
		return invalid("amount", "amount_too_large",
			fmt.Sprintf("Amount must be no more than %d (minor units) %s", maxAmount, code))
	case amount%c.step != 0 && c.step == 100:
		return invalid("amount", "invalid_charge_amount_no_decimal_compatible",
			fmt.Sprintf("Invalid amount. Currency %s has become effectively zero-decimal and charged amounts must be evenly divisible by 100.", strings.ToUpper(code)))
	case amount%c.step != 0:
		return invalid("amount", "parameter_invalid_integer",
			fmt.Sprintf("Invalid amount: the last digit must be 0 in the three-decimal currency %s", code))
	}
	return nil
}

// parseInteger reads a decimal integer that fits an int64. Anything else, a
// sign, a dot, a blank, is refused.
func parseInteger(s string) (int64, bool) {
	if s == "" || len(s) > 19 {
		return 0, false
	}
	var n int64
	for _, r := range []byte(s) {
		if r < '0' || r > '9' {
			return 0, false
		}
		d := int64(r - '0')
		if n > (math.MaxInt64-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}
