// Package selftest is the crash matrix as a command: it kills, freezes and lies
// to a whole Billonce in every way there is, and then asks the other side, the
// Stripe stand-in, whether a bill was doubled or lost.
//
// A run is one month of 24 customers on a database of its own, a copy of one
// that was migrated and filled once. It is drawn from its seed alone: a plot,
// the named points at which services die or freeze (package crashpoint), the
// faults of the stand-in, moves of the business clock, commands over HTTP that
// race the saga, settlements, tokens that are lost. Threads and machines are not
// drawn from it, so a seed repeats the circumstances, not every interleaving.
//
// Then the run comes to rest. The stand-in has no faults any more, the dead are
// started and the frozen go on, an operator retries what was declined and
// settles what stays so, and the business clock moves on whenever every open
// bill waits for nothing but time. Back-offs, which are on the database's clock,
// are cut short; leases are not.
//
// # The verdict
//
// It believes the stand-in's ledger. A bill is doubled if it has two successes,
// or one although it was settled outside Stripe; lost if it is missing, open,
// paid without a charge or charged without being paid; all else is wrong: another
// amount, a POST without a key, a key that came with other parameters or was
// executed twice within its life, books of the service that differ from the
// ledger, anything that a replay of the processors led to.
//
// # That it can find something
//
// With one rule taken out (package crashpoint, or a stand-in that ignores keys)
// the same plots find doubles; a test shows so for each rule. Where the money is
// taken by payment intents a forgotten key costs nothing, since one intent carries
// the bill; so one plot takes it by legacy Charges, where the key is all there is.
package selftest
