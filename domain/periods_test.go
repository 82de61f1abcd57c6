package domain_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
)

// worldZones are zones from UTC+14 to UTC−12, with every kind of clock change.
var worldZones = []string{
	"UTC", "Pacific/Kiritimati", "Pacific/Apia", "Pacific/Chatham", "Pacific/Auckland", "Australia/Lord_Howe", "Asia/Tokyo", "Asia/Kathmandu", "Asia/Kolkata",
	"Asia/Tehran", "Asia/Beirut", "Africa/Cairo", "Africa/Casablanca", "Europe/Berlin", "Europe/London", "Atlantic/Azores", "America/Sao_Paulo", "America/St_Johns",
	"America/Havana", "America/New_York", "America/Santiago", "America/Los_Angeles", "Pacific/Marquesas", "Pacific/Pago_Pago", "Etc/GMT+12",
}

// Every due instant from 2024 to 2032: all anchors, all cadences, from UTC+14 to
// UTC−12, against clocks that are read every quarter of an hour.
func TestDueInstants2024To2032(t *testing.T) {
	t.Parallel()
	for _, name := range worldZones {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone, err := time.LoadLocation(name)
			if err != nil {
				t.Fatal(err)
			}
			begins := map[string]time.Time{} // of each local day
			for at := time.Date(2023, 12, 30, 0, 0, 0, 0, time.UTC); at.Year() < 2033; at = at.Add(15 * time.Minute) {
				if day := at.In(zone).Format(time.DateOnly); begins[day].IsZero() {
					begins[day] = at
				}
			}
			for anchor := 1; anchor <= 31; anchor++ {
				for cadence, months := range map[domain.Cadence]int{domain.Monthly: 1, domain.Quarterly: 3, domain.Yearly: 12} {
					s := schedule(cadence, anchor, name, "2024-01-01")
					p := s.First()
					for n := 0; n < 9*12; n += months {
						year, month := 2024+n/12, time.Month(n%12+1)
						label := map[int]string{1: fmt.Sprintf("%d-%02d", year, month), 3: fmt.Sprintf("%d-Q%d", year, (month+2)/3), 12: fmt.Sprint(year)}[months]
						day := fmt.Sprintf("%d-%02d-%02d", year, month, min(anchor, daysIn(year, month)))
						if got := s.DueAt(p); p.String() != label || !got.Equal(begins[day]) {
							t.Errorf("anchor %d: %s is due at %s, want %s at %s", anchor, p, got, label, begins[day])
						}
						p = p.Next()
					}
				}
			}
		})
	}
}

// TestC033_AnchorsOfJanuary: anchors at the end of January 2027, for 14 months.
func TestC033_AnchorsOfJanuary(t *testing.T) {
	t.Parallel()
	for anchor, want := range map[int]string{
		28: "01-28 02-28 03-28 04-28 05-28 06-28 07-28 08-28 09-28 10-28 11-28 12-28 01-28 02-28",
		29: "01-29 02-28 03-29 04-29 05-29 06-29 07-29 08-29 09-29 10-29 11-29 12-29 01-29 02-29",
		30: "01-30 02-28 03-30 04-30 05-30 06-30 07-30 08-30 09-30 10-30 11-30 12-30 01-30 02-29",
		31: "01-31 02-28 03-31 04-30 05-31 06-30 07-31 08-31 09-30 10-31 11-30 12-31 01-31 02-29",
	} {
		sub := subscribed(domain.Monthly, anchor, "UTC", "2027-01-01")
		var days []string
		for p, n := sub.Next(domain.Period{}), 0; n < 14; p, n = sub.Next(p.Next()), n+1 {
			if y, m := p.Start(); y != 2027+n/12 || m != n%12+1 {
				t.Errorf("anchor %d: bill %d is for %s", anchor, n, p)
			}
			days = append(days, sub.DueAt(p).Format("01-02"))
		}
		if got := strings.Join(days, " "); got != want {
			t.Errorf("anchor %d: due on\n%s, want\n%s", anchor, got, want)
		}
	}
}

// TestC125_ClockChangeNights: the day of each night in which clocks change begins
// once, and its period is due once.
func TestC125_ClockChangeNights(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, day, want string }{
		{"America/Los_Angeles", "2026-11-01", "2026-11-01T07:00:00Z"}, // back, at a month's start
		{"America/Los_Angeles", "2027-03-14", "2027-03-14T08:00:00Z"}, // forward
		{"America/Los_Angeles", "2027-03-15", "2027-03-15T07:00:00Z"},
		{"Europe/Berlin", "2027-10-31", "2027-10-30T22:00:00Z"}, // back, at a month's end
		{"Europe/Berlin", "2027-11-01", "2027-10-31T23:00:00Z"},
		{"Europe/Berlin", "2030-03-31", "2030-03-30T23:00:00Z"}, // forward, at a month's end
		{"Europe/Berlin", "2030-04-01", "2030-03-31T22:00:00Z"},
		{"Australia/Lord_Howe", "2029-04-01", "2029-03-31T13:00:00Z"}, // half an hour back, at a month's start
		{"Australia/Lord_Howe", "2029-04-02", "2029-04-01T13:30:00Z"},
		{"Australia/Lord_Howe", "2028-10-01", "2028-09-30T13:30:00Z"}, // half an hour forward
		{"Australia/Lord_Howe", "2028-10-02", "2028-10-01T13:00:00Z"},
	} {
		day := date(c.day)
		sub := subscribed(domain.Monthly, day.Day, c.zone, c.day)
		p := sub.First()
		if got := sub.DueAt(p).Format(time.RFC3339); p.String() != c.day[:7] || got != c.want {
			t.Errorf("%s %s: %s is due at %s, want %s", c.zone, c.day, p, got, c.want)
		}
	}
}

// TestC067_FarZones: the label is the customer's local month, whatever the month
// is in UTC, and each month's due time lies between the neighbours'.
func TestC067_FarZones(t *testing.T) {
	t.Parallel()
	for zone, want := range map[string]string{
		"Pacific/Kiritimati": "2026-10-31T10:00:00Z", "Asia/Kathmandu": "2026-10-31T18:15:00Z", "UTC": "2026-11-01T00:00:00Z",
		"Pacific/Pago_Pago": "2026-11-01T11:00:00Z", "Etc/GMT+12": "2026-11-01T12:00:00Z",
	} {
		sub := subscribed(domain.Monthly, 1, zone, "2026-11-01")
		p := sub.First()
		if got := sub.DueAt(p).Format(time.RFC3339); p.String() != "2026-11" || got != want {
			t.Errorf("%s: %s at %s, want 2026-11 at %s", zone, p, got, want)
		}
	}
}

// subscribed is a subscription over 49.00 a period.
func subscribed(cadence domain.Cadence, anchor int, zone, starts string) domain.Subscription {
	return domain.Subscription{}.Evolve(domain.SubscriptionActivated{CustomerID: ada, Money: usd49, Cadence: cadence, AnchorDay: anchor, TimeZone: zone, StartsOn: date(starts)})
}

func instant(s string) time.Time {
	t, err := time.Parse("2006-01-02T15:04", s)
	if err != nil {
		panic(err)
	}
	return t
}

// The rules of the package comment, a story each, over 14 months: what is billed,
// on which day (of the subscription's zone) and for how much.
func TestPeriodsAndDueDays(t *testing.T) {
	t.Parallel()
	pausedAt := func(at string) domain.Event { return domain.SubscriptionPaused{CustomerID: ada, At: instant(at)} }
	resumedAt := func(at string) domain.Event { return domain.SubscriptionResumed{CustomerID: ada, At: instant(at)} }
	cancelled := func(mode domain.CancelMode, at string) domain.Event {
		return domain.SubscriptionCancelled{CustomerID: ada, Mode: mode, At: instant(at)}
	}
	price := func(from string, minor int64) domain.Event {
		return domain.SubscriptionAmountChanged{CustomerID: ada, EffectivePeriod: period(from), AmountMinor: minor}
	}
	moved := func(from string, anchor int, zone string) domain.Event {
		return domain.SubscriptionScheduleChanged{CustomerID: ada, EffectivePeriod: period(from), AnchorDay: anchor, TimeZone: zone}
	}
	monthly := subscribed(domain.Monthly, 1, "UTC", "2027-01-01")
	for _, c := range []struct {
		what  string
		sub   domain.Subscription
		story []domain.Event
		want  string // label, due day, amount; … stands for the months between
	}{
		{"every month", monthly, nil, "2027-01 01-01 49 … 2028-02 02-01 49"},
		{"every quarter", subscribed(domain.Quarterly, 31, "UTC", "2027-01-01"), nil,
			"2027-Q1 01-31 49; 2027-Q2 04-30 49; 2027-Q3 07-31 49; 2027-Q4 10-31 49; 2028-Q1 01-31 49"},
		{"every year", subscribed(domain.Yearly, 15, "UTC", "2027-01-01"), nil, "2027 01-15 49; 2028 01-15 49"},
		{"start in the middle: the next anchor day", subscribed(domain.Monthly, 10, "UTC", "2027-01-11"), nil, "2027-02 02-10 49 … 2028-02 02-10 49"},
		{"start on the anchor day", subscribed(domain.Monthly, 10, "UTC", "2027-01-10"), nil, "2027-01 01-10 49 … 2028-02 02-10 49"},
		{"start in a quarter: the next quarter", subscribed(domain.Quarterly, 1, "UTC", "2027-02-01"), nil,
			"2027-Q2 04-01 49; 2027-Q3 07-01 49; 2027-Q4 10-01 49; 2028-Q1 01-01 49"},

		{"paused over two due days", monthly, []domain.Event{pausedAt("2027-02-10T00:00"), resumedAt("2027-04-10T00:00")},
			"2027-01 01-01 49; 2027-02 02-01 49; 2027-05 05-01 49 … 2028-02 02-01 49"},
		{"paused and resumed between two due days", monthly, []domain.Event{pausedAt("2027-02-10T00:00"), resumedAt("2027-02-11T00:00")}, "2027-01 01-01 49 … 2028-02 02-01 49"},
		{"paused at the due time: it is due", monthly, []domain.Event{pausedAt("2027-03-01T00:00"), resumedAt("2027-03-01T12:00")}, "2027-01 01-01 49 … 2028-02 02-01 49"},
		{"paused a minute earlier: it is not", monthly, []domain.Event{pausedAt("2027-02-28T23:59"), resumedAt("2027-03-01T12:00")},
			"2027-01 01-01 49; 2027-02 02-01 49; 2027-04 04-01 49 … 2028-02 02-01 49"},
		{"resumed at the due time: it is due", monthly, []domain.Event{pausedAt("2027-02-10T00:00"), resumedAt("2027-03-01T00:00")}, "2027-01 01-01 49 … 2028-02 02-01 49"},
		{"paused for good", monthly, []domain.Event{pausedAt("2027-02-10T00:00")}, "2027-01 01-01 49; 2027-02 02-01 49"},
		{"paused twice", monthly, []domain.Event{pausedAt("2027-01-10T00:00"), resumedAt("2027-02-10T00:00"), pausedAt("2027-03-10T00:00"), resumedAt("2027-04-10T00:00")},
			"2027-01 01-01 49; 2027-03 03-01 49; 2027-05 05-01 49 … 2028-02 02-01 49"},

		{"cancelled now", monthly, []domain.Event{cancelled(domain.CancelNow, "2027-03-10T00:00")}, ""}, // what is declared by then stays a bill
		{"cancelled at period end", monthly, []domain.Event{cancelled(domain.CancelPeriodEnd, "2027-03-10T00:00")}, "2027-01 01-01 49; 2027-02 02-01 49; 2027-03 03-01 49"},
		{"cancelled at period end, at the due time", monthly, []domain.Event{cancelled(domain.CancelPeriodEnd, "2027-02-01T00:00")}, "2027-01 01-01 49; 2027-02 02-01 49"},
		{"cancelled at period end, a minute earlier", monthly, []domain.Event{cancelled(domain.CancelPeriodEnd, "2027-01-31T23:59")}, "2027-01 01-01 49"},
		{"cancelled while paused", monthly, []domain.Event{pausedAt("2027-02-10T00:00"), cancelled(domain.CancelPeriodEnd, "2027-04-10T00:00")}, "2027-01 01-01 49; 2027-02 02-01 49"},
		{"cancelled, and activated again", monthly, []domain.Event{cancelled(domain.CancelNow, "2027-03-10T00:00"),
			domain.SubscriptionActivated{CustomerID: ada, Money: usd59, Cadence: domain.Monthly, AnchorDay: 20, TimeZone: "UTC", StartsOn: date("2027-12-01")}},
			"2027-12 12-20 59; 2028-01 01-20 59; 2028-02 02-20 59"},

		{"another price", monthly, []domain.Event{price("2027-03", 5900)}, "2027-01 01-01 49; 2027-02 02-01 49; 2027-03 03-01 59 … 2028-02 02-01 59"},
		{"two prices, the later one first", monthly, []domain.Event{price("2027-04", 6900), price("2027-02", 5900)}, "2027-01 01-01 49; 2027-02 02-01 59 … 2028-02 02-01 59"},
		{"another day, later in the month", monthly, []domain.Event{moved("2027-03", 31, "")},
			"2027-01 01-01 49; 2027-02 02-01 49; 2027-03 03-31 49; 2027-04 04-30 49; 2027-05 05-31 49; 2027-06 06-30 49; 2027-07 07-31 49; 2027-08 08-31 49; 2027-09 09-30 49; 2027-10 10-31 49; 2027-11 11-30 49; 2027-12 12-31 49; 2028-01 01-31 49; 2028-02 02-29 49"},
		{"another day, earlier in the month: a day apart, and two labels", subscribed(domain.Monthly, 31, "UTC", "2027-10-01"), []domain.Event{moved("2027-12", 1, "")},
			"2027-10 10-31 49; 2027-11 11-30 49; 2027-12 12-01 49; 2028-01 01-01 49; 2028-02 02-01 49"},
		{"another quarter day", subscribed(domain.Quarterly, 1, "UTC", "2027-01-01"), []domain.Event{moved("2027-Q3", 15, "")},
			"2027-Q1 01-01 49; 2027-Q2 04-01 49; 2027-Q3 07-15 49; 2027-Q4 10-15 49; 2028-Q1 01-15 49"},
		{"to the other side of the world", subscribed(domain.Monthly, 1, "Pacific/Pago_Pago", "2027-11-01"), []domain.Event{moved("2027-12", 0, "Pacific/Kiritimati")},
			"2027-11 11-01 49; 2027-12 11-30 49; 2028-01 12-31 49; 2028-02 01-31 49; 2028-03 02-29 49"}, // days in UTC: 11-30T10:00 is the first there
	} {
		sub := c.sub
		for _, e := range c.story {
			sub = sub.Evolve(e)
		}
		var bills []string
		for p := sub.Next(domain.Period{}); !p.IsZero() && sub.DueAt(p).Before(instant("2028-03-01T00:00")); p = sub.Next(p.Next()) {
			bills = append(bills, fmt.Sprintf("%s %s %d", p, sub.DueAt(p).Format("01-02"), sub.AmountFor(p).Minor/100))
		}
		if got := abridged(bills, c.want); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.what, got, c.want)
		}
	}
}

// abridged joins bills. Where want leaves out the months between two equal ones
// with an ellipsis, so does it, if they are all there.
func abridged(bills []string, want string) string {
	before, end, short := strings.Cut(want, " … ")
	if !short {
		return strings.Join(bills, "; ")
	}
	head := strings.Split(before, "; ")
	from := head[len(head)-1]
	p, amount := period(strings.Fields(from)[0]), strings.Fields(from)[2]
	day := strings.Fields(from)[1][2:]
	for n := len(head); n < len(bills)-1; n++ {
		p = p.Next()
		_, month := p.Start()
		if bills[n] != fmt.Sprintf("%s %02d%s %s", p, month, day, amount) {
			return strings.Join(bills, "; ")
		}
	}
	if len(bills) <= len(head) || strings.Join(bills[:len(head)], "; ") != before || bills[len(bills)-1] != end || p.Next() != period(strings.Fields(end)[0]) {
		return strings.Join(bills, "; ")
	}
	return want
}

// A zone far ahead of the former one would make a period due before the one
// before it: it waits, so that a customer's bills fall due oldest first.
func TestAZoneFarAheadKeepsTheOrder(t *testing.T) {
	t.Parallel()
	sub := subscribed(domain.Monthly, 31, "Pacific/Pago_Pago", "2027-01-01").Evolve(domain.SubscriptionScheduleChanged{
		CustomerID: ada, AnchorDay: 1, TimeZone: "Pacific/Kiritimati", EffectivePeriod: period("2027-04"),
	})
	march, april := sub.DueAt(period("2027-03")), sub.DueAt(period("2027-04"))
	if !march.Equal(instant("2027-03-31T11:00")) || !april.Equal(march) { // its own would be 10:00
		t.Errorf("March is due at %s, April at %s", march, april)
	}
	if may := sub.DueAt(period("2027-05")); !may.Equal(instant("2027-04-30T10:00")) {
		t.Errorf("May is due at %s", may)
	}
}
