package tracking_test

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
)

// freeze stops a child in the middle of a page: its session holds tokens, and
// says nothing any more.
func (h *house) freeze(c *exec.Cmd, name string) {
	h.Helper()
	h.eventually(func() string {
		if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
			return err.Error()
		}
		// What the server is at when the process stops, it finishes first.
		var held, still int
		for range 2 {
			held, still = still, value[int](h, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()
				AND state = 'idle in transaction' AND query NOT LIKE 'LISTEN%' AND clock_timestamp() - state_change > interval '5 ms'`, name)
		}
		if held > 0 && still > 0 {
			return ""
		}
		if err := c.Process.Signal(syscall.SIGCONT); err != nil {
			return err.Error()
		}
		return "it is not caught in the middle of a page"
	})
}

// Replicas join, are killed, frozen in the middle of a page, go on and are
// killed again, under load. Nothing is lost, repeated or out of order. What a
// dead one held goes on at once; what a frozen one held, when the server has
// ended its transaction; and what that one then writes fails.
func TestReplicasComeAndGo(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(`CREATE TABLE elsewhere (n int)`)
	stop := h.writers(3)
	frozen := h.child("frozen")
	h.eventually(func() string {
		if value[int](h, `SELECT count(*) FROM seen`) < 50 {
			return "it has not begun"
		}
		return ""
	})
	h.freeze(frozen, "frozen")
	begun := time.Now()
	dead := h.child("dead") // joins while the other one is frozen
	h.eventually(func() string {
		if value[int](h, `SELECT count(*) FROM processor_tokens WHERE owner LIKE $1`, fmt.Sprintf("%%/%d/%%", dead.Process.Pid)) == 0 {
			return "the second one does not share the work"
		}
		return ""
	})
	if err := dead.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = dead.Wait() // it was killed, and says so
	h.child("third")
	stop()
	h.eventually(func() string {
		if n := value[int](h, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'frozen' AND datname = current_database() AND state LIKE 'idle in transaction%'`); n > 0 {
			return "the frozen one still holds its tokens"
		}
		return ""
	})
	// The pause is childTimeout and five seconds; the rest is what a busy machine takes.
	if took := time.Since(begun); took > childTimeout+5*time.Second+3*time.Second {
		t.Errorf("the frozen one held its tokens for %s", took)
	}
	h.caughtUp("child")
	h.exactlyOnce("child")
	if err := frozen.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	before := value[time.Time](h, `SELECT clock_timestamp()`)
	n := 0
	h.eventually(func() string { // what it was at has failed, and it takes part again
		c := fmt.Sprintf("more%d", n)
		h.append(c, eventstore.Head{}, registered(c))
		n++
		if value[int](h, `SELECT count(*) FROM processor_tokens WHERE owner LIKE $1 AND updated_at > $2`, fmt.Sprintf("%%/%d/%%", frozen.Process.Pid), before) == 0 {
			return "the frozen one does not go on"
		}
		return ""
	})
	h.caughtUp("child")
	h.exactlyOnce("child")
	h.nothingAside()
}

// With forty milliseconds to the database and back, a page takes a few round
// trips and no more, however many events it has, and a wake-up a few as well.
func TestLongLine(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	proxy := pgtest.NewProxy(t, h.dsn)
	const trip = 40 * time.Millisecond
	proxy.Delay(trip / 2)
	pool, err := pgxpool.New(t.Context(), proxy.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	h.fill(100, 20)
	p := reader("far")
	p.PageSize, p.Partitions = 500, 64
	r := h.runOn(pool, h.store, tracking.Options{Poll: time.Second, Workers: 1, Log: h.log}, p)
	h.eventually(func() string {
		if value[int](h, `SELECT count(*) FROM seen`) == 0 {
			return "it does not start"
		}
		return ""
	})
	begun, pages := time.Now(), r.Commits()
	h.caughtUp("far")
	took, commits := time.Since(begun), r.Commits()-pages
	t.Logf("%d events in %d pages: %s, %.1f round trips a page", 2000, commits, took.Round(time.Millisecond), float64(took)/float64(trip)/float64(max(commits, 1)))
	if most := time.Duration(commits+2) * 8 * trip; took > most {
		t.Errorf("%d pages took %s, more than %s", commits, took, most)
	}
	begun = time.Now()
	h.append("woken", eventstore.Head{}, registered("woken"))
	h.eventually(func() string {
		if value[int](h, `SELECT count(*) FROM seen WHERE customer = 'woken'`) == 0 {
			return "not handled"
		}
		return ""
	})
	t.Logf("appended to handled: %s", time.Since(begun).Round(time.Millisecond))
	if took := time.Since(begun); took > 900*time.Millisecond {
		t.Errorf("it took %s to be handled", took)
	}
	h.exactlyOnce("far")
}
