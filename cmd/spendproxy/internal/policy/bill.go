package policy

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/billonce/billonce/domain"
)

// BillOf is the bill that a call is about: of a create or a legacy charge by its
// own markers, else by those of the intent or charge, as known at Stripe.
func BillOf(c Call, known *Evidence) BillID {
	switch {
	case c.Rule == IntentsCreate || c.Rule == ChargesCreate:
		return c.Bill
	case known != nil:
		return known.Bill
	}
	return BillID{}
}

// Judge says whether a call is what a bill of the manifest needs. o is the bill
// that [BillOf] names, nil if the manifest does not hold it; known is the intent
// as it was learnt, nil for a create and a legacy charge. Reads always pass.
func Judge(c Call, o *Obligation, known *Evidence) Verdict {
	if c.Method == http.MethodGet {
		return allowed("a read")
	}
	bill := BillOf(c, known)
	switch {
	case bill.IsZero():
		return Refuse(http.StatusForbidden, CodeObligation, "the call names no bill: metadata customer_id and billing_period")
	case o == nil:
		return Refuse(http.StatusForbidden, CodeObligation, "the manifest does not hold the bill %s", bill)
	case o.Bill != bill:
		return Refuse(http.StatusForbidden, CodeMismatch, "the call is about the bill %s, not %s", bill, o.Bill)
	}
	switch c.Rule {
	case IntentsCreate, ChargesCreate:
		return o.judgeCreate(c)
	case IntentsConfirm:
		return o.judgeConfirm(c, known)
	case IntentsCancel:
		if c.Key != string(domain.CancelKey(bill.Customer, bill.Period, c.Object)) {
			return refuseKey(bill)
		}
		return allowed("cancels the bill's intent")
	default:
		return Refuse(http.StatusForbidden, CodeObligation, "no bill needs this operation")
	}
}

func (o *Obligation) judgeCreate(c Call) Verdict {
	derived := isCreateKey
	if c.Rule == ChargesCreate {
		derived = isChargeKey
	}
	key := c.metadata("billing_key")
	switch {
	case o.Paid != "":
		return o.paid()
	case c.Confirms:
		return Refuse(http.StatusForbidden, CodeParameter, "a bill's intent is created first and confirmed by its id")
	case key != "" && key != string(domain.ChargeKey(o.Bill.Customer, o.Bill.Period, 1)):
		return Refuse(http.StatusForbidden, CodeMismatch, "the marker billing_key is another bill's than %s", o.Bill)
	case !derived(c.Key, o.Bill):
		return refuseKey(o.Bill)
	}
	return o.matches(domain.Money{Minor: c.Amount, Currency: c.Currency}, c.StripeCustomer)
}

func (o *Obligation) judgeConfirm(c Call, known *Evidence) Verdict {
	switch {
	case known == nil || known.Object != c.Object:
		return Refuse(http.StatusForbidden, CodeObligation, "the intent is not known")
	case o.Paid != "" && o.Paid != known.Object && o.Paid != known.LatestCharge:
		return o.paid()
	case !isConfirmKey(c.Key, o.Bill):
		return refuseKey(o.Bill)
	}
	return o.matches(known.Amount, known.StripeCustomer)
}

// matches holds what Stripe would take against the bill.
func (o *Obligation) matches(m domain.Money, customer string) Verdict {
	switch {
	case m != o.Amount:
		return Refuse(http.StatusForbidden, CodeMismatch, "the bill %s is %d %s; the call is about %d %s",
			o.Bill, o.Amount.Minor, o.Amount.Currency, m.Minor, m.Currency)
	case o.StripeCustomer != "" && customer != o.StripeCustomer:
		return Refuse(http.StatusForbidden, CodeMismatch, "the bill %s is another Stripe customer's", o.Bill)
	}
	return allowed("what the bill " + o.Bill.String() + " needs")
}

func (o *Obligation) paid() Verdict {
	return Refuse(http.StatusForbidden, CodePaid, "the bill %s was charged by %s", o.Bill, o.Paid)
}

func refuseKey(b BillID) Verdict {
	return Refuse(http.StatusForbidden, CodeKey, "the Idempotency-Key does not derive from the bill %s", b)
}

// String is the bill as people read it: cust_123/2026-11.
func (b BillID) String() string {
	if b.IsZero() {
		return "none"
	}
	return string(b.Customer) + "/" + b.Period.String()
}

// maxAttempts bounds how many attempts' keys are tried. Stripe cancels an
// intent long before.
const maxAttempts = 200

// isCreateKey tells whether key is CreateKey(bill, n, again) for some n and again.
func isCreateKey(key string, b BillID) bool {
	rest, ok := strings.CutPrefix(key, string(domain.ChargeKey(b.Customer, b.Period, 1))+"-intent")
	if !ok {
		return false
	}
	rest, ok = cutAgain(rest)
	return ok && (rest == "" || isNumber(rest, "-", 2))
}

// isConfirmKey tells whether key is ConfirmKey(bill, attempt, n, again) for some
// attempt, n and again.
func isConfirmKey(key string, b BillID) bool {
	rest, ok := cutCharge(key, b)
	if !ok {
		return false
	}
	rest, ok = cutAgain(rest)
	return ok && (rest == "" || isNumber(rest, "-i", 2))
}

// isChargeKey is isConfirmKey without again: a legacy charge is one by its key
// alone, and another key would be another charge.
func isChargeKey(key string, b BillID) bool {
	rest, ok := cutCharge(key, b)
	return ok && (rest == "" || isNumber(rest, "-i", 2))
}

// chargeKeyLength is that of domain.ChargeKey, with which every Idempotency-Key
// of a bill begins.
const chargeKeyLength = 32

// ChargeKeyIn is the charge key that an Idempotency-Key begins with, if it is
// made like a bill's; else empty.
func ChargeKeyIn(key string) string {
	if len(key) < chargeKeyLength || strings.Trim(key[:chargeKeyLength], "0123456789abcdef") != "" {
		return ""
	}
	return key[:chargeKeyLength]
}

// cutCharge cuts the key of some attempt off. Most keys that are none do not
// look like one, and cost nothing.
func cutCharge(key string, b BillID) (rest string, ok bool) {
	if ChargeKeyIn(key) == "" {
		return "", false
	}
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		if rest, ok := strings.CutPrefix(key, string(domain.ChargeKey(b.Customer, b.Period, attempt))); ok {
			return rest, true
		}
	}
	return "", false
}

// cutAgain cuts -again-<k> off; it reports false for one that is none.
func cutAgain(s string) (rest string, ok bool) {
	rest, again, found := strings.Cut(s, "-again-")
	return rest, !found || isNumber(again, "", 1)
}

// isNumber tells whether s is the prefix and a number of at least least, in the
// one way to write it.
func isNumber(s, prefix string, least int) bool {
	s, ok := strings.CutPrefix(s, prefix)
	n, err := strconv.Atoi(s)
	return ok && err == nil && n >= least && n < 1_000_000 && strconv.Itoa(n) == s
}
