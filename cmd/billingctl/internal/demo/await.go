package demo

import (
	"context"
	"errors"
	"time"
)

// errTooLong is what await returns when its bound is reached.
var errTooLong = errors.New("it takes too long")

// await waits until a condition holds, for the bound at most.
func await(ctx context.Context, bound time.Duration, condition func() (bool, error)) error {
	return awaitEvery(ctx, 10*time.Millisecond, bound, condition)
}

// awaitEvery is await for a condition that takes work to look at.
func awaitEvery(ctx context.Context, every, bound time.Duration, condition func() (bool, error)) error {
	for waited := newStopwatch(); ; {
		ok, err := condition()
		if err != nil || ok {
			return err
		}
		if waited.look() > bound {
			return errTooLong
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

// pause waits. It returns why ctx ended if that was first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stopwatch tells how long something has been watched. The time in which the
// machine itself stood still does not count: nothing could have happened then.
type stopwatch struct {
	last  time.Time
	spent time.Duration
}

// standstill is longer than any machine lets a process wait that would work.
const standstill = 2 * time.Second

func newStopwatch() *stopwatch { return &stopwatch{last: time.Now()} }

// look is the time spent until now. It is to be looked at often.
func (w *stopwatch) look() time.Duration {
	now := time.Now()
	w.spent += min(now.Sub(w.last), standstill)
	w.last = now
	return w.spent
}

// restart begins anew.
func (w *stopwatch) restart() { *w = *newStopwatch() }
