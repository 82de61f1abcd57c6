package sim

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Kind names a fault. The package documentation says what each does.
type Kind string

// The faults.
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
	default:
		return h.fault.Delay
	}
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
		if !(f.Rate > 0 && f.Rate <= 1) {
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
