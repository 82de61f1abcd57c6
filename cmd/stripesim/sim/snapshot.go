package sim

import (
	"bytes"
	"fmt"
	"time"
)

// Snapshot returns everything that the stand-in remembers, as a journal: also a
// new stand-in can be started from it, by writing it to a file. Keys of requests
// under way are not in it, nor are faults, settings, counters and the request
// log, which are no state; of each object only its present version is, so that a
// restored one is new to search.
func (s *Sim) Snapshot() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.now()
	s.settle(now)
	j := new(journal) // without a file: it only gathers lines
	offset := s.clock.offset.Load()
	j.append(&record{Format: journalFormat, Account: s.account, At: s.epoch * int64(time.Second), Offset: &offset}, nil)
	write := func(r record) {
		r.At = now.UnixNano()
		j.append(&r, nil)
	}
	for c := range s.customers.oldestFirst {
		write(record{Customers: []*customer{c}})
	}
	for m := range s.methods.oldestFirst {
		write(record{Methods: []*paymentMethod{m}})
	}
	for p := range s.intents.oldestFirst {
		write(record{Intents: []*intent{p}})
	}
	for c := range s.charges.oldestFirst {
		write(record{Charges: []*charge{c}})
	}
	for r := range s.refunds.oldestFirst {
		write(record{Refunds: []*refund{r}})
	}
	for d := range s.disputes.oldestFirst {
		write(record{Disputes: []*dispute{d}})
	}
	for si := range s.setups.oldestFirst {
		write(record{Setups: []*setupIntent{si}})
	}
	for e := range s.events.oldestFirst {
		write(record{Events: []eventRecord{e.whole()}})
	}
	for _, o := range s.overrides {
		write(record{Overrides: []override{o}})
	}
	for _, f := range s.forwards {
		write(record{Later: []*forward{f}})
	}
	for _, e := range s.keys.queue {
		if e == nil || !e.done || s.keys.entries[e.scope] != e {
			continue
		}
		answer := s.replay(e)
		if answer.wire != wireWhole {
			return nil, fmt.Errorf("snapshot: %w", s.Err())
		}
		j.append(&record{At: now.UnixNano(), Key: &keyRecord{
			Scope: e.scope, Path: e.path, Fingerprint: e.fingerprint[:], Began: e.began, Request: e.request, Status: e.status,
		}}, answer.body)
	}
	return j.next, nil
}

// whole is an event with the version of its object, which may be an old one, in
// it.
func (e *event) whole() eventRecord {
	r := eventRecord{ID: e.ID, Type: e.Type, When: e.When, Owed: e.Owed, Missed: e.Missed}
	if e.Request != "" {
		r.By = &cause{e.Request, e.Key}
	}
	switch of := e.of.(type) {
	case *intent:
		r.Intent = of
	case *charge:
		r.Charge = of
	case *refund:
		r.Refund = of
	case *dispute:
		r.Dispute = of
	case *setupIntent:
		r.Setup = of
	}
	return r
}

// Restore takes the account back to a snapshot, its clock too unless keepClock
// is set: money that moved since then has not, keys used since then are unknown.
// Requests under way are dropped without effect; of webhooks those are sent that
// were owed then. Faults, settings, the endpoint, counters and the request log
// stay. A snapshot of
// another account, or a damaged one, is refused and changes nothing.
func (s *Sim) Restore(snapshot []byte, keepClock bool) error {
	if err := s.checkSnapshot(snapshot); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	offset := s.clock.offset.Load()
	if s.journal == nil {
		snapshot = bytes.Clone(snapshot) // answers stay in it
	}
	s.unlockAll()
	s.clearBooks()
	if s.journal != nil {
		if err := s.journal.replace(snapshot); err != nil {
			s.fail(err)
			return fmt.Errorf("restore: %w", err)
		}
	}
	_, err := replay(bytes.NewReader(snapshot), func(r *record, at int64, length int) error {
		err := s.apply(r, at, length)
		if r.Key != nil && s.journal == nil {
			s.keys.entries[r.Key.Scope].body = snapshot[at : at+int64(length)]
		}
		return err
	})
	if err != nil { // cannot be: it was checked
		s.fail(err)
		return fmt.Errorf("restore: %w", err)
	}
	if keepClock {
		s.clock.offset.Store(offset)
		if s.journal != nil {
			s.journal.append(&record{At: s.clock.now().UnixNano(), Offset: &offset}, nil)
		}
	}
	s.resume()
	s.owe()
	s.settle(s.clock.now())
	s.wake()
	if s.journal != nil {
		if err := s.journal.flush(s.journal.position()); err != nil {
			s.fail(err)
			return fmt.Errorf("restore: %w", err)
		}
	}
	return nil
}

// checkSnapshot refuses what is not a whole snapshot of this account.
func (s *Sim) checkSnapshot(snapshot []byte) error {
	s.mu.Lock()
	account := s.account
	s.mu.Unlock()
	end, err := replay(bytes.NewReader(snapshot), func(r *record, _ int64, _ int) error {
		if r.Format != "" && r.Account != account {
			return fmt.Errorf("the snapshot is of account %s, not %s", r.Account, account)
		}
		for _, e := range r.Events {
			if _, err := r.event(e); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case end == 0 || end != int64(len(snapshot)):
		return fmt.Errorf("the snapshot is cut off after %d of %d bytes", end, len(snapshot))
	}
	return nil
}
