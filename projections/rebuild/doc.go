// Package rebuild folds a read model anew beside the one that is read, says in
// what the two differ, and exchanges them.
//
//	live tables      read by everybody; the processor goes on folding into them
//	schema rebuild   the same tables, folded by the same code from the log's
//	                 beginning, up to where the processor stands
//	rebuild_former   what the last switch replaced, for [Rollback]
//	rebuild_trial    of a dry run; gone with it
//
// # The switch
//
// It is one transaction. It holds the processor's tokens, folds what little is
// missing, compares the tables row by row, and moves the rows that differ, both
// ways: the live tables become what was rebuilt, and the tables beside become
// what was live. The tokens stay where they are, since both sides stand there.
//
// Rows are moved and not tables. A reader's snapshot is of rows: one that was
// taken before the switch sees the former model to its end, whenever it gets to
// a table, and one taken after it the rebuilt one. A renamed table would be
// found at once by a snapshot too old to see its rows. Nor does anybody wait:
// no lock of the switch is in a reader's way. New events wait for their
// delivery while it compares, and the reads say so in their as_of.
//
// # Its unit
//
// Totals are kept per partition, so what is rebuilt is always some of the 64
// partitions, each whole: all of them, a customer's, or those in which anything
// was recorded from a position on.
//
// # When it dies
//
// A page's rows and its token in rebuild_tokens commit together, and the token
// moves only from where the page began. So a rebuild that was killed is taken
// up where it was, and one that only seemed dead does no harm. What cannot be
// folded ends the rebuild with the event's place; the live rows stay as they
// were.
//
// Nothing here is delivered to a processor, so nothing can be dispatched,
// appended or called because of a rebuild.
package rebuild
