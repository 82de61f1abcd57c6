package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/cmd/billingctl/internal/verify"
)

// verifyCommand checks the log and everything that follows from it.
type verifyCommand struct {
	Export  string `help:"Check an exported log instead, without a database; - for standard input." placeholder:"FILE"`
	Show    int    `help:"How many differences of a kind to print; 0: all. All are counted." default:"50"`
	Workers int    `help:"How many partitions to read at the same time." default:"2"`
}

// Help is what verify --help says beyond the flags.
func (verifyCommand) Help() string {
	return `The whole log is read once: its chains, versions and positions are checked, every customer is folded and compared with the pre-flight rows, the sagas and the schedule, and every read model is folded anew and compared row by row. All of it is of one moment; the service may run, and nothing is changed. What a processor has not read yet is lag, and no difference.

Each difference is printed with its remedy. The last line is for scripts:

    verify: events=12000 streams=1000 differences=0

Exit status 1 if anything differs.`
}

// Run checks, and prints what differs.
func (v verifyCommand) Run(s *shell) error {
	if v.Show < 0 || v.Workers < 1 || v.Workers > 16 {
		return usage("--show must be 0 or more, and --workers 1 to 16")
	}
	differences := &differencePrinter{s: s, most: v.Show, of: map[string]int{}}
	var bar *console.Bar
	options := verify.Options{Workers: v.Workers, Found: func(d verify.Difference) {
		bar.Clear()
		differences.print(d)
	}, Progress: func(done, total int64) {
		if bar == nil {
			bar = s.progress().Start("verifying", "events", int(total))
		}
		bar.Set(int(done))
	}}
	report, err := v.run(s, options)
	if bar != nil {
		bar.End()
	}
	if err != nil {
		return err
	}
	for kind, n := range differences.of {
		if more := n - v.Show; v.Show > 0 && more > 0 {
			differences.say("%s: and %s more; --show 0 prints all\n", kind, console.Count(more))
		}
	}
	for _, lag := range report.Lags {
		differences.say("lag: %s has %s events to handle, and %s customers set aside; it was compared with what it has handled\n", lag.Processor, console.Count(int(lag.Events)), console.Count(int(lag.Customers)))
	}
	said := s.conclude("verify", figure{"events", report.Events}, figure{"streams", report.Streams}, figure{"differences", report.Differences})
	switch {
	case cmp.Or(differences.err, said) != nil:
		return cmp.Or(differences.err, said)
	case report.Differences > 0:
		return errReported
	}
	return nil
}

func (v verifyCommand) run(s *shell, o verify.Options) (verify.Report, error) {
	if v.Export != "" {
		file, err := s.file(v.Export)
		if err != nil {
			return verify.Report{}, err
		}
		defer file.Close()
		return verify.File(file, o)
	}
	pool, err := s.database()
	if err != nil {
		return verify.Report{}, err
	}
	defer pool.Close()
	return verify.Database(s.ctx, pool, o)
}

// file opens a file for reading; - is standard input.
func (s *shell) file(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(s.In), nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, usageError{err}
	}
	return file, nil
}

// differencePrinter prints differences as they are found: as lines of text, or
// of JSON; then what is said beside them goes to standard error.
type differencePrinter struct {
	s    *shell
	most int
	of   map[string]int // by kind
	err  error
}

func (p *differencePrinter) print(d verify.Difference) {
	if p.of[d.Kind]++; p.most > 0 && p.of[d.Kind] > p.most || p.err != nil {
		return
	}
	if p.s.asJSON() {
		line, err := json.Marshal(d)
		if err == nil {
			err = p.s.printf("%s\n", line)
		}
		p.err = err
		return
	}
	p.err = p.s.printf("%s: %s: %s\n    %s\n", d.Kind, d.About, d.Detail, d.Remedy)
}

func (p *differencePrinter) say(format string, args ...any) {
	to := p.s.Out
	if p.s.asJSON() {
		to = p.s.Err
	}
	if _, err := fmt.Fprintf(to, format, args...); err != nil && p.err == nil {
		p.err = err
	}
}
