package commands

import (
	"sync"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// bounds of what is kept in the process. A state is about as large as its stream
// is long, so the streams count and their events: a state of a year takes some
// six kilobytes, all of them together at most about 100 megabytes.
type bounds struct{ streams, events int }

var cacheMost = bounds{streams: 50_000, events: 1_000_000}

// folded is a stream's state and where in the stream it is.
type folded struct {
	state any
	head  eventstore.Head
}

// cache keeps committed states by stream. A stale entry costs reading the
// events since, or a version conflict; it never makes a decision wrong, since
// every append names the version it was decided at.
type cache struct {
	most bounds

	mu      sync.Mutex
	entries map[domain.StreamID]folded
	events  int // that the entries are folded from
}

func (c *cache) get(s domain.StreamID) (folded, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.entries[s]
	return f, ok
}

// put keeps the newer of f and what is there, and lets go of others until there
// is room. A stream longer than all of the room is not kept.
func (c *cache) put(s domain.StreamID, f folded) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[domain.StreamID]folded{}
	}
	if old, ok := c.entries[s]; ok && old.head.Version >= f.head.Version {
		return
	}
	c.remove(s)
	if f.head.Version > c.most.events {
		return
	}
	for victim := range c.entries { // map order is as good as any
		if len(c.entries) < c.most.streams && c.events+f.head.Version <= c.most.events {
			break
		}
		c.remove(victim)
	}
	c.entries[s] = f
	c.events += f.head.Version
}

func (c *cache) drop(s domain.StreamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(s)
}

func (c *cache) remove(s domain.StreamID) {
	c.events -= c.entries[s].head.Version
	delete(c.entries, s)
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	c.events = 0
}
