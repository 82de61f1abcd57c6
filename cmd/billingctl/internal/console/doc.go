// Package console is how billingctl speaks to people and to scripts: tables,
// JSON, and progress that is a bar on a terminal and plain lines elsewhere.
//
// What a command was asked for goes to standard output; progress goes to
// standard error, so that a pipe gets the answer alone.
package console
