package domain_test

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
)

func date(s string) domain.Date {
	d, err := domain.ParseDate("date", s)
	if err != nil {
		panic(err)
	}
	return d
}

func schedule(cadence domain.Cadence, anchor int, zone, starts string) domain.Schedule {
	return domain.Schedule{Cadence: cadence, AnchorDay: anchor, TimeZone: zone, StartsOn: date(starts)}
}

func TestDate(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"2026-11-01", "2028-02-29", "2000-01-01", "9999-12-31"} {
		d, err := domain.ParseDate("starts_on", s)
		if err != nil || d.String() != s {
			t.Errorf("%q: %s, %v", s, d, err)
		}
		text, err := json.Marshal(d)
		if err != nil || string(text) != `"`+s+`"` {
			t.Errorf("%q is written %s, %v", s, text, err)
		}
		var back domain.Date
		if err := json.Unmarshal(text, &back); err != nil || back != d {
			t.Errorf("%q is read back as %s, %v", s, back, err)
		}
	}
	for _, s := range []string{"", "2026-11", "2026-11-1", "2026-1-01", "2026-11-31", "2026-02-29", "1900-01-01", "1999-12-31", "2026-11-01T00:00:00Z", "01.11.2026", "2026/11/01", " 2026-11-01", "2026-11-01 ", "２０２６-11-01", "2026-00-01", "2026-11-00"} {
		_, err := domain.ParseDate("starts_on", s)
		refused(t, err, "starts_on")
	}
}

func TestTimeZone(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Pacific/Kiritimati", "Asia/Kathmandu"} {
		if zone, err := domain.ParseTimeZone(s); err != nil || zone != s {
			t.Errorf("%q: %q, %v", s, zone, err)
		}
	}
	for _, s := range []string{"", "Local", "Mars/Olympus", "CEST", "+02:00", "UTC+2", "Europe/", "../Europe/Berlin", "/etc/localtime", " UTC", "Europe/Berlin ", "right/Europe/Berlin", "posix/Europe/Berlin"} {
		_, err := domain.ParseTimeZone(s)
		refused(t, err, "time_zone")
	}
}

// Anchors beyond a month's end fall on its last day, and go back to their own
// day in the next month: they do not drift.
func TestAnchorsDoNotDrift(t *testing.T) {
	t.Parallel()
	for anchor, want := range map[int][14]int{ // from October 2027, over a leap February
		28: {28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28, 28},
		29: {29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29, 29},
		30: {30, 30, 30, 30, 29, 30, 30, 30, 30, 30, 30, 30, 30, 30},
		31: {31, 30, 31, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30},
	} {
		s := schedule(domain.Monthly, anchor, "UTC", "2027-10-01")
		p := s.First()
		for month, day := range want {
			at, due := s.DueAt(p), time.Date(2027, time.October+time.Month(month), day, 0, 0, 0, 0, time.UTC)
			if !at.Equal(due) {
				t.Errorf("anchor %d, %s: due %s, want %s", anchor, p, at, due)
			}
			p = p.Next()
		}
	}
}

func daysIn(year int, month time.Month) int {
	if month == time.February && (year%4 == 0 && year%100 != 0 || year%400 == 0) {
		return 29
	}
	return []int{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}[month-1]
}

func TestDueAt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what     string
		schedule domain.Schedule
		period   string
		want     string // UTC
	}{
		{"the first of a month", schedule(domain.Monthly, 1, "UTC", "2026-01-01"), "2026-11", "2026-11-01T00:00:00Z"},
		{"winter in Berlin", schedule(domain.Monthly, 1, "Europe/Berlin", "2026-01-01"), "2026-11", "2026-10-31T23:00:00Z"},
		{"summer in Berlin", schedule(domain.Monthly, 1, "Europe/Berlin", "2026-01-01"), "2026-07", "2026-06-30T22:00:00Z"},
		{"the night clocks go forward", schedule(domain.Monthly, 29, "Europe/Berlin", "2026-01-01"), "2026-03", "2026-03-28T23:00:00Z"},
		{"the night clocks go back", schedule(domain.Monthly, 25, "Europe/Berlin", "2026-01-01"), "2026-10", "2026-10-24T22:00:00Z"},
		{"the day after clocks go back", schedule(domain.Monthly, 26, "Europe/Berlin", "2026-01-01"), "2026-10", "2026-10-25T23:00:00Z"},
		{"New York, forward", schedule(domain.Monthly, 8, "America/New_York", "2026-01-01"), "2026-03", "2026-03-08T05:00:00Z"},
		{"New York, back", schedule(domain.Monthly, 2, "America/New_York", "2026-01-01"), "2026-11", "2026-11-02T05:00:00Z"},
		{"half past: Kathmandu", schedule(domain.Monthly, 1, "Asia/Kathmandu", "2026-01-01"), "2026-11", "2026-10-31T18:15:00Z"},
		{"UTC+14", schedule(domain.Monthly, 1, "Pacific/Kiritimati", "2026-01-01"), "2026-11", "2026-10-31T10:00:00Z"},
		{"UTC-11", schedule(domain.Monthly, 1, "Pacific/Pago_Pago", "2026-01-01"), "2026-11", "2026-11-01T11:00:00Z"},
		{"half an hour of summer time", schedule(domain.Monthly, 4, "Australia/Lord_Howe", "2026-01-01"), "2026-10", "2026-10-03T13:30:00Z"},

		// Midnight that clocks skip: the day begins at one.
		{"no midnight in São Paulo", schedule(domain.Monthly, 4, "America/Sao_Paulo", "2018-01-01"), "2018-11", "2018-11-04T03:00:00Z"},
		{"no midnight in Santiago", schedule(domain.Monthly, 6, "America/Santiago", "2026-01-01"), "2026-09", "2026-09-06T04:00:00Z"},
		{"no midnight in Beirut", schedule(domain.Monthly, 29, "Asia/Beirut", "2026-01-01"), "2026-03", "2026-03-28T22:00:00Z"},
		{"no midnight in Havana", schedule(domain.Monthly, 8, "America/Havana", "2026-01-01"), "2026-03", "2026-03-08T05:00:00Z"},

		// Midnight that comes twice: the first one counts.
		{"two midnights in Havana", schedule(domain.Monthly, 1, "America/Havana", "2026-01-01"), "2026-11", "2026-11-01T04:00:00Z"},
		{"two midnights in the Azores", schedule(domain.Monthly, 25, "Atlantic/Azores", "2026-01-01"), "2026-10", "2026-10-25T00:00:00Z"},
		{"two midnights in Amman", schedule(domain.Monthly, 29, "Asia/Amman", "2021-01-01"), "2021-10", "2021-10-28T21:00:00Z"},

		// A day that a zone skipped as a whole: the next one, and not a month later.
		{"no such day in Samoa", schedule(domain.Monthly, 30, "Pacific/Apia", "2011-01-01"), "2011-12", "2011-12-30T10:00:00Z"},

		{"a leap day", schedule(domain.Monthly, 29, "UTC", "2026-01-01"), "2028-02", "2028-02-29T00:00:00Z"},
		{"no leap day", schedule(domain.Monthly, 29, "UTC", "2026-01-01"), "2026-02", "2026-02-28T00:00:00Z"},
		{"no leap year every 100 years", schedule(domain.Monthly, 31, "UTC", "2026-01-01"), "2100-02", "2100-02-28T00:00:00Z"},
		{"a quarter", schedule(domain.Quarterly, 31, "UTC", "2026-01-01"), "2026-Q2", "2026-04-30T00:00:00Z"},
		{"a year", schedule(domain.Yearly, 15, "Europe/Berlin", "2026-01-01"), "2027", "2027-01-14T23:00:00Z"},
	} {
		at := c.schedule.DueAt(period(c.period))
		if got := at.Format(time.RFC3339); got != c.want || at.Location() != time.UTC {
			t.Errorf("%s: due %s, want %s", c.what, got, c.want)
		}
	}
}

func TestFirstPeriod(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		schedule domain.Schedule
		want     string
	}{
		{schedule(domain.Monthly, 1, "UTC", "2026-11-01"), "2026-11"},
		{schedule(domain.Monthly, 1, "UTC", "2026-11-02"), "2026-12"},
		{schedule(domain.Monthly, 15, "UTC", "2026-11-15"), "2026-11"},
		{schedule(domain.Monthly, 15, "UTC", "2026-11-16"), "2026-12"},
		{schedule(domain.Monthly, 31, "UTC", "2026-11-30"), "2026-11"}, // due on the 30th
		{schedule(domain.Monthly, 31, "UTC", "2026-12-31"), "2026-12"},
		{schedule(domain.Monthly, 1, "UTC", "2026-12-02"), "2027-01"},
		{schedule(domain.Monthly, 1, "Pacific/Kiritimati", "2026-11-01"), "2026-11"},
		{schedule(domain.Monthly, 1, "Pacific/Pago_Pago", "2026-11-01"), "2026-11"},
		{schedule(domain.Monthly, 4, "America/Sao_Paulo", "2018-11-04"), "2018-11"}, // the start date has no midnight
		{schedule(domain.Monthly, 29, "Asia/Amman", "2021-10-29"), "2021-10"},       // the start date has two
		{schedule(domain.Quarterly, 1, "UTC", "2026-10-01"), "2026-Q4"},
		{schedule(domain.Quarterly, 1, "UTC", "2026-11-01"), "2027-Q1"},
		{schedule(domain.Quarterly, 15, "UTC", "2026-10-10"), "2026-Q4"},
		{schedule(domain.Yearly, 1, "UTC", "2026-01-01"), "2026"},
		{schedule(domain.Yearly, 1, "UTC", "2026-01-02"), "2027"},
		{schedule(domain.Yearly, 31, "UTC", "2026-11-01"), "2027"},
	} {
		if got := c.schedule.First().String(); got != c.want {
			t.Errorf("%+v: first %s, want %s", c.schedule, got, c.want)
		}
	}
}

// A zone that no build knows must not stop a customer's history from being
// read: its dues fall in UTC.
func TestUnknownZoneOfAFact(t *testing.T) {
	t.Parallel()
	s := schedule(domain.Monthly, 1, "Moon/Tranquility", "2026-01-01")
	if got := s.DueAt(period("2026-11")).Format(time.RFC3339); got != "2026-11-01T00:00:00Z" {
		t.Errorf("due %s", got)
	}
}

// Whatever the schedule: every period falls due once, on its day, in order.
func TestScheduleNeverSkipsOrRepeats(t *testing.T) {
	t.Parallel()
	zones := []string{
		"UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "America/Havana", "America/Sao_Paulo", "Asia/Amman", "Asia/Beirut", "Asia/Tehran",
		"Asia/Kathmandu", "Atlantic/Azores", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Chatham", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Africa/Casablanca",
	}
	rapid.Check(t, func(t *rapid.T) {
		year, month := rapid.IntRange(2010, 2040).Draw(t, "year"), time.Month(rapid.IntRange(1, 12).Draw(t, "month"))
		s := domain.Schedule{
			Cadence:   rapid.SampledFrom([]domain.Cadence{domain.Monthly, domain.Quarterly, domain.Yearly}).Draw(t, "cadence"),
			AnchorDay: rapid.IntRange(1, 31).Draw(t, "anchor"),
			TimeZone:  rapid.SampledFrom(zones).Draw(t, "zone"),
			StartsOn:  domain.Date{Year: year, Month: month, Day: rapid.IntRange(1, daysIn(year, month)).Draw(t, "day")},
		}
		zone, err := time.LoadLocation(s.TimeZone)
		if err != nil {
			t.Fatal(err)
		}
		started := time.Date(year, month, s.StartsOn.Day, 0, 0, 0, 0, time.UTC)
		local := func(at time.Time) time.Time { // its calendar day
			y, m, d := at.In(zone).Date()
			return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
		}
		p := s.First()
		if before := p.Before(domain.PeriodOf(s.Cadence, year, int(month))); before || local(s.DueAt(p)).Before(started) {
			t.Fatalf("starts on %s, first is %s, due %s", s.StartsOn, p, s.DueAt(p))
		}
		for range 14 {
			at := s.DueAt(p)
			y, m := p.Start()
			want := time.Date(y, time.Month(m), min(s.AnchorDay, daysIn(y, time.Month(m))), 0, 0, 0, 0, time.UTC)
			if got := local(at); !got.Equal(want) && !(s.TimeZone == "Pacific/Apia" && want.Format(time.DateOnly) == "2011-12-30") {
				t.Fatalf("%s falls due on %s, want %s", p, got.Format(time.DateOnly), want.Format(time.DateOnly))
			}
			if earlier := at.Add(-time.Second); local(earlier).Equal(local(at)) {
				t.Fatalf("%s is due at %s, but its day had begun before", p, at)
			}
			if !s.DueAt(p.Next()).After(at) {
				t.Fatalf("%s falls due at %s, the one before it at %s", p.Next(), s.DueAt(p.Next()), at)
			}
			p = p.Next()
		}
	})
}
