package selftest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// Options of a series.
type Options struct {
	Seed   uint64 // of the first run; the others follow it
	Runs   int
	Within time.Duration // no further run begins after that; 0: all of them do
	Lanes  int           // runs at once; 0: LanesFor the machine
	BinDir string        // of billingd and stripesim
	Base   string        // folder of all selftests; see parts.Base
	Plots  []string      // empty: all
	Keep   bool          // the logs of runs that were right, too

	// What a series is to find: a rule that billingd is told to break, and a
	// stand-in that has forgotten what keys are for. FirstOnly ends it with the
	// first run that is wrong.
	Break      string
	IgnoreKeys bool
	FirstOnly  bool

	Repeat   func(seed uint64) string // the command that repeats a run
	Out      io.Writer
	Progress console.Progress
}

// Check refuses options that name what does not exist.
func (o Options) Check() error {
	if o.Break != "" && !slices.Contains(crashpoint.Rules, o.Break) {
		return fmt.Errorf("there is no rule %q; the rules are %s, keys", o.Break, strings.Join(crashpoint.Rules, ", "))
	}
	for _, name := range o.Plots {
		if !slices.Contains(plotNames(), name) {
			return fmt.Errorf("there is no plot %q; the plots are %s", name, strings.Join(plotNames(), ", "))
		}
	}
	return nil
}

// Result counts what was found in a series.
type Result struct {
	Runs, Doubled, Lost, Wrong int

	// Recovered bills were in the hands of a service that was killed, and were
	// taken up by another one, the slowest after Recovery. That is a measurement,
	// not a verdict: a busy machine starts a service late.
	Recovered int
	Recovery  time.Duration
}

// String is the last line.
func (r Result) String() string {
	return fmt.Sprintf("selftest: runs=%d doubled=%d lost=%d wrong=%d", r.Runs, r.Doubled, r.Lost, r.Wrong)
}

// Right reports whether nothing was found.
func (r Result) Right() bool { return r.Doubled+r.Lost+r.Wrong == 0 }

// LanesFor this machine: a run mostly waits for leases to run out.
func LanesFor() int { return 4 * runtime.NumCPU() }

// outcome is how a run ended.
type outcome struct {
	script  script
	verdict verdict
	tally   tally
	took    time.Duration
	err     error
}

// Run runs a series. The result says what was found; an error, that a run could
// not be carried through. When Run returns everything is stopped and removed,
// but for the logs of what was wrong; an impatient user who interrupts it again
// does not end it before that.
func Run(ctx context.Context, o Options) (Result, error) {
	impatience := make(chan os.Signal, 1)
	signal.Notify(impatience, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(impatience)
	for _, name := range []string{"billingd", "stripesim"} {
		path := filepath.Join(o.BinDir, name)
		if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return Result{}, fmt.Errorf("%s is missing; `make build` makes it, and --bin-dir says where it is", path)
		}
	}
	folder, _, err := parts.NewFolder(ctx, o.Base)
	if err != nil {
		return Result{}, err
	}
	h := &house{folder: folder, binDir: o.BinDir}
	result, err := h.series(ctx, o)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if h.admin != nil {
		h.dropping.Wait()
		h.admin.Close()
	}
	if h.server != nil {
		err = errors.Join(err, h.server.Stop(ending))
	}
	if (err == nil || errors.Is(err, context.Canceled)) && result.Right() && !o.Keep {
		return result, errors.Join(err, folder.Remove(ending))
	}
	return result, errors.Join(err, folder.RemoveData(ending))
}

func (h *house) series(ctx context.Context, o Options) (result Result, err error) {
	if o.Lanes == 0 {
		o.Lanes = LanesFor()
	}
	o.Lanes = min(o.Lanes, o.Runs)
	if err := h.open(ctx, o.Lanes); err != nil {
		return result, err
	}
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	seeds, outcomes := make(chan uint64), make(chan outcome)
	go func() {
		defer close(seeds)
		var late <-chan time.Time
		if o.Within > 0 {
			late = time.After(o.Within)
		}
		for n := range o.Runs {
			select {
			case seeds <- o.Seed + uint64(n):
			case <-late:
				return
			case <-work.Done():
				return
			}
		}
	}()
	var lanes sync.WaitGroup
	for n := range o.Lanes {
		lanes.Go(func() { h.lane(work, n, o, seeds, outcomes) })
	}
	go func() {
		lanes.Wait()
		close(outcomes)
	}()

	begun := time.Now()
	bar := o.Progress.Start("  selftest", "runs", o.Runs)
	var sum tally
	for out := range outcomes {
		if out.err != nil {
			if work.Err() == nil {
				err = errors.Join(err, fmt.Errorf("run %d could not be carried through: %w", out.script.seed, out.err))
				cancel()
			}
			continue
		}
		result.Runs++
		sum.add(out.tally)
		bar.Set(result.Runs)
		if out.verdict.right() {
			if !o.Keep {
				h.forgetLogs(out.script.seed)
			}
			continue
		}
		result.Doubled += len(out.verdict.Doubled)
		result.Lost += len(out.verdict.Lost)
		result.Wrong += len(out.verdict.Wrong)
		bar.Clear()
		h.tell(o, out)
		if o.FirstOnly {
			cancel()
		}
	}
	bar.End()
	if err == nil {
		err = context.Cause(ctx)
	}
	_, _ = fmt.Fprintf(o.Out, "  %s runs of %d bills: %s kills, %s freezes, %s clock jumps, %s restores; %s requests, %s movements of money; %.0f s\n",
		console.Count(result.Runs), bills, console.Count(sum.Kills), console.Count(sum.Freezes), console.Count(sum.Jumps), console.Count(sum.Restores),
		console.Count(sum.Requests), console.Count(sum.Charges), time.Since(begun).Seconds())
	if len(sum.Points) > 0 {
		_, _ = fmt.Fprintf(o.Out, "  struck at: %s\n", counted(sum.Points, crashPoints()))
	}
	if len(sum.Faults) > 0 {
		_, _ = fmt.Fprintf(o.Out, "  faults met: %s\n", counted(sum.Faults, slices.Sorted(maps.Keys(sum.Faults))))
	}
	result.Recovered, result.Recovery = sum.Orphans, sum.Slowest
	_, _ = fmt.Fprintf(o.Out, "  %s bills were in the hands of a service when it was killed; another took each up within %.1f s (the lease is %s)\n",
		console.Count(sum.Orphans), sum.Slowest.Seconds(), lease)
	return result, err
}

func (t *tally) add(o tally) {
	t.Kills += o.Kills
	t.Freezes += o.Freezes
	t.Jumps += o.Jumps
	t.Restores += o.Restores
	t.Charges += o.Charges
	t.Requests += o.Requests
	t.Orphans += o.Orphans
	t.Slowest = max(t.Slowest, o.Slowest)
	t.Points, t.Faults = sumOf(t.Points, o.Points), sumOf(t.Faults, o.Faults)
}

// lane plays one run after the other, on a stand-in of its own.
func (h *house) lane(ctx context.Context, n int, o Options, seeds <-chan uint64, outcomes chan<- outcome) {
	stand, stop, err := h.startStandIn(ctx, fmt.Sprintf("stripesim-%d", n+1))
	if err != nil {
		outcomes <- outcome{err: err}
		return
	}
	defer stop()
	broken := map[string]string{}
	if o.Break != "" {
		broken["BILLING_BREAK"] = o.Break
	}
	for seed := range seeds {
		out := outcome{script: write(seed, o.Plots)}
		begun := time.Now()
		out.verdict, out.tally, out.err = h.play(ctx, stand, out.script, broken, o)
		out.took = time.Since(begun)
		outcomes <- out
		if out.err != nil {
			return
		}
	}
}

// tell prints what was wrong with a run, and how to see it again.
func (h *house) tell(o Options, out outcome) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(o.Out, format+"\n", args...) }
	say("WRONG: %s", out.script)
	for kind, lines := range map[string][]string{"doubled": out.verdict.Doubled, "lost": out.verdict.Lost, "wrong": out.verdict.Wrong} {
		for i, line := range lines {
			if i == 5 {
				say("       %s: and %d more", kind, len(lines)-i)
				break
			}
			say("       %s: %s", kind, line)
		}
	}
	if o.Repeat != nil {
		say("       again: %s", o.Repeat(out.script.seed))
	}
	say("       logs:  %s", strings.ReplaceAll(h.folder.Path(fmt.Sprintf("run-%d-*.log", out.script.seed)), " ", `\ `))
}
