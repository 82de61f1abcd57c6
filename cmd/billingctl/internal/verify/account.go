package verify

import (
	"fmt"
	"slices"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// auditor follows the events of a part of the log that has all of its
// customers' events: their chains, and what they fold to.
type auditor struct {
	*tally
	chain     eventstore.Chain
	customers map[string]*account
}

func newAuditor(t *tally) *auditor { return &auditor{tally: t, customers: map[string]*account{}} }

// account is a customer as the log tells it.
type account struct {
	id        string
	partition int16
	state     domain.Customer
	broken    bool // an event could not be read, so the fold is not the whole truth
	bills     map[domain.Period]*trail
	newest    [processors]int64 // the newest event that each effectful processor wants
}

// trail is what the fold of a bill does not keep and its row is compared with.
type trail struct {
	requested int64    // position of the newest request
	intents   []string // that were ever committed, or paid it
	charges   []string // that are known to have been taken for it
	refunds   []domain.RefundRequested
	dunned    bool // something was to follow a decline
	imported  []importedCharge
}

const ofTheLog = "an event is never changed by Billonce: restore it from a backup or from an earlier export of this log, then verify again"

// follow checks r and goes on to it. It reports whether r can be folded.
func (a *auditor) follow(r eventstore.Recorded) (*account, bool) {
	about := func() string { return fmt.Sprintf("%s version %d at %s", r.Stream, r.Version, r.Place) }
	if r.Part == 0 { // what an upcaster has split is one link
		for _, f := range a.chain.Follow(r) {
			a.found(Difference{string(f.Kind), about(), f.Detail, ofTheLog})
		}
	}
	c := a.customers[r.SequenceKey]
	if c == nil {
		c = &account{id: r.SequenceKey, partition: r.Partition, bills: map[domain.Period]*trail{}}
		a.customers[r.SequenceKey] = c
	}
	if r.Event == nil {
		c.broken = true
		a.found(Difference{KindUnknown, about(), r.Err.Error(), "run the version that wrote it; if there is none, the event was changed: restore it from a backup or an export"})
		return c, false
	}
	for _, fault := range c.faults(r) {
		a.found(Difference{KindFact, about(), fault, "no command decides this: find out who wrote it, and restore the log from a backup or an export"})
	}
	c.state = c.state.Evolve(r.Event)
	c.keep(r)
	return c, true
}

// faults says what no command would have recorded after what is known.
func (c *account) faults(r eventstore.Recorded) (faults []string) {
	id, period, ok := domain.BillOf(r.Event)
	if !ok {
		return nil
	}
	if string(id) != r.SequenceKey {
		faults = append(faults, fmt.Sprintf("it is about customer %s", id))
	}
	before, _ := c.state.Bill(period)
	switch e := r.Event.(type) {
	case domain.ChargeRequested:
		if e.Attempt != before.Attempt+1 {
			faults = append(faults, fmt.Sprintf("attempt %d of %s follows attempt %d", e.Attempt, period, before.Attempt))
		}
		if key := domain.ChargeKey(id, period, e.Attempt); e.Key != key {
			faults = append(faults, fmt.Sprintf("the charge key of attempt %d of %s is %s, not %s", e.Attempt, period, key, e.Key))
		}
	case domain.CustomerBilled:
		billed := c.state.BilledPeriods()
		if billed.Has(period) {
			faults = append(faults, fmt.Sprintf("%s is billed twice: by %s and by %s", period, before.ChargeID, e.ChargeID))
		}
		if other, overlaps := billed.Overlapping(period); overlaps {
			faults = append(faults, fmt.Sprintf("%s is billed, and %s shares a month with it", period, other))
		}
	}
	return faults
}

func (c *account) keep(r eventstore.Recorded) {
	_, period, ok := domain.BillOf(r.Event)
	if !ok {
		return
	}
	t := c.bills[period]
	if t == nil {
		t = &trail{}
		c.bills[period] = t
	}
	switch e := r.Event.(type) {
	case domain.ChargeRequested:
		t.requested = r.Position
	case domain.ChargeIntentCommitted:
		t.intents = append(t.intents, e.IntentID)
	case domain.ChargeDeclined, domain.DunningScheduled:
		t.dunned = true
	case domain.CustomerBilled:
		if e.Source == domain.SourceImport {
			t.imported = append(t.imported, importedCharge{e.ChargeID, r.Place})
		}
		t.intents, t.charges = append(t.intents, e.IntentID), append(t.charges, e.ChargeID)
	case domain.RefundProposed:
		t.charges = append(t.charges, e.ChargeID)
	case domain.RefundRequested:
		if !slices.ContainsFunc(t.refunds, func(q domain.RefundRequested) bool { return q.RefundID == e.RefundID }) {
			t.refunds = append(t.refunds, e)
		}
	}
}
