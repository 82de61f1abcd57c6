package commands

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// maxAttempts bounds the decisions of one dispatch while the stream moves.
const maxAttempts = 16

// Dispatcher decides commands on the log. It is safe for concurrent use.
type Dispatcher struct {
	log   *eventstore.Store
	cache cache
}

// NewDispatcher makes a dispatcher over a log.
func NewDispatcher(log *eventstore.Store) *Dispatcher {
	return &Dispatcher{log: log, cache: cache{most: cacheMost}}
}

// Log is the log that commands are decided on.
func (d *Dispatcher) Log() *eventstore.Store { return d.log }

// Forget drops every state kept in the process. It is called when the database
// may have gone back in time: a kept state would be ahead of it.
func (d *Dispatcher) Forget() { d.cache.clear() }

// Context is what is recorded beside a command's facts.
type Context struct {
	Meta    eventstore.Meta
	Request *eventstore.RequestKey // the caller's Idempotency-Key, if any
}

// Dispatch decides a command and appends what it decides. It returns the
// receipt; or a refusal, a *domain.Error of the command or domain.ErrKeyReused;
// or a storage error, which [eventstore.Transient] classifies. After an error
// the same command may be dispatched again: its key makes that safe.
func (d *Dispatcher) Dispatch(ctx context.Context, req Request, with Context) (eventstore.Receipt, error) {
	print, err := req.Fingerprint()
	if err != nil {
		return eventstore.Receipt{}, err
	}
	if req.Key() == "" {
		return eventstore.Receipt{}, fmt.Errorf("%s was built without a key", req.Name())
	}
	for range maxAttempts {
		at, receipt, done, err := d.load(ctx, req, print)
		if err != nil || done {
			return receipt, err
		}
		events, err := req.decide(at.state)
		if err != nil {
			return eventstore.Receipt{}, refusal(req, err)
		}
		result, err := d.log.Append(ctx, eventstore.Batch{
			Stream: req.Stream(), Head: at.head, Key: req.Key(), Command: req.Name(), Fingerprint: print,
			Request: with.Request, Meta: with.Meta, Events: events,
		})
		if _, moved := errors.AsType[*eventstore.VersionConflict](err); moved {
			d.cache.drop(req.Stream())
			continue
		}
		if errors.Is(err, eventstore.ErrCommitUnknown) && ctx.Err() == nil {
			continue // the key tells what became of it
		}
		if err != nil {
			return eventstore.Receipt{}, refusal(req, err)
		}
		d.remember(req, at, result.Recorded)
		return result.Receipt, nil
	}
	return eventstore.Receipt{}, fmt.Errorf("%s: %w after %d decisions", req.Name(), ErrContended, maxAttempts)
}

// ErrContended says that a stream kept moving under a decision. Trying again
// later helps.
var ErrContended = errors.New("the stream kept changing")

// refusal passes refusals as they are and names the command of other errors.
func refusal(req Request, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*domain.Error](err); ok {
		return err
	}
	return fmt.Errorf("%s: %w", req.Name(), err)
}

// load reads the receipt of the command's key and the state of its stream, in
// one round trip.
func (d *Dispatcher) load(ctx context.Context, req Request, print []byte) (at folded, receipt eventstore.Receipt, done bool, err error) {
	at = d.known(req)
	pipeline := &pgx.Batch{}
	eventstore.QueueReceipt(pipeline, req.Key())
	eventstore.QueueLoadMany(pipeline, []eventstore.Since{{Stream: req.Stream(), After: at.head.Version}})
	answers := d.log.Pool().SendBatch(ctx, pipeline)
	defer answers.Close()
	receipt, done, err = d.log.CollectReceipt(answers, req.Key(), req.Name(), print)
	if err != nil || done {
		return at, receipt, done, refusal(req, err)
	}
	events, err := d.log.CollectMany(answers)
	if err != nil {
		return at, receipt, false, fmt.Errorf("%s: %w", req.Name(), err)
	}
	at, err = req.fold(at, events)
	if err != nil {
		return at, receipt, false, fmt.Errorf("%s: %w", req.Name(), err)
	}
	if len(events) > 0 {
		d.cache.put(req.Stream(), at)
	}
	return at, receipt, false, nil
}

// known is the cached state of the command's stream, or the empty one.
func (d *Dispatcher) known(req Request) folded {
	if at, ok := d.cache.get(req.Stream()); ok {
		return at
	}
	return folded{state: req.zero()}
}

// remember puts the state after an append into the cache.
func (d *Dispatcher) remember(req Request, at folded, appended []eventstore.Recorded) {
	if len(appended) == 0 {
		return
	}
	if next, err := req.fold(at, appended); err == nil {
		d.cache.put(req.Stream(), next)
	}
}

// fold evolves a state by events that follow it. An event this build does not
// know is an error: nothing may be decided over it.
func (r Request) fold(at folded, events []eventstore.Recorded) (folded, error) {
	for _, e := range events {
		if e.Err != nil {
			return at, fmt.Errorf("cannot decide on %s: version %d: %w", e.Stream, e.Version, e.Err)
		}
		at.state = r.evolve(at.state, e.Event)
		at.head = e.Head()
	}
	return at, nil
}

// Customer is the state of a customer as the log has it now.
func (d *Dispatcher) Customer(ctx context.Context, id domain.CustomerID) (domain.Customer, error) {
	at := folded{state: domain.Customer{}}
	if cached, ok := d.cache.get(id.Stream()); ok {
		at = cached
	}
	events, err := d.log.Load(ctx, d.log.Pool(), id.Stream(), at.head.Version)
	if err != nil {
		return domain.Customer{}, err
	}
	c := at.state.(domain.Customer)
	for _, e := range events {
		if e.Err != nil {
			return domain.Customer{}, fmt.Errorf("customer %s: %w", id, e.Err)
		}
		c = c.Evolve(e.Event)
		at.head = e.Head()
	}
	if len(events) > 0 {
		d.cache.put(id.Stream(), folded{c, at.head})
	}
	return c, nil
}

// Customers is the state of many customers as the log has them now, in one
// round trip, on a pool or in a transaction. Broken has those whose streams
// hold an event that this build cannot read, and why; their states are left
// out. It must not be used to decide; that is what Begin is for. What it reads
// is not cached, since a transaction may see what others never will.
func (d *Dispatcher) Customers(ctx context.Context, q eventstore.Querier, ids []domain.CustomerID) (states map[domain.CustomerID]domain.Customer, broken map[domain.CustomerID]error, err error) {
	states, broken = make(map[domain.CustomerID]domain.Customer, len(ids)), map[domain.CustomerID]error{}
	var since []eventstore.Since
	for _, id := range ids {
		if _, ok := states[id]; ok {
			continue
		}
		at, ok := d.cache.get(id.Stream())
		if !ok {
			at = folded{state: domain.Customer{}}
		}
		states[id] = at.state.(domain.Customer)
		since = append(since, eventstore.Since{Stream: id.Stream(), After: at.head.Version})
	}
	events, err := d.log.LoadMany(ctx, q, since)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range events {
		id := domain.CustomerID(e.SequenceKey)
		if broken[id] != nil {
			continue
		}
		if e.Err != nil {
			broken[id] = fmt.Errorf("read %s: version %d: %w", e.Stream, e.Version, e.Err)
			delete(states, id)
			continue
		}
		states[id] = states[id].Evolve(e.Event)
	}
	return states, broken, nil
}
