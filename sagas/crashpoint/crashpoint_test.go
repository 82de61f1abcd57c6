package crashpoint_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/billonce/billonce/sagas/crashpoint"
)

// TestMain lets the test program be the process that dies: armed by the
// variables, it passes one point three times.
func TestMain(m *testing.M) {
	if plan := os.Getenv(crashpoint.CrashVariable); plan != "" {
		p, err := crashpoint.Parse(plan, "")
		if err != nil {
			os.Exit(2)
		}
		crashpoint.Arm(p)
		for range 3 {
			crashpoint.Reach("claim.committed")
			os.Stdout.WriteString("passed\n")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T, plan string) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := &strings.Builder{}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env, cmd.Stdout = append(os.Environ(), crashpoint.CrashVariable+"="+plan), out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// An armed process dies at the n-th time and not before; nothing behind the
// point runs.
func TestKill(t *testing.T) {
	t.Parallel()
	for plan, passed := range map[string]int{"claim.committed": 0, "claim.committed:3": 2, "saga.committing:1,claim.committed:2:kill": 1} {
		cmd, out := child(t, plan)
		err := cmd.Wait()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("%s: the process ends with %v", plan, err)
		}
		if n := strings.Count(out.String(), "passed"); n != passed {
			t.Errorf("%s: passed %d times, want %d", plan, n, passed)
		}
	}
	cmd, out := child(t, "claim.committed:4")
	if err := cmd.Wait(); err != nil || strings.Count(out.String(), "passed") != 3 {
		t.Errorf("a point that is not reached often enough: %v, %q", err, out)
	}
}

// A stopped process goes on when it is told to.
func TestStop(t *testing.T) {
	t.Parallel()
	cmd, out := child(t, "claim.committed:2:stop")
	var status syscall.WaitStatus
	for {
		pid, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid != cmd.Process.Pid {
			t.Fatal(pid, err)
		}
		break
	}
	if !status.Stopped() || status.StopSignal() != syscall.SIGSTOP {
		t.Fatalf("the process is not stopped: %v", status)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || strings.Count(out.String(), "passed") != 3 {
		t.Errorf("after it goes on: %v, %q", err, out)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	p, err := crashpoint.Parse("confirm.answered:3, claim.committed:1:stop", "adopt")
	if err != nil || p.IsZero() || p.String() != "confirm.answered:3:kill, claim.committed:1:stop, without adopt" {
		t.Errorf("%s, %v", p, err)
	}
	if p, err := crashpoint.Parse("", ""); err != nil || !p.IsZero() {
		t.Errorf("nothing gives %s, %v", p, err)
	}
	for _, bad := range []string{"nowhere", "confirm.answered:0", "confirm.answered:x", "confirm.answered:1:explode", "confirm.answered:1:kill:2", ",", "confirm.answered,"} {
		if _, err := crashpoint.Parse(bad, ""); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if _, err := crashpoint.Parse("", "gravity"); err == nil {
		t.Error("a rule that is none is accepted")
	}
}

// Names are unique, and each says what it names.
func TestPoints(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range crashpoint.Points {
		if seen[p.Name] || p.Doc == "" || strings.ContainsAny(p.Name, ":, ") {
			t.Errorf("%q: %q", p.Name, p.Doc)
		}
		seen[p.Name] = true
	}
}

// A point that is not armed costs next to nothing.
func TestInert(t *testing.T) {
	const n = 1_000_000
	began := time.Now()
	for range n {
		crashpoint.Reach("confirm.answered")
	}
	if each := time.Since(began) / n; each > time.Microsecond {
		t.Errorf("an inert point takes %s", each)
	}
	if crashpoint.Broken(crashpoint.Adopt) {
		t.Error("a rule is broken in a process that was not armed")
	}
	if n := testing.AllocsPerRun(100, func() { crashpoint.Reach("confirm.answered") }); n != 0 {
		t.Errorf("an inert point allocates %v times", n)
	}
}
