package sim

import (
	"fmt"
	"time"
)

// begin writes the journal's first line.
func (s *Sim) begin() {
	offset := s.clock.offset.Load()
	s.journal.append(&record{Format: journalFormat, Account: s.account, At: s.epoch * int64(time.Second), Offset: &offset}, nil)
}

// apply brings back what one line of the journal tells.
func (s *Sim) apply(r *record, offset int64, length int) error {
	if r.Format != "" {
		if s.options.Account != "" && s.options.Account != r.Account {
			return fmt.Errorf("the journal belongs to account %s, not %s", r.Account, s.options.Account)
		}
		s.account, s.epoch = r.Account, r.At/int64(time.Second)
	}
	if r.Offset != nil {
		s.clock.offset.Store(*r.Offset)
	}
	horizon := s.horizon(r.At)
	for _, p := range r.Intents {
		s.putIntent(p, horizon)
	}
	for _, c := range r.Charges {
		s.putCharge(c, horizon)
	}
	for _, re := range r.Refunds {
		s.refunds.put(re)
	}
	for _, cu := range r.Customers {
		s.customers.put(cu)
	}
	for _, m := range r.Methods {
		s.methods.put(m)
	}
	for _, o := range r.Overrides {
		s.overrides[o.ID] = o
	}
	for _, d := range r.Disputes {
		s.disputes.put(d)
	}
	for _, si := range r.Setups {
		s.setups.put(si)
	}
	for _, er := range r.Events {
		e, err := r.event(er)
		if err != nil {
			return err
		}
		s.events.put(e)
	}
	for _, id := range r.Delivered {
		if e, ok := s.events.get(id); ok {
			e.Owed, e.Missed = false, false
		}
	}
	for _, id := range r.Missed {
		if e, ok := s.events.get(id); ok {
			e.Owed, e.Missed = false, true
		}
	}
	for _, f := range r.Later {
		s.forwards[f.ID] = f
	}
	for _, id := range r.Forwarded {
		delete(s.forwards, id)
	}
	for _, scope := range r.Forgotten {
		delete(s.keys.entries, scope)
	}
	if k := r.Key; k != nil {
		e := &keyEntry{scope: k.Scope, path: k.Path, began: k.Began, request: k.Request, done: true, status: k.Status, offset: offset, length: length}
		copy(e.fingerprint[:], k.Fingerprint)
		e.counts.Executions = 1
		s.keys.remember(e)
	}
	return nil
}

// resume takes up again what was to happen later.
func (s *Sim) resume() {
	for p := range s.intents.oldestFirst {
		if p.Status == inProcessing {
			s.schedule(p.SettleAt, p.ID, nil)
		}
	}
	for c := range s.charges.oldestFirst {
		if c.SettleAt != 0 {
			s.schedule(c.SettleAt, c.ID, nil)
		}
	}
	for _, f := range s.forwards {
		s.schedule(f.Due, "", f)
	}
}
