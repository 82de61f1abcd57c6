package sagas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// errFenced says that a row moved on while its worker was away: another claim,
// another attempt, or an end. The worker's write is refused.
var errFenced = errors.New("the claim has been superseded; the write is refused")

// bookMost bounds the entries that share a transaction.
const bookMost = 64

// entry is one thing a worker wants written about a bill: a fact, the row, or
// both, in one transaction.
type entry struct {
	bill    bill
	attempt int
	fence   int64
	epoch   int64
	state   string // the row must be in this state …
	always  bool   // … unless a success is recorded, which is never refused

	// request is decided on the bill as it is then; nil: the row alone is written.
	request func(domain.Customer, *record) *commands.Request
	// change sets the row after the decision.
	change func(*record, domain.Bill)

	commit moment // crash points around the commit
	answer chan answer
}

// moment names the crash points before and behind a commit.
type moment struct{ before, behind string }

var (
	intentCommit  = moment{"intent.committing", "intent.committed"}
	startCommit   = moment{"start.committing", "start.committed"}
	outcomeCommit = moment{"outcome.committing", "outcome.committed"}
	closeCommit   = moment{"close.committing", "close.committed"}
)

type answer struct {
	record   record
	customer domain.Customer
	err      error
}

// book writes entries of many bills in groups: while one transaction is under
// way, the next group gathers.
type book struct {
	pool    *pgxpool.Pool
	d       *commands.Dispatcher
	log     *slog.Logger
	meta    eventstore.Meta
	entries chan *entry
	commits atomic.Int64
}

func newBook(pool *pgxpool.Pool, d *commands.Dispatcher, log *slog.Logger, meta eventstore.Meta) *book {
	return &book{pool: pool, d: d, log: log, meta: meta, entries: make(chan *entry, bookMost)}
}

// write hands an entry in and waits until it is durable, or refused. It waits
// as long as the database takes: what a call to Stripe brought is not dropped
// because the database is away for a while.
func (b *book) write(ctx context.Context, e *entry) (record, domain.Customer, error) {
	e.answer = make(chan answer, 1)
	select {
	case b.entries <- e:
	case <-ctx.Done():
		return record{}, domain.Customer{}, ctx.Err()
	}
	select {
	case a := <-e.answer:
		return a.record, a.customer, a.err
	case <-ctx.Done():
		return record{}, domain.Customer{}, ctx.Err()
	}
}

func (b *book) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-b.entries:
			b.group(ctx, b.gather(e))
		}
	}
}

// gather takes what waits, up to bookMost.
func (b *book) gather(first *entry) []*entry {
	group := []*entry{first}
	for len(group) < bookMost {
		select {
		case e := <-b.entries:
			group = append(group, e)
		default:
			return group
		}
	}
	return group
}

// group writes entries together; if that fails for a reason that will not
// pass, each by itself, so that one bad bill harms no other.
func (b *book) group(ctx context.Context, group []*entry) {
	wait := 20 * time.Millisecond
	for careful := false; ; {
		answers, err := b.tryGroup(ctx, group, careful)
		switch {
		case errors.Is(err, eventstore.ErrRaced) && !careful:
			careful = true // an outcome was written before: by another road, or by a commit whose answer was lost
		case err == nil:
			b.commits.Add(1)
			for i, e := range group {
				e.answer <- answers[i]
			}
			return
		case ctx.Err() != nil:
			for _, e := range group {
				e.answer <- answer{err: ctx.Err()}
			}
			return
		case eventstore.Transient(err):
			b.log.Warn("the outcome of calls cannot be written yet; trying again", "bills", len(group), "error", err)
			pause(ctx, jitter(wait))
			wait = min(2*wait, 2*time.Second)
		case len(group) > 1:
			for _, e := range group {
				b.group(ctx, []*entry{e})
			}
			return
		default:
			group[0].answer <- answer{err: err}
			return
		}
	}
}

func (b *book) tryGroup(ctx context.Context, group []*entry, careful bool) ([]answer, error) {
	var answers []answer
	var unit *commands.Unit
	err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) (err error) {
		answers, unit, err = b.writeIn(ctx, tx, group, careful)
		for _, e := range group {
			crashpoint.Reach(e.commit.before)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, e := range group {
		crashpoint.Reach(e.commit.behind)
	}
	unit.Committed()
	return answers, nil
}

func (b *book) writeIn(ctx context.Context, tx pgx.Tx, group []*entry, careful bool) ([]answer, *commands.Unit, error) {
	bills := make([]bill, 0, len(group))
	for _, e := range group {
		if !slices.Contains(bills, e.bill) {
			bills = append(bills, e.bill)
		}
	}
	rows, byBill := &pgx.Batch{}, map[bill]*record{}
	queueRecords(rows, bills, "true", false)
	unit, err := b.d.Begin(ctx, tx, streamsOf(bills), rows, func(results pgx.BatchResults) error {
		found, err := results.Query()
		if err != nil {
			return fmt.Errorf("lock rows: %w", err)
		}
		records, err := scanRecords(found)
		for _, r := range records {
			byBill[r.bill()] = r
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	answers := make([]answer, len(group))
	var requests []commands.Request
	var deciding []int
	for i, e := range group {
		r := byBill[e.bill]
		if fenced := r == nil || r.fence != e.fence || r.epoch != e.epoch || r.attempt != e.attempt || r.state != e.state; fenced && !e.always {
			answers[i].err = errFenced
			continue
		}
		if err := unit.Broken(e.bill.customer); err != nil {
			answers[i].err = err // the row keeps its lease, and is looked at again
			continue
		}
		if e.request == nil {
			continue
		}
		if req := e.request(unit.Customer(e.bill.customer), r); req != nil {
			requests, deciding = append(requests, *req), append(deciding, i)
		}
	}
	dispatch := unit.DispatchNew
	if careful {
		dispatch = unit.Dispatch
	}
	replies, err := dispatch(ctx, b.meta, requests...)
	if err != nil {
		return nil, nil, err
	}
	for k, reply := range replies {
		if reply.Refusal != nil {
			answers[deciding[k]].err = fmt.Errorf("%s: %w", requests[k].Name(), reply.Refusal)
		}
	}
	var changed []*record
	for i, e := range group {
		r := byBill[e.bill]
		customer := unit.Customer(e.bill.customer)
		if answers[i].err == nil && r != nil {
			bill, _ := customer.Bill(e.bill.period)
			e.change(r, bill)
			if !slices.Contains(changed, r) {
				changed = append(changed, r)
			}
		}
		if r != nil {
			answers[i].record = *r
		}
		answers[i].customer = customer
	}
	return answers, unit, saveRecords(ctx, tx, changed)
}

// Back-offs of rows without a decision, on the database's clock: quick at
// first, since most lost answers are found by the next read, then slow.
const (
	firstBackoff = 250 * time.Millisecond
	mostBackoff  = 60 * time.Second
	heldBackoff  = 30 * time.Second
	actionPoll   = 60 * time.Second
)

func backoffAfter(tries int) time.Duration {
	wait := firstBackoff
	for range tries {
		if wait *= 2; wait >= mostBackoff {
			wait = mostBackoff
			break
		}
	}
	return jitter(wait)
}

// settle sets a row to where its bill stands after an outcome was recorded.
func settle(r *record, b domain.Bill, o domain.Outcome) {
	r.state, r.lease, r.backoff, r.parked = stateOf(b.Status), 0, 0, false
	r.outcome, _ = json.Marshal(o)
	switch r.state {
	case stateReserved, stateUnknown, stateSending:
		r.backoff = max(backoffAfter(r.tries), time.Duration(o.RetryAfterSeconds)*time.Second)
		r.tries++
		if r.state == stateReserved && !b.Unresolved {
			r.firstSent, r.lastSent, r.lastSentWall = nil, nil, nil // proven: nothing was executed
		}
		if r.state == stateUnknown {
			r.quietSeconds = max(r.quietSeconds, o.QuietSeconds)
		}
	case stateHeld:
		r.backoff = jitter(heldBackoff)
		if byProxy(o) { // the run is paused; should it have been resumed meanwhile, the bill is tried soon
			r.backoff = backoffAfter(r.tries)
		}
		r.tries++
		if !b.Unresolved {
			r.firstSent, r.lastSent, r.lastSentWall = nil, nil, nil
		}
	case stateAction:
		r.backoff = jitter(actionPoll)
	case stateVoid:
		r.fence++
	default:
		r.tries = 0
	}
}
