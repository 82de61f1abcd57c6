package domain

import (
	"slices"
	"time"
)

// SubscriptionStatus is where a subscription stands.
type SubscriptionStatus string

// The statuses; the zero value is no subscription.
const (
	SubscriptionActive SubscriptionStatus = "active"
	SubscriptionOnHold SubscriptionStatus = "paused"
	SubscriptionEnded  SubscriptionStatus = "cancelled"
)

// Subscription is what a customer pays for, and when. Which periods it bills
// follows from business time alone, never from when somebody looked: a scanner
// that was away for weeks finds the same bills as one that never slept.
type Subscription struct {
	Status    SubscriptionStatus
	Schedule                   // as it was activated
	Amount    Money            // as it was activated
	Changes   []AmountChange   // later amounts, in the order they were decided
	Schedules []ScheduleChange // later anchors and zones, in the order they were decided
	Pauses    []Pause          // oldest first; the last one goes on while the status is paused
	EndMode   CancelMode       // of a cancelled subscription
	EndedAt   time.Time        // business time of its cancellation
}

// AmountChange is an amount that holds from a period on.
type AmountChange struct {
	From        Period
	AmountMinor int64
}

// ScheduleChange is an anchor day, a zone or both that hold from a period on.
type ScheduleChange struct {
	From      Period
	AnchorDay int    // 0: as it was
	TimeZone  string // empty: as it was
}

// Pause is a time, open at both ends, in which nothing falls due.
type Pause struct {
	From  time.Time
	Until time.Time // zero while it goes on
}

func (p Pause) holds(t time.Time) bool {
	return t.After(p.From) && (p.Until.IsZero() || t.Before(p.Until))
}

// AmountFor is the subscription's amount for p.
func (s Subscription) AmountFor(p Period) Money {
	m := s.Amount
	for _, c := range s.Changes {
		if !p.Before(c.From) {
			m.Minor = c.AmountMinor
		}
	}
	return m
}

// ScheduleFor is the schedule that holds for p.
func (s Subscription) ScheduleFor(p Period) Schedule {
	schedule := s.Schedule
	for _, c := range s.Schedules {
		if p.Before(c.From) {
			continue
		}
		if c.AnchorDay != 0 {
			schedule.AnchorDay = c.AnchorDay
		}
		if c.TimeZone != "" {
			schedule.TimeZone = c.TimeZone
		}
	}
	return schedule
}

// DueAt is the instant, in UTC, at which p falls due. The first period of a
// changed schedule falls due no earlier than the period before it, should its
// new zone be that far ahead.
func (s Subscription) DueAt(p Period) time.Time {
	at := s.ScheduleFor(p).DueAt(p)
	changes := func(c ScheduleChange) bool { return c.From == p }
	if slices.ContainsFunc(s.Schedules, changes) && s.First().Before(p) {
		if before := s.DueAt(p.Previous()); before.After(at) {
			return before
		}
	}
	return at
}

// Bills reports whether p, not before First, falls due at its time or has done
// so: no pause holds that instant, and the subscription has not ended before it.
func (s Subscription) Bills(p Period) bool {
	if s.Status == "" || s.over(p) {
		return false
	}
	at := s.DueAt(p)
	for _, pause := range s.Pauses {
		if pause.holds(at) {
			return false
		}
	}
	return true
}

// over reports that neither p nor what follows it is billed, as things stand.
func (s Subscription) over(p Period) bool {
	switch s.Status {
	case SubscriptionOnHold: // a state kept by an earlier build does not know since when
		return len(s.Pauses) == 0 || s.DueAt(p).After(s.Pauses[len(s.Pauses)-1].From)
	case SubscriptionEnded:
		return s.EndMode != CancelPeriodEnd || s.DueAt(p).After(s.EndedAt)
	}
	return false
}

// Next is the first period that is billed from p on, and not before First. The
// zero Period is none, as things stand.
func (s Subscription) Next(p Period) Period {
	if first := s.First(); !p.Fits(s.Cadence) || p.Before(first) {
		p = first
	}
	for ; s.Status != "" && !p.IsZero() && !s.over(p); p = p.Next() {
		if s.Bills(p) {
			return p
		}
	}
	return Period{}
}

// evolve is the subscription after e, if e is about it. It never changes s.
func (s Subscription) evolve(e Event) Subscription {
	switch e := e.(type) {
	case SubscriptionActivated:
		return Subscription{
			Status:   SubscriptionActive,
			Schedule: Schedule{Cadence: e.Cadence, AnchorDay: e.AnchorDay, TimeZone: e.TimeZone, StartsOn: e.StartsOn},
			Amount:   e.Money,
		}
	case SubscriptionAmountChanged:
		s.Changes = append(s.Changes[:len(s.Changes):len(s.Changes)], AmountChange{e.EffectivePeriod, e.AmountMinor})
	case SubscriptionScheduleChanged:
		s.Schedules = append(s.Schedules[:len(s.Schedules):len(s.Schedules)], ScheduleChange{e.EffectivePeriod, e.AnchorDay, e.TimeZone})
	case SubscriptionPaused:
		if s.Status != SubscriptionOnHold {
			s.Pauses = append(s.Pauses[:len(s.Pauses):len(s.Pauses)], Pause{From: e.At})
		}
		s.Status = SubscriptionOnHold
	case SubscriptionResumed:
		s.Pauses = append([]Pause(nil), s.Pauses...)
		if n := len(s.Pauses); n > 0 && s.Pauses[n-1].Until.IsZero() {
			s.Pauses[n-1].Until = e.At
		} else if s.Status == SubscriptionOnHold {
			s.Pauses = append(s.Pauses, Pause{Until: e.At})
		}
		s.Status = SubscriptionActive
	case SubscriptionCancelled:
		s.Status, s.EndMode, s.EndedAt = SubscriptionEnded, e.Mode, e.At
	}
	return s
}
