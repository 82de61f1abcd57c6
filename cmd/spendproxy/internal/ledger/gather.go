package ledger

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// gatherer lets callers that wait at the same time share a round of work. A
// round begins after each of its callers has arrived, and when the round before
// it says pass, or has ended; until then the next one gathers.
type gatherer[T any] struct {
	rounds int // at the same time
	most   int // callers in a round
	work   func(round []*turn[T], pass func())
	gate   sync.Mutex // held by the round that has not passed yet

	mu    sync.Mutex
	busy  int
	queue []*turn[T]
}

// turn is a caller's part in a round. The work sets err.
type turn[T any] struct {
	of   T
	err  error
	done chan struct{}
}

// do takes part in a round. If ctx ends while the caller waits for one, it has
// not taken part; once its round has begun, the answer is waited for, since it
// is the truth.
func (g *gatherer[T]) do(ctx context.Context, of T) error {
	t := g.join(of)
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		if g.leave(t) {
			return ctx.Err()
		}
		<-t.done
		return t.err
	}
}

func (g *gatherer[T]) join(of T) *turn[T] {
	t := &turn[T]{of: of, done: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, t)
	if g.busy < g.rounds {
		g.busy++
		go g.run()
	}
	return t
}

func (g *gatherer[T]) leave(t *turn[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.queue, t)
	if i < 0 {
		return false
	}
	g.queue = slices.Delete(g.queue, i, i+1)
	return true
}

func (g *gatherer[T]) run() {
	for {
		g.gate.Lock()
		pass := sync.OnceFunc(g.gate.Unlock)
		g.mu.Lock()
		n := min(len(g.queue), g.most)
		if n == 0 {
			g.busy--
			g.mu.Unlock()
			pass()
			return
		}
		round := slices.Clone(g.queue[:n])
		g.queue = slices.Delete(g.queue, 0, n)
		g.mu.Unlock()
		g.work(round, pass)
		pass()
		for _, t := range round {
			close(t.done)
		}
		// Those who were just answered come back with their next call: let them
		// queue, so that they share the next round as well.
		runtime.Gosched()
	}
}
