package tracking

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Handler handles a page: all of it, or it returns an error and nothing of it
// is kept. It runs in the page's transaction, on several pages at once but
// never on two of the same partition, and must not call the network.
//
// An error for which [eventstore.Transient] holds is tried again for as long as
// it lasts. Any other is narrowed down to one event, which after its attempts
// parks its customer for this processor. A panic is such an error.
type Handler interface {
	Handle(ctx context.Context, p *Page) error
}

// HandlerFunc is a function as a [Handler].
type HandlerFunc func(ctx context.Context, p *Page) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, p *Page) error { return f(ctx, p) }

// Page is what a handler is given: events, the transaction to handle them in,
// and the tokens that move when it commits.
type Page struct {
	// Processor is the name of the processor.
	Processor string
	// Tx is the page's transaction. What is written on it commits with the
	// tokens or not at all. Its Begin makes a savepoint; its Commit and Rollback
	// are refused. It is of no use once Handle has returned.
	Tx pgx.Tx
	// Events are of one partition or of several, those of a partition one after
	// the other in order of position. Each has its Event set.
	Events []eventstore.Recorded
	// Appended is for the handler to set: what it appended on Tx. Its readers are
	// told once the page has committed.
	Appended eventstore.Growth

	replayUntil [eventstore.Partitions]int64
	redelivery  bool
	note        string
}

// Redelivery reports whether an operator has asked for the page: its one event
// was set aside, and the log may hold what came about while it waited, ahead of
// the processor.
func (p *Page) Redelivery() bool { return p.redelivery }

// Note says, in a few words, why handling the page came to nothing, such as
// "already billed". Of an event that was set aside and is handled after all it is
// kept with the letter; else it is of no consequence.
func (p *Page) Note(text string) { p.note = text }

// Replay reports whether e is a repeat: handled before a reset, or before the
// processor lost its token.
func (p *Page) Replay(e eventstore.Recorded) bool {
	return e.Position <= p.replayUntil[e.Partition]
}

// Kind says what a processor's writes may lead to.
type Kind int

// The kinds.
const (
	// Pure: a read model. It may be reset and rebuilt at any time.
	Pure Kind = iota
	// Effectful: something that may lead to a call outside the house. Every
	// write is keyed, so that a repeat does nothing; it is never reset on demand.
	Effectful
)

func (k Kind) String() string {
	if k == Effectful {
		return "effectful"
	}
	return "pure"
}

// Start is where a new processor begins. It says nothing about one that has
// run before.
type Start int

// The places to start from.
const (
	unstated Start = iota
	// Beginning: everything in the log.
	Beginning
	// Head: what is appended from the first start on.
	Head
)

// Defaults of a Processor.
const (
	defaultPageSize    = 200
	defaultPartitions  = 16
	defaultMaxAttempts = 5
	defaultTimeout     = 15 * time.Second
)

// Processor is a named reader of the log. Its name is the key of its tokens:
// renaming it makes a new processor.
type Processor struct {
	Name    string
	Kind    Kind
	Handler Handler

	// Events are the contract names it wants; none: all. What it does not want
	// is passed over in the database. A type that this build does not know, or a
	// newer version of a wanted one, stops the processor before that event, with
	// a reason in its status, until a build that knows it takes over.
	Events []string
	// Tolerant makes a pure processor pass over what this build does not know. Its
	// status names what that was; an effectful one always waits.
	Tolerant bool

	// PageSize is the most events of a page (default 200). A page of a processor
	// that appends should be small, 20 to 64: it holds its partitions' locks.
	PageSize int
	// Partitions is the most partitions of a page when many are waiting (default
	// 16). More partitions, fewer commits.
	Partitions int
	// Ordered gives it the whole log in one order, that of positions: live as in
	// a replay. One page of it is under way at a time, in one process, which holds
	// all its tokens; Partitions and [Options].Workers do not apply. It is never
	// ahead of an append that is under way, whichever partition that is in, and
	// an event that this build does not know stops it in all of them.
	Ordered bool
	// Pace is the least time from the start of one page to the start of the
	// next, while there is no backlog (default none): it trades latency for
	// fewer commits. A paced processor rests longer where pages take long, so
	// that a busy machine has larger pages instead of more: four times as long as
	// the last one took, a second at most.
	Pace time.Duration
	// Timeout bounds the handling of a page (default 15 s). One that exceeds it
	// is rolled back and tried again, event by event; it is never parked for it.
	Timeout time.Duration

	// Start is where it begins when it is new. An effectful processor must say;
	// a pure one begins at the beginning unless it says otherwise.
	Start Start

	// MaxAttempts is how often an event may fail before its customer is parked
	// (default 5).
	MaxAttempts int
	// Backoff is the pause after the n-th failure in a row, n from 1 (default:
	// doubling from 100 ms to 10 s, give or take a fifth).
	Backoff func(n int) time.Duration

	// AfterCommit is called after a page has committed, by the worker that
	// handled it: it must be quick. After a crash it is not made up for.
	AfterCommit func(p *Page)
	// Reset empties the tables of a pure processor, in tx.
	Reset func(ctx context.Context, tx pgx.Tx) error
}

var nameShape = regexp.MustCompile(`^[a-z][a-z0-9@_.-]{0,62}$`)

// complete checks p and fills in what it leaves open.
func (p Processor) complete(codec *eventstore.Codec) (Processor, error) {
	var wrong []error
	no := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if !nameShape.MatchString(p.Name) {
		no("its name must be 1 to 63 of a-z 0-9 @ _ . - and begin with a letter")
	}
	if p.Handler == nil {
		no("it has no handler")
	}
	for _, name := range p.Events {
		if !slices.Contains(codec.Names(), name) {
			no("no fact is named %q", name)
		}
	}
	switch {
	case p.Kind == Effectful && p.Start == unstated:
		no("an effectful processor must state where it starts")
	case p.Kind == Effectful && p.Tolerant:
		no("an effectful processor may not pass over what it does not know")
	case p.Kind == Effectful && p.Reset != nil:
		no("an effectful processor is not reset")
	case p.Start == unstated:
		p.Start = Beginning
	}
	if p.PageSize < 0 || p.Partitions < 0 || p.Pace < 0 || p.Timeout < 0 || p.MaxAttempts < 0 {
		no("a limit is negative")
	}
	fill(&p.PageSize, defaultPageSize)
	fill(&p.Partitions, defaultPartitions)
	fill(&p.Timeout, defaultTimeout)
	fill(&p.MaxAttempts, defaultMaxAttempts)
	p.Partitions = min(p.Partitions, eventstore.Partitions)
	if p.Backoff == nil {
		p.Backoff = backoff
	}
	if len(wrong) > 0 {
		return p, fmt.Errorf("processor %q: %w", p.Name, errors.Join(wrong...))
	}
	return p, nil
}

// Skips are the stored types that p passes over: known to this build, so that
// what it does not know is seen.
func (p Processor) Skips(codec *eventstore.Codec) []string {
	skip := []string{}
	if len(p.Events) == 0 {
		return skip
	}
	stored := codec.StoredAs(p.Events...)
	pass := func(name string) {
		if !slices.Contains(stored, name) && !slices.Contains(skip, name) {
			skip = append(skip, name)
		}
	}
	for _, name := range codec.Names() {
		pass(name)
	}
	for _, older := range codec.Older() {
		pass(older.Name)
	}
	return skip
}

// wanted leaves of events, from one on, those that p wants: of a fact that has
// been split or renamed that may be some, of a retired one it is none.
func (p Processor) wanted(events []eventstore.Recorded, from int) []eventstore.Recorded {
	kept := events[:from]
	for _, e := range events[from:] {
		if p.Wants(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

// Wants reports whether p handles an event of a type that it does not skip.
func (p Processor) Wants(e eventstore.Recorded) bool {
	name := e.Name()
	_, retired := e.Event.(domain.Retired)
	return !retired && (name == e.Type || len(p.Events) == 0 || slices.Contains(p.Events, name))
}

func backoff(n int) time.Duration {
	const least, most = 100 * time.Millisecond, 10 * time.Second
	d := most
	if n < 8 {
		d = min(most, least<<(n-1))
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

func fill[T int | time.Duration](v *T, otherwise T) {
	if *v == 0 {
		*v = otherwise
	}
}
