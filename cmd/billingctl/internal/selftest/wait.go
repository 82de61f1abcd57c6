package selftest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// waitFor waits for a condition, or until it is not worth waiting for.
func (r *run) waitFor(ctx context.Context, c condition) error {
	watch := parts.NewStopwatch()
	for {
		switch c {
		case struck:
			p := r.replicas[0]
			if p.child == nil || p.dead() || p.frozen() || watch.Look() > struckWithin {
				return nil
			}
			if under, err := r.underWay(ctx); err != nil || !under {
				return err // nobody will reach the point any more
			}
		case decided, closed:
			also := []string{}
			if c == closed { // its row learns of a settlement after the log
				also = []string{"declined"}
			}
			if under, err := r.underWay(ctx, also...); err != nil || !under || watch.Look() > decidedWithin {
				return err
			}
			if err := r.hurry(ctx); err != nil {
				return err
			}
		}
		if err := r.pause(ctx, look); err != nil {
			return err
		}
	}
}

// underWay reports whether a bill is on its way, or in one of the other states.
func (r *run) underWay(ctx context.Context, also ...string) (bool, error) {
	rows, err := r.rows(ctx)
	under := len(rows) < bills
	for _, b := range rows {
		under = under || slices.Contains(append(also, "reserved", "sending", "closing", "held"), b.State)
	}
	return under, err
}

// pause lets time go by, in which the dead are started again.
func (r *run) pause(ctx context.Context, d time.Duration) error {
	for until := time.Now().Add(d); ; {
		if err := r.revive(ctx); err != nil {
			return err
		}
		left := time.Until(until)
		if left <= 0 {
			return context.Cause(ctx)
		}
		if err := parts.Pause(ctx, min(left, tick)); err != nil {
			return err
		}
	}
}

// revive starts those again that have died, each when its script says.
func (r *run) revive(ctx context.Context) error {
	r.adopt(ctx)
	if err := r.takenUp(ctx); err != nil {
		return err
	}
	for _, p := range r.replicas {
		if p.child != nil && r.settling {
			_ = p.child.Signal(syscall.SIGCONT) // a point may be reached late
		}
		if p.child == nil || !p.dead() {
			continue
		}
		if p.ended.IsZero() {
			p.ended = time.Now()
			p.deaths++
			r.tally.Kills++
			if err := r.bereaved(ctx, p.child.EndedAt()); err != nil {
				return err
			}
		}
		next := life{after: 200 * time.Millisecond}
		if p.life+1 < len(p.lives) {
			next = p.lives[p.life+1]
		}
		if next.held || time.Since(p.ended) < next.after {
			continue
		}
		p.life, p.stopped, p.ended = p.life+1, false, time.Time{}
		if err := p.start(ctx, next.crash); err != nil {
			return err
		}
	}
	return nil
}

// toRest waits until every bill has ended, and says what is open if that takes
// too long.
func (r *run) toRest(ctx context.Context) (open string, err error) {
	watch, still := parts.NewStopwatch(), parts.NewStopwatch()
	jumps := []time.Duration{16 * time.Minute, 25 * time.Hour, 25 * time.Hour, 48 * time.Hour, 16 * time.Minute}
	if r.s.charges {
		jumps = jumps[:1]
	}
	for last := ""; ; {
		rows, err := r.rows(ctx)
		if err != nil {
			return "", err
		}
		var waiting, stand []string
		quiet := len(rows) == bills
		for _, b := range rows {
			switch b.State {
			case "succeeded", "void":
				continue
			case "declined", "rejected":
				if b.Attempt < attempts {
					r.ask(ctx, "retry-charge", map[string]any{"customer_id": b.Customer, "billing_period": period, "attempt": b.Attempt + 1}, "")
				} else {
					r.settleBill(ctx, b)
				}
			}
			waiting = append(waiting, fmt.Sprintf("%s is %s, attempt %d (%s)", b.Customer, b.State, b.Attempt, b.Reason))
			stand = append(stand, fmt.Sprintf("%s/%d", b.Customer, b.Attempt))
			quiet = quiet && b.waitsForTime()
		}
		r.asking.Wait()
		if len(rows) == bills && len(waiting) == 0 {
			return "", nil
		}
		if now := fmt.Sprint(len(rows), quiet, stand); now != last {
			last = now
			still.Restart()
		}
		if watch.Look() > restWithin {
			return fmt.Sprintf("the run has not come to rest: %d of %d bills are on record; %s", len(rows), bills, strings.Join(waiting, "; ")), nil
		}
		if patience := map[bool]time.Duration{true: quietFor, false: stillFor}[quiet]; len(rows) == bills && still.Look() > patience {
			if err := r.jump(ctx, jumps[0]); err != nil {
				return "", err
			}
			if len(jumps) > 1 {
				jumps = jumps[1:]
			}
			still.Restart()
		}
		if err := r.hurry(ctx); err != nil {
			return "", err
		}
		if err := r.pause(ctx, look); err != nil {
			return "", err
		}
	}
}

// hurry cuts back-offs short: they are on the database's clock, which no run can
// move. Leases are left alone.
func (r *run) hurry(ctx context.Context) error {
	_, err := r.exec(ctx, `UPDATE billing_records SET next_try_at = clock_timestamp() + interval '150 milliseconds'
		WHERE next_try_at > clock_timestamp() + interval '400 milliseconds' AND next_try_at < 'infinity' AND state IN ('reserved', 'sending', 'unknown', 'held', 'closing', 'action_required')`)
	return err
}
