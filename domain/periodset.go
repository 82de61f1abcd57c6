package domain

import (
	"iter"
	"slices"
	"sort"
)

// PeriodSet is a set of periods. It is a value: With and Without return
// another set and leave this one as it was.
type PeriodSet struct{ sorted []Period }

func (s PeriodSet) find(p Period) (int, bool) {
	i := sort.Search(len(s.sorted), func(i int) bool { return !s.sorted[i].Before(p) })
	return i, i < len(s.sorted) && s.sorted[i] == p
}

// Has reports whether p is in the set.
func (s PeriodSet) Has(p Period) bool {
	_, ok := s.find(p)
	return ok
}

// With is the set and p.
func (s PeriodSet) With(p Period) PeriodSet {
	i, ok := s.find(p)
	if ok {
		return s
	}
	return PeriodSet{slices.Insert(slices.Clone(s.sorted), i, p)}
}

// Without is the set less p.
func (s PeriodSet) Without(p Period) PeriodSet {
	i, ok := s.find(p)
	if !ok {
		return s
	}
	return PeriodSet{slices.Delete(slices.Clone(s.sorted), i, i+1)}
}

// Overlapping is a member other than p itself that shares a month with p.
func (s PeriodSet) Overlapping(p Period) (Period, bool) {
	for _, q := range s.sorted {
		if q != p && q.Overlaps(p) {
			return q, true
		}
	}
	return Period{}, false
}

// Len is the number of members.
func (s PeriodSet) Len() int { return len(s.sorted) }

// All lists the members, oldest first.
func (s PeriodSet) All() iter.Seq[Period] { return slices.Values(s.sorted) }
