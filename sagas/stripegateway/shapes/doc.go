// Package shapes holds what this service sends to Stripe against Stripe's own
// description of its API.
//
// stripe-mock (https://github.com/stripe/stripe-mock) knows every path, verb,
// parameter, type and enumeration of the API, and nothing else: it keeps no
// state, honours no key and never declines. So it stands beside the stand-in,
// not in its place. Each request is first given to it; what it does not accept
// fails the test. Then the stand-in answers, whose routes are checked that way
// too.
package shapes
