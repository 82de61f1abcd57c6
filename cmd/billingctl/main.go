package main

import (
	"context"
	_ "embed"
	"os"
	"os/signal"
	"syscall"

	"github.com/billonce/billonce/cmd/billingctl/internal/cli"
)

// customers are whom the demo bills.
//
//go:embed testdata/customers.ndjson
var customers []byte

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	// A reader that has gone must not take the demo's clean-up with it.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, customers))
}
