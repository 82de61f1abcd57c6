package domain

import (
	"regexp"
	"strings"
)

// CustomerID names who is billed. The caller chooses it; its alphabet has no
// separator, so that keys built from it are injective.
type CustomerID string

var (
	customerIDShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	stripeIDShape   = regexp.MustCompile(`^[A-Za-z0-9_]{1,200}$`)
)

// ParseCustomerID accepts [A-Za-z0-9][A-Za-z0-9_-]{0,63} and nothing else; it
// never trims or folds. The error is an invalid field customer_id.
func ParseCustomerID(s string) (CustomerID, error) {
	if !customerIDShape.MatchString(s) {
		return "", InvalidField("customer_id", "must be 1 to 64 of A-Z a-z 0-9 _ - and begin with a letter or digit")
	}
	return CustomerID(s), nil
}

// ParseStripeID accepts an object id of Stripe with the given prefix ("cus_",
// "pm_"), at most 200 characters. The error names field.
func ParseStripeID(field, prefix, s string) (string, error) {
	if !strings.HasPrefix(s, prefix) || len(s) == len(prefix) || !stripeIDShape.MatchString(s) {
		return "", InvalidField(field, "must be a Stripe id beginning with %q", prefix)
	}
	return s, nil
}

// methodPrefixes are of what Stripe confirms an intent with: a PaymentMethod, a
// Card or a Source (https://docs.stripe.com/api/payment_intents/confirm). A
// legacy charge takes the latter two.
var methodPrefixes = [...]string{"pm_", "card_", "src_"}

// ParsePaymentMethodID accepts what may be charged: the id of a payment method,
// a card or a source. The error names field.
func ParsePaymentMethodID(field, s string) (string, error) {
	for _, prefix := range methodPrefixes {
		if id, err := ParseStripeID(field, prefix, s); err == nil {
			return id, nil
		}
	}
	return "", InvalidField(field, `must be a Stripe id beginning with "pm_" (or "card_" or "src_")`)
}

// ParseRefundID accepts a caller's name for a refund, in the alphabet of
// customer ids. The error is an invalid field refund_id.
func ParseRefundID(s string) (string, error) {
	if !customerIDShape.MatchString(s) {
		return "", InvalidField("refund_id", "must be 1 to 64 of A-Z a-z 0-9 _ - and begin with a letter or digit")
	}
	return s, nil
}

// StreamID names an aggregate's stream. All facts about a customer are in one.
type StreamID string

const customerStream = "customer/"

// Stream is the customer's stream.
func (id CustomerID) Stream() StreamID { return StreamID(customerStream + string(id)) }

// SequenceKey is what must stay in order and shares a partition: the customer
// of a customer's stream, else the stream itself.
func (s StreamID) SequenceKey() string {
	return strings.TrimPrefix(string(s), customerStream)
}
