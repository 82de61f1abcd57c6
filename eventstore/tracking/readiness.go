package tracking

import (
	"math/bits"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/billonce/billonce/eventstore"
)

// readiness is what the workers of one processor in this process wait on: the
// partitions that may have something new. It is a hint; the token's row lock
// decides. A partition is given to one worker at a time, and what is heard of
// it meanwhile is kept until it comes back.
type readiness struct {
	mu      sync.Mutex
	changed *sync.Cond
	now     func() time.Time

	ready    uint64
	thorough uint64 // of ready: move past unwanted events too
	busy     uint64
	held     [eventstore.Partitions]time.Time // not before
	pace     time.Duration
	next     time.Time // the next page may start
	turn     int       // partition to begin with, so that none starves
	closed   bool
}

func newReadiness(pace time.Duration, now func() time.Time) *readiness {
	r := &readiness{pace: pace, now: now, turn: rand.IntN(eventstore.Partitions)}
	r.changed = sync.NewCond(&r.mu)
	return r
}

// wake marks partitions as having something new. Thorough: even if nothing of
// it is wanted, the token is to move.
func (r *readiness) wake(partitions uint64, thorough bool) {
	if partitions == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready |= partitions
	if thorough {
		r.thorough |= partitions
	}
	r.changed.Signal()
}

// take waits for up to most ready partitions and gives them to the caller, who
// returns them by done. It reports false once the processor stops.
func (r *readiness) take(most int) (partitions, thorough uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.closed {
			return 0, 0, false
		}
		partitions, thorough, wait := r.pick(most)
		if partitions != 0 {
			if r.ready != 0 {
				r.changed.Signal() // there is more, for another worker
			}
			return partitions, thorough, true
		}
		if wait > 0 {
			timer := time.AfterFunc(wait, r.changed.Broadcast)
			r.changed.Wait()
			timer.Stop()
		} else {
			r.changed.Wait()
		}
	}
}

// pick takes what may be taken now; if that is nothing, wait is when to look
// again, 0 for not before something changes.
func (r *readiness) pick(most int) (partitions, thorough uint64, wait time.Duration) {
	free := r.ready &^ r.busy
	if free == 0 {
		return 0, 0, 0
	}
	now := r.now()
	if pause := r.next.Sub(now); pause > 0 {
		return 0, 0, pause
	}
	for i := range eventstore.Partitions {
		p := (r.turn + i) % eventstore.Partitions
		if free&(1<<p) == 0 {
			continue
		}
		if pause := r.held[p].Sub(now); pause > 0 {
			if wait == 0 || pause < wait {
				wait = pause
			}
			continue
		}
		partitions |= 1 << p
		if bits.OnesCount64(partitions) == most {
			r.turn = (p + 1) % eventstore.Partitions
			break
		}
	}
	if partitions == 0 {
		return 0, 0, wait
	}
	thorough = r.thorough & partitions
	r.ready &^= partitions
	r.thorough &^= partitions
	r.busy |= partitions
	r.next = now.Add(r.pace)
	return partitions, thorough, 0
}

// A paced processor rests restTimes as long as its last page took, at most
// longestRest: what comes in meanwhile shares the next one.
const (
	restTimes   = 4
	longestRest = time.Second
)

// done gives the partitions of a page back, which took so long. More: of them,
// those with more to do at once.
func (r *readiness) done(partitions, more uint64, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy &^= partitions
	if more != 0 {
		r.ready |= more
		r.next = time.Time{}
	} else if rested := r.now().Add(min(restTimes*took, longestRest)); r.pace > 0 && rested.After(r.next) {
		r.next = rested
	}
	if r.ready != 0 {
		r.changed.Signal()
	}
}

// hold keeps a partition, which is ready again, from being taken for a while.
func (r *readiness) hold(partition int16, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[partition] = r.now().Add(pause)
	r.ready |= 1 << partition
}

// stop sends all waiting workers home.
func (r *readiness) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.changed.Broadcast()
}
