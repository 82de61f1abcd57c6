package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
)

// runProcessor is a bounded run.
type runProcessor struct {
	Name   string `arg:"" help:"Name of the processor."`
	StopAt string `required:"" help:"The position, or a place such as 17-40213. Every partition stops behind its last event up to there." placeholder:"POSITION"`
	Reason string `required:"" help:"Why, for whoever reads the record later." placeholder:"TEXT"`
	NoWait bool   `help:"Do not wait until it has stopped."`
}

// Help says who does the work.
func (runProcessor) Help() string {
	return "A paused processor goes on, and one that runs goes no further than the position, in all replicas, until billingctl processors resume. " +
		"The service does the work; with a read model this process helps, so that the service need not run."
}

// Run sets the end and waits until the processor has come there.
func (r runProcessor) Run(s *shell) error {
	position, err := positionOf(r.StopAt)
	if err != nil {
		return usageError{err}
	}
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := tracking.RunTo(s.ctx, pool, r.Name, position, actor(), r.Reason); err != nil {
		return err
	}
	if r.NoWait {
		return s.done("%s runs to %d", r.Name, position)
	}
	wait := func(ctx context.Context, _ *tracking.Runtime) error {
		return awaitStop(ctx, pool, r.Name, s.progress())
	}
	if projection, named := projections.Named(r.Name); named == nil {
		only := func(*eventstore.Store) tracking.Processor { return projection.Processor() }
		err = alongside(s.ctx, pool, only, wait)
	} else {
		err = wait(s.ctx, nil)
	}
	if err != nil {
		return fmt.Errorf("run %s to %d: %w", r.Name, position, err)
	}
	return s.done("%s has stopped at %d; billingctl processors resume lets it go on", r.Name, position)
}

// positionOf reads a position, or a place, of which the position counts.
func positionOf(text string) (int64, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
		return n, nil
	}
	place, err := eventstore.ParsePlace(text)
	if err != nil {
		return 0, fmt.Errorf("--stop-at must be a position of the log such as 40213 or 17-40213, not %q", text)
	}
	return place.Position, nil
}

// awaitStop waits until a bounded run has come to its end. The log may have yet
// to come there: only a processor that has something to do and does nothing is
// said to hang.
func awaitStop(ctx context.Context, pool *pgxpool.Pool, name string, progress console.Progress) error {
	bar := progress.Start("running "+name, "partitions", eventstore.Partitions)
	defer bar.End()
	moved, left := time.Now(), int64(-1)
	for {
		now, err := statusOf(ctx, pool, name)
		if err != nil {
			return err
		}
		stopped := 0
		for _, p := range now.Partitions {
			if p.Stopped {
				stopped++
			}
		}
		bar.Set(stopped)
		switch {
		case now.Stopped:
			return nil
		case now.StopAt == 0:
			return errors.New("somebody has resumed it")
		case now.Paused:
			return errors.New("somebody has paused it")
		case now.BehindEvents != left || now.BehindEvents == 0:
			moved, left = time.Now(), now.BehindEvents
		case time.Since(moved) > stalled:
			return fmt.Errorf("it has not moved for %s: %s; does billingd run?", stalled, orElse(now.LastError, "no reason is known"))
		}
		if !pause(ctx, replayLook) {
			return ctx.Err()
		}
	}
}
