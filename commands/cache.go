package commands

import (
	"sync"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// cacheMost bounds the streams whose state is kept in the process.
const cacheMost = 50_000

// folded is a stream's state and where in the stream it is.
type folded struct {
	state any
	head  eventstore.Head
}

// cache keeps committed states by stream. A stale entry costs reading the
// events since, or a version conflict; it never makes a decision wrong, since
// every append names the version it was decided at.
type cache struct {
	mu      sync.Mutex
	entries map[domain.StreamID]folded
}

func (c *cache) get(s domain.StreamID) (folded, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.entries[s]
	return f, ok
}

// put keeps the newer of f and what is there.
func (c *cache) put(s domain.StreamID, f folded) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[domain.StreamID]folded{}
	}
	if old, ok := c.entries[s]; ok {
		if old.head.Version >= f.head.Version {
			return
		}
	} else if len(c.entries) >= cacheMost {
		for victim := range c.entries { // map order is as good as any
			delete(c.entries, victim)
			break
		}
	}
	c.entries[s] = f
}

func (c *cache) drop(s domain.StreamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, s)
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
}
