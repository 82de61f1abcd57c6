package sagas

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

// What is refused of plans.
var (
	ErrPlanChanged = &domain.Error{Kind: domain.Conflict, Code: "plan_changed", Msg: "the plan is not the one that was signed off"}
	ErrLettersWait = &domain.Error{Kind: domain.Conflict, Code: "letters_wait", Msg: "the processor has put events aside that it would not read again: retry or skip them first, or begin before them"}
	ErrNoPlan      = &domain.Error{Kind: domain.NotFound, Code: "no_plan", Msg: "no effectful processor has this name"}
)

// Plan sums up what an effectful processor would ask for if it read the log
// again from a position on. Its digest covers every [PlanStep], so that two
// plans with the same digest lead to the same.
type Plan struct {
	Processor string `json:"processor"`
	From      int64  `json:"from"`     // the first position that is read again, from 1
	To        int64  `json:"to"`       // the newest position there is
	Commands  int64  `json:"commands"` // or rows; Existing and New together
	Existing  int64  `json:"existing"`
	New       int64  `json:"new"`
	Digest    string `json:"digest"` // SHA-256, 64 hexadecimal digits
}

// PlanStep is a command that a replay would dispatch, or a row that it would
// insert.
type PlanStep struct {
	Cause    eventstore.Place `json:"cause"`   // the fact that it follows from
	Command  string           `json:"command"` // its name, or "insert" or "advance" and a table
	Instance string           `json:"instance"`
	Key      string           `json:"key"`
	Exists   bool             `json:"exists"`       // the key or the row is there, so that nothing happens
	At       eventstore.Place `json:"at,omitempty"` // the first fact of the command that exists; none if it had none

	meaning  []byte // the command's fingerprint
	customer string // of a row
	id       string // of a row, beside the customer
	attempt  int
}

// planner makes plans for one processor.
type planner struct {
	processor tracking.Processor
	// fold makes a plan of what is at from or after it. The processor will have
	// read what is before unread, and no more: from, or less where it is behind.
	fold func(from, unread int64) fold
}

// fold is a partition as a processor would read it again.
type fold interface {
	// take gives what follows from an event, whether or not it is read again.
	take(r eventstore.Recorded) []PlanStep
	// end gives what follows from the partition as a whole.
	end() []PlanStep
	// mark finds out which steps exist.
	mark(ctx context.Context, q eventstore.Querier, steps []PlanStep) error
	// restore makes the processor forget what it is to read again, or for the
	// first time.
	restore(ctx context.Context, tx pgx.Tx) error
}

// planners are those of all effectful processors.
func planners() []planner {
	none := func() {}
	return []planner{
		{Billing.Processor(nil), func(from, unread int64) fold { return newSagaFold(Billing, from, unread) }},
		{Preflight(none), func(from, _ int64) fold { return &rowFold{from: from, react: preflightRows} }},
		{RefundPreflight(none), func(from, _ int64) fold { return &rowFold{from: from, react: refundRows} }},
		{Schedule(nil), func(from, _ int64) fold { return newScheduleFold(from) }},
		{Manifest(none, none), func(from, _ int64) fold { return newManifestFold(from) }},
	}
}

func plannerOf(name string) (planner, error) {
	all := planners()
	i := slices.IndexFunc(all, func(p planner) bool { return p.processor.Name == name })
	if i < 0 {
		return planner{}, ErrNoPlan
	}
	return all[i], nil
}

// MakePlan plans a replay from a position on (0 or 1: all of the log), on one
// read-only snapshot. Nothing is written, and no command is decided. Each is
// given every step as it is found: partition by partition, in order of position.
// What it holds in memory is a partition's instances.
func MakePlan(ctx context.Context, store *eventstore.Store, processor string, from int64, each func(PlanStep) error) (p Plan, err error) {
	planner, err := plannerOf(processor)
	if err != nil {
		return p, err
	}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, store.Pool(), options, func(tx pgx.Tx) error {
		p, err = planner.plan(ctx, store, tx, max(from, 1), each, nil)
		return err
	})
	if err != nil {
		return p, fmt.Errorf("plan a replay of %s: %w", processor, err)
	}
	return p, nil
}

// planPage is how many events of a partition are read at once.
const planPage = 2000

// plan folds the log as q sees it. Positions of a partition are committed in
// order, so that what is appended meanwhile is left out by the newest positions
// of the beginning. If the processor is sent back, it forgets on the way.
func (y planner) plan(ctx context.Context, store *eventstore.Store, q eventstore.Querier, from int64, each func(PlanStep) error, sent *sentBack) (Plan, error) {
	p := Plan{Processor: y.processor.Name, From: from}
	newest, err := store.Newest(ctx, q)
	if err != nil {
		return p, err
	}
	p.To = slices.Max(newest[:])
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "plan 1 %s %d\n", p.Processor, from)
	skip := y.processor.Skips(store.Codec())
	emit := func(f fold, steps []PlanStep) error {
		if err := f.mark(ctx, q, steps); err != nil {
			return err
		}
		for _, s := range steps {
			p.count(s, sum)
			if err := each(s); err != nil {
				return err
			}
		}
		return nil
	}
	for partition, last := range newest {
		unread := from
		if sent != nil {
			unread = min(from, sent.tokens[partition]+1)
		}
		f := y.fold(from, unread)
		for after := int64(0); after < last; {
			page, err := store.ReadPage(ctx, q, int16(partition), after, last, skip, planPage)
			if err != nil {
				return p, err
			}
			if len(page) == 0 {
				break
			}
			var steps []PlanStep
			for _, r := range page {
				after = r.Position
				if !y.processor.Wants(r) {
					continue
				}
				if r.Err != nil {
					return p, fmt.Errorf("the processor stops before %s: %w", r.Place, r.Err)
				}
				steps = append(steps, f.take(r)...)
			}
			if err := emit(f, steps); err != nil {
				return p, err
			}
		}
		if err := emit(f, f.end()); err != nil {
			return p, err
		}
		if sent != nil {
			if err := f.restore(ctx, sent.tx); err != nil {
				return p, err
			}
		}
	}
	p.Digest = hex.EncodeToString(sum.Sum(nil))
	return p, nil
}

// count adds a step to the sums and to the digest.
func (p *Plan) count(s PlanStep, sum hash.Hash) {
	p.Commands++
	state := "new"
	if s.Exists {
		p.Existing++
		state = "exists"
	} else {
		p.New++
	}
	_, _ = fmt.Fprintf(sum, "%s %q %q %q %s %x\n", s.Cause, s.Command, s.Instance, s.Key, state, s.meaning)
}

// SignOff is somebody's word for a plan.
type SignOff struct {
	Digest string // of the plan that was read
	Actor  string
	Reason string
}

// Applied is a plan that was carried out.
type Applied struct {
	Plan
	Actor     string    `json:"actor"`
	Reason    string    `json:"reason"`
	AppliedAt time.Time `json:"applied_at"`
}

// ApplyPlan makes the plan again, while no page of the processor is under way,
// and if it is still the one that was signed off sends the processor back. What
// follows is a replay by whoever runs the processor: what exists is met by its
// key, the rest is done. Each is given the steps of the plan as it is now, also
// where it is refused.
//
// It returns ErrPlanChanged, with the plan as it is now, ErrLettersWait,
// ErrNoPlan or what tracking.Replay returns. The pages of the processor wait as long as it takes.
func ApplyPlan(ctx context.Context, store *eventstore.Store, processor string, from int64, by SignOff, each func(PlanStep) error) (p Plan, err error) {
	planner, err := plannerOf(processor)
	if err != nil {
		return p, err
	}
	from = max(from, 1)
	err = tracking.Replay(ctx, store.Pool(), planner.processor, from, by.Actor, by.Reason, func(ctx context.Context, tx pgx.Tx) error {
		sent, err := sendBack(ctx, tx, processor, from)
		if err != nil {
			return err
		}
		if p, err = planner.plan(ctx, store, tx, from, each, sent); err != nil {
			return err
		}
		if p.Digest != by.Digest {
			return ErrPlanChanged
		}
		_, err = tx.Exec(ctx, `INSERT INTO saga_plans (processor, from_position, to_position, commands, existing, new, digest, actor, reason)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`, p.Processor, p.From, p.To, p.Commands, p.Existing, p.New, p.Digest, by.Actor, by.Reason)
		return err
	})
	return p, err
}

// sentBack is a processor that is about to be sent back, its tokens locked.
type sentBack struct {
	tx     pgx.Tx
	tokens [eventstore.Partitions]int64 // 0 of one that is lost: the processor will read it from the beginning
}

// sendBack reads how far a processor is. An event that is put aside before from
// stays aside, and what its customer's instances forgot would be lost to it.
func sendBack(ctx context.Context, tx pgx.Tx, processor string, from int64) (*sentBack, error) {
	var waiting bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM dead_letters WHERE processor = $1 AND position < $2 AND status IN ('parked', 'behind'))`, processor, from).Scan(&waiting); err != nil {
		return nil, err
	}
	if waiting {
		return nil, ErrLettersWait
	}
	rows, err := tx.Query(ctx, `SELECT partition, position FROM processor_tokens WHERE processor = $1`, processor)
	if err != nil {
		return nil, err
	}
	sent := &sentBack{tx: tx}
	var partition int16
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&partition, &position}, func() error { sent.tokens[partition] = position; return nil })
	return sent, err
}

// AppliedPlans reads the plans that were carried out, the newest first.
func AppliedPlans(ctx context.Context, q eventstore.Querier) ([]Applied, error) {
	rows, err := q.Query(ctx, `SELECT processor, from_position, to_position, commands, existing, new, digest, actor, reason, applied_at FROM saga_plans ORDER BY id DESC`)
	if err != nil {
		return nil, fmt.Errorf("read plans: %w", err)
	}
	plans, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Applied, err error) {
		return a, row.Scan(&a.Processor, &a.From, &a.To, &a.Commands, &a.Existing, &a.New, &a.Digest, &a.Actor, &a.Reason, &a.AppliedAt)
	})
	if err != nil {
		return nil, fmt.Errorf("read plans: %w", err)
	}
	return plans, nil
}
