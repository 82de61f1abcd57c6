// Package commands holds every intent the service accepts, one file each: its
// data, its key and its pure decision on one screen.
//
// A command is built by its constructor, which sets the key; nothing changes
// it afterwards. Its Decide is a function of the aggregate's state: no clock,
// no randomness, no I/O. Time enters as data, when the command is built.
//
// [Dispatcher.Dispatch] is the one path for all: key seen? the old receipt;
// else load, fold, decide, append, and again if the stream moved meanwhile.
// [Dispatcher.Begin] is the same inside a transaction, for any number of
// commands: sagas, the due scanner and the collector use it. [Gateway] adds
// retries for callers in this process: the same command value again, and only
// after errors that may pass.
//
// A refusal is not remembered: the same key may succeed once the state allows
// it. "Nothing to do" is remembered. A command that reports what has already
// happened (record-charge-outcome, record-refund-outcome, record-dispute,
// propose-refund) is never refused.
//
// Adding a command: one file here (struct, constructor, four methods, decode),
// one line in registry.go. HTTP, the command line and OpenAPI follow from the
// registry.
package commands
