package sagas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// Saga is a pure definition: which instance an event belongs to, what the
// instance makes of it, and which commands follow. It knows no clock, no
// database and no network. S is the instance's memory; it must survive JSON.
type Saga[S any] struct {
	Name string
	// Events are the contract names it reacts to.
	Events []string
	// Correlate names the instance an event belongs to, and the stream its
	// commands are decided on; ok is false for an event that is none of its own.
	Correlate func(domain.Event) (id string, stream domain.StreamID, ok bool)
	// React gives the instance after the event, and what follows from it.
	React func(S, domain.Event) (S, Reaction)
	// Step names where an instance stands, for operators.
	Step func(S) (step string, attempt int)
}

// Reaction is what follows from an event: commands to send now, and timers to
// set or to cancel. Changes of timers hold in the order in which they are given.
type Reaction struct {
	Commands []commands.Request
	Timers   []TimerChange
}

// Processor is the saga as an effectful tracking processor. State, facts,
// command keys and token move in one transaction. A command that is refused is
// an outcome: it is kept in the instance's row with its reason, and nobody is
// parked for it. A lost token makes the saga read the log again from the
// beginning; instances skip what they have seen, and keys make the rest harmless.
func (s Saga[S]) Processor(d *commands.Dispatcher) tracking.Processor {
	return tracking.Processor{
		Name: s.Name, Kind: tracking.Effectful, Start: tracking.Beginning, Events: s.Events,
		PageSize: sagaPage, Partitions: eventstore.Partitions, Pace: sagaPace,
		Handler:     tracking.HandlerFunc(func(ctx context.Context, p *tracking.Page) error { return s.handle(ctx, d, p) }),
		AfterCommit: func(*tracking.Page) { crashpoint.Reach("saga.committed") },
	}
}

// sagaPage is small: a page holds the append locks of its partitions until it
// commits.
const sagaPage = 64

// sagaPace lets what arrives in a burst share commits: a page begins at once, the next one this much later.
const sagaPace = 50 * time.Millisecond

// instance is a row of sagas.
type instance[S any] struct {
	id       string
	state    S
	version  int
	position eventstore.Mark
	key      domain.Key
	refusal  string
	changed  bool
}

func (s Saga[S]) handle(ctx context.Context, d *commands.Dispatcher, p *tracking.Page) error {
	var ids []string
	byID := map[string]*instance[S]{}
	for _, e := range p.Events {
		id, _, ok := s.Correlate(e.Event)
		if _, seen := byID[id]; !ok || seen {
			continue
		}
		byID[id] = &instance[S]{id: id}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil
	}
	if err := s.load(ctx, p.Tx, ids, byID); err != nil {
		return err
	}
	var out outbox[S]
	var timers []timerChange
	for _, e := range p.Events {
		id, stream, ok := s.Correlate(e.Event)
		if !ok {
			continue
		}
		in := byID[id]
		if in.position.Covers(e) {
			continue
		}
		var reaction Reaction
		in.state, reaction = s.React(in.state, e.Event)
		in.position.Move(e)
		in.changed = true
		in.version++
		for _, r := range reaction.Commands {
			out = append(out, letter[S]{r, stream, in, e})
		}
		for _, change := range reaction.Timers {
			timers = append(timers, timerChange{change, e})
		}
	}
	// Most pages ask for nothing: they lock no partition.
	if len(out) > 0 {
		grown, err := s.send(ctx, d, p, out)
		if err != nil {
			return err
		}
		p.Appended = grown
	}
	if err := changeTimers(ctx, p.Tx, timers); err != nil {
		return fmt.Errorf("saga %s: %w", s.Name, err)
	}
	err := s.save(ctx, p.Tx, byID)
	crashpoint.Reach("saga.committing")
	return err
}

// letter is a command that an instance asks for, and the event it follows from.
type letter[S any] struct {
	request commands.Request
	stream  domain.StreamID
	sender  *instance[S]
	cause   eventstore.Recorded
}

type outbox[S any] []letter[S]

// send dispatches what the instances ask for, and keeps refusals with them. It is
// an error if there is no such customer.
func (s Saga[S]) send(ctx context.Context, d *commands.Dispatcher, p *tracking.Page, out outbox[S]) (grown eventstore.Growth, err error) {
	streams, requests := make([]domain.StreamID, len(out)), make([]commands.Request, len(out))
	for i, l := range out {
		streams[i], requests[i] = l.stream, l.request
	}
	unit, err := d.Begin(ctx, p.Tx, streams, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("saga %s: %w", s.Name, err)
	}
	replies, err := unit.DispatchEach(ctx, requests, func(i int) eventstore.Meta {
		return eventstore.Meta{Actor: "saga/" + s.Name, Causation: out[i].cause.EventID.String(), Correlation: correlation(out[i].cause)}
	})
	if err != nil {
		return nil, fmt.Errorf("saga %s: %w", s.Name, err)
	}
	for i, reply := range replies {
		sender := out[i].sender
		sender.key, sender.refusal = requests[i].Key(), ""
		if len(reply.Events) == 0 {
			p.Note(settledAlready(unit, out[i].cause.Event))
		}
		if reply.Refusal == nil {
			continue
		}
		refused, ok := errors.AsType[*domain.Error](reply.Refusal)
		if !ok || errors.Is(refused, domain.ErrUnknownCustomer) { // no fact is about nobody: the event waits for whoever corrects it
			return nil, fmt.Errorf("saga %s: %s on %s: %w", s.Name, requests[i].Name(), out[i].stream, reply.Refusal)
		}
		sender.refusal = requests[i].Name() + ": " + refused.Error()
	}
	return unit.Grown(), nil
}

// settledAlready says why a command about a fact's bill came to nothing: the bill
// has ended, or was asked for, by another road.
func settledAlready(unit *commands.Unit, e domain.Event) string {
	c, p, ok := domain.BillOf(e)
	if !ok {
		return ""
	}
	b, _ := unit.Customer(c).Bill(p)
	return settledAs(b.Status)
}

// settledAs words that for a bill's status.
func settledAs(status domain.BillStatus) string {
	switch {
	case status == domain.BillPaid:
		return "already billed"
	case status.Known():
		return "already " + string(status)
	}
	return ""
}

// correlation is the conversation an event belongs to: its own, or the one that
// it begins.
func correlation(e eventstore.Recorded) string {
	var m eventstore.Meta
	if json.Unmarshal(e.Metadata, &m) == nil && m.Correlation != "" {
		return m.Correlation
	}
	return e.EventID.String()
}

func (s Saga[S]) load(ctx context.Context, tx pgx.Tx, ids []string, byID map[string]*instance[S]) error {
	rows, err := tx.Query(ctx, `SELECT id, state, version, last_position, coalesce(key, ''), coalesce(refusal, '')
		FROM unnest($2::text[]) AS n(wanted) CROSS JOIN LATERAL (SELECT * FROM sagas WHERE saga = $1 AND id = wanted OFFSET 0) AS instance`, s.Name, ids)
	if err != nil {
		return fmt.Errorf("saga %s: load: %w", s.Name, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, key, refusal string
		var state []byte
		var version int
		var position int64
		if err := rows.Scan(&id, &state, &version, &position, &key, &refusal); err != nil {
			return fmt.Errorf("saga %s: load: %w", s.Name, err)
		}
		in := byID[id]
		in.version, in.position.Position, in.key, in.refusal = version, position, domain.Key(key), refusal
		if err := json.Unmarshal(state, &in.state); err != nil {
			return fmt.Errorf("saga %s: load %s: %w", s.Name, id, err)
		}
	}
	return rows.Err()
}

func (s Saga[S]) save(ctx context.Context, tx pgx.Tx, byID map[string]*instance[S]) error {
	var (
		ids, states, steps, keys, refusals []string
		attempts, versions                 []int32
		positions                          []int64
	)
	for _, in := range byID {
		if !in.changed {
			continue
		}
		state, err := json.Marshal(in.state)
		if err != nil {
			return fmt.Errorf("saga %s: save %s: %w", s.Name, in.id, err)
		}
		step, attempt := s.Step(in.state)
		if in.refusal != "" {
			step = "refused"
		}
		ids, states, steps = append(ids, in.id), append(states, string(state)), append(steps, step)
		keys, refusals = append(keys, string(in.key)), append(refusals, in.refusal)
		attempts, versions, positions = append(attempts, int32(attempt)), append(versions, int32(in.version)), append(positions, in.position.Position)
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO sagas (saga, id, state, step, attempt, key, refusal, version, last_position)
		SELECT $1, id, state::json, step, attempt, nullif(key, ''), nullif(refusal, ''), version, position
		FROM unnest($2::text[], $3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::int[], $9::bigint[])
			AS u(id, state, step, attempt, key, refusal, version, position)
		ORDER BY id
		ON CONFLICT (saga, id) DO UPDATE SET state = excluded.state, step = excluded.step, attempt = excluded.attempt, key = excluded.key,
			refusal = excluded.refusal, version = excluded.version, last_position = excluded.last_position, updated_at = clock_timestamp()`,
		s.Name, ids, states, steps, attempts, keys, refusals, versions, positions)
	if err != nil {
		return fmt.Errorf("saga %s: save: %w", s.Name, err)
	}
	return nil
}
