// Package verify checks that the log is what was recorded, and that everything
// which follows from it says the same.
//
// # What is checked
//
//	each event       its digest covers its bytes and its predecessor; its stream
//	                 has no hole; it lies in its customer's partition; this build
//	                 can read it; it says nothing that the house never records,
//	                 such as a period that is billed twice
//	remembered keys  what an event's command would be answered with is there, and
//	                 what a command made is there
//	the sequence     the next position is behind the last one
//	pre-flight rows  billing_records and refund_records against the customer's
//	                 fold: there or not, frozen parameters, attempt, intent, state
//	sagas            each instance folded anew
//	the schedule     when the next period of each subscription falls due
//	timers           each command that waits for its time: there or not, key, due
//	imports          which bill each charge of another system belongs to
//	read models      every table of every projection, folded anew, row by row
//
// # How
//
// All of it is of one moment: a snapshot that several read-only transactions
// share. The service may run meanwhile.
//
// The log is read once, partition after partition, by some workers. Each holds
// the customers of the one partition that it is reading (1/64 of all, about a
// kilobyte a bill), at most [foldMost] events, and eight bytes for every row that
// it has met, so that rows which nothing accounts for are found. A partition is
// folded by the projections' own code into temporary tables of the same names,
// which hide the real ones in that session, and these are compared with the real
// ones by the server. So the heap stays at about a hundred megabytes however long the log is, and on
// the server temporary files as large as the read models.
//
// # Lag is no difference
//
// A processor that is behind, paused, replaying, or has set a customer aside has
// folded the log up to a token that stands in the same snapshot. It is compared
// with the log up to there, and must be right about that. What it has not read
// is counted as lag.
//
// A file is checked by the same code without a database ([File]): the events
// and what they fold to, and the file itself.
package verify
