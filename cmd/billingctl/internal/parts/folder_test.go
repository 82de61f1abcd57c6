package parts

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program puts a shell script in place of a program. Tests that use it do not
// run side by side: a fork elsewhere could hold the script open for writing.
func program(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func makeFolder(t *testing.T, base string) *Folder {
	t.Helper()
	f, _, err := NewFolder(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// alive reports whether a process exists.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// A process that is killed is dead when kill returns; one that ends by itself
// is told of, with its last words.
func TestChild(t *testing.T) {
	bin, f := t.TempDir(), makeFolder(t, t.TempDir())
	died := make(chan error, 1)
	program(t, bin, "billingd", `echo "$GREETING $STRIPE_API_KEY$DATABASE_URL"; exec sleep 60`)
	c, err := f.Start(bin, "billingd", map[string]string{"GREETING": "hello there"}, func(err error) { died <- err })
	if err != nil {
		t.Fatal(err)
	}
	if err := Await(t.Context(), 10*time.Second, func() (bool, error) { return strings.Contains(Tail(c.Log, 1), "hello"), nil }); err != nil {
		t.Fatalf("%v: %s", err, Tail(c.Log, 5))
	}
	if _, err := f.Start(bin, "billingd", nil, func(error) {}); err == nil {
		t.Error("a second one starts in the same folder")
	}
	if pid, running, err := f.running("billingd"); err != nil || !running || pid != c.process.Pid {
		t.Errorf("running is %d %v, %v", pid, running, err)
	}
	if err := c.Kill(); err != nil {
		t.Error(err)
	}
	if alive(c.process.Pid) {
		t.Error("it lives after kill")
	}
	if _, running, err := f.running("billingd"); err != nil || running {
		t.Errorf("it is running after kill: %v, %v", running, err)
	}
	select {
	case err := <-died:
		t.Errorf("a kill is told of as unasked: %v", err)
	default:
	}

	program(t, bin, "stripesim", `echo first; echo "last words" >&2; exit 3`)
	c, err = f.Start(bin, "stripesim", nil, func(err error) { died <- err })
	if err != nil {
		t.Fatal(err)
	}
	err = <-died
	for _, want := range []string{"stripesim ended unasked: exit status 3", "last words", c.Log} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if _, err := c.AwaitFile(t.Context(), f.Path("never"), time.Minute); err == nil || !strings.Contains(err.Error(), "ended unasked") {
		t.Errorf("waiting for the dead: %v", err)
	}
}

// A process that does not stop in order is an error.
func TestChildStops(t *testing.T) {
	bin, f := t.TempDir(), makeFolder(t, t.TempDir())
	for name, script := range map[string]string{
		"billingd":  `trap 'exit 0' TERM; touch up-billingd; while :; do sleep 0.05; done`,
		"stripesim": `trap 'echo cannot; exit 1' TERM; touch up-stripesim; while :; do sleep 0.05; done`,
	} {
		program(t, bin, name, script)
		c, err := f.Start(bin, name, nil, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.AwaitFile(t.Context(), f.Path("up-"+name), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		switch err := c.Stop(); {
		case name == "billingd" && err != nil:
			t.Error(err)
		case name == "stripesim" && (err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "cannot")):
			t.Errorf("an unruly end gives %v", err)
		}
		if alive(c.process.Pid) {
			t.Errorf("%s lives after stop", name)
		}
	}
}

// What a killed demo leaves behind is ended and removed by the next; what was
// told to stay, and what still runs, is left alone until Stop.
func TestSweepAndStop(t *testing.T) {
	bin, base := t.TempDir(), filepath.Join(t.TempDir(), "with [space] *")
	program(t, bin, "billingd", `exec sleep 60`)
	start := func(f *Folder) *Child {
		t.Helper()
		c, err := f.Start(bin, "billingd", nil, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	die := func(f *Folder) { f.lock.Close() } // as the kernel does with our process
	dead := func(c *Child) bool {             // it is ours to reap, which may take a moment
		select {
		case <-c.ended:
			return true
		case <-time.After(10 * time.Second):
			return false
		}
	}

	killed, stays, runs := makeFolder(t, base), makeFolder(t, base), makeFolder(t, base)
	killedOne, stayingOne, runningOne := start(killed), start(stays), start(runs)
	if err := stays.Keep(); err != nil {
		t.Fatal(err)
	}
	die(killed)
	die(stays)

	f, swept, err := NewFolder(t.Context(), base)
	if err != nil || swept != 1 {
		t.Fatalf("swept %d, %v", swept, err)
	}
	if !gone(killed.Dir) || !dead(killedOne) {
		t.Error("the killed demo is not gone")
	}
	if gone(stays.Dir) || gone(runs.Dir) || !alive(stayingOne.process.Pid) || !alive(runningOne.process.Pid) {
		t.Error("a demo that was to stay is gone")
	}
	if err := f.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}

	if n, err := Stop(t.Context(), base); err != nil || n != 1 {
		t.Errorf("stopped %d, %v", n, err)
	}
	if !gone(stays.Dir) || !dead(stayingOne) || gone(runs.Dir) || !alive(runningOne.process.Pid) {
		t.Error("Stop has stopped the wrong one")
	}
	die(runs)
	if n, err := Stop(t.Context(), base); err != nil || n != 1 || !dead(runningOne) {
		t.Errorf("stopped %d, %v", n, err)
	}
	if n, err := Stop(t.Context(), filepath.Join(base, "never")); err != nil || n != 0 {
		t.Errorf("stopped %d where nothing is, %v", n, err)
	}
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}

// A number that has come round belongs to somebody else.
func TestStrangersAreLeftAlone(t *testing.T) {
	t.Parallel()
	f := makeFolder(t, t.TempDir())
	if err := os.WriteFile(f.Path("billingd.pid"), []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.end(t.Context(), "billingd"); err != nil {
		t.Fatal(err) // and we are alive to see it
	}
}
