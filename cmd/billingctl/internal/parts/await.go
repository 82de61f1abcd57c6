package parts

import (
	"context"
	"errors"
	"time"
)

// ErrTooLong is what await returns when its bound is reached.
var ErrTooLong = errors.New("it takes too long")

// Await waits until a condition holds, for the bound at most.
func Await(ctx context.Context, bound time.Duration, condition func() (bool, error)) error {
	return AwaitEvery(ctx, 10*time.Millisecond, bound, condition)
}

// AwaitEvery is await for a condition that takes work to look at.
func AwaitEvery(ctx context.Context, every, bound time.Duration, condition func() (bool, error)) error {
	for waited := NewStopwatch(); ; {
		ok, err := condition()
		if err != nil || ok {
			return err
		}
		if waited.Look() > bound {
			return ErrTooLong
		}
		if err := Pause(ctx, every); err != nil {
			return err
		}
	}
}

// Pause waits. It returns why ctx ended if that was first.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stopwatch tells how long something has been watched. The time in which the
// machine itself stood still does not count: nothing could have happened then.
type Stopwatch struct {
	last  time.Time
	spent time.Duration
}

// standstill is longer than any machine lets a process wait that would work.
const standstill = 2 * time.Second

func NewStopwatch() *Stopwatch { return &Stopwatch{last: time.Now()} }

// Look is the time spent until now. It is to be looked at often.
func (w *Stopwatch) Look() time.Duration {
	now := time.Now()
	w.spent += min(now.Sub(w.last), standstill)
	w.last = now
	return w.spent
}

// Restart begins anew.
func (w *Stopwatch) Restart() { *w = *NewStopwatch() }
