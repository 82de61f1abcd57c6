package sagas

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// sagaFold is a partition as a saga's pure definition makes it.
type sagaFold[S any] struct {
	saga      Saga[S]
	from      int64
	unread    int64
	instances map[string]*instance[S]
	before    map[string]*instance[S] // those with something that is not read yet, as they are without it
}

func newSagaFold[S any](s Saga[S], from, unread int64) *sagaFold[S] {
	return &sagaFold[S]{s, from, unread, map[string]*instance[S]{}, map[string]*instance[S]{}}
}

func (f *sagaFold[S]) take(r eventstore.Recorded) (steps []PlanStep) {
	id, _, ok := f.saga.Correlate(r.Event)
	if !ok {
		return nil
	}
	in := f.instances[id]
	if in == nil {
		in = &instance[S]{id: id}
		f.instances[id] = in
	}
	if in.position.Covers(r) {
		return nil
	}
	if r.Position >= f.unread && f.before[id] == nil {
		before := *in
		f.before[id] = &before
	}
	state, reaction := f.saga.React(in.state, r.Event)
	in.state = state
	in.position.Move(r)
	in.version++
	for _, req := range reaction.Commands {
		in.key = req.Key()
		if r.Position < f.from {
			continue
		}
		meaning, err := req.Fingerprint()
		if err != nil {
			meaning = []byte(err.Error()) // dispatching it fails the same way
		}
		steps = append(steps, PlanStep{Cause: r.Place, Command: req.Name(), Instance: id, Key: string(req.Key()), meaning: meaning})
	}
	return steps
}

func (f *sagaFold[S]) end() []PlanStep { return nil }

func (f *sagaFold[S]) mark(ctx context.Context, q eventstore.Querier, steps []PlanStep) error {
	if len(steps) == 0 {
		return nil
	}
	keys := make([]string, len(steps))
	for i, s := range steps {
		keys[i] = s.Key
	}
	rows, err := q.Query(ctx, `SELECT k.key, coalesce(e.partition, 0), coalesce(e.position, 0) FROM command_keys k
		LEFT JOIN events e ON e.stream_id = k.stream_id AND e.stream_version = k.first_version AND k.first_version <= k.last_version
		WHERE k.key = ANY((SELECT $1::text[])::text[])`, keys)
	if err != nil {
		return fmt.Errorf("look keys up: %w", err)
	}
	found := map[string]eventstore.Place{}
	var key string
	var at eventstore.Place
	if _, err = pgx.ForEachRow(rows, []any{&key, &at.Partition, &at.Position}, func() error { found[key] = at; return nil }); err != nil {
		return fmt.Errorf("look keys up: %w", err)
	}
	for i := range steps {
		steps[i].At, steps[i].Exists = found[steps[i].Key]
	}
	return nil
}

// restore forgets instances that began with something unread, and makes the
// others what they were before it. A refusal stays with the command that was refused.
func (f *sagaFold[S]) restore(ctx context.Context, tx pgx.Tx) error {
	var ids, begun []string
	kept, now := map[string]*instance[S]{}, map[string]*instance[S]{}
	for id, in := range f.before {
		if in.version == 0 {
			begun = append(begun, id)
			continue
		}
		in.changed = true
		ids = append(ids, id)
		kept[id], now[id] = in, &instance[S]{id: id}
	}
	if _, err := tx.Exec(ctx, `DELETE FROM sagas WHERE saga = $1 AND id = ANY((SELECT $2::text[])::text[])`, f.saga.Name, begun); err != nil {
		return fmt.Errorf("saga %s: forget: %w", f.saga.Name, err)
	}
	if len(ids) == 0 {
		return nil
	}
	if err := f.saga.load(ctx, tx, ids, now); err != nil {
		return err
	}
	for id, in := range kept {
		if now[id].key == in.key {
			in.refusal = now[id].refusal
		}
	}
	return f.saga.save(ctx, tx, kept)
}

// rowFold is a partition as a processor reads it that writes keyed rows and
// remembers nothing beside them.
type rowFold struct {
	from  int64
	react func(r eventstore.Recorded) []PlanStep
	rest  func() []PlanStep
}

func (f *rowFold) take(r eventstore.Recorded) []PlanStep {
	if r.Position < f.from {
		return nil
	}
	return f.react(r)
}

func (f *rowFold) end() []PlanStep {
	if f.rest == nil {
		return nil
	}
	return f.rest()
}

func (f *rowFold) restore(context.Context, pgx.Tx) error { return nil }

// Rows that a replay inserts, by table, and how they are found.
const (
	insertBill     = "insert billing_records"
	advanceBill    = "advance billing_records"
	insertImported = "insert imported_charges"
	insertRefund   = "insert refund_records"
	insertSchedule = "insert subscription_schedule"
	insertPayer    = "insert run_subscriptions"
)

var rowsFrom = map[string]string{
	insertBill:     `billing_records t ON t.customer_id = u.customer AND t.billing_period = u.id`,
	advanceBill:    `billing_records t ON t.customer_id = u.customer AND t.billing_period = u.id AND t.attempt >= u.attempt`,
	insertImported: `imported_charges t ON t.charge_id = u.id`,
	insertRefund:   `refund_records t ON t.customer_id = u.customer AND t.refund_id = u.id`,
	insertSchedule: `subscription_schedule t ON t.customer_id = u.customer`,
	insertPayer:    `run_subscriptions t ON t.customer_id = u.customer`,
}

func (f *rowFold) mark(ctx context.Context, q eventstore.Querier, steps []PlanStep) error {
	tables := map[string][]int{}
	for i, s := range steps {
		tables[s.Command] = append(tables[s.Command], i)
	}
	for command, which := range tables {
		var customers, ids []string
		var attempts []int32
		for _, i := range which {
			customers, ids, attempts = append(customers, steps[i].customer), append(ids, steps[i].id), append(attempts, int32(steps[i].attempt))
		}
		rows, err := q.Query(ctx, `SELECT u.n FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::int[])) WITH ORDINALITY AS u(customer, id, attempt, n)
			JOIN `+rowsFrom[command], customers, ids, attempts)
		if err != nil {
			return fmt.Errorf("look rows up: %w", err)
		}
		var n int
		if _, err := pgx.ForEachRow(rows, []any{&n}, func() error { steps[which[n-1]].Exists = true; return nil }); err != nil {
			return fmt.Errorf("look rows up: %w", err)
		}
	}
	return nil
}

// row is the step of a row; id is what its key has beside the customer.
func row(r eventstore.Recorded, command, id, key string, attempt int) PlanStep {
	s := PlanStep{Cause: r.Place, Command: command, Instance: r.SequenceKey, Key: key, customer: r.SequenceKey, id: id, attempt: attempt}
	if id != "" {
		s.Instance += "/" + id
	}
	return s
}

// preflightRows are the rows that preflight writes for an event.
func preflightRows(r eventstore.Recorded) []PlanStep {
	switch e := r.Event.(type) {
	case domain.ChargeRequested:
		command := insertBill
		if e.Attempt > 1 {
			command = advanceBill
		}
		return []PlanStep{row(r, command, e.BillingPeriod.String(), string(e.Key), e.Attempt)}
	case domain.CustomerBilled:
		if e.Source == domain.SourceImport {
			return []PlanStep{row(r, insertImported, e.ChargeID, e.ChargeID, 0)}
		}
	}
	return nil
}

// refundRows are the rows that refundPreflight writes for an event.
func refundRows(r eventstore.Recorded) []PlanStep {
	e, ok := r.Event.(domain.RefundRequested)
	if !ok {
		return nil
	}
	return []PlanStep{row(r, insertRefund, e.RefundID, string(e.Key), 0)}
}

// newScheduleFold plans the rows of schedule. One that a cancellation removes
// again is none.
func newScheduleFold(from int64) *rowFold {
	var steps []PlanStep
	at := map[string]int{} // a customer's step
	react := func(r eventstore.Recorded) []PlanStep {
		i, seen := at[r.SequenceKey]
		switch e := r.Event.(type) {
		case domain.SubscriptionActivated, domain.SubscriptionResumed:
			if !seen {
				at[r.SequenceKey] = len(steps)
				steps = append(steps, row(r, insertSchedule, "", r.SequenceKey, 0))
			}
		case domain.SubscriptionCancelled:
			if seen && e.Mode == domain.CancelNow {
				steps[i].Command = ""
				delete(at, r.SequenceKey)
			}
		}
		return nil
	}
	rest := func() (left []PlanStep) {
		for _, s := range steps {
			if s.Command != "" {
				left = append(left, s)
			}
		}
		return left
	}
	return &rowFold{from: from, react: react, rest: rest}
}

// newManifestFold plans the rows of manifest, one a customer. What follows from
// them is computed anew whenever one changes.
func newManifestFold(from int64) *rowFold {
	seen := map[string]bool{}
	return &rowFold{from: from, react: func(r eventstore.Recorded) []PlanStep {
		if _, ok := runOf(r.Event); ok || seen[r.SequenceKey] {
			return nil
		}
		seen[r.SequenceKey] = true
		return []PlanStep{row(r, insertPayer, "", r.SequenceKey, 0)}
	}}
}
