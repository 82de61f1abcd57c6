package tracking_test

import (
	"os/exec"
	"testing"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// deadly is the status with which a child's handler ends its process, at the
// second event of the customer of that name.
const deadly = 77

// An event that kills the process is found and parked: the first death leaves
// the processes that follow careful, and two more have it found.
func TestAnEventThatKillsTheProcessIsParked(t *testing.T) {
	t.Parallel()
	for name, among := range map[string]int{"alone": 0, "in the middle of a page": 40} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.exec(`CREATE TABLE elsewhere (n int)`)
			var last eventstore.Recorded
			for version := 1; version <= 3; version++ {
				last = h.append("deadly", last.Head(), changed("deadly", version))
			}
			if among > 0 {
				h.fill(among, 5)
			}
			deaths := 0
			alive := (*exec.Cmd)(nil)
			for alive == nil {
				c := h.child("child")
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_ = c.Wait() // its status is looked at below
				}()
				h.Cleanup(func() {
					_ = c.Process.Kill()
					<-ended
				})
				h.eventually(func() string {
					select {
					case <-ended:
						return ""
					default:
					}
					if value[int](h, `SELECT count(*) FROM dead_letters WHERE status = 'parked'`) == 1 {
						alive = c
						return ""
					}
					return "neither dead nor has it parked the event"
				})
				if alive == nil {
					if deaths++; c.ProcessState.ExitCode() != deadly || deaths > 8 {
						t.Fatalf("%d deaths, the last with status %d", deaths, c.ProcessState.ExitCode())
					}
				}
			}
			if deaths != 6 {
				t.Errorf("%d processes died, want 6: one unseen and five marked", deaths)
			}
			h.caughtUp("child")
			letters, err := tracking.Letters(t.Context(), h.pool, tracking.LetterFilter{})
			if err != nil || len(letters) != 2 || letters[0].SequenceKey != "deadly" || letters[1].Status != tracking.Behind {
				t.Fatalf("letters %+v, %v", letters, err)
			}
			contains(t, letters[0].Error, "5 processes died while they handled it")
			if n := value[int](h, `SELECT count(*) FROM seen`); n != 1+5*among {
				t.Errorf("%d events were handled, want %d", n, 1+5*among)
			}
		})
	}
}

// Who ends in order leaves nothing behind, and no event is marked.
func TestOrderedEndsLeaveNoMarks(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(20, 3)
	r := h.run(tracking.Options{}, inOrder("orderly"))
	h.caughtUp("orderly")
	if n := value[int](h, `SELECT count(*) FROM processor_boots`); n != 1 {
		t.Errorf("%d processes are known, want this one", n)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if n := value[int](h, `SELECT (SELECT count(*) FROM processor_boots) + (SELECT count(*) FROM processor_marks)`); n != 0 {
		t.Errorf("%d rows are left of a process that ended in order", n)
	}
}
