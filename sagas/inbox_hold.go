package sagas

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// held is a transaction that holds some bills: their customers' partitions and
// their rows are locked, and what is decided is decided on fresh state.
type held struct {
	tx   pgx.Tx
	unit *commands.Unit
	rows map[bill]*record
}

// hold locks bills as the collector does: partitions ascending, then rows.
func hold(ctx context.Context, d *commands.Dispatcher, tx pgx.Tx, bills []bill) (*held, error) {
	h := &held{tx: tx, rows: map[bill]*record{}}
	statements := &pgx.Batch{}
	queueRecords(statements, bills, "true", false)
	var err error
	h.unit, err = d.Begin(ctx, tx, streamsOf(bills), statements, func(results pgx.BatchResults) error {
		locked, err := results.Query()
		if err != nil {
			return fmt.Errorf("lock rows: %w", err)
		}
		records, err := scanRecords(locked)
		for _, r := range records {
			h.rows[r.bill()] = r
		}
		return err
	})
	return h, err
}

// bill is how a held bill stands now.
func (h *held) bill(b bill) domain.Bill {
	state, _ := h.unit.Customer(b.customer).Bill(b.period)
	return state
}

// success is a charge that went through, as something at Stripe shows it.
type success struct {
	bill     bill
	found    Found
	source   domain.Source
	evidence string
	// recovered: whoever found it was looking for what the log had missed.
	recovered bool
}

// request reports the success, as any other road would: the command's key is
// the charge's.
func (s success) request(b domain.Bill) commands.Request {
	return commands.Of(commands.NewRecordChargeOutcome(s.bill.customer, s.bill.period, max(b.Attempt, 1), b.Start, domain.Outcome{
		Class: domain.Paid, ChargeID: s.found.ChargeID, IntentID: s.found.IntentID, Money: s.found.Amount, Source: s.source,
		Recovered: s.recovered || b.Attempt == 0, Evidence: s.evidence,
	}))
}

// knownTo reports whether the log has this very success.
func (s success) knownTo(b domain.Bill) bool {
	if b.Status != domain.BillPaid {
		return false
	}
	nameless := b.ChargeID == "" || s.found.ChargeID == ""
	return b.ChargeID == s.found.ChargeID || nameless && b.IntentID == s.found.IntentID
}

// record dispatches successes that the log does not have, and brings their
// rows to where their bills stand. It returns, for each, the facts that came
// of it; none: somebody else had told.
func (h *held) record(ctx context.Context, meta eventstore.Meta, all []success) ([][]domain.Event, error) {
	facts := make([][]domain.Event, len(all))
	var requests []commands.Request
	var owner []int
	for i, s := range all {
		if b := h.bill(s.bill); !s.knownTo(b) {
			requests, owner = append(requests, s.request(b)), append(owner, i)
		}
	}
	replies, err := h.unit.Dispatch(ctx, meta, requests...)
	if err != nil {
		return nil, err
	}
	for k, reply := range replies {
		if reply.Refusal != nil {
			return nil, fmt.Errorf("%s: %w", requests[k].Name(), reply.Refusal)
		}
		facts[owner[k]] = reply.Events
	}
	var changed []*record
	for _, s := range all {
		r, b := h.rows[s.bill], h.bill(s.bill)
		if r == nil || r.state == stateSucceeded || !s.knownTo(b) {
			continue
		}
		settle(r, b, domain.Outcome{Class: domain.Paid, ChargeID: s.found.ChargeID, IntentID: s.found.IntentID, Money: s.found.Amount, Source: s.source})
		changed = append(changed, r)
	}
	return facts, saveRecords(ctx, h.tx, distinct(slices.Clip(changed)))
}
