package eventstore

import "slices"

// Growth is what a transaction has added to the log: by contract name, a mask of
// the partitions that grew by facts of that name. It lets readers sleep through
// what is none of their business.
type Growth map[string]uint64

// Grown is the growth by the events of results.
func Grown(results []Result) Growth {
	g := Growth{}
	for _, r := range results {
		for _, e := range r.Recorded {
			g[e.Type] |= 1 << e.Partition
		}
	}
	return g
}

// Add counts other in.
func (g Growth) Add(other Growth) {
	for name, partitions := range other {
		g[name] |= partitions
	}
}

// Partitions is the mask of all partitions that grew.
func (g Growth) Partitions() (mask uint64) {
	for _, partitions := range g {
		mask |= partitions
	}
	return mask
}

// But is the mask of the partitions that grew by anything else than facts of
// these names.
func (g Growth) But(names []string) (mask uint64) {
	for name, partitions := range g {
		if !slices.Contains(names, name) {
			mask |= partitions
		}
	}
	return mask
}
