// Package policy decides what a vault key may have done at Stripe. It is pure:
// it reads no clock, no database and no network, so that each rule about money
// can be read, and tested, as a function of its arguments.
//
// A request becomes a [Call] in two strict steps, [ParseTarget] and [ReadForm].
// What cannot be read in one way only is refused there, in every mode: Stripe,
// and whatever stands in front of it, might read it in another. Then
//
//	Grant.Judge   the rules of the key: operation, parameters, expiry
//	Judge         the bill: does the manifest hold it, is the call what it needs
//	Book.Decide   the cap: is there room
//
// and a refusal says in a [Verdict] why. The last two are asked by the ledger,
// under its lock.
//
// On the way back [ReadEvidence] says what an answer shows about objects that
// hold or take money, and [Proves] whether it proves that the request executed
// nothing. Whatever they do not list stays unknown.
//
// # What is on the list
//
//	intents:create         POST /v1/payment_intents
//	intents:confirm        POST /v1/payment_intents/{pi_}/confirm
//	intents:cancel         POST /v1/payment_intents/{pi_}/cancel
//	intents:read           GET  /v1/payment_intents, /v1/payment_intents/{pi_}
//	charges:create         POST /v1/charges
//	charges:read           GET  /v1/charges, /v1/charges/{ch_}
//	refunds:create         POST /v1/refunds
//	refunds:read           GET  /v1/refunds, /v1/refunds/{re_}
//	customers:read         GET  /v1/customers, /v1/customers/{cus_}
//	payment_methods:read   GET  /v1/payment_methods, /v1/payment_methods/{pm_},
//	                            /v1/customers/{cus_}/payment_methods
//	account:read           GET  /v1/account
//	events:read            GET  /v1/events, /v1/events/{evt_}
//
// Nothing else goes on to Stripe, whatever the key's rules and mode: no update
// of an intent (it could change the amount behind the proxy's back), no capture,
// no search, no payouts, transfers, invoices or subscriptions. Nor do the
// parameters that move money elsewhere or later: destinations, transfers, fees,
// manual capture, raw card data.
//
// An intent's client secret is in its create's answer, and with it and a
// publishable key a browser can confirm an intent without asking the proxy. No
// key of this kind belongs near a vault key; what succeeds so is seen in the
// next read of the intent and counted as spent, over the cap if need be.
package policy
