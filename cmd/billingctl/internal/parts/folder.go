package parts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/billonce/billonce/eventstore/pglocal"
)

// Folder is where one demo, or one selftest, keeps everything.
//
//	<base>/lock                     held while folders are made and swept
//	<base>/run-…/demo.lock          held by the billingctl that runs it
//	<base>/run-…/demo.json          how its parts are reached
//	<base>/run-…/kept               it was told to leave everything running
//	<base>/run-…/database/          the embedded PostgreSQL
//	<base>/run-…/NAME.pid, .lock    process NAME: its number, and the lock it holds
//	<base>/run-…/NAME.log           what it said
type Folder struct {
	Dir  string // its path
	lock *os.File
}

// Path is that of a file in the folder.
func (f *Folder) Path(name string) string { return filepath.Join(f.Dir, name) }

// Base is the folder of all runs of a kind ("demo") of this user.
func Base(kind string) (string, error) {
	if cache, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(cache, "billonce", kind)
		if os.MkdirAll(dir, 0o700) == nil {
			return dir, nil
		}
	}
	// No home of one's own: a folder that nobody else may have made before us.
	dir := filepath.Join(os.TempDir(), "billonce-"+kind+"-"+strconv.Itoa(os.Geteuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make a folder: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("make a folder: %w", err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() {
		return "", fmt.Errorf("make a folder: %s belongs to somebody else", dir)
	}
	return dir, nil
}

// NewFolder makes a folder for a run, and removes what runs left behind that
// were killed. Swept tells how many.
func NewFolder(ctx context.Context, base string) (f *Folder, swept int, err error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, 0, fmt.Errorf("make a folder: %w", err)
	}
	making, err := lockBase(ctx, base)
	if err != nil {
		return nil, 0, err
	}
	defer making.Close()
	abandoned, err := folders(base, func(f Folder) bool { return !f.isKept() })
	if err != nil {
		return nil, 0, err
	}
	for _, old := range abandoned {
		if err := old.clear(ctx); err != nil {
			return nil, swept, fmt.Errorf("remove what an earlier run left behind: %w", err)
		}
		swept++
	}
	dir, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return nil, swept, fmt.Errorf("make a folder: %w", err)
	}
	f = &Folder{Dir: dir}
	f.lock, err = take(f.Path("demo.lock")) // ours alone: the base is locked
	return f, swept, err
}

// Stop ends what runs have left running, those that were told to, and removes
// it. It reports how many there were.
func Stop(ctx context.Context, base string) (stopped int, err error) {
	if _, err := os.Stat(base); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	making, err := lockBase(ctx, base)
	if err != nil {
		return 0, err
	}
	defer making.Close()
	kept, err := folders(base, func(Folder) bool { return true })
	if err != nil {
		return 0, err
	}
	for _, f := range kept {
		if err := f.clear(ctx); err != nil {
			return stopped, fmt.Errorf("stop what runs in %s: %w", f.Dir, err)
		}
		stopped++
	}
	return stopped, nil
}

// folders are the folders below base whose run has ended, and that fit. Their
// locks are taken.
func folders(base string, fits func(Folder) bool) (found []Folder, err error) {
	dirs, err := filepath.Glob(filepath.Join(escapeGlob(base), "run-*"))
	if err != nil {
		return nil, fmt.Errorf("look for earlier runs: %w", err)
	}
	for _, dir := range dirs {
		f := Folder{Dir: dir}
		if !fits(f) {
			continue
		}
		if f.lock, err = take(f.Path("demo.lock")); err != nil {
			return nil, fmt.Errorf("look for earlier runs: %w", err)
		}
		if f.lock != nil {
			found = append(found, f)
		}
	}
	return found, nil
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// clear ends the processes of a run that has ended, and removes its folder.
func (f *Folder) clear(ctx context.Context) error {
	numbers, err := filepath.Glob(filepath.Join(escapeGlob(f.Dir), "*.pid"))
	if err != nil {
		return fmt.Errorf("look for processes: %w", err)
	}
	for _, path := range numbers {
		if err := f.end(ctx, strings.TrimSuffix(filepath.Base(path), ".pid")); err != nil {
			return err
		}
	}
	return f.Remove(ctx)
}

// endWait is how long a process is given to stop in order.
const endWait = 15 * time.Second

// end ends a process that runs without its parent.
func (f *Folder) end(ctx context.Context, name string) error {
	pid, running, err := f.running(name)
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, endWait}, {syscall.SIGKILL, 5 * time.Second}} {
		if err != nil || !running {
			return err
		}
		if err := syscall.Kill(pid, step.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end %s, process %d: %w", name, pid, err)
		}
		err = Await(ctx, step.wait, func() (bool, error) {
			_, still, err := f.running(name)
			return !still, err
		})
		if errors.Is(err, ErrTooLong) {
			err = nil
		}
		if err == nil {
			pid, running, err = f.running(name)
		}
	}
	if err == nil && running {
		err = fmt.Errorf("end %s: process %d does not end", name, pid)
	}
	return err
}

// running reports whether a process of the folder runs: it holds its lock.
func (f *Folder) running(name string) (pid int, running bool, err error) {
	text, err := os.ReadFile(f.Path(name + ".pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	lock, err := take(f.Path(name + ".lock"))
	if err != nil {
		return 0, false, err
	}
	if lock != nil {
		return 0, false, lock.Close()
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, false, fmt.Errorf("read %s: %w", f.Path(name+".pid"), err)
	}
	return pid, true, nil
}

// Remove removes the folder and the database in it, wherever that lies.
func (f *Folder) Remove(ctx context.Context) error {
	if err := pglocal.Remove(ctx, f.Path("database")); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(f.Dir), f.lock.Close())
}

// RemoveData removes everything but the logs.
func (f *Folder) RemoveData(ctx context.Context) error {
	if err := pglocal.Remove(ctx, f.Path("database")); err != nil {
		return err
	}
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".log") {
			err = errors.Join(err, os.RemoveAll(f.Path(e.Name())))
		}
	}
	return errors.Join(err, f.lock.Close())
}

// Keep marks the folder of a run that is to run on.
func (f *Folder) Keep() error { return os.WriteFile(f.Path("kept"), nil, 0o600) }

func (f *Folder) isKept() bool {
	_, err := os.Stat(f.Path("kept"))
	return err == nil
}

// take locks a file, which it makes. It returns nil if another process has the
// lock. Closing the file drops it.
func take(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return file, nil
	}
	file.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

func lockBase(ctx context.Context, base string) (lock *os.File, err error) {
	err = Await(ctx, time.Minute, func() (bool, error) {
		lock, err = take(filepath.Join(base, "lock"))
		return lock != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for another run to make or remove its folder: %w", err)
	}
	return lock, nil
}
