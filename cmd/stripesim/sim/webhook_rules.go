package sim

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// WebhookFault names what goes wrong between an event and its endpoint. The
// package documentation says what each does.
type WebhookFault string

// The webhook faults.
const (
	WebhookDrop           WebhookFault = "drop"
	WebhookReorder        WebhookFault = "reorder"
	WebhookDuplicate      WebhookFault = "duplicate"
	WebhookTwoEventIDs    WebhookFault = "two_event_ids"
	WebhookDelay          WebhookFault = "delay"
	WebhookBeforeAnswer   WebhookFault = "before_answer"
	WebhookAPIVersion     WebhookFault = "api_version"
	WebhookBadSignature   WebhookFault = "bad_signature"
	WebhookOldTimestamp   WebhookFault = "old_timestamp"
	WebhookForeignAccount WebhookFault = "foreign_account"
)

// WebhookFaults lists every webhook fault by name.
func WebhookFaults() []WebhookFault {
	return []WebhookFault{
		WebhookAPIVersion, WebhookBadSignature, WebhookBeforeAnswer, WebhookDelay, WebhookDrop,
		WebhookDuplicate, WebhookForeignAccount, WebhookOldTimestamp, WebhookReorder, WebhookTwoEventIDs,
	}
}

// WebhookRule is a webhook fault and the new events that meet it. An event
// meets every rule that it matches.
type WebhookRule struct {
	ID       string // given by AddWebhookRule
	Fault    WebhookFault
	Type     string        // pattern of path.Match: charge.* stands for all of charges; empty: every type
	Customer string        // of the object, or of its charge; empty: every one
	Times    int           // events struck; 0 is one, -1 is all. Of reorder: how many are held
	Delay    time.Duration // delay: how long, on the stand-in's clock
	Age      time.Duration // old_timestamp: how old, real time; 0 is ten minutes
	Version  string        // api_version: which; empty is 2020-08-27
	Account  string        // foreign_account: which; empty is acct_1Foreign
	Hits     int           // events struck so far

	held []*delivery
}

func (r *WebhookRule) check() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !slices.Contains(WebhookFaults(), r.Fault) {
		bad("unknown webhook fault %q; the faults are %v", r.Fault, WebhookFaults())
	}
	if _, err := path.Match(r.Type, ""); err != nil {
		bad("type is not a pattern: %w", err)
	}
	if r.Times < -1 {
		bad("times must not be negative (it may be -1)")
	}
	if r.Fault == WebhookReorder && r.Times < 2 {
		bad("reorder needs times, of at least 2: how many are held")
	}
	if (r.Fault == WebhookDelay) != (r.Delay > 0) {
		bad("delay goes with the fault delay, which needs it above 0")
	}
	if r.Age < 0 || r.Age > 0 && r.Fault != WebhookOldTimestamp {
		bad("age goes with old_timestamp and must not be negative")
	}
	if r.Version != "" && r.Fault != WebhookAPIVersion {
		bad("version goes with api_version")
	}
	if r.Account != "" && r.Fault != WebhookForeignAccount {
		bad("account goes with foreign_account")
	}
	return errors.Join(faults...)
}

// AddWebhookRule arms a webhook fault and returns its id. It refuses a rule that
// could not do what it says, naming every reason.
func (s *Sim) AddWebhookRule(r WebhookRule) (string, error) {
	if err := r.check(); err != nil {
		return "", fmt.Errorf("add webhook rule: %w", err)
	}
	r.ID, r.Hits, r.held = newID("whr_", 10), 0, nil
	defaultTo(&r.Times, 1)
	defaultTo(&r.Age, 10*time.Minute)
	defaultTo(&r.Version, "2020-08-27")
	defaultTo(&r.Account, "acct_1Foreign")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks.rules = append(s.hooks.rules, &r)
	return r.ID, nil
}

// WebhookRules lists the armed rules, spent ones too, with their hits.
func (s *Sim) WebhookRules() []WebhookRule {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]WebhookRule, 0, len(s.hooks.rules))
	for _, r := range s.hooks.rules {
		shown := *r
		shown.held = nil
		all = append(all, shown)
	}
	return all
}

// ClearWebhookRules disarms the rule with the id, or all where it is empty,
// sends what they held, and tells whether there was any.
func (s *Sim) ClearWebhookRules(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.hooks.rules)
	s.hooks.rules = slices.DeleteFunc(s.hooks.rules, func(r *WebhookRule) bool {
		gone := id == "" || r.ID == id
		if gone {
			r.release(s)
		}
		return gone
	})
	return len(s.hooks.rules) < n
}

// meets tells whether a rule strikes an event. mu is held.
func (s *Sim) meets(r *WebhookRule, e *event) bool {
	return (r.Times < 0 || r.Hits < r.Times) && (r.Type == "" || isType(r.Type, e.Type)) &&
		(r.Customer == "" || r.Customer == s.customerOfEvent(e))
}

// customerOfEvent is the customer of the event's object, or of its charge.
func (s *Sim) customerOfEvent(e *event) string {
	id := ""
	switch of := e.of.(type) {
	case *intent:
		return of.Customer
	case *charge:
		return of.Customer
	case *setupIntent:
		return of.Customer
	case *refund:
		id = of.Charge
	case *dispute:
		id = of.Charge
	}
	if ch, ok := s.charges.get(id); ok {
		return ch.Customer
	}
	return ""
}

// twins tells whether a change is told twice, under two event ids.
func (s *Sim) twins(e *event) bool {
	twice := false
	for _, r := range s.hooks.rules {
		if r.Fault == WebhookTwoEventIDs && s.meets(r, e) {
			r.Hits++
			twice = true
		}
	}
	return twice
}

// strike does to a new delivery what the rule says.
func (r *WebhookRule) strike(t *tx, d *delivery) {
	r.Hits++
	d.rules = append(d.rules, r.Fault)
	switch r.Fault {
	case WebhookDrop:
		d.state = deliveryDropped
	case WebhookReorder:
		if d.state == deliveryWaiting {
			d.state = deliveryHeld
			r.held = append(r.held, d)
		}
		if r.Hits == r.Times {
			r.release(t.s)
		}
	case WebhookDuplicate:
		second := t.s.queue(d.event, d.due)
		second.rules = append(second.rules, r.Fault)
		t.queued = append(t.queued, second)
		t.s.start(second)
	case WebhookDelay:
		d.due += int64(r.Delay)
		d.began = d.due
	case WebhookBeforeAnswer:
		if d.tried == nil {
			d.tried = make(chan struct{})
			t.c.awaited = append(t.c.awaited, d.tried)
		}
	case WebhookAPIVersion:
		d.telling.version = r.Version
	case WebhookBadSignature:
		d.badSignature = true
	case WebhookOldTimestamp:
		d.age = r.Age
	case WebhookForeignAccount:
		d.telling.account = r.Account
	case WebhookTwoEventIDs: // struck when the events were made
	}
}

// release lets go of what is held: the newest first, each of the others once the
// one before it was tried.
func (r *WebhookRule) release(s *Sim) {
	var before *delivery
	for _, d := range slices.Backward(r.held) {
		d.state = deliveryWaiting
		if before != nil {
			before.next = d
			before = d
			continue
		}
		before = d
		s.start(d)
	}
	r.held = nil
}
