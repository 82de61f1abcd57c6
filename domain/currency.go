package domain

// currencyRule is what Stripe asks of an amount in one currency.
type currencyRule struct {
	exponent int
	min, max int64 // minor units
	symbol   string
}

// maxCharge is Stripe's limit of eight digits in minor units
// (https://docs.stripe.com/currencies#minimum-and-maximum-charge-amounts).
const maxCharge = 99_999_999

// currencies is the table of what can be charged: exponents and minimums after
// https://docs.stripe.com/currencies. Zero-decimal currencies are charged in
// whole units. ISK and UGX are zero-decimal in ISO 4217 but charged with two
// decimals at Stripe for backward compatibility, so they are left out rather
// than be charged a hundredfold wrong.
var currencies = func() map[Currency]currencyRule {
	table := map[Currency]currencyRule{
		"usd": {2, 50, maxCharge, "$"},
		"eur": {2, 50, maxCharge, "€"},
		"gbp": {2, 30, maxCharge, "£"},
		"aud": {2, 50, maxCharge, "A$"},
		"cad": {2, 50, maxCharge, "CA$"},
		"nzd": {2, 50, maxCharge, "NZ$"},
		"hkd": {2, 400, maxCharge, "HK$"},
		"sgd": {2, 50, maxCharge, ""},
		"chf": {2, 50, maxCharge, ""},
		"brl": {2, 50, maxCharge, "R$"},
		"inr": {2, 50, maxCharge, "₹"},
		"mxn": {2, 1000, maxCharge, ""},
		"aed": {2, 200, maxCharge, ""},
		"bgn": {2, 100, maxCharge, ""},
		"czk": {2, 1500, maxCharge, ""},
		"dkk": {2, 250, maxCharge, ""},
		"huf": {2, 17500, maxCharge, ""},
		"myr": {2, 200, maxCharge, ""},
		"nok": {2, 300, maxCharge, ""},
		"pln": {2, 200, maxCharge, ""},
		"ron": {2, 200, maxCharge, ""},
		"sek": {2, 300, maxCharge, ""},
		"thb": {2, 1000, maxCharge, ""},
		"jpy": {0, 50, maxCharge, "¥"},
		"krw": {0, 50, maxCharge, "₩"},
	}
	for _, c := range []Currency{"bif", "clp", "djf", "gnf", "kmf", "mga", "pyg", "rwf", "vnd", "vuv", "xaf", "xof", "xpf"} {
		table[c] = currencyRule{0, 50, maxCharge, ""}
	}
	for _, c := range []Currency{"bhd", "jod", "kwd", "omr", "tnd"} {
		table[c] = currencyRule{3, 500, maxCharge, ""}
	}
	for _, c := range []Currency{"ars", "cop", "cny", "egp", "idr", "ils", "kes", "ngn", "pen", "php", "pkr", "qar", "sar", "try", "twd", "uah", "uyu", "zar"} {
		table[c] = currencyRule{2, 50, maxCharge, ""}
	}
	return table
}()
