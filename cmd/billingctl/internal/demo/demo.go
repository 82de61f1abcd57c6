package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/cmd/billingctl/internal/imports"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// Options of a demo.
type Options struct {
	Customers []Customer
	BinDir    string // of billingd, spendproxy and stripesim
	Base      string // folder of all demos; see parts.Base
	Keep      bool   // leave everything running
	NoKill    bool   // let everybody live
	Direct    bool   // of Bench: billingd calls the stand-in itself, without a proxy
	InFlight  int    // bills in flight at most
	// AnswerLate is, of Bench, how late the stand-in answers each call.
	AnswerLate time.Duration
	// Latency is how late the stand-in answers confirms until the kill.
	Latency time.Duration
	// Patience is how long charging may stand still before the demo gives up.
	Patience time.Duration
	Command  string    // how billingctl is called, in what is printed to try
	StopWith string    // the command that stops a demo that was kept
	Out      io.Writer // the story, the table and the last line
	Progress console.Progress
}

// ErrWrong is what Run returns when a figure is wrong. The output says which.
var ErrWrong = errors.New("a figure is wrong")

// The stand-in's clock: before anybody owes anything, and when everybody owes
// for the period. Everybody's first due lies between the two, wherever they
// live, and their second one behind.
var (
	clockStart = time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	clockDue   = time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)
)

// periodOf is the label of the month that a time is in.
func periodOf(t time.Time) string { return t.Format("2006-01") }

// demo is a demo on its way.
type demo struct {
	Options
	world
	service *client.Client
	ledger  *ledgerReader
	bar     *console.Bar // under way; nil if there is none
	kill    killing
	period  string // being billed
}

// killing is what the kill met.
type killing struct {
	done     bool
	charges  int             // in the ledger when billingd was dead
	inFlight map[string]bool // customers whose bills were
	at       time.Time
}

// Run runs a demo. It returns ErrWrong if a figure is wrong, and another error
// if the demo could not be carried through. When it returns everything has been
// stopped and removed, but for the logs of a demo that failed and unless Keep
// was asked for.
func Run(ctx context.Context, o Options) error {
	d := &demo{Options: o, period: periodOf(clockDue)}
	return d.hosted(ctx, d.run)
}

// hosted runs a story in a folder of its own, with a ctx that ends when one of
// the processes does, and clears up behind it.
func (d *demo) hosted(ctx context.Context, story func(context.Context) error) error {
	if err := d.findPrograms(); err != nil {
		return err
	}
	folder, swept, err := parts.NewFolder(ctx, d.Base)
	if err != nil {
		return err
	}
	if swept > 0 {
		d.say("(removed what %s had left behind)\n", plural(swept, "earlier demo", "earlier demos"))
	}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.world = world{folder: folder, binDir: d.BinDir, died: cancel, direct: d.Direct, concurrency: d.InFlight}
	err = story(work)
	if cause := context.Cause(work); cause != nil && !errors.Is(err, ErrWrong) {
		err = cause // rather than what came of it
	}
	return d.clearUp(context.WithoutCancel(ctx), err)
}

func (d *demo) findPrograms() error {
	for _, name := range []string{"billingd", "spendproxy", "stripesim"} {
		path := filepath.Join(d.BinDir, name)
		if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return fmt.Errorf("%s is missing; `make build` makes it, and --bin-dir says where it is", path)
		}
	}
	return nil
}

// clearUp stops and removes everything that is not kept. After a failure that
// is not an interruption the logs stay.
func (d *demo) clearUp(ctx context.Context, err error) error {
	if d.Keep && (err == nil || errors.Is(err, ErrWrong)) {
		return err
	}
	stopped := d.stop(ctx)
	if err == nil {
		err = stopped
	}
	if err == nil || errors.Is(err, context.Canceled) {
		if removed := d.folder.Remove(ctx); removed != nil {
			err = errors.Join(err, removed)
		}
		return err
	}
	if removed := d.folder.RemoveData(ctx); removed != nil {
		err = errors.Join(err, removed)
	}
	if !errors.Is(err, ErrWrong) {
		err = fmt.Errorf("%w\nthe logs are in %s until the next demo", err, d.folder.Dir)
	}
	return err
}

// say prints a line of the story.
func (d *demo) say(format string, args ...any) {
	d.bar.Clear()
	_, _ = fmt.Fprintf(d.Out, format+"\n", args...) // whoever listens may be gone; the demo goes on
}

func (d *demo) run(ctx context.Context) error {
	d.say("A billing month of %s on real parts%s\n", plural(len(d.Customers), "customer", "customers"), map[bool]string{false: ", with two kill -9 in the middle"}[d.NoKill])
	if err := d.setUp(ctx); err != nil {
		return err
	}
	d.ledger = newLedgerReader(d.stand, nil)
	if !d.NoKill && d.Latency > 0 {
		if err := d.stand.SlowDown(ctx, d.Latency, "/v1/payment_intents/*/confirm"); err != nil {
			return err
		}
	}
	if err := d.stand.SetClock(ctx, clockDue); err != nil {
		return err
	}
	d.say("  The clock is moved to %s: %s falls due for everybody.", clockDue.Format("2006-01-02 15:04 MST"), d.period)
	if err := d.charge(ctx); err != nil {
		return err
	}
	return d.account(ctx)
}

// setUp starts the parts and imports the customers.
func (d *demo) setUp(ctx context.Context) error {
	if err := d.open(ctx, clockStart); err != nil {
		return err
	}
	if !d.direct {
		if err := d.openProxy(ctx); err != nil {
			return err
		}
		if err := d.issueKeys(ctx, owedBy(d.Customers)); err != nil {
			return err
		}
	}
	if err := d.startService(ctx); err != nil {
		return err
	}
	var err error
	if d.service, err = d.client(); err != nil {
		return err
	}
	var postgres string
	if err := d.query(ctx, `SELECT current_setting('server_version') || ' on port ' || current_setting('port')`, &postgres); err != nil {
		return err
	}
	d.say("  PostgreSQL  %s", postgres)
	d.say("  stripesim   %s, control %s, its clock at %s", d.stand.API, d.stand.Control, clockStart.Format("2006-01-02 15:04 MST"))
	if !d.direct {
		d.say("  spendproxy  %s, pid %d: it alone has the Stripe key", d.proxy.Address, d.spendproxy.Pid())
	}
	d.say("  billingd    %s, pid %d", d.api, d.billingd.Pid())
	return d.importCustomers(ctx)
}

func (d *demo) importCustomers(ctx context.Context) error {
	var file bytes.Buffer
	if err := Write(&file, d.Customers); err != nil {
		return err
	}
	bar := d.Progress.Start("  importing", "customers", len(d.Customers))
	var refused error
	result, err := imports.Run(ctx, d.service, &file, imports.Options{Progress: bar.Set, Refused: func(e imports.RowError) {
		if refused == nil {
			refused = e
		}
	}})
	bar.End()
	switch {
	case err != nil:
		return err
	case refused != nil:
		return fmt.Errorf("import: %d of %d customers were refused, first %w", result.Failed, result.Rows, refused)
	}
	d.say("  %s imported over HTTP.", plural(result.Imported, "customer is", "customers are"))
	return d.settled(ctx)
}

// serviceEvery is how often the service is asked how far it is.
const serviceEvery = 100 * time.Millisecond

// owedBy is what customers owe for a period, by currency.
func owedBy(customers []Customer) (owed []parts.VaultCap) {
	for _, c := range customers {
		i := slices.IndexFunc(owed, func(o parts.VaultCap) bool { return o.Currency == c.Currency })
		if i < 0 {
			owed, i = append(owed, parts.VaultCap{Currency: c.Currency}), len(owed)
		}
		owed[i].Minor += c.AmountMinor
	}
	return owed
}

// settled waits until the processors have come to the end of the log.
func (d *demo) settled(ctx context.Context) error {
	var last string
	err := parts.AwaitEvery(ctx, serviceEvery, d.Patience, func() (bool, error) {
		page, err := parts.ReadProcessors(ctx, d.service)
		last = page.Behind()
		return err == nil && last == "", err
	})
	if errors.Is(err, parts.ErrTooLong) {
		return fmt.Errorf("the processors have not come to the end of the log in %s: %s", d.Patience, last)
	}
	return err
}

// plural counts things.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return console.Count(n) + " " + many
}
