package commands

import (
	"context"
	"errors"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Gateway dispatches commands for callers in this process and tries again
// after errors that may pass. What it sends again is the same command value,
// and so the same key.
type Gateway struct {
	Dispatcher *Dispatcher
	Retry      RetryScheduler
	// Wait pauses between tries; it returns early, with an error, if ctx ends.
	Wait func(ctx context.Context, d time.Duration) error
}

// RetryScheduler says how long to wait after the n-th failed try, n from 1,
// and whether to try again at all.
type RetryScheduler interface {
	After(n int) (wait time.Duration, again bool)
}

// Send dispatches req until it is answered or refused, the scheduler gives up,
// or ctx ends. A refusal is an answer: only transient errors are retried.
func (g *Gateway) Send(ctx context.Context, req Request, with Context) (eventstore.Receipt, error) {
	for n := 1; ; n++ {
		receipt, err := g.Dispatcher.Dispatch(ctx, req, with)
		if err == nil {
			return receipt, nil
		}
		if _, refused := errors.AsType[*domain.Error](err); refused || !eventstore.Transient(err) && !errors.Is(err, ErrContended) {
			return receipt, err
		}
		wait, again := g.Retry.After(n)
		if !again {
			return receipt, err
		}
		if g.Wait(ctx, wait) != nil {
			return receipt, err
		}
	}
}

// Interval tries again after the same pause, at most Most times in all.
type Interval struct {
	Every time.Duration
	Most  int
}

// After implements RetryScheduler.
func (i Interval) After(n int) (time.Duration, bool) { return i.Every, n < i.Most }

// Exponential doubles the pause from First up to Ceiling, at most Most tries
// in all.
type Exponential struct {
	First, Ceiling time.Duration
	Most           int
}

// After implements RetryScheduler.
func (e Exponential) After(n int) (time.Duration, bool) {
	wait := e.First
	for i := 1; i < n && wait < e.Ceiling; i++ {
		wait *= 2
	}
	return min(wait, e.Ceiling), n < e.Most
}
