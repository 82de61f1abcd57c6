package domain

// DeclineClass says what can follow a decline.
type DeclineClass string

// The classes, after https://docs.stripe.com/declines/codes.
const (
	Soft           DeclineClass = "soft"           // may succeed later with the same method
	Hard           DeclineClass = "hard"           // the method must change first
	Authentication DeclineClass = "authentication" // the customer must come back
	MethodMissing  DeclineClass = "method_missing" // there is no usable method
	RateLimited    DeclineClass = "rate_limited"   // the card may be tried again after 24 hours
)

var declineClasses = map[string]DeclineClass{
	"authentication_required":           Authentication,
	"authentication_not_handled":        Authentication,
	"card_decline_rate_limit_exceeded":  RateLimited,
	"payment_method_missing":            MethodMissing,
	"payment_method_not_available":      MethodMissing,
	"resource_missing":                  MethodMissing,
	"payment_method_unactivated":        MethodMissing,
	"payment_method_customer_decline":   Hard,
	"lost_card":                         Hard,
	"stolen_card":                       Hard,
	"pickup_card":                       Hard,
	"restricted_card":                   Hard,
	"fraudulent":                        Hard,
	"merchant_blacklist":                Hard,
	"expired_card":                      Hard,
	"invalid_account":                   Hard,
	"invalid_number":                    Hard,
	"incorrect_number":                  Hard,
	"invalid_expiry_year":               Hard,
	"invalid_expiry_month":              Hard,
	"new_account_information_available": Hard,
	"revocation_of_all_authorizations":  Hard,
	"revocation_of_authorization":       Hard,
	"stop_payment_order":                Hard,
	"do_not_try_again":                  Hard,
	"card_not_supported":                Hard,
	"currency_not_supported":            Hard,
	"not_permitted":                     Hard,
	"security_violation":                Hard,
	"service_not_allowed":               Hard,
	"transaction_not_allowed":           Hard,
	"no_action_taken":                   Hard,
	"duplicate_transaction":             Hard, // look for the other payment before anything else
	"processing_error":                  Soft,
	"reenter_transaction":               Soft,
	"issuer_not_available":              Soft,
	"try_again_later":                   Soft,
	"insufficient_funds":                Soft,
	"generic_decline":                   Soft,
	"do_not_honor":                      Soft,
	"call_issuer":                       Soft,
	"approve_with_id":                   Soft,
	"card_velocity_exceeded":            Soft,
	"withdrawal_count_limit_exceeded":   Soft,
	"card_declined":                     Soft,
}

// ClassifyDecline finds the class of a decline from Stripe's code and
// decline_code; the decline code is the more exact one. An unlisted code is
// soft: it may be tried again, a bounded number of times.
func ClassifyDecline(code, declineCode string) DeclineClass {
	if class, ok := declineClasses[declineCode]; ok {
		return class
	}
	if class, ok := declineClasses[code]; ok {
		return class
	}
	return Soft
}
