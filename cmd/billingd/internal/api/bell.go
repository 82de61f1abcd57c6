package api

import (
	"math/bits"
	"sync"

	"github.com/billonce/billonce/eventstore"
)

// bell wakes whoever waits for something to be recorded in a partition, or in
// any. One subscription to the log serves all who wait.
type bell struct {
	mu   sync.Mutex
	rung [eventstore.Partitions]chan struct{}
	any  chan struct{}
}

// next is closed when the partition grows after this call.
func (b *bell) next(partition int16) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rung[partition] == nil {
		b.rung[partition] = make(chan struct{})
	}
	return b.rung[partition]
}

// nextAny is closed when any partition grows after this call.
func (b *bell) nextAny() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.any == nil {
		b.any = make(chan struct{})
	}
	return b.any
}

// ring tells those who wait for the partitions of a mask.
func (b *bell) ring(partitions uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.any != nil && partitions != 0 {
		close(b.any)
		b.any = nil
	}
	for ; partitions != 0; partitions &= partitions - 1 {
		p := bits.TrailingZeros64(partitions)
		if b.rung[p] != nil {
			close(b.rung[p])
			b.rung[p] = nil
		}
	}
}
