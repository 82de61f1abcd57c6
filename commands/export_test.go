package commands

import (
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// CacheMost bounds, in bytes, what a dispatcher keeps in the process.
const CacheMost = cacheMost

// KeepAtMost bounds, in bytes, what d keeps in the process.
func (d *Dispatcher) KeepAtMost(bytes int) { d.cache.most = bytes }

// Kept is how many states d keeps, what they weigh in bytes, and what that is by
// the count that bounds them.
func (d *Dispatcher) Kept() (streams, bytes, counted int) {
	d.cache.mu.Lock()
	defer d.cache.mu.Unlock()
	for s, k := range d.cache.entries {
		bytes += weigh(s, k.folded)
	}
	return len(d.cache.entries), bytes, d.cache.bytes
}

// Keeper is a dispatcher without a log, which only keeps.
func Keeper() *Dispatcher { return &Dispatcher{cache: cache{most: cacheMost}} }

// Keep keeps a state as if it had been read at head.
func (d *Dispatcher) Keep(c domain.Customer, at eventstore.Head) {
	d.cache.put(c.ID().Stream(), folded{c, at})
}
