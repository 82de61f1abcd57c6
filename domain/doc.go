// Package domain holds the nouns of billing: facts, states, values and the
// rules between them. It imports the standard library only and knows no clock,
// no randomness and no I/O; everything here is a function of its arguments.
//
// Where to begin:
//
//   - [Customer] is the aggregate: what a decision may know. It is a value,
//     rebuilt from facts by [Customer.Evolve], never changed in place.
//   - [Event] is a fact. Its contract name (customer.billed.v1) is a promise
//     to the past; [Events] lists every fact there is.
//   - [Period] names what is billed (2026-11, 2026-Q3, 2026), [Money] how
//     much, in minor units.
//   - [ChargeKey] and its neighbours derive every key that Stripe ever sees,
//     from the bill's identity alone.
//   - [MoneyBack] stands beside a bill: its refunds, the proposals to refund
//     what is not owed, and its disputes.
//   - [Run] is what was decided about everything under one period label.
//   - [Outcome] is what is known after a call: three answers, never two.
//   - [Error] is a refusal with a name and one of a few kinds.
//
// # A bill's states
//
//	requested ──start──▶ started ──▶ paid                      (final)
//	    │                  │  ├────▶ declined, rejected ──retry──▶ requested (attempt n+1)
//	    │                  │  ├────▶ held                 ──start──▶ started
//	    │                  │  ├────▶ unknown, action_required    (still in flight)
//	    │                  │  └────▶ needs_review
//	    ├──pause──▶ waiting ──resume──▶ requested
//	    ├──settle, write off, cancel──▶ settled, written_off, void (final)
//	    └──… with an intent at Stripe──▶ closing ──Stripe: canceled──▶ settled, written_off, void
//
// paid beats every other state, whenever it becomes known. A refunded bill
// stays paid.
//
// # A refund's states
//
//	requested ◀──proven not executed── unknown
//	    │  └──────────no answer──────────▲ │
//	    ├──▶ refused (frees its room)      │
//	    └──▶ pending ◀─────────────────────┤
//	            └──▶ succeeded ◀───────────┘
//	                     └──weeks later──▶ failed, cancelled (free their room)
//
// It never goes back from what Stripe has shown, so news in any order leads to
// the same end.
package domain
