package sim

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"time"
)

// script is a fault with what it has seen.
type script struct {
	Fault
	seen  int            // matching requests
	occur map[string]int // random: how often each key, or path without one, was seen
	ends  time.Time      // real time
}

// hit is the fault that a request met; the zero hit is none.
type hit struct {
	fault *script
	kind  Kind
}

func (h hit) stage() stage { return stages[h.kind] }

// AddFault arms a fault and returns its id; requests meet the faults in the
// order they were added in, at most one each. It refuses a fault that is not
// one, naming every reason.
func (s *Sim) AddFault(f Fault) (string, error) {
	if err := f.check(); err != nil {
		return "", fmt.Errorf("add fault: %w", err)
	}
	f.ID, f.Hits = newID("flt_", 10), 0
	f.Kinds = slices.Clone(f.Kinds)
	if f.random() {
		for f.Seed == 0 {
			f.Seed = rand.Uint64() >> 11 // fits a JSON number
		}
		if f.Times == 0 {
			f.Times = -1
		}
	}
	if f.Times == 0 {
		f.Times = 1
	}
	if f.Kind == Error500RolledForward && f.Delay == 0 {
		f.Delay = time.Hour
	}
	armed := &script{Fault: f, occur: make(map[string]int)}
	if f.For > 0 {
		armed.ends = time.Now().Add(f.For)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, armed)
	return f.ID, nil
}

// Faults lists the armed faults, spent ones too, with their hits.
func (s *Sim) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Fault, 0, len(s.faults))
	for _, f := range s.faults {
		all = append(all, f.Fault)
	}
	return all
}

// ClearFaults disarms the fault with the id, or all where it is empty, and tells
// whether there was any.
func (s *Sim) ClearFaults(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.faults)
	s.faults = slices.DeleteFunc(s.faults, func(f *script) bool { return id == "" || f.ID == id })
	return len(s.faults) < n
}

// pick finds the fault that a request meets, with mu held. early asks for those
// that strike before the body is read; what the request's key has to say about
// it comes in how.
func (s *Sim) pick(c *call, early bool, how standing) hit {
	var met hit
	for _, f := range s.faults {
		if !f.matches(c, early) {
			continue
		}
		kind, ok := f.draw(c)
		if !ok || (stages[kind] == stageRead) != early && !f.random() || !strikes(kind, c, how) {
			continue
		}
		f.seen++
		if met.fault != nil || f.seen < f.Match.Nth || f.Times >= 0 && f.Hits >= f.Times {
			continue
		}
		f.Hits++
		s.counters.Faults[kind]++
		met = hit{f, kind}
	}
	return met
}

func (f *script) matches(c *call, early bool) bool {
	if early && f.random() || !f.ends.IsZero() && c.received.After(f.ends) {
		return false
	}
	m := &f.Match
	if m.Method != "" && m.Method != c.method || m.Key != "" && m.Key != c.key || m.Customer != "" && m.Customer != c.customer {
		return false
	}
	if m.Path == "" {
		return true
	}
	ok, _ := path.Match(m.Path, c.path)
	return ok
}

// draw decides which fault it is: the scripted one or, at random, one or none.
// The draw hangs on the seed, the key and how often that key came by, so that it
// does not depend on which request overtook which.
func (f *script) draw(c *call) (Kind, bool) {
	if !f.random() {
		return f.Kind, true
	}
	who := c.key
	if who == "" {
		who = c.method + " " + c.path
	}
	f.occur[who]++
	h := fnv.New64a()
	h.Write([]byte(strconv.FormatUint(f.Seed, 10) + "\n" + who + "\n" + strconv.Itoa(f.occur[who])))
	rng := rand.New(rand.NewPCG(f.Seed, h.Sum64()))
	if rng.Float64() >= f.Rate {
		return "", false
	}
	return f.Kinds[rng.IntN(len(f.Kinds))], true
}

// strikes tells whether a fault of this kind can happen to the request at all:
// what happens while executing needs a request that executes.
func strikes(kind Kind, c *call, how standing) bool {
	executes := how == fresh || how == unkeyed
	switch kind {
	case Decline:
		return executes && c.route != nil && c.route.money
	case Error500RolledForward:
		return executes && c.route != nil && c.route.write
	case Error404Stored, LockTimeout429:
		return executes && c.method != "GET"
	case KeyInUse409:
		return c.key != ""
	default:
	}
	switch stages[kind] {
	case stageExec:
		return executes
	case stageAnswer:
		return executes || how == replayed
	default:
		return true
	}
}
