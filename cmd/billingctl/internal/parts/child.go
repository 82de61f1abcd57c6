package parts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Child is a process of a run. It has a session of its own, away from our
// terminal's signals, so that we decide when it ends; it writes to a
// file, so that it may outlive us.
type Child struct {
	name    string
	Log     string // the file with what it says
	process *os.Process
	wanted  atomic.Bool   // its end is
	ended   chan struct{} // closed when it has
	at      time.Time     // when that was
	state   *os.ProcessState
}

// Start starts a program with settings on top of a cleaned environment. Died is
// told if it ends without having been asked to.
func (f *Folder) Start(binDir, program string, settings map[string]string, died func(error)) (*Child, error) {
	return f.StartAs(program, binDir, program, settings, died)
}

// StartAs is Start for one of several processes of a program, which has a name
// of its own.
func (f *Folder) StartAs(name, binDir, program string, settings map[string]string, died func(error)) (*Child, error) {
	c := &Child{name: name, Log: f.Path(name + ".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(c.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	lock, err := take(f.Path(name + ".lock"))
	if err == nil && lock == nil {
		err = errors.New("another one runs in the same folder")
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer lock.Close() // the child keeps it

	cmd := exec.Command(filepath.Join(binDir, program))
	cmd.Dir = f.Dir
	cmd.Env = environment(settings)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.process = cmd.Process
	go func() {
		_ = cmd.Wait() // its state says more
		c.state, c.at = cmd.ProcessState, time.Now()
		close(c.ended)
		if !c.wanted.Load() {
			died(c.unasked())
		}
	}()
	if err := os.WriteFile(f.Path(name+".pid"), []byte(strconv.Itoa(c.process.Pid)+"\n"), 0o600); err != nil {
		return c, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// foreign are settings that must not reach a run's processes.
var foreign = []string{"BILLING", "STRIPE", "SPENDPROXY", "DATABASE_URL", "PG"}

func environment(settings map[string]string) []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(entry, prefix) })
	})
	for name, value := range settings {
		env = append(env, name+"="+value)
	}
	return env
}

// unasked says that the process ended by itself, and what it said last.
func (c *Child) unasked() error {
	return fmt.Errorf("%s ended unasked: %s; its log, %s, ends with\n%s", c.name, c.state, c.Log, Tail(c.Log, 12))
}

// Pid is the process's number.
func (c *Child) Pid() int { return c.process.Pid }

// Resident is how many bytes of memory the process takes now. It is not told
// everywhere: Linux does.
func (c *Child) Resident() (bytes int64, ok bool) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", c.process.Pid))
	if err != nil {
		return 0, false
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(content), &size, &pages); err != nil {
		return 0, false
	}
	return pages * int64(os.Getpagesize()), true
}

// Signal sends the process a signal.
func (c *Child) Signal(s syscall.Signal) error { return c.process.Signal(s) }

// Ended is closed when the process has ended.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// EndedAt is when the process was found to have ended, once Ended is closed.
func (c *Child) EndedAt() time.Time { return c.at }

// Kill ends the process at once, as a power cut would, and returns when it is
// dead.
func (c *Child) Kill() error {
	c.wanted.Store(true)
	if err := c.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", c.name, err)
	}
	<-c.ended
	if status, ok := c.state.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		return fmt.Errorf("kill %s: it had ended before: %s", c.name, c.state)
	}
	return nil
}

// Stop asks the process to end and waits until it has. One that does not end
// in order is an error, and is ended anyway.
func (c *Child) Stop() error {
	c.wanted.Store(true)
	select {
	case <-c.ended:
		return nil // what of it was unasked has been said
	default:
	}
	if err := c.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", c.name, err)
	}
	patience := time.NewTimer(endWait)
	defer patience.Stop()
	select {
	case <-c.ended:
	case <-patience.C:
		_ = c.process.Kill()
		<-c.ended
		return fmt.Errorf("stop %s: it did not stop within %s of SIGTERM and was killed; its log, %s, ends with\n%s", c.name, endWait, c.Log, Tail(c.Log, 12))
	}
	if !c.state.Success() {
		return fmt.Errorf("stop %s: %s; its log, %s, ends with\n%s", c.name, c.state, c.Log, Tail(c.Log, 12))
	}
	return nil
}

// AwaitFile waits for a file that the process writes once it is up.
func (c *Child) AwaitFile(ctx context.Context, path string, bound time.Duration) ([]byte, error) {
	var content []byte
	err := Await(ctx, bound, func() (bool, error) {
		select {
		case <-c.ended:
			return false, c.unasked()
		default:
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		content = text
		return err == nil, err
	})
	if errors.Is(err, ErrTooLong) {
		err = fmt.Errorf("%s has not come up in %s; its log, %s, ends with\n%s", c.name, bound, c.Log, Tail(c.Log, 12))
	}
	return content, err
}

// Tail is the end of a file.
func Tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return "(" + err.Error() + ")"
	}
	content = bytes.TrimSpace(content)
	if len(content) == 0 {
		return "(it is empty)"
	}
	all := strings.Split(string(content), "\n")
	return "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}
