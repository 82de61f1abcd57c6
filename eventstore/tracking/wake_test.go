package tracking

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Ten thousand idle minutes, by a fake clock: every scan is made, none is
// followed by work, and then both ways to wake a worker are as quick as in the
// first minute. A partition that had to pause is back on time.
func TestTenThousandIdleMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle, poll = 10_000 * time.Minute, time.Second
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex
		scans, behind := 0, uint64(0)
		heard, taken := make(chan uint64, 1), make(chan uint64, 1)
		ready := newReadiness(0, time.Now)
		var parts sync.WaitGroup
		parts.Go(func() {
			look(ctx, poll, heard, func(partitions uint64, thorough bool) {
				mu.Lock()
				defer mu.Unlock()
				scans++
				ready.wake(behind&partitions, thorough)
			})
		})
		parts.Go(func() {
			for {
				partitions, _, ok := ready.take(16)
				if !ok {
					return
				}
				mu.Lock()
				behind &^= partitions
				mu.Unlock()
				taken <- partitions
				ready.done(partitions, 0, 0)
			}
		})
		// The database has events in partitions; told or not, a worker gets them.
		grow := func(partitions uint64, told bool) (after time.Duration) {
			mu.Lock()
			behind |= partitions
			mu.Unlock()
			begun := time.Now()
			if told {
				tell(heard, partitions)
			}
			if got := <-taken; got != partitions {
				t.Errorf("%b was taken, %b has grown", got, partitions)
			}
			return time.Since(begun)
		}
		time.Sleep(idle)
		synctest.Wait()
		mu.Lock()
		if want := int(idle / poll); scans < want-1 || scans > want {
			t.Errorf("%d scans in %s", scans, idle)
		}
		mu.Unlock()
		if len(taken) > 0 {
			t.Error("there was work, though nothing had grown")
		}
		if took := grow(1<<5, true); took != 0 {
			t.Errorf("what was heard of waited %s", took)
		}
		if took := grow(1<<63|1, false); took > poll {
			t.Errorf("what nobody told of waited %s", took)
		}
		begun := time.Now()
		ready.hold(7, time.Hour)
		ready.done(0, 0, 0)
		if got := <-taken; got != 1<<7 || time.Since(begun) != time.Hour {
			t.Errorf("%b came back after %s", got, time.Since(begun))
		}
		stop()
		ready.stop()
		parts.Wait()
	})
}
