// Package eventstore is the log: every fact of the business, in order, in one
// PostgreSQL table, with the keys of the commands that made them.
//
// # What it promises
//
//   - An append is all or nothing: facts, command key and request key commit
//     together. It names the version its decision was made at; if the stream
//     has moved on, nothing is written and a [*VersionConflict] comes back.
//   - A key that was used for the same thing returns the first receipt, with
//     Replayed set. Used for another thing, it is [domain.ErrKeyReused].
//   - Facts of one customer share a partition (64 of them, [PartitionOf]).
//     Positions are drawn while the partition's lock is held, until commit: a
//     reader that has seen position n of a partition is never shown a smaller
//     one. There is no gap to wait for and no transaction-id gate, so somebody
//     else's long transaction stalls nobody.
//   - A place in the log is written partition-position, 17-40213 ([Place]).
//   - Streams are hash-chained: each event's digest covers its predecessor's
//     digest and its own exact bytes.
//
// # How an append runs
//
// [Store.Append] sends one statement and waits for one commit. While a commit
// is under way the appends that arrive wait together and share the next one;
// when nobody waits there is no detour. [Store.AppendTx] does the same inside
// a caller's transaction, for any number of batches, after taking their
// partitions' locks in ascending order. One lock order holds everywhere: a
// processor's token, partitions ascending, keys, rows.
//
// The rows travel through watermill-sql's publisher with a schema adapter of
// our own (insert.go): the table is the topic, there is no second write.
// NOTIFY is sent after the commit, at most every few milliseconds, and never
// inside the transaction, where it would serialise all commits of the server.
//
// # If the connection breaks during COMMIT
//
// Nobody knows then whether the facts are there. The error wraps
// [ErrCommitUnknown]; asking again with the same key (or, for a batch without
// one, at the same version) tells: the key's unique index makes the second
// wait for the first.
//
// # When facts change
//
// Facts are named by contract and schema version ([Codec]). What an older build
// has stored is read by upcasters ([Upcaster]): a fact may be renamed, reshaped,
// given fields, split into several or retired. The log itself is never
// rewritten, so that chains, exports and verify, which work on what is stored,
// know nothing of it. What is stored in a shape that nobody here knows has Err
// set: a decision is not made over it.
//
// There are no snapshots: a customer's stream grows by a handful of facts a
// month.
package eventstore
