package commands

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// ChangeSubscriptionSchedule sets the anchor day, the time zone, or both, from a
// period on. No due time moves into the past, and every period keeps its label:
// what has fallen due, or would at once, keeps its old day.
type ChangeSubscriptionSchedule struct {
	key             domain.Key
	CustomerID      domain.CustomerID `json:"customer_id"`
	AnchorDay       int               `json:"anchor_day,omitempty"`       // 0: as it is
	TimeZone        string            `json:"time_zone,omitempty"`        // empty: as it is
	EffectivePeriod domain.Period     `json:"effective_period,omitempty"` // none: the first that is possible
	At              time.Time         `json:"-"`                          // business time, UTC
}

// NewChangeSubscriptionSchedule builds the command; id is the caller's key.
func NewChangeSubscriptionSchedule(c domain.CustomerID, anchor int, zone string, from domain.Period, at time.Time, id domain.Key) ChangeSubscriptionSchedule {
	return ChangeSubscriptionSchedule{domain.KeyOf("change-subscription-schedule", string(c), string(id)), c, anchor, zone, from, at.UTC()}
}

func (ChangeSubscriptionSchedule) Name() string              { return "change-subscription-schedule" }
func (c ChangeSubscriptionSchedule) Key() domain.Key         { return c.key }
func (c ChangeSubscriptionSchedule) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ChangeSubscriptionSchedule) Decide(s domain.Customer) ([]domain.Event, error) {
	sub, err := activeSubscription(s)
	if err != nil {
		return nil, err
	}
	if c.AnchorDay == 0 && c.TimeZone == "" {
		return nil, nil
	}
	open := s.OpenPeriod(c.At)
	for !c.moves(sub.ScheduleFor(open)).DueAt(open).After(c.At) {
		open = open.Next()
	}
	from := c.EffectivePeriod
	switch {
	case from.IsZero():
		from = open
	case !from.Fits(sub.Cadence):
		return nil, domain.ErrPeriodCadence
	case from.Before(open):
		return nil, domain.ErrPeriodFrozen.With("%s has fallen due, or would at once; the first open period is %s", from, open)
	}
	return []domain.Event{domain.SubscriptionScheduleChanged{
		CustomerID: c.CustomerID, AnchorDay: c.AnchorDay, TimeZone: c.TimeZone, EffectivePeriod: from, At: c.At,
	}}, nil
}

// moves is the schedule with what the command changes of it.
func (c ChangeSubscriptionSchedule) moves(s domain.Schedule) domain.Schedule {
	if c.AnchorDay != 0 {
		s.AnchorDay = c.AnchorDay
	}
	if c.TimeZone != "" {
		s.TimeZone = c.TimeZone
	}
	return s
}

type changeSubscriptionScheduleBody struct {
	CustomerID      string `json:"customer_id" example:"cust_123"`
	AnchorDay       *int   `json:"anchor_day,omitempty" doc:"The new day of the month; as it is if left out." minimum:"1" maximum:"31" example:"15"`
	TimeZone        string `json:"time_zone,omitempty" doc:"The new IANA zone; as it is if left out." example:"Pacific/Auckland"`
	EffectivePeriod string `json:"effective_period,omitempty" doc:"First period of the new schedule; the first that is not due yet, and would not be at once, if left out." example:"2026-12"`
}

func (b changeSubscriptionScheduleBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	anchor, zone := 0, ""
	if b.AnchorDay != nil {
		if anchor = *b.AnchorDay; anchor < 1 || anchor > 31 {
			v.add("anchor_day", "must be 1 to 31")
		}
	}
	if b.TimeZone != "" {
		zone = check(&v, b.TimeZone, domain.ParseTimeZone)
	}
	var from domain.Period
	if b.EffectivePeriod != "" {
		from = checkPeriod(&v, "effective_period", b.EffectivePeriod)
	}
	return v.request(Of(NewChangeSubscriptionSchedule(id, anchor, zone, from, in.Now, in.Key)))
}
