package pglocal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// postmaster is PostgreSQL's main process as its pid file tells of it.
type postmaster struct {
	pid    int
	port   int
	status string // starting, ready, stopping; empty while it is being written
}

// readPostmaster reads the cluster's postmaster.pid. ok is false if there is none
// or it is not yet written.
func readPostmaster(dir string) (pm postmaster, ok bool, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return postmaster{}, false, nil
	}
	if err != nil {
		return postmaster{}, false, err
	}
	// pid, data directory, start time, port, socket directory, address, shared memory, status
	lines := strings.Split(string(text), "\n")
	line := func(n int) string {
		if n >= len(lines) {
			return ""
		}
		return strings.TrimSpace(lines[n])
	}
	pm.pid, err = strconv.Atoi(line(0))
	if err != nil || pm.pid <= 1 {
		return postmaster{}, false, nil
	}
	pm.port, _ = strconv.Atoi(line(3)) // absent until it is known
	pm.status = line(7)
	return pm, true, nil
}

// runningPostmaster is the live postmaster of the cluster, if there is one. A pid
// file whose process is another program's by now is removed: PostgreSQL itself
// would refuse to start over it.
func runningPostmaster(dir string) (postmaster, bool, error) {
	pm, ok, err := readPostmaster(dir)
	if err != nil || !ok || !alive(pm.pid) {
		return postmaster{}, false, err
	}
	if servesCluster(pm.pid, dir) {
		return pm, true, nil
	}
	if err := os.Remove(filepath.Join(dir, "postmaster.pid")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return postmaster{}, false, err
	}
	return postmaster{}, false, nil
}

// servesCluster reports whether the process is a PostgreSQL on dir. If the
// system does not say, it is taken for one: two servers on one cluster would be
// worse than a refusal.
func servesCluster(pid int, dir string) bool {
	var command string
	if runtime.GOOS == "linux" {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return !errors.Is(err, fs.ErrNotExist)
		}
		command = string(bytes.ReplaceAll(text, []byte{0}, []byte{' '}))
	} else {
		out, err := exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
		if err != nil {
			return true
		}
		command = string(out)
	}
	return strings.Contains(command, "postgres") && strings.Contains(command, dir)
}

// alive reports whether the process exists. A child of ours that has ended is
// reaped, and an ended one that nobody has reaped does not count.
func alive(pid int) bool {
	var status syscall.WaitStatus
	if reaped, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); err == nil && reaped == pid {
		return false
	}
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return false
	}
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		// "pid (name) state …", and the name may hold anything
		if end := bytes.LastIndexByte(stat, ')'); end >= 0 && bytes.HasPrefix(stat[end:], []byte(") Z")) {
			return false
		}
	}
	return true
}

// spawn starts PostgreSQL and returns its pid and where in the log its words
// begin. No goroutine waits for it: alive reaps it.
func (c cluster) spawn(port, connections int) (pid int, logged int64, err error) {
	out, err := c.openLog()
	if err != nil {
		return 0, 0, err
	}
	defer out.Close()
	logged, err = out.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.Command(c.bin.postgres(), c.arguments(port, connections)...)
	cmd.Dir = c.home
	cmd.Env = serverEnviron()
	cmd.SysProcAttr = c.who.attributes()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	pid = cmd.Process.Pid
	return pid, logged, cmd.Process.Release()
}

// maxLog is the size past which the server's log starts anew: 8 MiB.
const maxLog = 8 << 20

func (c cluster) openLog() (*os.File, error) {
	f, err := os.OpenFile(c.logPath(), os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > maxLog {
		err = f.Truncate(0)
	}
	if err == nil {
		err = c.who.give(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// logSince returns what the server said from an offset in its log on.
func (c cluster) logSince(offset int64) string {
	f, err := os.Open(c.logPath())
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.NewSectionReader(f, offset, 64<<10))
	return string(text)
}
