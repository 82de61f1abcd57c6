// Package ledger keeps the spend proxy's books in PostgreSQL: who may spend how
// much, what is promised, what was spent, which bills may be charged, what Stripe
// answered, and a row of audit before and after each call.
//
// # A reservation
//
// Money is reserved once per subject. An intent is one subject, however many
// keys are sent to confirm it; a legacy charge or a refund is one by the key that
// asks for it; a create that confirms is one by its key until the intent's id is
// known.
//
//	        Begin                     success, by an answer or a read
//	(none) ───────▶ reserved ───────────────────────────▶ settled
//	                 │    │  no answer, or one that          ▲
//	                 │    └──proves nothing──▶ held ─────────┤
//	                 │                          │            │ late, and
//	                 └──proven: nothing taken───┴▶ released ─┘ booked all the same
//	                                                 │
//	                                                 └─ Begin: reserved anew
//
// A subject remembers its sends that are not proven to have executed nothing. A
// refusal proves its own send alone; a decline every send of its key in the last
// 23 hours, in which Stripe surely remembers it; a cancelled intent all of them;
// a read that shows no payment those that are older than the quiet time. When
// none is left, the room is given back. Time alone never does that.
//
// A resend passes whatever the cap says, and reserves nothing. What succeeded is
// answered from here, for ever, and not sent again.
//
// # One at a time, many at once
//
// Every change of the books happens under one advisory lock, over all proxies, so
// that no decision misses another's reservation and nothing can deadlock. The
// callers of a process share transactions: while one is at work, the next ones
// gather. A transaction reads the page of the books that its callers need, works
// on it in memory, writes it back and commits without waiting for the disk. After
// the lock is given up and before anybody is answered, the audit's rows are
// committed, and that commit waits for both: no call goes out that the disk does
// not hold. One round trip locks and reads, one writes, and one tells and waits.
//
// # Failures
//
//	the database is away before a call    Begin fails; nothing is sent
//	Begin's commit may have happened      Begin fails; the ledger takes it back itself, as unsent
//	the database is away after a call     Finish fails; the result is kept, and written by Run
//	the proxy dies in a call              the reservation stands; Doubts lists it after its quiet time
//	the proxy freezes in a transaction    the server ends its session after 10 s; the others go on
//
// # Time
//
// Expiries, windows and quiet times are business time, Options.Now or the
// database's clock. The day of a window is that in which a charge was reserved.
package ledger
