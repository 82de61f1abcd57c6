package sim

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind names a fault. The package documentation says what each does.
type Kind string

const (
	DropBeforeRead    Kind = "drop_before_read"
	DropBeforeCommit  Kind = "drop_before_commit"
	CommitThenDrop    Kind = "commit_then_drop"
	TruncateBody      Kind = "truncate_body"
	TruncateHeaders   Kind = "truncate_headers"
	DelayBeforeCommit Kind = "delay_before_commit"
	DelayAfterCommit  Kind = "delay_after_commit"
	Hang              Kind = "hang"
	CommitThenHang    Kind = "commit_then_hang"

	Error500BeforeCommit  Kind = "500_before_commit"
	Error500AfterCommit   Kind = "500_after_commit"
	Error500NotStored     Kind = "500_not_stored"
	Error500RolledForward Kind = "500_rolled_forward"

	RateLimit429   Kind = "429_rate_limit"
	LockTimeout429 Kind = "429_lock_timeout"
	KeyInUse409    Kind = "409"
	Error401       Kind = "401"
	Error403       Kind = "403"
	Error404       Kind = "404"
	Error404Stored Kind = "404_stored"

	Gateway502            Kind = "502"
	Gateway503            Kind = "503"
	Gateway504            Kind = "504"
	Gateway502AfterCommit Kind = "502_after_commit"
	Gateway503AfterCommit Kind = "503_after_commit"
	Gateway504AfterCommit Kind = "504_after_commit"
	Empty200              Kind = "200_empty"
	Empty200AfterCommit   Kind = "200_empty_after_commit"
	HTML200               Kind = "200_html"
	HTML200AfterCommit    Kind = "200_html_after_commit"
	Redirect307           Kind = "307"

	Decline Kind = "decline"
)

// stage is the layer at which a fault strikes.
type stage uint8

const (
	stageRead   stage = iota + 1 // before the body is read
	stageDoor                    // in front of the key layer
	stageLock                    // at the object lock
	stageExec                    // while executing
	stageAnswer                  // on the way back, also of a replay
)

var stages = map[Kind]stage{
	DropBeforeRead: stageRead,

	DropBeforeCommit: stageDoor, Hang: stageDoor, Error500NotStored: stageDoor, RateLimit429: stageDoor,
	KeyInUse409: stageDoor, Error401: stageDoor, Error403: stageDoor, Error404: stageDoor,
	Gateway502: stageDoor, Gateway503: stageDoor, Gateway504: stageDoor,
	Empty200: stageDoor, HTML200: stageDoor, Redirect307: stageDoor,

	LockTimeout429: stageLock,

	DelayBeforeCommit: stageExec, Error500BeforeCommit: stageExec, Error500AfterCommit: stageExec,
	Error500RolledForward: stageExec, Error404Stored: stageExec, Decline: stageExec,

	CommitThenDrop: stageAnswer, TruncateBody: stageAnswer, TruncateHeaders: stageAnswer,
	DelayAfterCommit: stageAnswer, CommitThenHang: stageAnswer,
	Gateway502AfterCommit: stageAnswer, Gateway503AfterCommit: stageAnswer, Gateway504AfterCommit: stageAnswer,
	Empty200AfterCommit: stageAnswer, HTML200AfterCommit: stageAnswer,
}

// Kinds lists every fault by name.
func Kinds() []Kind {
	all := make([]Kind, 0, len(stages))
	for kind := range stages {
		all = append(all, kind)
	}
	slices.Sort(all)
	return all
}

// Match says which requests a fault meets. Empty fields match everything.
type Match struct {
	Method   string // GET, POST, DELETE
	Path     string // pattern of path.Match: * stands for one segment
	Customer string // customer parameter, or the customer of the object in the path
	Key      string // Idempotency-Key
	Nth      int    // first matching request that is struck, from 1; 0 is 1
}

// Fault is a scripted fault, or a random one where Seed or Rate is set.
type Fault struct {
	ID    string // given by AddFault
	Match Match
	Kind  Kind
	Times int           // how many requests are struck; 0 is one, -1 is all (random: 0 is all)
	Delay time.Duration // how long before the fault strikes; real time, except for 500_rolled_forward, which executes after it on the stand-in's clock
	For   time.Duration // real time after which the fault is over; 0 is never

	Code        string // decline: the decline code
	Body        string // 502, 503, 504: json (default), html or empty
	Close       string // drops: fin (default) or rst
	Location    string // 307
	ShouldRetry *bool  // Stripe-Should-Retry on the error this fault answers with
	RetryAfter  int    // seconds, Retry-After on that error

	Seed  uint64  // random faults: same seed, same keys, same faults; 0 is drawn
	Rate  float64 // of matching requests, 0 … 1
	Kinds []Kind  // drawn from, with equal weight

	Hits int // requests struck so far
}

func (f *Fault) random() bool { return f.Rate != 0 || len(f.Kinds) > 0 }

// pauses is how long the answer, or the drop, of a struck request waits. For
// three kinds the delay means something else: hang holds the connection that
// long, delay_before_commit waits before it executes, and 500_rolled_forward
// executes after that time on the stand-in's clock.
func (h hit) pauses() time.Duration {
	switch h.kind {
	case "", Hang, CommitThenHang, DelayBeforeCommit, Error500RolledForward:
		return 0
	}
	return h.fault.Delay
}

// check refuses a fault that could not do what it says.
func (f *Fault) check() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	kinds := f.Kinds
	if f.random() {
		if f.Kind != "" {
			bad("fault and faults exclude each other")
		}
		if f.Rate <= 0 || f.Rate > 1 {
			bad("rate must be above 0 and at most 1")
		}
		if len(kinds) == 0 {
			bad("faults must name at least one fault")
		}
		if f.Match.Nth != 0 {
			bad("nth does not go with a random fault")
		}
	} else {
		kinds = []Kind{f.Kind}
		if f.Seed != 0 {
			bad("seed needs rate and faults")
		}
	}
	has := func(these ...Kind) bool {
		return slices.ContainsFunc(kinds, func(k Kind) bool { return slices.Contains(these, k) })
	}
	for _, kind := range kinds {
		if stages[kind] == 0 {
			bad("unknown fault %q; the faults are %v", kind, Kinds())
		}
	}
	if has(DelayBeforeCommit, DelayAfterCommit) && f.Delay <= 0 {
		bad("delay must be above 0")
	}
	if f.Delay < 0 {
		bad("delay must not be negative")
	}
	if has(Decline) != (f.Code != "") {
		bad("code goes with decline, and decline needs it")
	} else if f.Code != "" && !isCode(f.Code) {
		bad("code %q is not written like a decline code", f.Code)
	}
	if has(DropBeforeRead) && f.Match.Customer != "" {
		bad("drop_before_read cannot match a customer: it is not known before the body is read")
	}
	if has(Redirect307) != (f.Location != "") {
		bad("location goes with 307, and 307 needs it")
	}
	if !slices.Contains([]string{"", "json", "html", "empty"}, f.Body) {
		bad("body must be json, html or empty")
	}
	if !slices.Contains([]string{"", "fin", "rst"}, f.Close) {
		bad("close must be fin or rst")
	}
	if f.Times < -1 || f.Match.Nth < 0 || f.For < 0 || f.RetryAfter < 0 {
		bad("times, nth, for and retry_after must not be negative (times may be -1)")
	}
	if _, err := path.Match(f.Match.Path, "/"); err != nil {
		bad("path is not a pattern: %w", err)
	}
	return errors.Join(faults...)
}

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
	}
	switch stages[kind] {
	case stageExec:
		return executes
	case stageAnswer:
		return executes || how == replayed
	}
	return true
}

// String names the fault and whom it meets, for logs.
func (f Fault) String() string {
	if f.random() {
		return fmt.Sprintf("%s random seed=%d rate=%g %v", f.ID, f.Seed, f.Rate, f.Kinds)
	}
	var where []string
	for _, part := range []string{f.Match.Method, f.Match.Path, f.Match.Customer, f.Match.Key} {
		if part != "" {
			where = append(where, part)
		}
	}
	return fmt.Sprintf("%s %s times=%d %s", f.ID, f.Kind, f.Times, strings.Join(where, " "))
}
