package policy

import (
	"encoding/json"
	"net/http"
)

// Proves tells whether an answer to a POST proves that this request executed
// nothing that can take money: the table of outcomes, from the side of the cap.
// It speaks of this request alone: an earlier send of the same key may still be
// under way unless the answer [Settles] them all.
//
//	402 of Stripe's                      the attempt was declined
//	400 invalid_request_error            refused, validation or state
//	401, 403, 404                        refused before the key layer; replayed they prove nothing
//	429 rate_limit, lock_timeout         the same
//	409, key in use, idempotency_error   something else holds the key: nothing
//	2xx, 3xx, 5xx, not Stripe's form     nothing
func Proves(c Call, status int, body []byte, replayed bool) bool {
	if c.Method == http.MethodGet || status < 400 || status >= 500 {
		return false
	}
	e, ok := readError(body)
	if !ok || e.Kind == "idempotency_error" || e.Kind == "api_error" || e.Code == "idempotency_key_in_use" {
		return false
	}
	switch status {
	case http.StatusPaymentRequired:
		return e.Intent == nil || e.Intent.intentState() == Unpaid || e.Intent.intentState() == Cancelled
	case http.StatusBadRequest:
		return e.Kind == "invalid_request_error" || e.Kind == "card_error"
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return !replayed
	case http.StatusTooManyRequests:
		return !replayed && (e.Code == "rate_limit" || e.Code == "lock_timeout" || e.Kind == "rate_limit_error")
	}
	return false
}

// Settles tells whether an answer that [Proves] comes from the key layer or from
// behind it, so that it speaks for every earlier send of the same key as well:
// a decline, or a refusal that is replayed.
func Settles(c Call, status int, body []byte, replayed bool) bool {
	return Proves(c, status, body, replayed) && (status == http.StatusPaymentRequired || replayed)
}

// apiError is what is read of an error in Stripe's form
// (https://docs.stripe.com/api/errors).
type apiError struct {
	Kind   string  `json:"type"`
	Code   string  `json:"code"`
	Intent *object `json:"payment_intent"`
}

// readError reads an error; ok is false for anything that is not one of Stripe's.
func readError(body []byte) (e apiError, ok bool) {
	var answer struct {
		Error *apiError `json:"error"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Error == nil || answer.Error.Kind == "" {
		return apiError{}, false
	}
	return *answer.Error, true
}
