package eventstore

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/billonce/billonce/domain"
)

// FaultKind says which promise of the log an event breaks.
type FaultKind string

// The faults of an event.
const (
	FaultVersion   FaultKind = "version"   // its stream has a hole, or is out of order
	FaultChain     FaultKind = "chain"     // its bytes are not those that were recorded
	FaultPartition FaultKind = "partition" // it lies where its customer's events do not belong
)

// Fault is a promise of the log that an event breaks.
type Fault struct {
	Kind   FaultKind
	Detail string
}

// Chain follows streams as their events are read, in the order of their
// positions, and tells what breaks the log's promises. It keeps about 150
// bytes a stream. The zero Chain is at the beginning of every stream.
type Chain struct {
	// Part: what is followed begins in the middle of the log, so the first
	// event of a stream is taken as it is.
	Part bool

	heads map[domain.StreamID]link
}

type link struct {
	version int32
	digest  [32]byte
}

// Follow goes on to r and says what is wrong with it: nothing, in a log that
// is whole. A fault is told once; what follows is measured from there.
func (c *Chain) Follow(r Recorded) (faults []Fault) {
	head, known := c.heads[r.Stream]
	if sequence := r.Stream.SequenceKey(); r.SequenceKey != sequence || r.Partition != PartitionOf(sequence) {
		faults = append(faults, Fault{FaultPartition, fmt.Sprintf("it stands in partition %d under %q; %s belongs to partition %d", r.Partition, r.SequenceKey, r.Stream, PartitionOf(sequence))})
	}
	previous := head.digest[:]
	if !known {
		previous = nil
	}
	follows := r.Version == int(head.version)+1
	switch {
	case !known && c.Part && r.Version > 1: // its predecessor is not part of this
	case follows:
		if !r.ChainedTo(previous) {
			faults = append(faults, Fault{FaultChain, "its digest does not cover its bytes and its predecessor: one of them was changed after it was recorded"})
		}
	case r.Version == int(head.version)+2:
		faults = append(faults, Fault{FaultVersion, fmt.Sprintf("version %d is missing before it", r.Version-1)})
	case r.Version > int(head.version):
		faults = append(faults, Fault{FaultVersion, fmt.Sprintf("versions %d to %d are missing before it", head.version+1, r.Version-1)})
	default:
		faults = append(faults, Fault{FaultVersion, fmt.Sprintf("it comes after version %d", head.version)})
	}
	next := link{version: int32(r.Version)}
	copy(next.digest[:], r.Digest)
	if c.heads == nil {
		c.heads = map[domain.StreamID]link{}
	}
	stream := r.Stream
	if !known {
		stream = domain.StreamID(strings.Clone(string(stream))) // not the page it was read with
	}
	c.heads[stream] = next
	return faults
}

// Streams is how many streams have been followed.
func (c *Chain) Streams() int { return len(c.heads) }

// Head is where a stream has come to.
func (c *Chain) Head(stream domain.StreamID) Head {
	head, known := c.heads[stream]
	if !known {
		return Head{}
	}
	return Head{int(head.version), bytes.Clone(head.digest[:])}
}
