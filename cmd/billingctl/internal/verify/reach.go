package verify

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/sagas"
)

// The effectful processors whose rows are compared.
const (
	billing = iota
	preflight
	schedule
	refundPreflight
	processors
)

// reader is a processor, and how far it has read the log.
type reader struct {
	name    string
	wants   func(event string) bool
	tokens  [eventstore.Partitions]int64
	parked  map[string]int64   // by customer: the first event that waits
	skipped map[int64]struct{} // decided against, for good
	behind  atomic.Int64       // events that it wants and has not handled
}

func readerOf(p tracking.Processor) *reader {
	wanted := make(map[string]bool, len(p.Events))
	for _, e := range p.Events {
		wanted[e] = true
	}
	return &reader{name: p.Name, wants: func(e string) bool { return wanted[e] }, parked: map[string]int64{}, skipped: map[int64]struct{}{}}
}

// handled reports whether the processor has handled r.
func (p *reader) handled(r eventstore.Recorded) bool {
	return p.handledAt(r.Place, r.SequenceKey)
}

// handledAt reports whether the processor has handled a customer's event.
func (p *reader) handledAt(at eventstore.Place, customer string) bool {
	if at.Position > p.tokens[at.Partition] {
		return false
	}
	if first, parked := p.parked[customer]; parked && at.Position >= first {
		return false
	}
	_, skipped := p.skipped[at.Position]
	return !skipped
}

// behindOn reports whether the processor has not handled all that it wants of a
// customer.
func (p *reader) behindOn(c *account, of int) bool {
	_, parked := p.parked[c.id]
	return parked || c.newest[of] > p.tokens[c.partition]
}

// readers are all processors: the effectful ones first, in the order of their
// constants, then one a projection.
func readers(d *commands.Dispatcher) []*reader {
	idle := func() {}
	all := []*reader{readerOf(sagas.Billing.Processor(d)), readerOf(sagas.Preflight(idle)), readerOf(sagas.Schedule(d)), readerOf(sagas.RefundPreflight(idle))}
	for _, p := range projections.All() {
		all = append(all, readerOf(p.Processor()))
	}
	return all
}

// readReach reads how far processors are. A letter that was skipped and read
// again after a reset counts as read.
func readReach(ctx context.Context, tx pgx.Tx, all []*reader) error {
	find := func(name string) *reader {
		if i := slices.IndexFunc(all, func(r *reader) bool { return r.name == name }); i >= 0 {
			return all[i]
		}
		return &reader{parked: map[string]int64{}, skipped: map[int64]struct{}{}} // of no interest here
	}
	var name, sequence, status string
	var partition int16
	var position int64
	rows, err := tx.Query(ctx, `SELECT processor, partition, position FROM processor_tokens`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&name, &partition, &position}, func() error {
			find(name).tokens[partition] = position
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("read how far processors are: %w", err)
	}
	rows, err = tx.Query(ctx, `SELECT processor, sequence_key, position, status FROM dead_letters l
		WHERE status IN ('parked', 'behind') OR status = 'skipped' AND NOT EXISTS (SELECT FROM processor_runs r
			WHERE r.processor = l.processor AND r.action IN ('reset', 'tokens lost') AND r.started_at > l.resolved_at)
		ORDER BY position DESC`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&name, &sequence, &position, &status}, func() error {
			if status == "skipped" {
				find(name).skipped[position] = struct{}{}
			} else {
				find(name).parked[sequence] = position
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	return nil
}
