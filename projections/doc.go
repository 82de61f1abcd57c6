// Package projections holds the read models: tables folded from the log, and
// the questions they answer. Nothing here decides anything; all of it can be
// thrown away and folded again.
//
//	            a page of facts, some partitions, in order within each
//	                              │
//	customers ── bills ── charges ── refunds ── runs ── revenue      one processor and its own tables each
//	     load the touched rows │ fold in memory │ write them     three statements a page, not one a fact
//	                              │
//	            rows and token commit together
//
// # The rooms in the room
//
// Each read model is a pair of files: bills.go is the table and the fold,
// bills_read.go the shapes and queries over it. [All] lists them; the SQL
// stands in migrations/0004_reads.sql and 0005_refunds.sql.
//
//   - [Customers]: who they are at Stripe, what they pay for, what is due next.
//   - [Bills]: one row a customer and period, where it stands and why.
//   - [Charges]: one row an attempt; the list of what is stuck, held, unknown.
//   - [Refunds]: one row a refund, and one a proposal to refund.
//   - [Runs]: what fell due under a period label, counted by status and summed
//     by currency.
//   - [Revenue]: what was collected, by the month the billing period begins in.
//
// [Reads] asks the questions. [Reads.Story] and [Reads.Bill] fold the bill from
// the log as they are asked, with the same functions, and so are never behind;
// [Reads.Facts] is the log itself.
//
// # What a projection promises
//
//   - The rows are a function of the log. One page, a thousand pages, pages cut
//     anywhere and delivered twice, or a rebuild: the same rows, byte for byte.
//     Package projectiontest proves it for any log a test writes. So a row holds
//     no clock: where a time is shown, it is the fact's recorded_at.
//   - A status is the domain's. Rows are read into [domain.Bill] and
//     [domain.Subscription], evolved by their own Evolve, and written back;
//     there is no second copy of a rule here.
//   - Each row keeps the position of the newest fact in it and passes over
//     what is not newer, so a repeat does nothing even without the token.
//   - Pages of different partitions never touch the same row: what belongs to a
//     customer lies in the customer's partition, and totals are kept per
//     partition and added up when read. No page waits for another.
//   - A total that has come to nothing is removed, or it would tell by which
//     way its bills went.
//
// # What a read promises
//
//   - Rows and [AsOf] are of one snapshot. AsOf.Position is never newer than
//     the rows: what is old says so. [Reads.Await] waits for one's own write.
//   - A list has one total order, either way, and pages by keyset: bytewise
//     customer id; first day of the period, then label; position of the fact.
//     Nobody can page past a tie.
//   - A cursor is bound to its list, filters and order. It is no secret and
//     carries no rights: a forged one is refused by name or begins the same
//     list elsewhere.
//   - SQL is made of constants; what was typed travels as an argument, after it
//     has been parsed into the one spelling it may have.
//
// # Adding a column
//
// One line in a new migration, one in the row's struct and one in its table
// (bills.go), an arm in note or apply, a field in the read shape. Then rebuild
// the read model beside itself: package rebuild.
package projections
