package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Reply is the answer to one command of a transaction.
type Reply struct {
	Receipt eventstore.Receipt
	Events  []domain.Event // as appended now; none if the receipt is a replay
	Refusal error          // *domain.Error, or what Unit.Broken says; the others of the transaction go on
	State   any            // the aggregate after the command
}

// Unit is a transaction in which many commands are decided on fresh state:
// the partitions of their streams are locked first, so nothing moves between
// the read and the append. Nothing of it is visible, or cached, before the
// caller has committed and called Committed.
type Unit struct {
	d      *Dispatcher
	tx     eventstore.Querier
	states map[domain.StreamID]folded
	broken map[domain.StreamID]error // streams with an event that this build cannot read
	dirty  map[domain.StreamID]bool
	grown  eventstore.Growth
}

// Begin locks the partitions of streams, ascending, and reads their states, in
// one round trip. The pipeline may carry statements of the caller, to be sent
// between lock and reads; after is called to read their answers.
func (d *Dispatcher) Begin(ctx context.Context, tx eventstore.Querier, streams []domain.StreamID, with *pgx.Batch, after func(pgx.BatchResults) error) (*Unit, error) {
	u := &Unit{d: d, tx: tx, states: make(map[domain.StreamID]folded, len(streams)), broken: map[domain.StreamID]error{}, dirty: map[domain.StreamID]bool{}, grown: eventstore.Growth{}}
	pipeline := &pgx.Batch{}
	eventstore.QueueLock(pipeline, streams...)
	if with != nil {
		pipeline.QueuedQueries = append(pipeline.QueuedQueries, with.QueuedQueries...)
	}
	var since []eventstore.Since
	for _, s := range streams {
		if _, ok := u.states[s]; ok {
			continue
		}
		at, ok := d.cache.get(s)
		if !ok {
			at = folded{state: domain.Customer{}}
		}
		u.states[s] = at
		since = append(since, eventstore.Since{Stream: s, After: at.head.Version})
	}
	eventstore.QueueLoadMany(pipeline, since)
	answers := tx.SendBatch(ctx, pipeline)
	defer answers.Close()
	if _, err := answers.Exec(); err != nil {
		return nil, fmt.Errorf("lock partitions: %w", err)
	}
	if after != nil {
		if err := after(answers); err != nil {
			return nil, err
		}
	}
	events, err := d.log.CollectMany(answers)
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		if u.broken[e.Stream] != nil {
			continue
		}
		at := u.states[e.Stream]
		if e.Err != nil {
			u.broken[e.Stream] = fmt.Errorf("cannot decide on %s: version %d: %w", e.Stream, e.Version, e.Err)
			continue
		}
		at.state = at.state.(domain.Customer).Evolve(e.Event)
		at.head = e.Head()
		u.states[e.Stream] = at
		u.dirty[e.Stream] = true
	}
	return u, answers.Close()
}

// Customer is the state of a customer whose stream the unit has locked.
func (u *Unit) Customer(id domain.CustomerID) domain.Customer {
	c, _ := u.states[id.Stream()].state.(domain.Customer)
	return c
}

// Broken says why nothing can be decided for a customer: their stream holds an
// event that this build cannot read. Others of the unit are not affected.
func (u *Unit) Broken(id domain.CustomerID) error { return u.broken[id.Stream()] }

// Dispatch decides commands in order, each on the state that the ones before
// it left, and appends what they decide in as few statements as their streams
// allow. A command whose key was seen gets its old receipt.
func (u *Unit) Dispatch(ctx context.Context, meta eventstore.Meta, reqs ...Request) ([]Reply, error) {
	return u.DispatchEach(ctx, reqs, func(int) eventstore.Meta { return meta })
}

// DispatchNew is Dispatch for commands whose keys are believed to be new. It
// saves a round trip under the locks; if a key was seen after all, the error
// is eventstore.ErrRaced and the caller dispatches again, with Dispatch.
func (u *Unit) DispatchNew(ctx context.Context, meta eventstore.Meta, reqs ...Request) ([]Reply, error) {
	return u.dispatch(ctx, reqs, func(int) eventstore.Meta { return meta }, false)
}

// DispatchEach is Dispatch with metadata of its own for each command.
func (u *Unit) DispatchEach(ctx context.Context, reqs []Request, meta func(i int) eventstore.Meta) ([]Reply, error) {
	return u.dispatch(ctx, reqs, meta, true)
}

func (u *Unit) dispatch(ctx context.Context, reqs []Request, meta func(i int) eventstore.Meta, lookUp bool) ([]Reply, error) {
	replies := make([]Reply, len(reqs))
	prints := make([][]byte, len(reqs))
	for i, req := range reqs {
		if _, ok := u.states[req.Stream()]; !ok {
			return nil, fmt.Errorf("%s: the unit has not locked %s", req.Name(), req.Stream())
		}
		print, err := req.Fingerprint()
		if err != nil {
			return nil, err
		}
		prints[i] = print
	}
	var seen map[domain.Key]seenKey
	if lookUp {
		var err error
		if seen, err = u.receipts(ctx, reqs, prints); err != nil {
			return nil, err
		}
	}
	var batches []eventstore.Batch
	var owner []int
	inBatch, repeats := map[domain.Key]int{}, map[int]int{}
	for i, req := range reqs {
		at := u.states[req.Stream()]
		if err := u.broken[req.Stream()]; err != nil {
			replies[i] = Reply{Refusal: err, State: at.state}
			continue
		}
		if answer, ok := seen[req.Key()]; ok && req.Key() != "" {
			answer, err := u.told(ctx, answer, req, prints[i])
			if err != nil {
				return nil, err
			}
			replies[i] = Reply{Receipt: answer.receipt, Refusal: answer.err, State: at.state}
			continue
		}
		if first, ok := inBatch[req.Key()]; ok && req.Key() != "" {
			replies[i] = Reply{State: at.state}
			if reqs[first].Name() == req.Name() && bytes.Equal(prints[first], prints[i]) {
				repeats[i] = first // the same command: the first one's answer is its answer
			} else {
				replies[i].Refusal = domain.ErrKeyReused.With("key %s occurs twice in one transaction", req.Key())
			}
			continue
		}
		events, err := req.decide(at.state)
		if err != nil {
			if _, refused := errors.AsType[*domain.Error](err); !refused {
				return nil, fmt.Errorf("%s: %w", req.Name(), err)
			}
			replies[i] = Reply{Refusal: err, State: at.state}
			continue
		}
		if len(events) == 0 && req.Key() == "" {
			replies[i] = Reply{State: at.state}
			continue
		}
		batches = append(batches, eventstore.Batch{
			Stream: req.Stream(), Head: at.head, Key: req.Key(), Command: req.Name(), Fingerprint: prints[i], Meta: meta(i), Events: events,
		})
		owner = append(owner, i)
		inBatch[req.Key()] = i
		// Later commands on this stream build on it; the digest follows when the
		// rows are written, so they go into a statement of their own.
		for _, e := range events {
			at.state = req.evolve(at.state, e)
		}
		at.head = eventstore.Head{Version: at.head.Version + len(events)}
		u.states[req.Stream()] = at
		replies[i].Events, replies[i].State = events, at.state
	}
	if err := u.write(ctx, batches, owner, replies); err != nil {
		return nil, err
	}
	for i, first := range repeats {
		replies[i].Receipt = replies[first].Receipt
		replies[i].Receipt.Replayed = true
	}
	return replies, nil
}

// write appends batches. Batches of one stream are chained through the heads
// that the earlier ones returned.
func (u *Unit) write(ctx context.Context, batches []eventstore.Batch, owner []int, replies []Reply) error {
	for len(batches) > 0 {
		var now []eventstore.Batch
		var nowOwner []int
		var later []eventstore.Batch
		var laterOwner []int
		taken := map[domain.StreamID]bool{}
		for k, b := range batches {
			if taken[b.Stream] {
				later, laterOwner = append(later, b), append(laterOwner, owner[k])
				continue
			}
			taken[b.Stream] = true
			now, nowOwner = append(now, b), append(nowOwner, owner[k])
		}
		results, err := u.d.log.AppendTx(ctx, u.tx, now...)
		if err != nil {
			return err
		}
		u.grown.Add(eventstore.Grown(results))
		heads := map[domain.StreamID]eventstore.Head{}
		for k, r := range results {
			if r.Receipt.Replayed || errors.Is(r.Err, domain.ErrKeyReused) {
				return fmt.Errorf("%s: %w", now[k].Command, eventstore.ErrRaced)
			}
			if r.Err != nil {
				return fmt.Errorf("%s: %w", now[k].Command, r.Err) // the locks make this impossible; the caller rolls back
			}
			replies[nowOwner[k]].Receipt = r.Receipt
			if n := len(r.Recorded); n > 0 {
				heads[now[k].Stream] = r.Recorded[n-1].Head()
			} else {
				heads[now[k].Stream] = now[k].Head
			}
		}
		for s, h := range heads {
			at := u.states[s]
			if at.head.Version == h.Version {
				at.head = h
				u.states[s] = at
			}
			u.dirty[s] = true
		}
		for k := range later {
			if h, ok := heads[later[k].Stream]; ok && h.Version == later[k].Head.Version {
				later[k].Head = h
			}
		}
		batches, owner = later, laterOwner
	}
	return nil
}

// Committed is called after the transaction has committed: states go into the
// cache and readers are told.
func (u *Unit) Committed() {
	for s := range u.dirty {
		if u.broken[s] == nil {
			u.d.cache.put(s, u.states[s])
		}
	}
	u.d.log.Committed(u.grown)
}

// seenKey is the answer to a key that was seen before, asked with a command
// and a fingerprint.
type seenKey struct {
	receipt eventstore.Receipt
	err     error
	command string
	print   []byte
}

// told is the answer for req, whose key another request may have asked for
// with another meaning.
func (u *Unit) told(ctx context.Context, answer seenKey, req Request, print []byte) (seenKey, error) {
	if answer.command == req.Name() && bytes.Equal(answer.print, print) {
		return answer, nil
	}
	receipt, _, err := u.d.log.Receipt(ctx, u.tx, req.Key(), req.Name(), print)
	if err != nil && !errors.Is(err, domain.ErrKeyReused) {
		return seenKey{}, err
	}
	return seenKey{receipt: receipt, err: err}, nil
}

// receipts looks all keys up in one round trip.
func (u *Unit) receipts(ctx context.Context, reqs []Request, prints [][]byte) (map[domain.Key]seenKey, error) {
	var queries []eventstore.KeyQuery
	asked := map[domain.Key]int{}
	for i, req := range reqs {
		if _, twice := asked[req.Key()]; req.Key() != "" && !twice {
			queries = append(queries, eventstore.KeyQuery{Key: req.Key(), Command: req.Name(), Fingerprint: prints[i]})
			asked[req.Key()] = i
		}
	}
	if len(queries) == 0 {
		return nil, nil
	}
	found, err := u.d.log.Receipts(ctx, u.tx, queries)
	if err != nil {
		return nil, err
	}
	seen := make(map[domain.Key]seenKey, len(found))
	for key, answer := range found {
		i := asked[key]
		seen[key] = seenKey{answer.Receipt, answer.Err, reqs[i].Name(), prints[i]}
	}
	return seen, nil
}

// Grown is what the unit has added to the log, for a caller whose commit is
// announced by somebody else.
func (u *Unit) Grown() eventstore.Growth { return u.grown }
