// Package stripegateway is the way to Stripe: the ports [sagas.Gateway] (on
// PaymentIntents, or on legacy Charges), [sagas.Refunder] and [sagas.Newsstand],
// with stripe-go. It is the only package that imports stripe-go, and the only one
// that knows what Stripe's answers mean.
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
//	Refund    POST /v1/refunds                       gives money back, under the refund's own key
//
// An intent succeeds at most once, ever. So a confirm may be repeated for the
// same intent after any loss and at any age, while a second intent for a bill
// is harmless until somebody confirms it.
//
// # The road of legacy Charges
//
// With Config.API set to [Charges] (STRIPE_API=charges) a bill that has no
// intent yet is charged by one POST:
//
//	Prepare   no call: the name charge-<billing key> is committed in an intent's place
//	Take      POST /v1/charges, under the attempt's key
//	Find      GET  /v1/charges of the customer, all pages, compared by metadata
//	Cancel    the same read: there is nothing to cancel
//
// The committed name decides the road, not the configuration: a bill that has an
// intent stays with it. A charge is made one by its key alone, and a list that
// does not show it proves nothing while the request may still run. So [Gateway.Mutex]
// is false: within 23 hours of the first send the same key is sent again; after
// that nothing is, and the bill needs review unless the charge is found. It is
// never sent under an -again- key. This road is the weaker one all the same: a
// process that is frozen between its last check and the write, and wakes up after
// Stripe has forgotten a key that another process has used meanwhile, can take a
// bill twice, which an intent excludes. What the customer pays with must be a source
// of the older kind (card_…, src_…); a pm_… is refused by Stripe and recorded as
// a missing method.
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
//   - gateway.go and list.go make the calls; charges.go and charge_outcome.go
//     are the road of legacy Charges.
//   - refund.go, news.go and signature.go are what is not a charge: money that
//     goes back, events delivered or listed, and who signed them.
//   - conformance_test.go is what both roads must do; shapes/ holds every
//     request against Stripe's description of its API, in a module of its own.
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
//	429 spend_cap_exceeded, charge_cap_exceeded       held (the spend proxy's caps)
//	503 ledger_unavailable                            retry_same_key (the spend proxy forwards nothing)
//	429 rate_limit, lock_timeout                      retry_same_key
//	401, 403, 404, 429 that are replays               unknown, quiet for a day: they come back with the key
//	409, any other 4xx, 502, 503, 504                 unknown
//	500                                               unknown, quiet for a day
//	not a byte of the body was read for sending       retry_same_key
//	time-out, reset, EOF, anything else on the way    unknown
//	refused by our own checks                         held
//
// A legacy charge's answer means the same, line by line, with "the charge
// succeeded, is paid, captured and carries our markers" in the first; a charge that
// is pending, or failed in a 2xx, is unknown until a read shows what became of it.
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
// # Refunds
//
//	answer                                              state
//	--------------------------------------------------  --------------------------------------
//	2xx, ours: succeeded, failed, canceled              succeeded, failed, cancelled
//	2xx, ours: pending, requires_action                 pending
//	2xx, another charge, amount, currency, refund_id    unknown, code refund_differs
//	400 invalid_request_error                           refused, with Stripe's code; in words alone
//	                                                    "greater than unrefunded amount": refund_exceeds_charge
//	401, 403, 404, 429, not sent                        requested: this send executed nothing
//	all that leaves a charge unknown                    unknown
//
// refused speaks of this send. After an earlier one that was lost, "already
// refunded" may be that one's trace: FindRefund, which reads all refunds of the
// charge, decides.
//
// # News
//
// Events come in their endpoint's API version, not in ours; [ParseNews] reads
// only fields that keep their meaning, and News.APIVersion tells the version.
// The library's own reader refuses another version, so it is not used; of its
// webhook package only the signature's arithmetic is. [VerifySignature] takes
// several secrets and several v1, compares in constant time, and refuses times
// more than 300 seconds away on either side.
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
