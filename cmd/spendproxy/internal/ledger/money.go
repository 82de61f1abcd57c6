package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// Begin judges a POST, reserves what it may take, and writes the audit's row
// before the call, in one commit that is shared with other callers. After an
// error nothing may be sent: nothing is known to be written. A call that is begun
// again, under the same id or by a resend of its key, reserves nothing more.
func (l *Ledger) Begin(ctx context.Context, a Ask) (Decision, error) {
	var d Decision
	u := &underway{ask: a}
	t := &task{
		what: "begin",
		want: func(w *wanted) {
			w.vaults[a.VaultKey] = true
			w.call(a.Call)
			w.owner(a.VaultKey, a.Call.Key)
		},
		apply: func(p *page) error {
			d, u.subject = p.begin(a)
			return nil
		},
	}
	l.wait(a.ID)
	err := l.tasks.do(ctx, t)
	switch {
	case errors.Is(err, ErrCommitUnknown):
		if d.Forward { // if it is written, it must be taken back: nothing is sent
			l.await(a.ID, u, Result{ID: a.ID, Fate: Unsent})
		}
		return Decision{}, fmt.Errorf("begin: %w", err)
	case err != nil:
		return Decision{}, fmt.Errorf("begin: %w", err)
	case d.Forward:
		l.mu.Lock()
		l.calls[a.ID] = u
		l.mu.Unlock()
	}
	l.metrics.decided(d)
	if d.Forward && d.Verdict.Code != "" {
		l.log.Warn("a call passes that the rules would refuse", "vault_key", a.VaultKey, "rule", a.Call.Rule, "code", d.Verdict.Code, "why", d.Verdict.Reason)
	}
	return d, nil
}

// Finish books what came back for a call that Begin let pass: it settles,
// releases or holds. The same result twice is booked once. If it returns an error
// the result is kept, and written as soon as the database is back.
func (l *Ledger) Finish(ctx context.Context, r Result) error {
	l.mu.Lock()
	u := l.calls[r.ID]
	delete(l.later, r.ID)
	l.mu.Unlock()
	if u == nil {
		return fmt.Errorf("finish: %w", ErrNoCall)
	}
	if err := l.tasks.do(ctx, finishing(u, r)); err != nil {
		l.await(r.ID, u, r)
		return fmt.Errorf("finish: %w", err)
	}
	l.forget(r.ID)
	return nil
}

func finishing(u *underway, r Result) *task {
	return &task{
		what: "finish",
		want: func(w *wanted) {
			w.call(u.ask.Call)
			if u.subject != "" {
				w.subjects[u.subject] = true
			}
			if r.Evidence != nil {
				w.evidence(r.Evidence)
			}
		},
		apply: func(p *page) error {
			p.finish(u, r)
			return nil
		},
	}
}

// await keeps a result that could not be written.
func (l *Ledger) await(id string, u *underway, r Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u.tried = true
	l.calls[id], l.later[id] = u, r
}

func (l *Ledger) forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.calls, id)
	delete(l.later, id)
}

// wait lets a call that is begun anew under its id come behind its own taking
// back.
func (l *Ledger) wait(id string) {
	l.mu.Lock()
	var writing chan struct{}
	if u := l.calls[id]; u != nil {
		writing = u.writing
	}
	l.mu.Unlock()
	if writing != nil {
		<-writing
	}
	l.forget(id)
}

// catchUp writes the results that are kept. It reports whether none is left.
func (l *Ledger) catchUp() bool {
	type kept struct {
		call   *underway
		result Result
		turn   *turn[*task]
	}
	var all []kept
	l.mu.Lock()
	for id, r := range l.later {
		u := l.calls[id]
		u.writing = make(chan struct{})
		all = append(all, kept{u, r, l.tasks.join(finishing(u, r))})
		delete(l.later, id)
		if len(all) == groupMost {
			break
		}
	}
	l.mu.Unlock()
	for _, k := range all {
		<-k.turn.done
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range all {
		close(k.call.writing)
		k.call.writing = nil
		id := k.result.ID
		if _, again := l.later[id]; l.calls[id] != k.call || again {
			continue // begun or finished anew meanwhile
		}
		if k.turn.err == nil {
			delete(l.calls, id)
		} else {
			l.later[id] = k.result
		}
	}
	return len(l.later) == 0
}

// Observe books what passed through in reads: it settles and releases what is
// held, and remembers objects that were not known. What shows nothing new costs
// one look, shared with other callers.
func (l *Ledger) Observe(ctx context.Context, seen []policy.Evidence) error {
	if len(seen) == 0 {
		return nil
	}
	g := &glimpse{seen: seen}
	if err := l.glimpses.do(ctx, g); err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	if len(g.news) == 0 {
		return nil
	}
	t := &task{
		what: "observe",
		want: func(w *wanted) {
			for i := range g.news {
				w.evidence(&g.news[i])
			}
		},
		apply: func(p *page) error {
			p.observe(g.news)
			return nil
		},
	}
	if err := l.tasks.do(ctx, t); err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	return nil
}

// Doubts lists what only a read of Stripe can settle: what has been open for its
// quiet time. What was listed before comes behind what was not; among equals the
// oldest comes first.
func (l *Ledger) Doubts(ctx context.Context, limit int) ([]Doubt, error) {
	now, err := l.Clock(ctx)
	if err != nil {
		return nil, fmt.Errorf("list doubts: %w", err)
	}
	rows, err := l.pool.Query(ctx, `WITH due AS MATERIALIZED (
			SELECT id FROM spendproxy.subjects WHERE state IN ('reserved', 'held') AND ask_at <= $1
			ORDER BY asked_at NULLS FIRST, since, id LIMIT $2 FOR UPDATE SKIP LOCKED
		), asked AS (
			UPDATE spendproxy.subjects s SET asked_at = $1 FROM due WHERE s.id = due.id
			RETURNING s.id, intent, object, refund, since, stripe_customer, customer_id, billing_period
		)
		SELECT * FROM asked ORDER BY since, id`, now, limitOf(limit))
	if err != nil {
		return nil, fmt.Errorf("list doubts: %w", err)
	}
	defer rows.Close()
	var doubts []Doubt
	for rows.Next() {
		var d Doubt
		var object, customer, period string
		var refund bool
		if err := rows.Scan(&d.Subject, &d.Intent, &object, &refund, &d.Since, &d.StripeCustomer, &customer, &period); err != nil {
			return nil, fmt.Errorf("list doubts: %w", err)
		}
		if d.Since = d.Since.UTC(); refund {
			d.Refund = object
		} else {
			d.Charge = object
		}
		d.Bill = billOf(customer, period)
		doubts = append(doubts, d)
	}
	return doubts, rows.Err()
}

// Release frees a reservation by an operator's word, where no evidence can come.
// A success that shows up later is booked all the same. The errors are
// ErrNoSubject, ErrSettled and ErrReleased.
func (l *Ledger) Release(ctx context.Context, subject, reason, by string) error {
	call := uuid.NewString()
	t := &task{
		what:  "release",
		want:  func(w *wanted) { w.subjects[subject] = true },
		apply: func(p *page) error { return p.free(subject, call, reason, by) },
	}
	if err := l.tasks.do(ctx, t); err != nil {
		return fmt.Errorf("release %s: %w", subject, err)
	}
	l.log.Warn("a reservation was released by hand", "subject", subject, "by", by, "reason", reason)
	return nil
}

// Run writes notes, and results that could not be written at once, until ctx
// ends, and then what is left of them, for a few seconds at most. It also prunes
// the audit, if rows of it are not kept for ever.
func (l *Ledger) Run(ctx context.Context) error {
	if l.options.AuditKeep > 0 {
		var pruning sync.WaitGroup
		defer pruning.Wait()
		pruning.Go(func() { l.pruning(ctx) })
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case rows := <-l.notes:
			l.writeNotes(ctx, rows)
		case <-tick.C:
			l.catchUp()
		case <-ctx.Done():
			rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			l.drainNotes(rest)
			for !l.catchUp() && rest.Err() == nil {
				select {
				case <-tick.C:
				case <-rest.Done():
				}
			}
			return nil
		}
	}
}
