package sim

import (
	"errors"
	"fmt"
	"time"
)

// What control may do to the world, as methods. The control API is these over
// HTTP.

// Now is the time that control shows. It is Stripe's, but for Settings.ClockSkew.
func (s *Sim) Now() time.Time { return s.clock.shown() }

// Offset is how far the stand-in's clock is ahead of the machine's.
func (s *Sim) Offset() time.Duration { return time.Duration(s.clock.offset.Load()) }

// Advance moves the clock by d, backwards where d is negative, and returns the
// new time. What falls due on the way has happened when it returns.
func (s *Sim) Advance(d time.Duration) time.Time {
	return s.moveClock(func(offset time.Duration) time.Duration { return offset + d })
}

// SetClock sets the clock, which ticks on from there.
func (s *Sim) SetClock(now time.Time) {
	s.moveClock(func(time.Duration) time.Duration { return time.Until(now) })
}

func (s *Sim) moveClock(to func(time.Duration) time.Duration) time.Time {
	s.mu.Lock()
	offset := int64(to(s.Offset()))
	s.clock.offset.Store(offset)
	now := s.clock.now()
	if s.journal != nil {
		s.journal.append(&record{At: now.UnixNano(), Offset: &offset}, nil)
	}
	s.settle(now)
	s.mu.Unlock()
	s.wake()
	s.sync()
	return s.Now()
}

// sync makes everything so far durable.
func (s *Sim) sync() {
	if s.journal != nil {
		s.syncTo(s.journal.position())
	}
}

// syncTo makes everything up to a position of the journal durable.
func (s *Sim) syncTo(position int64) {
	if s.journal == nil {
		return
	}
	if err := s.journal.flush(position); err != nil {
		s.fail(err)
	}
}

// change runs a change of state on control's behalf.
func (s *Sim) change(change func(*tx) error) error {
	s.mu.Lock()
	now := s.clock.now()
	s.settle(now)
	t := &tx{s: s, c: &call{s: s, id: newID("req_", 14), inner: true}, now: now}
	err := change(t)
	if err == nil {
		t.commit(nil, nil)
	}
	s.mu.Unlock()
	s.sync()
	return err
}

// Plant is a charge that nobody asked for.
type Plant struct {
	Customer      string
	Amount        int64 // minor units
	Currency      string
	Metadata      map[string]string
	Created       time.Time // zero: now
	Description   string
	TransferGroup string
	Silent        bool // no events tell of it
	WithIntent    bool // also the succeeded PaymentIntent it belongs to
}

// PlantCharge puts a succeeded charge into the books. It refuses an amount that
// Stripe would not have taken.
func (s *Sim) PlantCharge(p Plant) (Movement, error) {
	if e := checkAmount(p.Amount, lower(p.Currency)); e != nil {
		return Movement{}, fmt.Errorf("plant charge: %w", e)
	}
	var planted *charge
	err := s.change(func(t *tx) error {
		created := p.Created
		if created.IsZero() {
			created = t.now
		}
		fields := params{}
		for k, v := range p.Metadata {
			fields = append(fields, pair{"metadata[" + k + "]", v})
		}
		if e := fields.checkMetadata(); e != nil {
			return fmt.Errorf("plant charge: %w", e)
		}
		ch := t.newCharge(p.Amount, lower(p.Currency), p.Customer)
		ch.Made, ch.When, ch.Planted = created.Unix(), created.UnixNano(), true
		ch.Status, ch.Captured, ch.Taken = succeeded, true, p.Amount
		ch.Metadata, ch.Description, ch.TransferGroup = fields.metadata(nil), p.Description, p.TransferGroup
		ch.Method = newID("pm_", 24)
		if p.WithIntent {
			pi := &intent{
				ID: newID("pi_", 24), Made: ch.Made, Amount: ch.Amount, Received: ch.Amount, Currency: ch.Currency,
				Customer: ch.Customer, Status: succeeded, Metadata: ch.Metadata, Description: ch.Description,
				TransferGroup: ch.TransferGroup, MethodTypes: []string{"card"}, Method: ch.Method,
				LatestCharge: ch.ID, Attempts: 1,
			}
			pi.Secret = newID(pi.ID+"_secret_", 25)
			ch.Intent = pi.ID
			t.putIntent(pi)
			if !p.Silent {
				t.tellAt(intentSucceeded, pi, created.UnixNano())
			}
		}
		t.putCharge(ch)
		if !p.Silent {
			t.tellAt(chargeSucceeded, ch, created.UnixNano())
		}
		planted = ch
		return nil
	})
	if err != nil {
		return Movement{}, err
	}
	m := planted.movement()
	m.Metadata = planted.Metadata.asMap()
	return m, nil
}

// CustomerState is what control decides about a customer, over what the API
// says.
type CustomerState struct {
	Card     string // "": the payment method decides; "good": succeeds; else a decline code
	Detached bool   // the customer's payment methods are detached
	Deleted  bool
}

// SetCustomer decides how a customer's next attempts go.
func (s *Sim) SetCustomer(id string, state CustomerState) error {
	if id == "" {
		return errors.New("set customer: no id")
	}
	if state.Card != "" && !isCode(state.Card) {
		return fmt.Errorf("set customer: card %q is neither good nor written like a decline code", state.Card)
	}
	return s.change(func(t *tx) error {
		t.putOverride(override{ID: id, Card: state.Card, Detached: state.Detached, Deleted: state.Deleted})
		return nil
	})
}

// Customer tells what SetCustomer has decided.
func (s *Sim) Customer(id string) CustomerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.overrides[id]
	return CustomerState{Card: o.Card, Detached: o.Detached, Deleted: o.Deleted}
}

// ErrNoSuchObject is returned for an id that names nothing.
var ErrNoSuchObject = errors.New("no such object")

// Authenticate plays the customer whose intent, or setup intent, is in
// requires_action: the bank is satisfied, or not.
func (s *Sim) Authenticate(intentID string, passed bool) error {
	return s.change(func(t *tx) error {
		if si, ok := s.setups.get(intentID); ok && si.Status == needsAction {
			return t.authenticateSetup(si, passed)
		}
		p, ok := s.intents.get(intentID)
		switch {
		case !ok:
			return fmt.Errorf("authenticate %s: %w", intentID, ErrNoSuchObject)
		case p.Status != needsAction:
			return fmt.Errorf("authenticate %s: its status is %s, not %s", intentID, p.Status, needsAction)
		}
		t.authenticate(p, passed)
		return nil
	})
}

// ForgetKeys forgets a key at once, or all where it is empty, as Stripe may once
// they are old. A key in progress stays. It returns how many were forgotten.
func (s *Sim) ForgetKeys(key string) int {
	n := 0
	_ = s.change(func(t *tx) error { // forgetting cannot fail
		for scope, e := range s.keys.entries {
			if !e.done || key != "" && scope != key && scope != e.path[len("POST "):]+"\n"+key {
				continue
			}
			n++
			delete(s.keys.entries, scope)
			t.changed = true
			t.rec.Forgotten = append(t.rec.Forgotten, scope)
		}
		return nil
	})
	return n
}

// KeyState is what is kept under a key.
type KeyState struct {
	Key      string    `json:"key"`
	Path     string    `json:"path"` // method and path of the first request
	Request  string    `json:"request_id"`
	Began    time.Time `json:"began"`
	Finished bool      `json:"finished"`
	Status   int       `json:"status,omitempty"`
	KeyCounts
}

// Key tells what is kept under a key, and whether anything is.
func (s *Sim) Key(key string) (KeyState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.keys.entries[key]
	if !ok || e.done && s.settings.expired(e, s.clock.now()) {
		return KeyState{}, false
	}
	return KeyState{Key: key, Path: e.path, Request: e.request, Began: at(e.began), Finished: e.done, Status: e.status, KeyCounts: e.counts}, true
}

// Settings returns the switches as they are.
func (s *Sim) Settings() Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings
}

// Configure changes switches while the stand-in runs. A reset or a restart
// brings back those of Options.
func (s *Sim) Configure(change func(*Settings)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.settings
	change(&set)
	if set.SearchLag == 0 {
		set.SearchLag = -1 // asked for outright, not left to the default
	}
	set.fill()
	if err := set.check(); err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	s.use(set)
	return nil
}

// unlockAll lets go of the objects of requests that are being delayed.
func (s *Sim) unlockAll() {
	for object, busy := range s.locks {
		delete(s.locks, object)
		close(busy)
	}
}

// Reset makes the account as new: no objects, no keys, no ledger, no faults, the
// clock, the settings and the endpoint of Options. Requests under way are dropped without
// effect.
func (s *Sim) Reset() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.offset.Store(0)
	if !s.options.Clock.IsZero() {
		s.clock.offset.Store(int64(time.Until(s.options.Clock)))
	}
	if s.journal != nil {
		if err := s.journal.clear(); err != nil {
			s.fail(err)
			return fmt.Errorf("reset: %w", err)
		}
	}
	s.unlockAll()
	s.clear()
	secrets, _ := parseEndpoint(s.options.WebhookURL, s.options.WebhookSecret) // checked by New
	s.useEndpoint(s.options.WebhookURL, secrets)
	if s.journal != nil {
		s.begin()
		if err := s.journal.flush(s.journal.position()); err != nil {
			s.fail(err)
			return fmt.Errorf("reset: %w", err)
		}
	}
	return nil
}
