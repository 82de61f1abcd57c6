package pglocal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// A lock is an open file with a flock on it. The kernel drops it when the
// process ends, however it ends.
type lock struct{ file *os.File }

// pause is the time between two looks at a lock, a pid file or a server.
const pause = 20 * time.Millisecond

// openLock opens path, which it makes for who if need be. It follows no link.
func openLock(path string, who account) (lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return lock{}, err
	}
	if err := who.give(f); err != nil {
		f.Close()
		return lock{}, err
	}
	return lock{f}, nil
}

// try takes the lock if it is free: how is syscall.LOCK_SH or syscall.LOCK_EX.
func (l lock) try(how int) (bool, error) {
	for {
		err := syscall.Flock(int(l.file.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, fmt.Errorf("lock %s: %w", l.file.Name(), err)
		}
	}
}

// take waits for the lock until ctx ends.
func (l lock) take(ctx context.Context, how int) error {
	for {
		ok, err := l.try(how)
		if ok || err != nil {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return fmt.Errorf("wait for %s: %w", l.file.Name(), err)
		}
	}
}

// drop gives the lock up. It may be called twice. Closing the file alone would
// not do: a child of this process that has forked and not yet begun its program
// holds the same open file, and the lock with it.
func (l lock) drop() {
	if l.file == nil {
		return
	}
	syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	l.file.Close()
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
