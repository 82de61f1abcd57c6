// Package stripegateway is the way to Stripe: the port [sagas.Gateway] on
// PaymentIntents, with stripe-go. It is the only package that imports
// stripe-go, and the only one that knows what Stripe's answers mean.
//
// It decides nothing about bills. Each call is sent once, within its time-out,
// and comes back as one of three answers, charged, not charged or unknown, with
// unknown as the default arm.
//
// # How money moves here
//
//	Prepare   POST /v1/payment_intents               an intent without a method: no money can move
//	Take      POST /v1/payment_intents/{id}/confirm  the one call that takes money, for a committed id
//	Find      GET  /v1/payment_intents/{id}          what became of it; consistent, unlike search
//	Cancel    POST /v1/payment_intents/{id}/cancel   ends the intent, unless it has succeeded
//	List      GET  /v1/payment_intents, /v1/charges  one page of what Stripe holds
//
// An intent succeeds at most once, ever. So a confirm may be repeated for the
// same intent after any loss and at any age, while a second intent for a bill
// is harmless until somebody confirms it.
//
// # Where to begin
//
//   - outcome.go is the table below as pure functions of an order and an
//     answer; outcome_test.go has a row for every line of it.
//   - answer.go says what of an answer the table may know. Nothing else of it
//     gets out: no message, body or client secret reaches an outcome, an error or
//     a log, only statuses, codes and ids that look like ones.
//   - intent.go is what is read of Stripe's objects, and what makes an intent
//     ours: id, amount, currency, customer, and for a new one the metadata.
//   - wire.go is the last check before the network.
//   - gateway.go and list.go make the calls.
//
// # What a confirm's answer means
//
//	answer                                            outcome
//	------------------------------------------------  -----------------------------------------
//	2xx, the intent succeeded and is ours             paid
//	2xx, requires_action                              action_required
//	2xx, requires_capture                             needs_review
//	2xx, another intent, amount, currency, customer   needs_review
//	2xx, any other status, no id, {}, HTML, cut off   unknown
//	3xx                                               unknown (never followed)
//	400 payment_intent_unexpected_state, or 402,
//	    and the intent inside the error is succeeded  paid
//	    … requires_action                             action_required
//	    … processing, or cancelled (400 only)         unknown
//	    … not ours                                    needs_review
//	400, 402 the method or the customer is gone       declined, class method_missing
//	402 card_error                                    declined, with charge, code and decline code
//	400 idempotency_error                             needs_review
//	400 invalid_request_error                         rejected
//	401, 403, 404                                     held
//	429 spend_cap_exceeded (the spend proxy)          held
//	429 rate_limit, lock_timeout                      retry_same_key
//	401, 403, 404, 429 that are replays               unknown, quiet for a day: they come back with the key
//	409, any other 4xx, 502, 503, 504                 unknown
//	500                                               unknown, quiet for a day
//	not a byte of the body was read for sending       retry_same_key
//	time-out, reset, EOF, anything else on the way    unknown
//	refused by our own checks                         held
//
// An error counts only in Stripe's form, {"error":{…}}: an HTML 403 is unknown.
// An unknown outcome rests 15 minutes (QuietSeconds 900) before the intent may
// be confirmed under another key, and 24 hours after a 500, which Stripe stores
// under the key and may still roll forward. (QuietSeconds of a day says as well
// that the same key brings back nothing better.) Retry-After is passed on, up to an
// hour. Stripe-Should-Retry never changes the class, since it says nothing about
// money; false makes the back-off of a retry longer.
//
// The table speaks of one send. A no clears only its own request: if an earlier
// send of the attempt is unresolved, a later held or rejected leaves the attempt
// unknown. That is the aggregate's rule, not this package's.
//
// # Decisions
//
//   - A payment that needs the customer is declined, with the code
//     authentication_required and so the decline class authentication, where
//     Stripe answers 402: the attempt is over, its charge has failed and the
//     intent is open for the next one. action_required is left to an intent that
//     waits in requires_action, which may still succeed.
//   - error_on_requires_action is not sent. With off_session=true a card that
//     needs authentication is refused anyway; for other payment methods the flag
//     would turn a payment that may still succeed into a refusal.
//   - The decline code payment_method_missing is the decline table's own. It is
//     given where Stripe's answer means that there is nothing to charge and its
//     code, if any, is not in that table; the evidence keeps Stripe's.
//   - A replayed decline or validation error stands: it is the stored answer to
//     the same request.
//   - What is read of a wrong intent (Find, Cancel) is IntentDecided with a
//     needs_review outcome: decided enough never to be confirmed in silence. A
//     cancelled intent takes no money and is cancelled whatever else it shows.
//   - A 404 is IntentMissing only with the code resource_missing; any other says
//     something about the address, not about the intent.
//   - Plain http is accepted towards loopback and private addresses and names
//     that cannot be public, as for the spend proxy; a live Stripe key travels
//     over http to loopback only.
//
// # What the wire makes sure of
//
// The RoundTripper lets a request through only if it is what its call
// announced: method, host, path, the pinned API version, the configured key as
// authorization, and exactly the computed Idempotency-Key (1 to 255 characters)
// on a POST, none on a GET. Whatever else the library would add does not leave.
// The request that does leave has a body of known length and no way to get a
// second one, so that net/http, which takes a keyed POST for repeatable, cannot
// send it again after a dropped connection: the loss reaches the caller. (A GET
// may be sent again; it changes nothing.) The body also knows whether anyone has begun to read it. If nobody has, the
// request was not sent, whatever the error says, and never will be; that is the
// only proof of not sending that is accepted from the network.
//
// HTTP/1.1 only, no redirects, no proxy from the environment, no compression,
// no retries, no telemetry, no log of the library's; sizes of headers and bodies
// are bounded.
package stripegateway
