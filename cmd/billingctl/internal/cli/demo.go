package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/billonce/billonce/cmd/billingctl/internal/demo"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// demoCommand runs the demo.
type demoCommand struct {
	Customers  int           `help:"How many customers." default:"1000" placeholder:"N"`
	Keep       bool          `help:"Leave everything running, and say how to reach and stop it."`
	Stop       bool          `help:"Stop and remove what demos have left running."`
	NoKill     bool          `help:"Let everybody live."`
	RateOnly   bool          `help:"Measure charging instead: nothing is killed, and the same calls alone are measured beside it."`
	Direct     bool          `help:"Of --rate-only: billingd calls the stand-in itself, without the spend proxy."`
	InFlight   int           `help:"How many bills are in flight at most." default:"128" placeholder:"N"`
	AnswerLate time.Duration `help:"Of --rate-only: how late Stripe's stand-in answers each call." default:"0s" placeholder:"DURATION"`
	Months     int           `help:"How many months --rate-only measures." default:"3" placeholder:"N"`
	Latency    time.Duration `help:"How late Stripe's stand-in answers confirms until the kill." default:"25ms" placeholder:"DURATION"`
	Patience   time.Duration `help:"How long charging may stand still before the demo gives up." default:"30s" placeholder:"DURATION"`
	BinDir     string        `help:"Folder of billingd, spendproxy and stripesim. Not given: where billingctl is." placeholder:"DIR"`
	Dir        string        `help:"Folder for what the demo keeps while it runs. Not given: in the user's cache." placeholder:"DIR"`
}

// Help says what the demo does.
func (demoCommand) Help() string {
	return "An embedded PostgreSQL, billingd, spendproxy and a stand-in for Stripe are started on free ports, with folders of their own; DATABASE_URL and the service's settings have no part in it. " +
		"The figures come from the ledger of the stand-in. The last line is\n\n  demo: customers=1000 charged=1000 twice=0 missing=0 books=equal\n\nand the exit status is 1 if any figure is wrong."
}

const customersMost = 100_000

// Run runs the demo.
func (d demoCommand) Run(s *shell) error {
	o := demo.Options{Keep: d.Keep, NoKill: d.NoKill, Direct: d.Direct, InFlight: d.InFlight, AnswerLate: d.AnswerLate, Latency: d.Latency, Patience: d.Patience, Out: s.Out, Progress: s.progress()}
	var err error
	if o.Base, err = d.base(); err != nil {
		return err
	}
	if d.Stop {
		return d.stop(s, o.Base)
	}
	switch {
	case d.Customers < 1 || d.Customers > customersMost:
		return usage("--customers must be 1 to %d", customersMost)
	case d.Months < 1 || d.Months > 24:
		return usage("--months must be 1 to 24")
	case d.Latency < 0 || d.Latency > 500*time.Millisecond:
		return usage("--latency must be 0s to 500ms")
	case d.InFlight < 1 || d.InFlight > 1000:
		return usage("--in-flight must be 1 to 1000")
	case d.AnswerLate < 0 || d.AnswerLate > 500*time.Millisecond:
		return usage("--answer-late must be 0s to 500ms")
	case d.AnswerLate > 0 && !d.RateOnly:
		return usage("--answer-late is for --rate-only; --latency is the demo's")
	case d.Patience < time.Second:
		return usage("--patience must be 1s at least")
	case d.Direct && !d.RateOnly:
		return usage("--direct is for --rate-only: the demo compares the proxy's books, too")
	case d.RateOnly && d.Keep:
		return usage("--rate-only keeps nothing")
	}
	if o.BinDir, err = d.binDir(); err != nil {
		return err
	}
	o.Command = quoted(os.Args[0])
	o.StopWith = o.Command + " demo --stop"
	if d.Dir != "" {
		o.StopWith += " --dir " + quoted(o.Base)
	}
	if o.Customers, err = demo.First(s.customers, d.Customers); err != nil {
		return err
	}
	if d.RateOnly {
		err = demo.Bench(s.ctx, o, d.Months)
	} else {
		err = demo.Run(s.ctx, o)
	}
	if errors.Is(err, demo.ErrWrong) {
		return errReported
	}
	return err
}

// quoted is a word as a shell takes it for one.
func quoted(word string) string {
	if strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("/._-+=:,@%", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

func (d demoCommand) stop(s *shell, base string) error {
	n, err := parts.Stop(s.ctx, base)
	if err != nil {
		return err
	}
	if n == 0 {
		return s.printf("no demo was left running\n")
	}
	return s.printf("stopped and removed: %d\n", n)
}

func (d demoCommand) base() (string, error) {
	if d.Dir != "" {
		return filepath.Abs(d.Dir)
	}
	return parts.Base("demo")
}

// binDir is the folder of the programs.
func (d demoCommand) binDir() (string, error) {
	if d.BinDir != "" {
		return filepath.Abs(d.BinDir)
	}
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", fmt.Errorf("find where billingctl is: %w", err)
	}
	return filepath.Dir(self), nil
}
