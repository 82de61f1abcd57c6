package commands

import (
	"bytes"
	"strings"
	"sync"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// cacheMost bounds what is kept in the process, in bytes. A customer takes a
// kilobyte or two with one bill, nine with those of a year.
const cacheMost = 64 << 20

// folded is a stream's state and where in the stream it is.
type folded struct {
	state any
	head  eventstore.Head
}

// kept is a folded state with its weight in bytes.
type kept struct {
	folded
	bytes int
}

// keptBeside is about what an entry takes besides its state: its place in the
// map, which grows by doubling, its key, its digest.
const keptBeside = 320

// weigh is about how many bytes f takes as an entry for s.
func weigh(s domain.StreamID, f folded) int {
	n := keptBeside + len(s)
	if sized, ok := f.state.(interface{ Size() int }); ok {
		n += sized.Size()
	}
	return n
}

// cache keeps committed states by stream. A stale entry costs reading the
// events since, or a version conflict; it never makes a decision wrong, since
// every append names the version it was decided at.
type cache struct {
	most int // bytes

	mu      sync.Mutex
	entries map[domain.StreamID]kept
	bytes   int // that the entries weigh
}

func (c *cache) get(s domain.StreamID) (folded, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.entries[s]
	return k.folded, ok
}

// put keeps the newer of f and what is there, and lets go of others until there
// is room. What is heavier than all of the room is not kept. Key and digest are
// copied: as they are read they hold on to the whole event that they came in.
func (c *cache) put(s domain.StreamID, f folded) {
	weight := weigh(s, f)
	f.head.Digest = bytes.Clone(f.head.Digest)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[domain.StreamID]kept{}
	}
	old, ok := c.entries[s]
	switch {
	case ok && old.head.Version >= f.head.Version:
		return
	case weight > c.most:
		c.remove(s)
		return
	case ok:
		c.bytes -= old.bytes
	default:
		s = domain.StreamID(strings.Clone(string(s)))
	}
	c.entries[s] = kept{f, weight}
	c.bytes += weight
	for victim := range c.entries { // map order is as good as any
		if c.bytes <= c.most {
			break
		}
		if victim != s {
			c.remove(victim)
		}
	}
}

func (c *cache) drop(s domain.StreamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(s)
}

func (c *cache) remove(s domain.StreamID) {
	c.bytes -= c.entries[s].bytes
	delete(c.entries, s)
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	c.bytes = 0
}
