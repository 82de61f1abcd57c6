package demo

import (
	"context"
	"encoding/json"
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

// folder is where one demo keeps everything.
//
//	<base>/lock                     held while folders are made and swept
//	<base>/run-…/demo.lock          held by the billingctl that runs the demo
//	<base>/run-…/demo.json          how its parts are reached
//	<base>/run-…/kept               the demo was told to leave everything running
//	<base>/run-…/database/          the embedded PostgreSQL
//	<base>/run-…/NAME.pid, .lock    process NAME: its number, and the lock it holds
//	<base>/run-…/NAME.log           what it said
type folder struct {
	dir  string
	lock *os.File
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

// Base is the folder of all demos of this user.
func Base() (string, error) {
	if cache, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(cache, "billonce", "demo")
		if os.MkdirAll(dir, 0o700) == nil {
			return dir, nil
		}
	}
	// No home of one's own: a folder that nobody else may have made before us.
	dir := filepath.Join(os.TempDir(), "billonce-demo-"+strconv.Itoa(os.Geteuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make a folder for the demo: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("make a folder for the demo: %w", err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() {
		return "", fmt.Errorf("make a folder for the demo: %s belongs to somebody else", dir)
	}
	return dir, nil
}

// newFolder makes a folder for a demo, and removes what demos left behind that
// were killed. Swept tells how many.
func newFolder(ctx context.Context, base string) (f *folder, swept int, err error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, 0, fmt.Errorf("make a folder for the demo: %w", err)
	}
	making, err := lockBase(ctx, base)
	if err != nil {
		return nil, 0, err
	}
	defer making.Close()
	abandoned, err := folders(base, func(f folder) bool { return !f.isKept() })
	if err != nil {
		return nil, 0, err
	}
	for _, old := range abandoned {
		if err := old.clear(ctx); err != nil {
			return nil, swept, fmt.Errorf("remove what an earlier demo left behind: %w", err)
		}
		swept++
	}
	dir, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return nil, swept, fmt.Errorf("make a folder for the demo: %w", err)
	}
	f = &folder{dir: dir}
	f.lock, err = take(f.path("demo.lock")) // ours alone: the base is locked
	return f, swept, err
}

// Stop ends what demos have left running, those that were told to, and removes
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
	kept, err := folders(base, func(folder) bool { return true })
	if err != nil {
		return 0, err
	}
	for _, f := range kept {
		if err := f.clear(ctx); err != nil {
			return stopped, fmt.Errorf("stop the demo in %s: %w", f.dir, err)
		}
		stopped++
	}
	return stopped, nil
}

// folders are the folders below base whose demo has ended, and that fit. Their
// locks are taken.
func folders(base string, fits func(folder) bool) (found []folder, err error) {
	dirs, err := filepath.Glob(filepath.Join(escapeGlob(base), "run-*"))
	if err != nil {
		return nil, fmt.Errorf("look for earlier demos: %w", err)
	}
	for _, dir := range dirs {
		f := folder{dir: dir}
		if !fits(f) {
			continue
		}
		if f.lock, err = take(f.path("demo.lock")); err != nil {
			return nil, fmt.Errorf("look for earlier demos: %w", err)
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

// clear ends the processes of a demo that has ended, and removes its folder.
func (f *folder) clear(ctx context.Context) error {
	for _, name := range []string{"billingd", "stripesim"} {
		if err := f.end(ctx, name); err != nil {
			return err
		}
	}
	return f.remove(ctx)
}

// endWait is how long a process is given to stop in order.
const endWait = 15 * time.Second

// end ends a process that runs without its parent.
func (f *folder) end(ctx context.Context, name string) error {
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
		err = await(ctx, step.wait, func() (bool, error) {
			_, still, err := f.running(name)
			return !still, err
		})
		if errors.Is(err, errTooLong) {
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
func (f *folder) running(name string) (pid int, running bool, err error) {
	text, err := os.ReadFile(f.path(name + ".pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	lock, err := take(f.path(name + ".lock"))
	if err != nil {
		return 0, false, err
	}
	if lock != nil {
		return 0, false, lock.Close()
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, false, fmt.Errorf("read %s: %w", f.path(name+".pid"), err)
	}
	return pid, true, nil
}

// remove removes the folder and the database in it, wherever that lies.
func (f *folder) remove(ctx context.Context) error {
	if err := pglocal.Remove(ctx, f.path("database")); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(f.dir), f.lock.Close())
}

// removeData removes everything but the logs.
func (f *folder) removeData(ctx context.Context) error {
	if err := pglocal.Remove(ctx, f.path("database")); err != nil {
		return err
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".log") {
			err = errors.Join(err, os.RemoveAll(f.path(e.Name())))
		}
	}
	return errors.Join(err, f.lock.Close())
}

// addresses say how the parts of a demo are reached.
type addresses struct {
	API       string `json:"api"`
	Token     string `json:"token"`
	Database  string `json:"database"`
	Stripe    string `json:"stripe"`
	StripeKey string `json:"stripe_key"`
	Control   string `json:"control"`
}

// note writes addresses down.
func (f *folder) note(a addresses) error {
	content, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(f.path("demo.json"), append(content, '\n'), 0o600)
}

// keep marks the folder of a demo that is to run on.
func (f *folder) keep() error { return os.WriteFile(f.path("kept"), nil, 0o600) }

func (f *folder) isKept() bool {
	_, err := os.Stat(f.path("kept"))
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
	err = await(ctx, time.Minute, func() (bool, error) {
		lock, err = take(filepath.Join(base, "lock"))
		return lock != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for another demo to make or remove its folder: %w", err)
	}
	return lock, nil
}
