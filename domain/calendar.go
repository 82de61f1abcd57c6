package domain

import (
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // zones are part of the rules, not of the machine
)

// Date is a calendar day, spelled 2026-11-01, without a zone.
type Date struct {
	Year  int
	Month time.Month
	Day   int
}

// ParseDate accepts YYYY-MM-DD of a day that exists. The error names field.
func ParseDate(field, s string) (Date, error) {
	t, err := time.Parse(time.DateOnly, s)
	if err != nil || t.Year() < 2000 {
		return Date{}, InvalidField(field, "must be a date such as 2026-11-01")
	}
	y, m, d := t.Date()
	return Date{y, m, d}, nil
}

func (d Date) String() string { return d.at(time.UTC).Format(time.DateOnly) }

// MarshalText spells d.
func (d Date) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText accepts what ParseDate accepts.
func (d *Date) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDate("date", string(text))
	return err
}

func (d Date) at(zone *time.Location) time.Time {
	return time.Date(d.Year, d.Month, d.Day, 0, 0, 0, 0, zone)
}

func (d Date) before(e Date) bool { return d.at(time.UTC).Before(e.at(time.UTC)) }

// dateOf is the calendar day that t is on, in t's zone.
func dateOf(t time.Time) Date {
	y, m, d := t.Date()
	return Date{y, m, d}
}

// ParseTimeZone accepts an IANA zone name. The error is an invalid field time_zone.
func ParseTimeZone(s string) (string, error) {
	bad := InvalidField("time_zone", "must be an IANA name such as Europe/Berlin")
	// The zone files of some machines hold copies that count leap seconds.
	if s == "" || s == "Local" || strings.HasPrefix(s, "right/") || strings.HasPrefix(s, "posix/") {
		return "", bad
	}
	if _, err := time.LoadLocation(s); err != nil {
		return "", bad
	}
	return s, nil
}

// Schedule is when a subscription's periods fall due, by the rules under
// "Periods and due days" in the package comment.
type Schedule struct {
	Cadence   Cadence
	AnchorDay int
	TimeZone  string
	StartsOn  Date
}

// zones remembers what LoadLocation parsed: it reads the table anew each time.
var zones sync.Map

func (s Schedule) zone() *time.Location {
	if zone, ok := zones.Load(s.TimeZone); ok {
		return zone.(*time.Location)
	}
	zone, err := time.LoadLocation(s.TimeZone)
	if err != nil {
		return time.UTC // only a fact written by a newer build can name a zone that ParseTimeZone refuses
	}
	zones.Store(s.TimeZone, zone)
	return zone
}

// DueAt is the instant, in UTC, at which p falls due.
func (s Schedule) DueAt(p Period) time.Time { return s.anchor(p).start(s.zone()) }

// plus is the day that comes days later.
func (d Date) plus(days int) Date { return dateOf(d.at(time.UTC).AddDate(0, 0, days)) }

// start is the instant, in UTC, at which the day begins in zone.
func (d Date) start(zone *time.Location) time.Time {
	const step = 30 * time.Minute // clocks are moved by multiples of it
	t := d.at(zone)
	// Where clocks skip midnight, time.Date gives an instant of the day before;
	// where midnight comes twice, perhaps the second one.
	for dateOf(t).before(d) {
		t = t.Add(step)
	}
	for dateOf(t.Add(-step)) == d {
		t = t.Add(-step)
	}
	return t.UTC()
}

// anchor is the local day on which p falls due.
func (s Schedule) anchor(p Period) Date {
	y, m := p.Start()
	last := time.Date(y, time.Month(m)+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return Date{y, time.Month(m), min(s.AnchorDay, last)}
}

// First is the first period that is billed.
func (s Schedule) First() Period {
	p := PeriodOf(s.Cadence, s.StartsOn.Year, int(s.StartsOn.Month))
	if s.anchor(p).before(s.StartsOn) {
		p = p.Next()
	}
	return p
}
