package pglocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// stopWait is how long a server is given to stop in order when the caller sets
	// no limit.
	stopWait = 30 * time.Second
	// cutWait is how long it is given to end at once.
	cutWait = 5 * time.Second
)

// Stop ends this process's use of the server, and the server if it was the last
// user. Open connections are cut and their transactions rolled back. When ctx
// ends, or after 30 seconds, the server is made to end at once: committed data
// is safe, and the next start recovers. A second call does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return nil
	}
	starting, err := lockDataDir(s.dataDir)
	if err == nil {
		defer starting.drop()
		err = starting.take(ctx, syscall.LOCK_EX)
	}
	if err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	if err := s.leave(ctx); err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	return nil
}

// leave gives up this process's use, and stops the server if nobody else has
// one. The caller holds the data directory's lock.
func (s *Server) leave(ctx context.Context) error {
	s.users.drop()
	s.released = true
	inUse.Delete(s)
	last, err := s.cluster.unused()
	if err != nil || !last {
		return err
	}
	if err := s.cluster.shutdown(ctx); err != nil {
		return err
	}
	s.log.Info("PostgreSQL stopped", "dir", s.cluster.dir())
	return nil
}

// unused reports whether no process uses the server. It stays so only while the
// caller holds the data directory's lock.
func (c cluster) unused() (bool, error) {
	users, err := openLock(filepath.Join(c.home, "users"), c.who)
	if err != nil {
		return false, err
	}
	defer users.drop()
	return users.try(syscall.LOCK_EX)
}

// shutdown stops the cluster's server, whoever started it, and returns when it
// has ended.
func (c cluster) shutdown(ctx context.Context) error {
	pm, running, err := runningPostmaster(c.dir())
	if err != nil || !running {
		return err
	}
	return c.end(ctx, pm.pid)
}

// end asks the postmaster to stop, each time less kindly: fast, then, when ctx
// has ended too, immediate, then by force.
func (c cluster) end(ctx context.Context, pid int) error {
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{
		{syscall.SIGINT, stopWait},
		{syscall.SIGQUIT, cutWait},
		{syscall.SIGKILL, cutWait},
	} {
		if err := syscall.Kill(pid, step.signal); errors.Is(err, syscall.ESRCH) {
			return nil
		} else if err != nil {
			return fmt.Errorf("signal the server, process %d: %w", pid, err)
		}
		wait, cancel := context.WithTimeout(ctx, step.wait)
		err := c.awaitEnd(wait, pid)
		cancel()
		if err == nil {
			return nil
		}
		ctx = context.WithoutCancel(ctx)
	}
	return fmt.Errorf("the server, process %d, does not end", pid)
}

// awaitEnd waits until the postmaster has ended.
func (c cluster) awaitEnd(ctx context.Context, pid int) error {
	var unnamed time.Time
	for alive(pid) {
		// Its pid file goes last. On a system that does not tell a process that has
		// ended but was not reaped from a live one, that has to do.
		if pm, ok, err := readPostmaster(c.dir()); err == nil && (!ok || pm.pid != pid) {
			if unnamed.IsZero() {
				unnamed = time.Now()
			} else if time.Since(unnamed) > cutWait {
				return nil
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// StopWhenIdle waits until no process has used the data directory's server for
// the given time, stops it and returns. It returns at once when another process
// does this already, or when there is no server's folder. It is for a process
// that outlives the users of a shared server; see [Server.Watched].
func StopWhenIdle(ctx context.Context, dataDir string, idle time.Duration) error {
	if err := stopWhenIdle(ctx, dataDir, idle); err != nil {
		return fmt.Errorf("watch PostgreSQL: %w", err)
	}
	return nil
}

func stopWhenIdle(ctx context.Context, dataDir string, idle time.Duration) error {
	c, err := existing(dataDir)
	if err != nil || c.home == "" {
		return err
	}
	watch, err := openLock(filepath.Join(c.home, "watch"), c.who)
	if err != nil {
		return err
	}
	defer watch.drop()
	if ok, err := watch.try(syscall.LOCK_EX); err != nil || !ok {
		return err
	}
	for idleSince := time.Now(); ; {
		unused, err := c.unused()
		switch {
		case err != nil:
			return err
		case !unused:
			idleSince = time.Now()
		case time.Since(idleSince) >= idle:
			stopped, err := c.stopIfUnused(ctx, dataDir, watch)
			if stopped || err != nil {
				return err
			}
			idleSince = time.Now()
		}
		if err := sleep(ctx, 10*pause); err != nil {
			return err
		}
	}
}

// stopIfUnused gives up the watch before others may start the server anew, so
// that they see it unwatched.
func (c cluster) stopIfUnused(ctx context.Context, dataDir string, watch lock) (bool, error) {
	starting, err := lockDataDir(dataDir)
	if err != nil {
		return false, err
	}
	defer starting.drop()
	if err := starting.take(ctx, syscall.LOCK_EX); err != nil {
		return false, err
	}
	unused, err := c.unused()
	if err != nil || !unused {
		return false, err
	}
	defer watch.drop()
	return true, c.shutdown(ctx)
}

// Watched reports whether a process is in [StopWhenIdle] for this server. One
// that is stays until this process has stopped using the server.
func (s *Server) Watched() (bool, error) {
	watch, err := openLock(filepath.Join(s.cluster.home, "watch"), s.cluster.who)
	if err != nil {
		return false, err
	}
	defer watch.drop()
	free, err := watch.try(syscall.LOCK_EX)
	return !free, err
}

// Remove stops the data directory's server and deletes its data, wherever it
// lies. It refuses while a process uses the server, and does nothing where there
// is none.
func Remove(ctx context.Context, dataDir string) error {
	if err := remove(ctx, dataDir); err != nil {
		return fmt.Errorf("remove PostgreSQL: %w", err)
	}
	return nil
}

func remove(ctx context.Context, dataDir string) error {
	if _, err := os.Lstat(homeLink(dataDir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	starting, err := lockDataDir(dataDir)
	if err != nil {
		return err
	}
	defer starting.drop()
	if err := starting.take(ctx, syscall.LOCK_EX); err != nil {
		return err
	}
	c, err := existing(dataDir)
	if err != nil {
		return err
	}
	if c.home != "" {
		unused, err := c.unused()
		if err != nil {
			return err
		}
		if !unused {
			return fmt.Errorf("%s is in use", dataDir)
		}
		if err := c.shutdown(ctx); err != nil {
			return err
		}
		if err := os.RemoveAll(c.home); err != nil {
			return err
		}
	}
	if err := os.Remove(homeLink(dataDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// existing is the cluster in a data directory, with an empty home if there is
// none.
func existing(dataDir string) (cluster, error) {
	dir, err := filepath.EvalSymlinks(homeLink(dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		return cluster{}, nil
	}
	if err != nil {
		return cluster{}, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return cluster{}, err
	}
	c := cluster{home: dir, who: owner(info)}
	major, err := writtenBy(clusterDir(dir, true))
	c.volatile = major != 0
	return c, err
}
