package cli

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
)

// replayCommand builds a read model anew.
type replayCommand struct {
	Projection string `arg:"" help:"Name of the read model."`
	Reason     string `help:"Why, for whoever reads the record later." default:"replay" placeholder:"TEXT"`
}

// Help says what happens meanwhile.
func (replayCommand) Help() string {
	return "The read model's tables are emptied and filled again from the beginning of the log. The service may run: what it records meanwhile is contained, " +
		"and until the end readers see an incomplete read model whose as_of says how far it has come. Nothing is dispatched and nobody is called. " +
		"This process does the work, together with the service if that runs."
}

// replayLook is how often progress is looked at.
const replayLook = 200 * time.Millisecond

// Run replays the read model and waits until it contains everything that had
// been recorded when it was emptied.
func (r replayCommand) Run(s *shell) error {
	projection, err := projections.Named(r.Projection)
	if err != nil {
		return usageError{err}
	}
	pool, err := s.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	begun := time.Now()
	events, err := replay(s.ctx, pool, projection.Processor(), r.Reason, s.progress())
	if err != nil {
		return fmt.Errorf("replay %s: %w", r.Projection, err)
	}
	took := time.Since(begun).Seconds()
	return s.printf("replay: projection=%s events=%d seconds=%.1f rate=%.0f\n", r.Projection, events, took, float64(events)/max(took, 0.001))
}

// replay resets a processor and helps until it is where the log had ended.
func replay(ctx context.Context, pool *pgxpool.Pool, p tracking.Processor, reason string, progress console.Progress) (events int64, err error) {
	before, err := statusOf(ctx, pool, p.Name)
	if err != nil {
		return 0, err
	}
	if before.Paused {
		return 0, fmt.Errorf("%s is paused; billingctl processors resume %s lets it go on", p.Name, p.Name)
	}
	if err := tracking.Reset(ctx, pool, p, 0, actor(), reason); err != nil {
		return 0, err
	}
	begin, err := statusOf(ctx, pool, p.Name)
	if err != nil {
		return 0, err
	}
	only := func(*eventstore.Store) tracking.Processor { return p }
	err = alongside(ctx, pool, only, func(ctx context.Context, _ *tracking.Runtime) error {
		bar := progress.Start("replaying "+p.Name, "events", int(begin.BehindEvents))
		defer bar.End()
		return awaitReplay(ctx, pool, begin, bar)
	})
	return begin.BehindEvents, err
}

// awaitReplay waits until a processor has come to where the log ended at begin.
func awaitReplay(ctx context.Context, pool *pgxpool.Pool, begin tracking.ProcessorStatus, bar *console.Bar) error {
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
		bar.Set(int(begin.BehindEvents - min(begin.BehindEvents, now.BehindEvents)))
		switch {
		case behind == 0 && now.Parked > 0:
			return fmt.Errorf("%d customers are parked; billingctl dead-letters list --processor %s says why", now.Parked, now.Processor)
		case behind == 0:
			bar.Set(int(begin.BehindEvents))
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

// alongside runs a processor in this process, as one more replica, while f works.
func alongside(ctx context.Context, pool *pgxpool.Pool, processor func(*eventstore.Store) tracking.Processor, f func(context.Context, *tracking.Runtime) error) error {
	log := slog.New(slog.DiscardHandler)
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), log)
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
