package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/billonce/billonce/domain"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Streams are what a command reads from and writes to.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// commandLine is everything billingctl knows.
type commandLine struct {
	URL    string `help:"Address of billingd." env:"BILLINGCTL_URL" default:"http://127.0.0.1:8080" placeholder:"URL"`
	Output string `short:"o" help:"How to print data: table or json." enum:"table,json" default:"table" placeholder:"FORMAT"`

	Demo        demoCommand        `cmd:"" help:"Bill a month of made-up customers on real parts, with a kill -9 in the middle, and check the books."`
	Selftest    selftestCommand    `cmd:"" help:"Kill, freeze and lie to the service in every way there is, and check that no bill is doubled or lost."`
	Dispatch    dispatchCommand    `cmd:"" help:"Send one command to the service."`
	Import      importCommand      `cmd:"" help:"Import customers, with their history, from a file of NDJSON or CSV."`
	Events      eventsCommand      `cmd:"" help:"Read the log."`
	Bill        billCommand        `cmd:"" help:"Tell the whole story of one bill."`
	Runs        runsCommand        `cmd:"" help:"See a billing period."`
	Processors  processorsCommand  `cmd:"" help:"See and steer the readers of the log."`
	DeadLetters deadLettersCommand `cmd:"" help:"See and settle events that could not be handled."`
	Replay      replayCommand      `cmd:"" help:"Build a read model anew out of the log, while the service runs."`
	Saga        sagaCommand        `cmd:"" help:"See what a saga would do if it read the log again, and let it."`
	Schedule    scheduleCommand    `cmd:"" help:"See and steer what waits for its time: bills that are to be tried again."`
	Reconcile   reconcileCommand   `cmd:"" help:"Compare the log, the pre-flight rows and Stripe, and repair what is provable."`
	Refunds     refundsCommand     `cmd:"" help:"See refunds, and decide about those that are proposed."`
	VaultKeys   vaultKeysCommand   `cmd:"" help:"See and steer who may take money through the spend proxy, and how much."`
	Adopt       adoptCommand       `cmd:"" help:"Confirm the service's database after a restore, or a copy in another environment."`
	Verify      verifyCommand      `cmd:"" help:"Check the log, and everything that follows from it."`
	Migrate     migrateCommand     `cmd:"" help:"Bring the database's schema up to this version."`
}

const description = `Operates Billonce, which bills every customer exactly once per billing period.

BILLINGCTL_TOKEN holds the token for billingd, SPENDPROXY_ADMIN_TOKEN that for the spend proxy. migrate, replay, saga, verify, events export and import, and whatever pauses, resumes, resets, retries or skips work on the database that DATABASE_URL names.

Exit status: 0 it worked; 1 it failed, was refused or interrupted, or a figure is wrong; 2 the command line or the configuration is wrong.`

// Run is the program: it returns the exit status. Customers are whom the demo
// bills, as a file for import.
func Run(ctx context.Context, args []string, streams Streams, customers []byte) int {
	var line commandLine
	if err := line.Dispatch.offer(); err != nil {
		return report(streams.Err, err)
	}
	s := &shell{ctx: ctx, Streams: streams, line: &line, customers: customers}
	exited := -1
	parser, err := kong.New(&line,
		kong.Name("billingctl"), kong.Description(description), kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 110}),
		kong.Writers(streams.Out, streams.Err), kong.Exit(func(code int) { exited = code }))
	if err != nil {
		return report(streams.Err, err)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if exited >= 0 { // --help
		return exited
	}
	if err != nil {
		return report(streams.Err, usageError{err})
	}
	return report(streams.Err, parsed.Run(s))
}

// report prints an error and says what the program exits with.
func report(w io.Writer, err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, syscall.EPIPE): // whoever read us has heard enough
		return exitOK
	case errors.Is(err, errReported):
		return exitFailed
	case errors.Is(err, context.Canceled):
		_, _ = fmt.Fprintln(w, "billingctl: interrupted")
		return exitFailed
	}
	_, _ = fmt.Fprintf(w, "billingctl: %s\n", sentence(err))
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// sentence is an error for people: of input that cannot be accepted, what is
// wrong with which field is all there is to say.
func sentence(err error) string {
	refusal, ok := errors.AsType[*domain.Error](err)
	if !ok || len(refusal.Fields) == 0 {
		return err.Error()
	}
	faults := make([]string, len(refusal.Fields))
	for i, f := range refusal.Fields {
		faults[i] = f.Field + " " + f.Msg
	}
	return strings.Join(faults, "; ")
}

// usageError is a mistake of whoever typed the command.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errReported is a failure of which everything has been said.
var errReported = errors.New("it failed, and the output says why")
