package sim

import (
	"cmp"
	"iter"
	"slices"
)

// entry is an object that Stripe keeps and lists.
type entry interface {
	id() string
	created() int64 // seconds since 1970, on the stand-in's clock
	customerID() string
	intentID() string
}

// slot is an object's place in the order. The object in it is replaced, never
// changed; the place stays.
type slot[T entry] struct {
	object T
	made   int64
	seq    uint64 // breaks ties between objects of one second
}

func (s *slot[T]) compare(o *slot[T]) int {
	return cmp.Or(cmp.Compare(s.made, o.made), cmp.Compare(s.seq, o.seq))
}

// shelf holds all objects of one kind, oldest first.
type shelf[T entry] struct {
	byID       map[string]*slot[T]
	order      []*slot[T]
	byCustomer map[string][]*slot[T]
	byIntent   map[string][]*slot[T]
	seq        uint64
}

func newShelf[T entry]() *shelf[T] {
	return &shelf[T]{
		byID:       make(map[string]*slot[T]),
		byCustomer: make(map[string][]*slot[T]),
		byIntent:   make(map[string][]*slot[T]),
	}
}

func (s *shelf[T]) get(id string) (T, bool) {
	if place, ok := s.byID[id]; ok {
		return place.object, true
	}
	var none T
	return none, false
}

// put adds an object, or replaces the one with its id. An object may gain a
// customer, or lose it; its creation time never changes.
func (s *shelf[T]) put(object T) {
	place, ok := s.byID[object.id()]
	if !ok {
		s.seq++
		place = &slot[T]{object: object, made: object.created(), seq: s.seq}
		s.byID[object.id()] = place
		s.order = insert(s.order, place)
		if id := object.intentID(); id != "" {
			s.byIntent[id] = insert(s.byIntent[id], place)
		}
		if id := object.customerID(); id != "" {
			s.byCustomer[id] = insert(s.byCustomer[id], place)
		}
		return
	}
	before, after := place.object.customerID(), object.customerID()
	place.object = object
	if before == after {
		return
	}
	if before != "" {
		s.byCustomer[before] = slices.DeleteFunc(s.byCustomer[before], func(o *slot[T]) bool { return o == place })
	}
	if after != "" {
		s.byCustomer[after] = insert(s.byCustomer[after], place)
	}
}

// insert keeps the order. Nearly always the newcomer is the newest.
func insert[T entry](all []*slot[T], place *slot[T]) []*slot[T] {
	if n := len(all); n == 0 || all[n-1].compare(place) < 0 {
		return append(all, place)
	}
	at, _ := slices.BinarySearchFunc(all, place, (*slot[T]).compare)
	return slices.Insert(all, at, place)
}

// page is what a list request asks for.
type page struct {
	limit         int
	startAfter    string // id: older than this one
	endBefore     string // id: newer than this one, the nearest of them
	customer      string
	intent        string
	bounded       bool
	after, before int64 // created, inclusive, where bounded
}

// list returns a page, newest first, of the objects that keep lets through.
// more tells whether there are further ones in the direction of the cursor;
// unknown is a cursor that names nothing.
func (s *shelf[T]) list(p page, keep func(T) bool) (found []T, more bool, unknown string) {
	all := s.order
	switch {
	case p.intent != "":
		all = s.byIntent[p.intent]
	case p.customer != "":
		all = s.byCustomer[p.customer]
	}
	lo, hi := 0, len(all)
	if p.bounded {
		lo, _ = slices.BinarySearchFunc(all, p.after, func(o *slot[T], t int64) int { return cmp.Compare(o.made, t) })
		hi, _ = slices.BinarySearchFunc(all, p.before, func(o *slot[T], t int64) int { return cmp.Or(cmp.Compare(o.made, t), -1) })
	}
	if p.startAfter != "" {
		cursor, ok := s.byID[p.startAfter]
		if !ok {
			return nil, false, p.startAfter
		}
		at, _ := slices.BinarySearchFunc(all, cursor, (*slot[T]).compare)
		hi = min(hi, at)
	}
	backwards := p.endBefore != ""
	if backwards {
		cursor, ok := s.byID[p.endBefore]
		if !ok {
			return nil, false, p.endBefore
		}
		at, found := slices.BinarySearchFunc(all, cursor, (*slot[T]).compare)
		if found {
			at++
		}
		lo = max(lo, at)
	}
	take := func(o *slot[T]) bool {
		if p.customer != "" && o.object.customerID() != p.customer || !keep(o.object) {
			return true
		}
		if len(found) == p.limit {
			more = true
			return false
		}
		found = append(found, o.object)
		return true
	}
	if backwards {
		for i := lo; i < hi; i++ {
			if !take(all[i]) {
				break
			}
		}
		slices.Reverse(found)
		return found, more, ""
	}
	for i := hi - 1; i >= lo; i-- {
		if !take(all[i]) {
			break
		}
	}
	return found, more, ""
}

// oldestFirst iterates over all objects.
func (s *shelf[T]) oldestFirst(yield func(T) bool) { s.behind("")(yield) }

// behind iterates over the objects made after that of an id, oldest first: over
// all of them where it is empty, over none where it names nothing.
func (s *shelf[T]) behind(id string) iter.Seq[T] {
	places := s.order
	if id != "" {
		cursor, ok := s.byID[id]
		if !ok {
			return func(func(T) bool) {}
		}
		at, found := slices.BinarySearchFunc(places, cursor, (*slot[T]).compare)
		if found {
			at++
		}
		places = places[at:]
	}
	return func(yield func(T) bool) {
		for _, place := range places {
			if !yield(place.object) {
				return
			}
		}
	}
}
