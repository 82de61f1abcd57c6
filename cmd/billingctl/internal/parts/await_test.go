package parts

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAwait(t *testing.T) {
	t.Parallel()
	if err := Await(t.Context(), 20*time.Millisecond, func() (bool, error) { return false, nil }); !errors.Is(err, ErrTooLong) {
		t.Errorf("got %v", err)
	}
	broken := errors.New("broken")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if err := Await(ctx, time.Minute, func() (bool, error) { return false, nil }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// A machine that stood still for an hour has not been patient for an hour.
func TestStopwatch(t *testing.T) {
	t.Parallel()
	w := NewStopwatch()
	w.last = w.last.Add(-time.Hour)
	if spent := w.Look(); spent != standstill {
		t.Errorf("%s were spent", spent)
	}
	w.last = w.last.Add(-time.Second)
	if spent := w.Look(); spent < standstill+time.Second || spent > standstill+2*time.Second {
		t.Errorf("%s were spent", spent)
	}
	w.Restart()
	if spent := w.Look(); spent > time.Second {
		t.Errorf("%s were spent since the restart", spent)
	}
}
