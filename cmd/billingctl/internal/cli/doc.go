// Package cli is the command line of billingctl: one file a command, each a
// struct whose fields are its flags and whose Run does it.
package cli
