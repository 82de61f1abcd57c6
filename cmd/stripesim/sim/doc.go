// Package sim is an honest stand-in for Stripe: the part of its API that a
// service needs to take money off-session, with Stripe's rules about
// idempotency keys, and with every fault that loses an answer on the way.
//
// It exists so that the question "was anybody charged twice?" can be put to a
// party other than the service under test. The ledger of a [Sim] is that party's
// book: one line for each attempt to move money, whatever the caller believes.
//
// # A request's way through
//
// Each request passes these layers in this order, and a layer that answers
// ends the journey:
//
//	authentication → rate limiter → parse → idempotency key → validation →
//	object lock → execute and commit → store under the key → answer
//
// The order is the point. What is answered before the key layer is never
// stored under the key; what fails validation is not either; everything that
// began to execute is: 2xx, 402, execution-time 4xx and 500, status and body
// byte for byte. A repeat gets them back with Idempotent-Replayed: true. Other
// parameters or another path under the key is 400 idempotency_error; a key
// whose first request still runs is 409 idempotency_key_in_use, at once. One
// key space serves all endpoints, all API keys of the account, and nothing but
// POST.
//
// # Where things are
//
//	sim.go        the Sim as a value, its options and its methods for tests
//	server.go     listeners, start and stop
//	serve.go      the layers              auth.go      the first of them
//	route.go      which requests exist
//	params.go     form decoding, typed parameters, the fingerprint
//	keys.go       the key store
//	intents.go    PaymentIntents          intent_end.go  their cancel and capture
//	attempt.go    what a confirm does
//	charges.go    Charges                 refunds.go   Refunds
//	customers.go  Customers               methods.go   PaymentMethods
//	cards.go      test cards, decline codes
//	currency.go   currencies, exponents, limits
//	shelf.go      objects in order; lists and cursors
//	search.go     search and its lag
//	later.go      what happens at a later time: processing, rolled-forward 500s
//	faults.go     faults                  script.go    which request meets them
//	wire.go       answering, or failing to
//	tx.go         one request's change of state
//	journal.go    the durable file        restore.go   reading it back
//	operate.go    what control may do, as methods
//	watch.go      ledger, request log, counters
//	control.go    the control API
//
// # Time
//
// The clock is the machine's plus an offset that control sets; it ticks. Keys
// age on it, objects are created on it, search lags on it. Delays of answers
// are real time: they are about the client's patience, not about business.
//
// # Durability
//
// With Options.Data every change of state is one line of a journal, handed to
// the operating system before the answer that tells of it leaves (also an
// answer to a read). The lines of requests that arrive together are written
// together. There is no fsync: a killed process loses its memory but not the
// page cache, and losing power is not a fault this program has to survive. A
// line torn by kill -9 was never answered and is cut off at the next start.
// Faults, settings, the request log and counters are not state and start anew.
//
// # Faults
//
// A fault is scripted ([Fault.Match], Nth, Times) or drawn at random from a
// seed. Where it strikes decides what the key remembers:
//
//	drop_before_read          connection closed before the body is read; nothing happened
//	drop_before_commit        body read, connection closed; nothing happened
//	commit_then_drop          executed and stored, closed before the first byte of the answer
//	truncate_body             executed, closed in the middle of the body
//	truncate_headers          executed, closed in the middle of the headers
//	delay_before_commit       waits, then executes, even when the client has gone; key and object stay busy
//	delay_after_commit        executes, then waits
//	hang                      neither executes nor answers; closes after delay, if one is given
//	commit_then_hang          executes, never answers
//	500_before_commit         500, stored under the key; nothing moved
//	500_after_commit          500, stored under the key; executed
//	500_not_stored            500 from in front of the key layer; nothing moved
//	500_rolled_forward        500, stored; executed after delay on the stand-in's clock (default an hour)
//	429_rate_limit            from the limiter; nothing stored
//	429_lock_timeout          from the object lock; nothing stored
//	409                       idempotency_key_in_use without a request in progress
//	401 403 404               from in front of the key layer; nothing stored
//	404_stored                the endpoint answers 404 and the key keeps it
//	502 503 504               a gateway's answer; nothing moved (body: json, html or empty)
//	502_after_commit …        the same three, but the request was executed and stored
//	200_empty 200_html        success without content; nothing moved; with _after_commit: executed
//	307                       a redirect to location; nothing moved
//	decline                   the attempt is declined with code (402, stored)
//
// Faults of the answer strike replays too: three commit_then_drop in a row
// lose the first answer and its two repeats. Drops close with FIN, or with RST
// where close is "rst", on fresh and on kept-alive connections. A delay on a
// fault not named above is how long it waits, in real time, before it drops or
// answers.
//
// # Own test cards
//
// Stripe's pm_card_… aliases behave as documented there. Further ones:
//
//	pm_sim_declines_<code>                   always declines
//	pm_sim_declines_n_<n>_<code>             attempts 1 … n−1 decline, the n-th succeeds (per intent; legacy charges per customer)
//	pm_sim_declines_until_<yyyymmdd>_<code>  declines before that day (UTC)
//	pm_sim_processing_<duration>_succeeds    status processing for that time, then success
//	pm_sim_processing_<duration>_<code>      … then a decline
//
// # Deviations from Stripe
//
// What this stand-in does otherwise than Stripe, on purpose:
//
//   - Test mode only. Any sk_test_ or rk_test_ key opens the one account unless
//     Options.APIKeys names the valid ones; live keys get 401. Restricted keys
//     are not restricted (use the fault 403). Stripe-Account must name the
//     account itself. Answers are always shaped like API version 2023-10-16.
//   - A customer id starting with cus_ that nobody created exists
//     (Settings.RefuseUnknownCustomers turns that off), and so does a payment
//     method id starting with pm_: a visa card that works, belonging to whoever
//     uses it. Unknown pm_card_… and pm_sim_… names do not.
//   - An alias such as pm_card_visa becomes a payment method of its own at each
//     use, as at Stripe; but a plain working card that is not attached is not
//     kept, so reading it back shows a visa whatever its brand was. That an
//     unattached method can be used only once is not enforced.
//   - Only cards. Parameters outside a route's list are refused as unknown,
//     also some that Stripe knows (transfer_data, application_fee_amount,
//     mandate, shipping, …); nothing is accepted and ignored.
//   - Only the routes of route.go. No SetupIntents, events, webhooks, balance
//     transactions, disputes; no update of charges, customers, refunds.
//     Other routes get Stripe's 404 for an unknown URL.
//   - Legacy charges are always captured, and succeed at once with a
//     pm_sim_processing_ method.
//   - Refunds succeed at once. A cancelled authorisation is shown as a charge
//     that is refunded in full, without a refund object.
//   - Limits per customer and per endpoint, and the thousand updates an hour
//     of an intent, are not enforced; the rate limiter is off unless set.
//   - JSON is compact, not indented. The fields are those of version 2023-10-16
//     without request_log_url, invoices, Connect and payment-method options
//     beyond null.
//   - expand goes one level deep: latest_charge, customer, payment_method on
//     intents, payment_intent, customer on charges, charge, payment_intent on
//     refunds.
//   - Search knows : > < >= <= on amount and created, : on status, customer,
//     currency and payment_intent, : and ~ on metadata, a leading minus, AND or
//     OR; it answers newest first.
//   - The journal is never compacted: about 4 kB a bill.
//   - A random fault draws from its seed, the key and the number of times that
//     key was seen, not from the order of arrival, so that a run repeats.
//
// Where Stripe's behaviour is not documented, the stand-in takes the harsher
// reading: expand takes part in the comparison of parameters (the API version
// does not); an execution-time 404 is stored; a mismatch is reported before a
// request in progress; a confirm past the limit (Settings.ConfirmLimit) cancels
// the intent and answers 400 payment_intent_unexpected_state; a confirm of an
// intent with automatic payment methods that may redirect needs a return_url,
// off-session too; the 409's type is invalid_request_error. Minimum amounts of
// currencies that Stripe does not list are 50 minor units, 100 for
// three-decimal ones.
package sim
