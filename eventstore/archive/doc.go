// Package archive is the log as a file: everything that is needed to check it
// without a database and to build it again, byte for byte.
//
// # The file
//
// NDJSON: a header, the events in the order of their positions, the remembered
// keys of commands and of requests, and a trailer.
//
//	{"line":"header","format":1,"environment":"production","exported_at":"…","events":3,"command_keys":2,"request_keys":0,"last_position":40213,…}
//	{"line":"event","at":"17-40213","event_id":"…","stream":"customer/cust_1","version":1,"type":"customer.registered.v1","schema":1,
//	 "sequence":"cust_1","payload":"…","metadata":"…","command_key":"…","digest":"…","recorded_at":"…","sum":"…"}
//	{"line":"command_key","key":"…","command":"…","fingerprint":"…","stream":"…","first_version":1,"last_version":1,"receipt":null,"recorded_at":"…","sum":"…"}
//	{"line":"request_key","actor":"…","key":"…","command":"…","body_digest":"…","command_key":"…","receipt":null,"recorded_at":"…","sum":"…"}
//	{"line":"end","events":3,"command_keys":2,"request_keys":0,"last_position":40213,"sha256":"…"}
//
// Payload and metadata are texts that hold the recorded bytes; digests are
// hexadecimal; times are UTC, to the microsecond.
//
// # How it proves that it is whole
//
//   - sha256 is over all lines before the trailer, so that
//     head -n -1 FILE | sha256sum tells it too.
//   - sum is the first half of the SHA-256 over the file up to there. A line
//     that was edited, left out, added or moved is the first one whose sum is
//     wrong, and is named by its number.
//   - Events are chained within their streams ([eventstore.Chain]), have no
//     holes in their versions, and ascend by position.
//   - The trailer counts what there must have been. A file without one is a
//     part of a file.
//
// This tells a whole file from a damaged one. It does not tell who wrote it:
// whoever can write a file can write these sums. Keep the trailer's sha256
// elsewhere if that matters.
//
// # What an import brings, and what it does not
//
// Events, positions, digests, command keys and request keys are the same
// afterwards. Nothing else is in the file, because all else follows from it:
// processors begin anew, read models and pre-flight rows are built from the
// facts, and an effectful processor that reads old facts sends commands whose
// keys are remembered, so they answer with their first receipts.
//
// Nobody is charged again. Three guards hold it, each by itself: a claim is
// decided on the customer's facts, so a bill that was paid, settled or declined
// is not sent; before anything is created the collector looks at what Stripe
// holds, and adopts what the file does not know of, such as charges made after
// it was written; and a bill in flight goes on with the intent that its facts
// name, which Stripe lets succeed once.
//
// An import needs a log that is empty, and takes one transaction: all of the
// file, or nothing.
package archive
