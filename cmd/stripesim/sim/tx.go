package sim

import "time"

// tx is one request's change of state. It runs under Sim.mu and is visible at
// once; commit makes it last.
type tx struct {
	s       *Sim
	c       *call
	now     time.Time
	rec     record
	changed bool
	queued  []*delivery // sent once this is written
}

func (t *tx) putIntent(p *intent) {
	p.Changed, t.changed = t.now.UnixNano(), true
	t.s.putIntent(p, t.s.horizon(p.Changed))
	t.rec.Intents = append(t.rec.Intents, p)
}

func (t *tx) putCharge(c *charge) {
	c.Changed, t.changed = t.now.UnixNano(), true
	t.s.putCharge(c, t.s.horizon(c.Changed))
	t.rec.Charges = append(t.rec.Charges, c)
}

func (t *tx) putRefund(r *refund) {
	t.changed = true
	t.s.refunds.put(r)
	t.rec.Refunds = append(t.rec.Refunds, r)
}

func (t *tx) putDispute(d *dispute) {
	t.changed = true
	t.s.disputes.put(d)
	t.rec.Disputes = append(t.rec.Disputes, d)
}

func (t *tx) putSetupIntent(si *setupIntent) {
	t.changed = true
	t.s.setups.put(si)
	t.rec.Setups = append(t.rec.Setups, si)
}

func (t *tx) putCustomer(c *customer) {
	t.changed = true
	t.s.customers.put(c)
	t.rec.Customers = append(t.rec.Customers, c)
}

func (t *tx) putMethod(m *paymentMethod) {
	t.changed = true
	t.s.methods.put(m)
	t.rec.Methods = append(t.rec.Methods, m)
}

func (t *tx) putOverride(o override) {
	t.changed = true
	t.s.overrides[o.ID] = o
	t.rec.Overrides = append(t.rec.Overrides, o)
}

// later leaves the request to be executed after d on the stand-in's clock.
func (t *tx) later(d time.Duration) {
	c := t.c
	f := &forward{
		ID: c.id, Due: t.now.Add(d).UnixNano(), Method: c.method, Path: c.path, Form: c.params.encode(),
		Key: c.key, Fingerprint: c.fingerprint[:],
	}
	t.changed = true
	t.s.forwards[f.ID] = f
	t.s.schedule(f.Due, "", f)
	t.rec.Later = append(t.rec.Later, f)
}

// commit ends the change. With an entry, the response is kept under its key.
func (t *tx) commit(entry *keyEntry, resp *response) {
	if entry == nil && !t.changed {
		return
	}
	t.rec.At = t.now.UnixNano()
	var answer []byte
	if entry != nil {
		answer = resp.body
		entry.done, entry.status, entry.length = true, resp.status, len(answer)
		entry.counts.Executions++
		t.rec.Key = &keyRecord{
			Scope: entry.scope, Path: entry.path, Fingerprint: entry.fingerprint[:],
			Began: entry.began, Request: entry.request, Status: resp.status,
		}
	}
	switch {
	case t.s.journal != nil:
		offset := t.s.journal.append(&t.rec, answer)
		for _, d := range t.queued {
			d.written = t.s.journal.position()
		}
		if entry != nil {
			entry.offset = offset
		}
	case entry != nil:
		entry.body = answer
	}
}

// putIntent stores a version of an intent and lets go of versions that search
// has long indexed past.
func (s *Sim) putIntent(p *intent, horizon int64) {
	if old, ok := s.intents.get(p.ID); ok && old != p {
		p.former = old
		if old.Changed <= horizon {
			old.former = nil
		}
	}
	s.intents.put(p)
}

func (s *Sim) putCharge(c *charge, horizon int64) {
	if old, ok := s.charges.get(c.ID); ok && old != c {
		c.former = old
		if old.Changed <= horizon {
			old.former = nil
		}
	}
	s.charges.put(c)
}

// seconds is the transaction's time as Stripe writes it.
func (t *tx) seconds() int64 { return t.now.Unix() }

// at is a time in nanoseconds as a time.
func at(nanoseconds int64) time.Time { return time.Unix(0, nanoseconds).UTC() }
