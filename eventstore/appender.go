package eventstore

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// Limits of the shared commits. Two committers keep the server busy while one
// of them waits for the disk; a group is as large as what waits, up to
// groupMost batches.
const (
	committers   = 2
	groupMost    = 64
	groupTimeout = 30 * time.Second
)

// appender lets appends that wait at the same time share a commit. An append
// that finds nobody at work goes alone and at once. The second committer begins
// when as many wait as the last group had, which were then those that come back:
// without that, the first of them would go alone and leave the others behind.
type appender struct {
	store *Store

	mu    sync.Mutex
	busy  int
	last  int // size of the group that was committed last
	queue []*waiting
}

type waiting struct {
	batch  Batch
	result Result
	err    error
	done   chan struct{}
}

func (a *appender) append(ctx context.Context, b Batch) (Result, error) {
	a.mu.Lock()
	if a.busy == 0 || a.busy < committers && a.last <= 1 {
		a.busy++
		a.mu.Unlock()
		defer a.next(1)
		return a.alone(ctx, b)
	}
	w := &waiting{batch: b, done: make(chan struct{})}
	a.queue = append(a.queue, w)
	if a.busy < committers && len(a.queue) >= a.last {
		a.busy++
		go a.commit(a.take())
	}
	a.mu.Unlock()
	select {
	case <-w.done:
		return w.result, w.err
	case <-ctx.Done():
		if a.withdraw(w) {
			return Result{}, ctx.Err()
		}
		<-w.done // it is being written: its answer comes, and is the truth
		return w.result, w.err
	}
}

// withdraw takes w out of the queue, if it is still there.
func (a *appender) withdraw(w *waiting) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, q := range a.queue {
		if q == w {
			a.queue = append(a.queue[:i], a.queue[i+1:]...)
			return true
		}
	}
	return false
}

// next hands the committer on to whatever waits, or frees it.
func (a *appender) next(committed int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = committed
	if group := a.take(); len(group) > 0 {
		go a.commit(group)
		return
	}
	a.busy--
}

func (a *appender) commit(group []*waiting) {
	defer a.next(len(group))
	a.together(group)
	// Those who were just answered come back with their next appends: let them
	// queue, so that they share the next commit as well.
	runtime.Gosched()
}

// take removes a group from the queue: no two of the same stream or key, since
// within one statement neither would see the other.
func (a *appender) take() (group []*waiting) {
	if len(a.queue) == 0 {
		return nil
	}
	batches := make([]Batch, len(a.queue))
	for i, w := range a.queue {
		batches[i] = w.batch
	}
	round := rounds(batches)[0]
	if len(round) > groupMost {
		round = round[:groupMost]
	}
	taken := make(map[int]bool, len(round))
	for _, i := range round {
		group = append(group, a.queue[i])
		taken[i] = true
	}
	rest := a.queue[:0]
	for i, w := range a.queue {
		if !taken[i] {
			rest = append(rest, w)
		}
	}
	clear(a.queue[len(rest):])
	a.queue = rest
	return group
}

// alone writes one batch by one statement.
func (a *appender) alone(ctx context.Context, b Batch) (Result, error) {
	s := a.store
	batches, results := []Batch{b}, make([]Result, 1)
	var lock []int16
	if !lone(batches) {
		lock = partitionsOfBatches(batches)
	}
	err := s.appendRound(ctx, s.pool, batches, []int{0}, results, lock)
	switch {
	case err == nil:
		s.commits.Add(1)
		s.Committed(Grown(results))
		return results[0], nil
	case clash(err, "events_stream_version"):
		return s.clashed(ctx, s.pool, b, moved) // perhaps by our own first try
	case clash(err, "request_keys_pkey"):
		return s.clashed(ctx, s.pool, b, taken)
	}
	return Result{}, ambiguous(err)
}

// together writes a group in one transaction: two statements, one round trip.
// If that fails as a whole, each is tried by itself, so that one bad batch
// harms no other.
func (a *appender) together(group []*waiting) {
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	s := a.store
	if len(group) > 1 {
		batches, round, results := make([]Batch, len(group)), make([]int, len(group)), make([]Result, len(group))
		for i, w := range group {
			batches[i], round[i] = w.batch, i
		}
		err := s.appendRound(ctx, s.pool, batches, round, results, partitionsOfBatches(batches))
		if err == nil {
			s.commits.Add(1)
			s.Committed(Grown(results))
			for i, w := range group {
				w.result = results[i]
				close(w.done)
			}
			return
		}
		if err := ambiguous(err); brokenConnection(err) {
			for _, w := range group {
				w.err = err
				close(w.done)
			}
			return
		}
	}
	for _, w := range group {
		w.result, w.err = a.alone(ctx, w.batch)
		close(w.done)
	}
}
