package sim

import (
	"strconv"
	"strings"
	"time"
)

// A card is how a payment method behaves when it is charged.
type card struct {
	behaviour behaviour
	code      string        // decline code of declining behaviours
	attempt   int           // declinesUntilAttempt: the first attempt that succeeds
	until     time.Time     // declinesUntilDate
	takes     time.Duration // processes: how long
	brand     string
	unusable  bool // cannot be attached to a customer
}

type behaviour uint8

const (
	approves behaviour = iota
	declines
	declinesUntilAttempt
	declinesUntilDate
	needsAuthentication
	processes // code empty: then succeeds; else declines
)

// verdict is what became of one attempt.
type verdict uint8

const (
	approved verdict = iota
	declined
	actionNeeded
	processing
)

// decide says what happens to the n-th attempt, counted from 1.
func (c card) decide(n int, now time.Time) (verdict, string) {
	switch c.behaviour {
	case declines:
		return declined, c.code
	case declinesUntilAttempt:
		if n < c.attempt {
			return declined, c.code
		}
	case declinesUntilDate:
		if now.Before(c.until) {
			return declined, c.code
		}
	case needsAuthentication:
		return actionNeeded, "authentication_required"
	case processes:
		return processing, c.code
	case approves:
	}
	return approved, ""
}

// aliases are Stripe's test payment methods by the part after pm_card_, which is
// also the part after tok_.
var aliases = map[string]card{
	"visa":               {brand: "visa"},
	"visa_debit":         {brand: "visa"},
	"mastercard":         {brand: "mastercard"},
	"mastercard_debit":   {brand: "mastercard"},
	"mastercard_prepaid": {brand: "mastercard"},
	"amex":               {brand: "amex"},
	"discover":           {brand: "discover"},
	"diners":             {brand: "diners"},
	"jcb":                {brand: "jcb"},
	"unionpay":           {brand: "unionpay"},

	// Attaches, then fails when charged: what a monthly bill meets.
	"chargeCustomerFail": {behaviour: declines, code: "generic_decline"},

	"chargeDeclined":                           {behaviour: declines, code: "generic_decline", unusable: true},
	"visa_chargeDeclined":                      {behaviour: declines, code: "generic_decline", unusable: true},
	"chargeDeclinedInsufficientFunds":          {behaviour: declines, code: "insufficient_funds", unusable: true},
	"visa_chargeDeclinedInsufficientFunds":     {behaviour: declines, code: "insufficient_funds", unusable: true},
	"chargeDeclinedLostCard":                   {behaviour: declines, code: "lost_card", unusable: true},
	"visa_chargeDeclinedLostCard":              {behaviour: declines, code: "lost_card", unusable: true},
	"chargeDeclinedStolenCard":                 {behaviour: declines, code: "stolen_card", unusable: true},
	"visa_chargeDeclinedStolenCard":            {behaviour: declines, code: "stolen_card", unusable: true},
	"chargeDeclinedExpiredCard":                {behaviour: declines, code: "expired_card", unusable: true},
	"visa_chargeDeclinedExpiredCard":           {behaviour: declines, code: "expired_card", unusable: true},
	"chargeDeclinedIncorrectCvc":               {behaviour: declines, code: "incorrect_cvc", unusable: true},
	"visa_chargeDeclinedIncorrectCvc":          {behaviour: declines, code: "incorrect_cvc", unusable: true},
	"chargeDeclinedProcessingError":            {behaviour: declines, code: "processing_error", unusable: true},
	"visa_chargeDeclinedProcessingError":       {behaviour: declines, code: "processing_error", unusable: true},
	"chargeDeclinedVelocityLimitExceeded":      {behaviour: declines, code: "card_velocity_exceeded", unusable: true},
	"visa_chargeDeclinedVelocityLimitExceeded": {behaviour: declines, code: "card_velocity_exceeded", unusable: true},
	"chargeDeclinedFraudulent":                 {behaviour: declines, code: "fraudulent", unusable: true},
	"visa_chargeDeclinedFraudulent":            {behaviour: declines, code: "fraudulent", unusable: true},

	"authenticationRequired": {behaviour: needsAuthentication},
	"threeDSecure2Required":  {behaviour: needsAuthentication},
	// Set up for off-session use, so off-session it goes through.
	"authenticationRequiredSetupForOffSession": {brand: "visa"},
}

// simCard reads one of our own test methods, pm_sim_….
func simCard(id string) (card, bool) {
	rest, ok := strings.CutPrefix(id, "pm_sim_")
	if !ok {
		return card{}, false
	}
	if rest, ok := strings.CutPrefix(rest, "processing_"); ok {
		text, end, ok := strings.Cut(rest, "_")
		takes, err := time.ParseDuration(text)
		if !ok || err != nil || takes <= 0 {
			return card{}, false
		}
		c := card{behaviour: processes, takes: takes}
		if end != "succeeds" {
			c.code = end
		}
		return c, c.code == "" || isCode(c.code)
	}
	rest, ok = strings.CutPrefix(rest, "declines_")
	if !ok {
		return card{}, false
	}
	if rest, ok := strings.CutPrefix(rest, "n_"); ok {
		text, code, _ := strings.Cut(rest, "_")
		n, err := strconv.Atoi(text)
		return card{behaviour: declinesUntilAttempt, attempt: n, code: code}, err == nil && n > 0 && isCode(code)
	}
	if rest, ok := strings.CutPrefix(rest, "until_"); ok {
		text, code, _ := strings.Cut(rest, "_")
		day, err := time.Parse("20060102", text)
		return card{behaviour: declinesUntilDate, until: day, code: code}, err == nil && isCode(code)
	}
	return card{behaviour: declines, code: rest}, isCode(rest)
}

// isCode tells whether s is written like a decline code.
func isCode(s string) bool {
	for _, r := range []byte(s) {
		if (r < 'a' || r > 'z') && r != '_' {
			return false
		}
	}
	return s != "" && len(s) <= 60
}

// declineMessages are Stripe's words for the declines that have their own.
var declineMessages = map[string]string{
	"insufficient_funds":      "Your card has insufficient funds.",
	"expired_card":            "Your card has expired.",
	"incorrect_cvc":           "Your card's security code is incorrect.",
	"processing_error":        "An error occurred while processing your card. Try again in a little bit.",
	"card_not_supported":      "Your card is not supported.",
	"card_velocity_exceeded":  "Your card was declined for making repeated attempts too frequently or exceeding its amount limit.",
	"authentication_required": "Your card was declined. This transaction requires authentication.",
}

// decline builds the card error of a declined attempt. Some decline codes are
// error codes too; the others come under card_declined.
func decline(code string) *apiError {
	e := &apiError{status: 402, kind: cardError, code: "card_declined", declineCode: code, message: "Your card was declined."}
	switch code {
	case "expired_card", "incorrect_cvc", "processing_error", "authentication_required":
		e.code = code
	}
	if message, ok := declineMessages[code]; ok {
		e.message = message
	}
	return e
}
