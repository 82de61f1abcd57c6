package selftest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/cmd/billingctl/internal/selftest"
)

// programs builds the programs, once, without -race: what is tested here is how
// they meet.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "billonce selftest ")
	if err != nil {
		return "", err
	}
	built = dir
	build := exec.Command("go", "build", "-o", dir, "./cmd/billingctl", "./cmd/billingd", "./cmd/stripesim")
	build.Dir = filepath.Join("..", "..", "..", "..")
	if said, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build the programs: %w: %s", err, said)
	}
	return dir, nil
})

// built is what is to be removed in the end.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(built)
	os.Exit(code)
}

func series(t *testing.T, o selftest.Options) (selftest.Result, string) {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	o.BinDir, o.Base, o.Out, o.Progress = dir, filepath.Join(t.TempDir(), "self test"), &out, console.Silent
	result, err := selftest.Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return result, out.String()
}

// TestSeries is a short series: nothing is doubled, lost or wrong. It is 300 runs,
// or as many as begin within three minutes; every plot is among the fewest that
// are enough. `make selftest` plays all 300, however long that takes.
func TestSeries(t *testing.T) {
	runs, within, enough := 300, 3*time.Minute, 20
	if testing.Short() {
		runs, enough = 8, 8
	}
	result, out := series(t, selftest.Options{Seed: 1, Runs: runs, Within: within})
	if !result.Right() || result.Runs < enough {
		t.Errorf("%s\n%s", result, out)
	}
	t.Log(strings.TrimSpace(out))
}

// TestRecovery: bills in the hands of a service that is killed are taken up by
// another without anybody's help. How long that took is measured and told, and
// not judged here: a busy machine may start a service late.
func TestRecovery(t *testing.T) {
	result, out := series(t, selftest.Options{Seed: 1, Runs: 3, Lanes: 3, Plots: []string{"lost id"}})
	if !result.Right() || result.Recovered == 0 || result.Recovery <= 0 {
		t.Errorf("%s; %d bills were taken up, the slowest after %s\n%s", result, result.Recovered, result.Recovery, out)
	}
	if !strings.Contains(out, fmt.Sprintf("another took each up within %.1f s", result.Recovery.Seconds())) {
		t.Errorf("the figure is not told:\n%s", out)
	}
}

// TestWhatStruckIsTold: the series says at which points services really died or
// froze, as they said themselves, and which faults requests met.
func TestWhatStruckIsTold(t *testing.T) {
	result, out := series(t, selftest.Options{Seed: 1, Runs: 2, Lanes: 2, Plots: []string{"settled"}})
	if !result.Right() {
		t.Errorf("%s\n%s", result, out)
	}
	for _, line := range []string{`(?m)^  struck at: confirm\.sending 2\b`, `(?m)^  faults met: .*\bdecline [1-9]`} {
		if !regexp.MustCompile(line).MatchString(out) {
			t.Errorf("no line is like %s:\n%s", line, out)
		}
	}
}

// TestSeriesCanFail takes out one rule at a time, three of billingd's and one of
// the stand-in's: the plot that needs the rule finds a double or a loss, and
// tells the seed that repeats it.
func TestSeriesCanFail(t *testing.T) {
	for _, test := range []struct {
		rule, plot string
		keys       bool
	}{
		{rule: "write_once", plot: "lost id"},
		{rule: "cancel_before_void", plot: "settled"},
		{rule: "adopt", plot: "restore"},
		{rule: "", plot: "late charge", keys: true},
	} {
		name := test.rule
		if test.keys {
			name = "keys"
		}
		t.Run(name, func(t *testing.T) {
			result, out := series(t, selftest.Options{Seed: 1, Runs: 12, Lanes: 4, Plots: []string{test.plot}, Break: test.rule, IgnoreKeys: test.keys, FirstOnly: true})
			if result.Doubled+result.Lost == 0 {
				t.Errorf("the rule is out and the series has not noticed: %s\n%s", result, out)
			}
			if !strings.Contains(out, "WRONG: seed ") {
				t.Errorf("no seed is told:\n%s", out)
			}
		})
	}
}
