package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/rebuild"
)

// replayCommand builds a read model anew.
type replayCommand struct {
	Projection string `arg:"" help:"Name of the read model."`
	DryRun     bool   `help:"Say what would change, and change nothing."`
	Rollback   bool   `help:"Go back to the rows that the last switch replaced, with what was recorded since."`
	Customer   string `help:"Rebuild one customer's partition alone, a 64th of the log." placeholder:"ID"`
	From       string `help:"Rebuild the partitions in which something was recorded from this position on, each from its beginning; leave the others." placeholder:"POSITION"`
	To         string `help:"Fold the log up to this position alone, and say in what the rows of that time differ. Nothing is switched." placeholder:"POSITION"`
	Restart    bool   `help:"Begin at the beginning even if a rebuild was left unfinished."`
	Workers    int    `help:"How many pages are folded at the same time." default:"2" placeholder:"N"`
	Reason     string `help:"Why, for whoever reads the record later." default:"replay" placeholder:"TEXT"`
}

// Help says what happens meanwhile.
func (replayCommand) Help() string {
	return "The log is folded into tables beside the live ones, which everybody goes on reading while the service writes them. What differs is shown, and the rows that do are exchanged in one transaction: " +
		"no reader sees an empty read model, or one that is part this and part that. The former rows are kept for --rollback. " +
		"A rebuild that was killed is taken up where it was. Nothing is dispatched and nobody is called. " +
		"A POSITION is a number or a place such as 17-40213. The last line is\n\n  replay: projection=bills events=7013 seconds=0.7 rate=10495 only_former=0 only_rebuilt=0 different=0 switched=yes"
}

const replayWorkersMost = 16

// replayLook is how often progress is looked at.
const replayLook = 200 * time.Millisecond

// options are what the flags ask for.
func (r replayCommand) options() (o rebuild.Options, err error) {
	o = rebuild.Options{Actor: actor(), Reason: r.Reason, Dry: r.DryRun, Restart: r.Restart, Workers: r.Workers}
	switch {
	case r.Rollback && (r.DryRun || r.Restart || r.Customer+r.From+r.To != ""):
		return o, usage("--rollback takes back what was switched last, and knows what that was: it goes with --reason and --workers alone")
	case r.Customer != "" && r.From != "":
		return o, usage("--customer and --from can't be used together")
	case r.Workers < 1 || r.Workers > replayWorkersMost:
		return o, usage("--workers must be 1 to %d", replayWorkersMost)
	}
	if r.Customer != "" {
		if o.Customer, err = domain.ParseCustomerID(r.Customer); err != nil {
			return o, usageError{err}
		}
	}
	for _, flag := range []struct {
		name, value string
		into        *int64
	}{{"from", r.From, &o.From}, {"to", r.To, &o.To}} {
		if flag.value == "" {
			continue
		}
		if *flag.into, err = position(flag.value); err != nil {
			return o, usage("--%s must be a position such as 40213 or 17-40213", flag.name)
		}
	}
	return o, nil
}

// position reads a position, or that of a place.
func position(s string) (int64, error) {
	if place, err := eventstore.ParsePlace(s); err == nil {
		return place.Position, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && n < 1 {
		err = strconv.ErrRange
	}
	return n, err
}

// Run rebuilds the read model, or takes the last rebuild back.
func (r replayCommand) Run(s *shell) error {
	projection, err := projections.Named(r.Projection)
	if err != nil {
		return usageError{err}
	}
	options, err := r.options()
	if err != nil {
		return err
	}
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	store := eventstore.New(pool, eventstore.Current(), slog.New(slog.DiscardHandler))
	defer store.Close()
	work := func(ctx context.Context) (rebuild.Report, time.Duration, error) {
		var bar *console.Bar
		options.Progress = func(folded, of int64) {
			if bar == nil {
				bar = s.progress().Start("replaying "+projection.Name, "events", int(of))
			}
			bar.Of(int(folded), int(of))
		}
		defer func() {
			if bar != nil {
				bar.End()
			}
		}()
		begun := time.Now()
		do := rebuild.Run
		if r.Rollback {
			do = rebuild.Rollback
		}
		report, err := do(ctx, store, projection, options)
		return report, time.Since(begun), err
	}
	report, took, err := r.live(s, pool, projection.Processor(), work)
	if err != nil {
		return fmt.Errorf("replay %s: %w", r.Projection, err)
	}
	return r.print(s, report, took)
}

// live lets the read model come to where the log ends, so that the rebuilt one
// does, and helps its processor meanwhile. A look changes nothing, and so
// compares with what is there.
func (r replayCommand) live(s *shell, pool *pgxpool.Pool, p tracking.Processor, work func(context.Context) (rebuild.Report, time.Duration, error)) (report rebuild.Report, took time.Duration, err error) {
	begin, err := statusOf(s.ctx, pool, p.Name)
	if err != nil {
		return report, 0, err
	}
	if r.DryRun || r.To != "" {
		return work(s.ctx)
	}
	if begin.Paused {
		return report, 0, fmt.Errorf("%s is paused; billingctl processors resume %s lets it go on", p.Name, p.Name)
	}
	only := func(*eventstore.Store) tracking.Processor { return p }
	err = alongside(s.ctx, pool, only, func(ctx context.Context, _ *tracking.Runtime) (err error) {
		if err := awaitProcessor(ctx, pool, begin); err != nil {
			return err
		}
		report, took, err = work(ctx)
		return err
	})
	return report, took, err
}

// awaitProcessor waits until a processor has come to where the log ended at begin.
func awaitProcessor(ctx context.Context, pool *pgxpool.Pool, begin tracking.ProcessorStatus) error {
	moved, left := time.Now(), int64(-1)
	for {
		now, err := statusOf(ctx, pool, begin.Processor)
		if err != nil {
			return err
		}
		behind := int64(0)
		for i, t := range now.Partitions {
			behind += max(0, begin.Partitions[i].Newest-t.Token) // in positions: it only has to come to nothing
		}
		switch {
		case behind == 0:
			return nil
		case behind != left:
			moved, left = time.Now(), behind
		case time.Since(moved) > stalled:
			return fmt.Errorf("it has not moved for %s: %s", stalled, orElse(now.LastError, "no reason is known"))
		}
		if !pause(ctx, replayLook) {
			return ctx.Err()
		}
	}
}

// print shows what differs, and one line for scripts.
func (r replayCommand) print(s *shell, report rebuild.Report, took time.Duration) error {
	if s.asJSON() {
		document, err := json.Marshal(report)
		if err != nil {
			return err
		}
		return console.JSON(s.Out, document)
	}
	sum := report.Rows()
	if sum.Rows() > 0 {
		if err := printDiffs(s, report.Diffs); err != nil {
			return err
		}
	}
	notes := []struct {
		when bool
		say  string
	}{
		{report.Found > 0 && !r.Rollback, fmt.Sprintf("taken up: %s of %s events had been folded already", console.Count(int(report.Found)), console.Count(int(report.Events)))},
		{report.Partitions < eventstore.Partitions, fmt.Sprintf("%d of %d partitions; the rows of the others were not looked at", report.Partitions, eventstore.Partitions)},
		{report.Letters > 0, fmt.Sprintf("%s parked events are in the rows now, their letters are settled", console.Count(int(report.Letters)))},
		{report.Switched && sum.Rows() > 0, fmt.Sprintf("switched; billingctl replay %s --rollback takes it back", report.Projection)},
	}
	for _, note := range notes {
		if !note.when {
			continue
		}
		if err := s.printf("%s\n", note.say); err != nil {
			return err
		}
	}
	switched := map[bool]string{true: "yes", false: "no"}[report.Switched]
	return s.printf("replay: projection=%s events=%d seconds=%.1f rate=%.0f only_former=%d only_rebuilt=%d different=%d switched=%s\n", report.Projection, report.Events, took.Seconds(),
		float64(report.Events-report.Found)/max(took.Seconds(), 0.001), sum.OnlyFormer, sum.OnlyRebuilt, sum.Different, switched)
}

func printDiffs(s *shell, diffs []rebuild.Diff) error {
	table := console.NewTable("table", "only former#", "only rebuilt#", "different#")
	for _, d := range diffs {
		table.Row(d.Table, d.OnlyFormer, d.OnlyRebuilt, d.Different)
	}
	if err := table.Write(s.Out, ""); err != nil {
		return err
	}
	for _, d := range diffs {
		for _, e := range d.Examples {
			if err := s.printf("%s %s\n    %s\n", d.Table, e.Key, strings.Join(e.Says, "\n    ")); err != nil {
				return err
			}
		}
		if more := d.Rows() - int64(len(d.Examples)); more > 0 {
			if err := s.printf("%s: and %s more\n", d.Table, console.Count(int(more))); err != nil {
				return err
			}
		}
	}
	return nil
}

// alongside runs a processor in this process, as one more replica, while f works.
func alongside(ctx context.Context, pool *pgxpool.Pool, processor func(*eventstore.Store) tracking.Processor, f func(context.Context, *tracking.Runtime) error) error {
	log := slog.New(slog.DiscardHandler)
	store := eventstore.New(pool, eventstore.Current(), log)
	defer store.Close()
	runtime := tracking.New(pool, store, tracking.Options{Log: log, Poll: 100 * time.Millisecond})
	ctx, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := runtime.Run(ctx, processor(store))
		if err != nil {
			stop(err)
		}
		ended <- err
	}()
	err := f(ctx, runtime)
	cause := context.Cause(ctx)
	stop(nil)
	if runErr := <-ended; runErr != nil && cause != nil {
		return runErr
	}
	return err
}

func statusOf(ctx context.Context, pool *pgxpool.Pool, name string) (tracking.ProcessorStatus, error) {
	all, err := tracking.Status(ctx, pool, name)
	if err != nil {
		return tracking.ProcessorStatus{}, err
	}
	if len(all) != 1 || neverRan(all[0]) {
		return tracking.ProcessorStatus{}, tracking.ErrUnknownProcessor
	}
	return all[0], nil
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
