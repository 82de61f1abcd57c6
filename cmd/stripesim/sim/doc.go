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
//	charges.go    Charges                 refunds.go   Refunds, refund_moves.go  what control does to them
//	disputes.go   Disputes                events.go    Events
//	webhooks.go   their delivery          webhook_rules.go  its faults   webhook_post.go  the sending
//	customers.go  Customers               methods.go   PaymentMethods
//	setup_intents.go  SetupIntents        balance.go   balance transactions
//	cards.go      test cards, decline codes
//	currency.go   currencies, exponents, limits
//	shelf.go      objects in order; lists and cursors
//	search.go     search and its lag
//	later.go      what happens at a later time: processing, rolled-forward 500s
//	faults.go     faults                  script.go    which request meets them
//	wire.go       answering, or failing to
//	tx.go         one request's change of state
//	journal.go    the durable file        restore.go   reading it back   snapshot.go  all of it at once
//	operate.go    what control may do, as methods
//	watch.go      ledger, request log, counters
//	control.go    the control API         control_webhooks.go  the part about webhooks
//
// # Time
//
// The clock is the machine's plus an offset that control sets; it ticks. Keys
// age on it, objects are created on it, search lags on it. Delays of answers
// are real time: they are about the client's patience, not about business.
// With Settings.ClockSkew Stripe's time, by which all of this goes, is off from
// the one that control shows and services follow.
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
// A snapshot is such a journal too, and a restore takes all of it back.
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
//	pm_sim_processing_<duration>_succeeds    status processing (legacy charges: pending) for that time, then success
//	pm_sim_processing_<duration>_<code>      … then a decline
//
// # Webhooks
//
// Each change of state makes an event with the object as it then is, the request
// and its Idempotency-Key. Events are in the journal, on GET /v1/events for 30
// days, and are delivered to Options.WebhookURL, signed with a v1 for each of
// its secrets: at least once, in no order, at most eight at a time, by a
// goroutine of their own, which a stand-in without an endpoint does not have.
// Signatures carry real time. What is not answered 2xx within
// Settings.WebhookTimeout is sent again, at Settings.WebhookRetry and multiples of
// it (5 m, 30 m, 2 h, 5 h, 10 h, then every 12 h), for three days on the
// stand-in's clock. What was owed when the process died its successor delivers.
//
// Webhook faults ([WebhookRule]) meet the next events of a type or customer:
//
//	drop             not delivered; GET /v1/events has it
//	reorder          the next so many are held, then sent one after the other, the newest first
//	duplicate        delivered twice, in parallel
//	two_event_ids    the change is told by two events
//	delay            delivered that much later, on the stand-in's clock
//	before_answer    delivered, and answered, before the API answers the request
//	api_version      shown as another API version's
//	bad_signature    its first attempt is signed with another secret
//	old_timestamp    its first attempt is signed as of ten minutes ago
//	foreign_account  names another account
//
// # Deviations
//
// README.md, in the folder above, lists every route, every control call and
// everything that this stand-in does otherwise than Stripe.
package sim
