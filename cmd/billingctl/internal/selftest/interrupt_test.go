package selftest_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// TestInterruptedTwice: a second interrupt, while the first one is being obeyed,
// leaves no process and no file behind.
func TestInterruptedTwice(t *testing.T) {
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(t.TempDir(), "self test")
	var said strings.Builder
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "billingctl"), "selftest", "--runs", "100", "--lanes", "2", "--dir", base)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	running := map[string]int{}
	if err := parts.Await(t.Context(), 2*time.Minute, func() (bool, error) {
		running = processes(t, base)
		_, database := running["postmaster.pid"]
		services := 0
		for name := range running {
			if strings.HasPrefix(name, "run-") {
				services++
			}
		}
		return database && services > 0, nil
	}); err != nil {
		t.Fatalf("no run is under way: %v\n%s", err, said.String())
	}
	for range 3 {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || !exit.Exited() {
		t.Errorf("it ends with %v\n%s", err, said.String())
	}
	for name, pid := range running {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d, of %s, is still there: %v", pid, name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(base, "run-*")); len(left) > 0 {
		t.Errorf("%s is left behind", left)
	}
}

// processes are those that a selftest has written down, by the file that names
// them.
func processes(t *testing.T, base string) map[string]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(base, "run-*", "*.pid"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := filepath.Glob(filepath.Join(base, "run-*", "database", "postgres", "volatile", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, file := range append(files, server...) {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has just gone
		}
		number, _, _ := strings.Cut(string(text), "\n")
		if pid, err := strconv.Atoi(strings.TrimSpace(number)); err == nil {
			found[filepath.Base(file)] = pid
		}
	}
	return found
}
