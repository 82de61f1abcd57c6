package crashpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The environment variables that arm a process.
const (
	CrashVariable = "BILLING_CRASH"
	BreakVariable = "BILLING_BREAK"
)

// Point is a named moment.
type Point struct {
	Name string
	Doc  string // what has happened there, and what has not
}

// Points are all points, in the order in which a bill passes them, and then
// those of a refund. A pair ending in -ing and -ed stands before and behind one
// commit, or one call.
var Points = []Point{
	{"due.committing", "dues are decided, their facts and the schedule are not committed"},
	{"due.committed", "dues are on the log; nobody has heard of them"},
	{"timer.committing", "scheduled commands are decided and their rows deleted, not committed"},
	{"timer.committed", "scheduled commands are on the log; nobody has heard of them"},
	{"saga.committing", "the saga has asked for charges; facts, rows and token are not committed"},
	{"saga.committed", "charges are requested; there are no pre-flight rows yet"},
	{"preflight.committing", "pre-flight rows are written, not committed"},
	{"preflight.committed", "rows are reserved; no collector has been woken"},
	{"claim.committing", "attempts are started, claims are not committed"},
	{"claim.committed", "rows are claimed; nothing is sent"},
	{"create.sending", "an intent is about to be created"},
	{"create.answered", "an intent is created; its id is in memory alone"},
	{"intent.committing", "the intent's id is written, not committed"},
	{"intent.committed", "the intent's id is committed; nothing is confirmed"},
	{"confirm.sending", "the confirm is about to leave; the lease has been checked"},
	{"confirm.answered", "Stripe has answered; nobody has written it down"},
	{"outcome.committing", "outcomes are written, not committed"},
	{"outcome.committed", "outcomes are on the log; their workers do not know"},
	{"find.answered", "an unknown bill's intent has been read; nothing has followed from it"},
	{"start.committing", "another start of an attempt is written, not committed"},
	{"start.committed", "another start of an attempt is committed; nothing is sent again"},
	{"adopt.committing", "the look has taken over what it found; not committed"},
	{"adopt.committed", "what the look found is on the log; the rest of its page is not read"},
	{"cancel.sending", "an intent is about to be cancelled"},
	{"cancel.answered", "Stripe has answered a cancel; nobody has written it down"},
	{"close.committing", "a closed bill is written, not committed"},
	{"close.committed", "a closed bill is on the log; its worker does not know"},
	{"refund.reserving", "a refund's row is written, not committed"},
	{"refund.reserved", "a refund's row is committed; no worker has been woken"},
	{"refund.claiming", "a refund's claim is written, not committed"},
	{"refund.claimed", "a refund is claimed; nothing has been asked"},
	{"refund.found", "the charge's refunds have been read; nothing has followed from it"},
	{"refund.sending", "a refund is about to be asked for; that it may have been is committed"},
	{"refund.answered", "Stripe has answered a refund; nobody has written it down"},
	{"refund.recording", "what came of a refund is written, not committed"},
	{"refund.recorded", "what came of a refund is on the log; its worker does not know"},
}

// The rules that can be taken out, one at a time.
const (
	// WriteOnce: an intent's id is committed, once, before it is confirmed.
	WriteOnce = "write_once"
	// CancelBeforeVoid: a bill is settled or void only once its intent is
	// cancelled at Stripe.
	CancelBeforeVoid = "cancel_before_void"
	// Adopt: an open intent that the log does not know becomes the bill's.
	Adopt = "adopt"
)

// Rules lists the rules that can be taken out.
var Rules = []string{WriteOnce, CancelBeforeVoid, Adopt}

// Plan is what a process is armed with. The zero Plan arms nothing.
type Plan struct {
	crashes []crash
	broken  []string
}

type crash struct {
	point string
	nth   int
	stop  bool
}

// Parse reads the two variables; either may be empty. It fails for a name that
// is not in the lists.
func Parse(crashes, broken string) (Plan, error) {
	var p Plan
	for entry := range strings.SplitSeq(crashes, ",") {
		if crashes == "" {
			break
		}
		c, err := parseCrash(strings.TrimSpace(entry))
		if err != nil {
			return Plan{}, err
		}
		p.crashes = append(p.crashes, c)
	}
	for rule := range strings.SplitSeq(broken, ",") {
		if broken == "" {
			break
		}
		rule = strings.TrimSpace(rule)
		if !slices.Contains(Rules, rule) {
			return Plan{}, fmt.Errorf("there is no rule %q; the rules are %s", rule, strings.Join(Rules, ", "))
		}
		p.broken = append(p.broken, rule)
	}
	return p, nil
}

func parseCrash(entry string) (crash, error) {
	parts := strings.Split(entry, ":")
	c := crash{point: parts[0], nth: 1}
	if !slices.ContainsFunc(Points, func(p Point) bool { return p.Name == c.point }) {
		return crash{}, fmt.Errorf("there is no crash point %q", c.point)
	}
	if len(parts) > 1 {
		n, err := strconv.Atoi(parts[1])
		if err != nil || n < 1 {
			return crash{}, fmt.Errorf("crash point %s: %q is not a count from 1", c.point, parts[1])
		}
		c.nth = n
	}
	switch {
	case len(parts) > 3, len(parts) == 3 && parts[2] != "kill" && parts[2] != "stop":
		return crash{}, fmt.Errorf("crash point %s: it is written name:nth:kill or name:nth:stop", c.point)
	case len(parts) == 3:
		c.stop = parts[2] == "stop"
	}
	return c, nil
}

// IsZero reports whether the plan arms nothing.
func (p Plan) IsZero() bool { return len(p.crashes) == 0 && len(p.broken) == 0 }

// String is the plan for a log.
func (p Plan) String() string {
	var parts []string
	for _, c := range p.crashes {
		action := "kill"
		if c.stop {
			action = "stop"
		}
		parts = append(parts, fmt.Sprintf("%s:%d:%s", c.point, c.nth, action))
	}
	for _, rule := range p.broken {
		parts = append(parts, "without "+rule)
	}
	return strings.Join(parts, ", ")
}

// armed is what points and rules do. It is nil in every process that was not
// armed.
var armed atomic.Pointer[arms]

type arms struct {
	reach  func(name string)
	broken []string
}

// Arm arms this process, for good. It is called once, before anything runs.
func Arm(p Plan) {
	if p.IsZero() {
		return
	}
	armed.Store(&arms{reach: p.trigger(), broken: p.broken})
}

// Watch lets a test see the points that this process passes until the returned
// function is called. F is called by many goroutines at once.
func Watch(f func(name string)) (stop func()) {
	armed.Store(&arms{reach: f})
	return func() { armed.Store(nil) }
}

// Reach marks a point. Unless this process is armed it does nothing.
func Reach(name string) {
	if a := armed.Load(); a != nil {
		a.reach(name)
	}
}

// Broken reports whether a rule has been taken out. It never has, unless this
// process is armed.
func Broken(rule string) bool {
	a := armed.Load()
	return a != nil && slices.Contains(a.broken, rule)
}

// trigger counts how often each point is reached, and ends or freezes the
// process when its count is full.
func (p Plan) trigger() func(string) {
	var mu sync.Mutex
	seen := map[string]int{}
	return func(name string) {
		mu.Lock()
		seen[name]++
		n := seen[name]
		mu.Unlock()
		for _, c := range p.crashes {
			if c.point == name && c.nth == n {
				c.strike()
			}
		}
	}
}

// strike is the end of this process, or a long sleep. Whoever is here goes no
// further before the signal is there.
func (c crash) strike() {
	if !c.stop {
		// Said before, since nothing can refuse the signal: logs tell who died here.
		fmt.Fprintf(os.Stderr, "crash point %s: this process dies\n", c.point)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	fmt.Fprintf(os.Stderr, "crash point %s: this process stops\n", c.point)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	time.Sleep(50 * time.Millisecond) // the stop falls into it
}
