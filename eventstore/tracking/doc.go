// Package tracking delivers the log to those who follow it: read models, sagas,
// anything that has to see every event, in order, once.
//
// A [Processor] has a name, a [Handler] and, for each of the log's 64
// partitions, a token in processor_tokens: the position up to which it has
// handled that partition. A [Runtime] runs the processors of a process. Any
// number of processes may run the same ones.
//
// # A page
//
// The unit of delivery is a page: some events of one partition or, when many
// are waiting, of several. It is handled in one transaction.
//
//	wait        until a partition may have something new; nothing is held
//	BEGIN
//	claim       lock the tokens of such partitions, FOR UPDATE SKIP LOCKED
//	read        what follows them, in order; a later statement, so that its
//	            snapshot is younger than the locks
//	handle      [Handler.Handle], on the same connection ([Page.Tx])
//	move        the tokens
//	COMMIT      the handler's writes, what it appended, and the tokens: all or nothing
//	announce    [Page.Appended], [Processor.AfterCommit]
//
// These are four round trips to the database and those of the handler, however
// many events there are; over a long line larger pages and more workers help.
//
// The lock on the token is the claim. There are no leases, no heartbeats and
// nothing to rebalance: a dead process's claims end with its connections, a
// frozen one's when the server ends its idle transaction, five seconds after
// [Processor.Timeout], and what it writes after that fails. In a partition
// positions are committed in order (package eventstore), so a token never passes
// an event that is still to appear, and nobody else's transaction holds delivery
// up.
//
// Events of a customer are in one partition, so they are handled one after the
// other. Events of different customers may be handled at the same time, and in
// any order.
//
// What a processor does not want ([Processor.Events]) stays in the database.
// Its token passes such events too: with the next page, by the next scan, or
// at once if somebody waits for it ([Runtime.WaitFor]).
//
// # When handling fails
//
// The page is rolled back, and the next try has a new transaction: after an
// SQL error the old one is of no use. What happens then depends on the error.
//
//	transient   lost connection, deadlock, server away (eventstore.Transient):
//	            tried again after a pause, for as long as it takes
//	timeout     over [Processor.Timeout]: the same, event by event
//	poison      any other, and a panic: if the page had several events they go
//	            one by one, to find the one that fails. After MaxAttempts it is
//	            parked, and with it its customer
//	unreadable  a payload that cannot be decoded is parked at once
//	unknown     a type or version that this build does not have: the processor
//	            stops before it, in that partition, until a build comes that has
//	            it. Events are never lost to an old build
//
// Tries and pauses stand in the token, so they survive restarts and operators
// see them ([Status]). A failure holds up one partition of 64.
//
// Parking is by customer, since what follows a failed event must not overtake
// it: the event goes into dead_letters, later events of that customer go in
// behind it, and everybody else goes on. It is logged as an error and counted.
// When the cause is mended, [Runtime.Retry] handles the letters in order and
// frees the customer; [Skip] decides against one, with a reason. Both hold the
// token, so neither meets a page or another operator.
//
// # An event that kills the process
//
// Out of memory, or os.Exit in a library: nothing is left to write down what
// happened. Marks would tell, but one for every page would cost a commit. So a
// process writes one row when it starts, and takes it away when it ends in
// order; that it lives shows in an advisory lock of its listener. While every
// row belongs to a living process, nothing is marked.
//
// A process that finds the row of a dead one at its start is careful: the first
// events after each token, a page's worth and for a minute at most, are handled
// one page at a time, each marked in a transaction of its own before. A mark
// that a dead process left before its token was begun and never ended. Its
// events go one by one, and the one of which five processes have died so is
// parked, like poison. One death without a mark, five with one: a process that is
// killed from outside a few times over, at its very start, parks nobody. Marks of a page that fails
// otherwise, or whose process ends in order, are taken back.
//
// # Kinds
//
// A [Pure] processor is a function of the log: [Reset] empties its tables and
// sends its tokens back, while it runs if need be; [Page.Replay] tells events
// that it has handled before. [Hold] keeps it still while rows that were folded
// beside its own take their place.
//
// An [Effectful] one may lead to a call outside the house. All it writes is
// keyed, so that a repeat does nothing. It is sent back by [Replay] alone, for
// somebody who knows what will follow. Should its tokens disappear, it reads from the beginning, says so loudly, and everything up to
// the newest event of that moment is a replay. A pure one is emptied first.
//
// No handler calls the network, of whichever kind: a transaction is open.
//
// # How a worker wakes
//
//	in this process    eventstore.Store.OnAppend, right after the commit, by
//	                   those who want what was added
//	in another         NOTIFY on eventstore.Channel, a few milliseconds later
//	in any case        a scan every [Options.Poll]: one query for all processors,
//	                   an index probe a partition, no locks. This is the truth;
//	                   the others spare waiting for it
//
// The listener has the only connection that an idle runtime holds. It connects
// again when it is cut off, and a scan follows. Idle, a runtime locks nothing
// and draws no transaction id.
//
// # Lag
//
// [Status] counts exactly, partition by partition: the events after a token,
// the age of the oldest, and what all replicas handle a second; who moved the
// token last, and the last error. A processor is caught up only if nothing is
// after its tokens, nothing was set aside and nobody is just appending.
//
// # One order
//
// A processor with [Processor].Ordered is given the whole log in the order of
// its positions. Its tokens are one vector: they are claimed together, and a page
// is merged from all partitions. Before it is read the log has to be settled: no
// append may be under way that drew its position before the last one drawn,
// which the locks that appends hold on their partitions tell. So the order is
// the same each time; the price is one worker, and that a slow append in any
// partition is waited for.
//
// # Bounded runs
//
// [RunTo] gives the tokens an end, a position of the whole log. A partition whose
// token is there is not claimed any more; [Resume] takes the end away. Whether
// the run is over takes the log's order to tell ([ProcessorStatus].Stopped): the
// log has come to the end, and no append that may lie before it is under way.
//
// # Stopping
//
// When the context of [Runtime.Run] ends, no new page begins, pages under way
// are finished, and Run returns nil. After [Options.Drain] their connections
// are cut, which rolls them back.
//
// # What watermill does here, and what it is kept from
//
// The router runs a handler for each worker, with its middlewares for timeout
// and panic. Under it, watermill-sql's subscriber runs the cycle above over the
// events table, by adapters of our own (topic.go): its message is the claim,
// its acknowledgement moves the tokens. A message a page, not an event, so its
// handshake is paid once a page. The payload of a page is not part of the
// message: as arrays in one row it took three times as long to read.
//
// Left to itself the subscriber would send a refused message again into the
// same dead transaction, commit half a page when it is closed or its deadline
// passes, and only log a commit that fails. The worker (worker.go) stands
// around it so that none of this happens, and the driver (driver.go) gives both
// sides one transaction and the truth about its commit.
package tracking
