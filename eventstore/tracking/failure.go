package tracking

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/billonce/billonce/eventstore"
)

// The classes of failure, as the metric names them.
const (
	transient = "transient" // tried again, for as long as it lasts
	timeout   = "timeout"   // the same, event by event
	poison    = "poison"    // counted; parks in the end
)

// failed remembers why a unit of work came to nothing and when its partitions
// are tried again.
func (w *worker) failed(u *unit, err error) {
	if errors.Is(err, errStopping) {
		return
	}
	p := w.processor
	class := poison
	switch {
	case u.slices == nil: // nothing had been read: no event is to blame
		class = transient
	case u.timedOut:
		class = timeout
	case eventstore.Transient(err):
		class = transient
	}
	p.metrics.failures.WithLabelValues(p.Name, class).Inc()
	w.report(u, class, err)
	w.unmark(w.stopping, u.marked)

	if len(u.claims) == 0 { // there was no transaction, or none of the tokens was free
		for partition := range eventstore.Partitions {
			if u.offered&(1<<partition) != 0 {
				p.ready.hold(int16(partition), p.Backoff(p.fails(int16(partition))))
			}
		}
		return
	}
	var failures []failure
	for _, c := range u.claims {
		f := w.failureOf(u, c, class)
		if f.failed != nil || f.pause > 0 {
			failures = append(failures, f)
		} else {
			u.more |= 1 << c.Partition // it was on the page and has nothing to do with it
		}
	}
	w.remember(failures, err)
	for _, f := range failures {
		p.ready.hold(f.partition, f.pause)
	}
}

// failure is what is to be remembered about one token.
type failure struct {
	partition int16
	position  int64
	failed    *int64 // the event that failed, or the last one suspected
	counts    bool   // it is known which one, and it counts as an attempt
	pause     time.Duration
}

func (w *worker) failureOf(u *unit, c claim, class string) failure {
	p := w.processor
	f := failure{partition: c.Partition, position: c.Position}
	read, mine := 0, (*slice)(nil)
	for _, s := range u.slices {
		read += len(s.events)
		if s.claim.Partition == c.Partition {
			mine = s
		}
	}
	switch {
	case class == transient:
		f.pause = p.Backoff(p.fails(c.Partition))
	case mine == nil || len(mine.events) == 0:
	case read > 1:
		f.failed = &mine.last // one of them; go one by one to find it
	case class == timeout:
		f.failed = &mine.last
		f.pause = p.Backoff(p.fails(c.Partition))
	default:
		f.failed, f.counts = &mine.last, true
		attempts := 1
		if c.FailedPosition != nil && *c.FailedPosition == mine.last {
			attempts = c.Attempts + 1
		}
		if attempts < p.MaxAttempts {
			f.pause = p.Backoff(attempts)
		}
	}
	return f
}

// remember writes failures down. If the database cannot be reached, only this
// process knows of the pause.
func (w *worker) remember(failures []failure, cause error) {
	n := len(failures)
	partitions, positions, failed := make([]int16, n), make([]int64, n), make([]*int64, n)
	counts, pauses := make([]bool, n), make([]float64, n)
	for i, f := range failures {
		partitions[i], positions[i], failed[i], counts[i], pauses[i] = f.partition, f.position, f.failed, f.counts, f.pause.Seconds()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.stopping), 5*time.Second)
	defer cancel()
	_, err := w.runtime.pool.Exec(ctx, failedSQL, w.processor.Name, w.runtime.owner, partitions, positions, failed, counts, pauses, reason(cause))
	if err != nil {
		w.processor.log.Warn("a failure could not be written to the tokens", "error", err)
	}
}

func (w *worker) report(u *unit, class string, err error) {
	attrs := []any{"class", class, "error", reason(err)}
	if u.page != nil {
		e := u.page.Events
		attrs = append(attrs, "events", len(e), "first", e[0].Place.String(), "last", e[len(e)-1].Place.String())
	}
	if panicked, ok := errors.AsType[middleware.RecoveredPanicError](err); ok {
		attrs = append(attrs, "stack", panicked.Stacktrace)
	}
	if class == transient {
		w.processor.log.Warn("a page was rolled back and is tried again", attrs...)
		return
	}
	w.processor.log.Error("a page was rolled back", attrs...)
}

// reason is an error in one line that fits a column.
func reason(err error) string {
	text := err.Error()
	if panicked, ok := errors.AsType[middleware.RecoveredPanicError](err); ok {
		text = fmt.Sprintf("panic: %v", panicked.V)
	}
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
	const most = 1000
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
