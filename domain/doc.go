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
// # Periods and due days
//
// A period is a whole calendar month, quarter or year, billed whole and once
// under its own label. When it falls due, and whether, follows from these rules
// and from business time; who looked, and when, changes nothing.
//
//	due time        the first instant of the anchor day, in the customer's zone, in the period's first month
//	label           the local month, quarter or year in which the period begins
//	anchor 29–31    the last day of a shorter month; the next month goes back to the anchor's own day
//	clock changes   where clocks skip midnight, the first instant after the gap; where midnight comes twice, the first
//	no such day     a day that a zone skipped as a whole: the first instant of the next
//	first period    the first whose anchor day is on or after the start date; nothing is billed in part.
//	                A start date in the past bills what has fallen due since
//	amount          what holds for the period; it freezes when the due is declared, and for a period whose
//	                due time has passed it does not change either
//	change of amount, anchor or zone
//	                from the first period that is neither due yet nor declared or asked for, or from a later
//	                one that is named. An anchor or a zone moves no due time into the past: a period that would
//	                be due at once keeps its old day. Labels go on without a gap; nothing is billed in part
//	pause           what falls due after its beginning and before its end is not billed, and not made up for.
//	                What fell due before is declared, and its charge waits unless it is under way
//	resume          charges that wait go on; the next period is the first whose due time is not within the pause
//	cancel, period end
//	                what has fallen due by then is billed, declared or not; nothing after it
//	cancel, now     nothing more is declared, not even what is late; bills that are not paid and not in flight end void
//	activated again a subscription of its own: periods that overlap an old bill are passed over;
//	                what the former one still owes is declared first, by its own terms
//
// There is neither proration nor credit, so that no bill has parts: a customer
// who changes plans in the middle of a period pays the new price from the next.
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
