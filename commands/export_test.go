package commands

// KeepAtMost bounds what d keeps in the process.
func (d *Dispatcher) KeepAtMost(streams, events int) { d.cache.most = bounds{streams, events} }

// Kept is how many states d keeps, and of how many events they are by their
// heads and by the count that bounds them.
func (d *Dispatcher) Kept() (streams, events, counted int) {
	d.cache.mu.Lock()
	defer d.cache.mu.Unlock()
	for _, f := range d.cache.entries {
		events += f.head.Version
	}
	return len(d.cache.entries), events, d.cache.events
}
