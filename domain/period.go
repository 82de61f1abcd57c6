package domain

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Cadence is how often a subscription bills.
type Cadence string

// The cadences.
const (
	Monthly   Cadence = "monthly"
	Quarterly Cadence = "quarterly"
	Yearly    Cadence = "yearly"
)

// ParseCadence accepts the three cadences. The error is an invalid field cadence.
func ParseCadence(s string) (Cadence, error) {
	switch c := Cadence(s); c {
	case Monthly, Quarterly, Yearly:
		return c, nil
	}
	return "", InvalidField("cadence", "must be monthly, quarterly or yearly")
}

// Months is the length of the cadence's periods.
func (c Cadence) Months() int {
	switch c {
	case Quarterly:
		return 3
	case Yearly:
		return 12
	case Monthly:
		return 1
	}
	return 0
}

// Period is a calendar month, quarter or year that is billed as one. The zero
// Period is none. Periods are comparable with ==.
type Period struct {
	first  int // months since year 0
	length int // 1, 3 or 12
}

// ParsePeriod accepts the one spelling of a period: 2026-11, 2026-Q3 or 2026.
// Years run from 2000 to 9999. The error is an invalid field billing_period.
func ParsePeriod(s string) (Period, error) {
	bad := InvalidField("billing_period", "must be a month (2026-11), a quarter (2026-Q3) or a year (2026), spelled exactly so")
	year, rest, dashed := strings.Cut(s, "-")
	if len(year) != 4 || !digits(year) || year < "2000" {
		return Period{}, bad
	}
	y, _ := strconv.Atoi(year)
	switch {
	case !dashed:
		return Period{y * 12, 12}, nil
	case len(rest) == 2 && rest[0] == 'Q' && rest[1] >= '1' && rest[1] <= '4':
		return Period{y*12 + int(rest[1]-'1')*3, 3}, nil
	case len(rest) == 2 && digits(rest):
		if m, _ := strconv.Atoi(rest); m >= 1 && m <= 12 {
			return Period{y*12 + m - 1, 1}, nil
		}
	}
	return Period{}, bad
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// PeriodOf is the period of the cadence that holds the month (1–12) of year.
func PeriodOf(c Cadence, year, month int) Period {
	n := c.Months()
	if n == 0 {
		return Period{}
	}
	return Period{year*12 + (month-1)/n*n, n}
}

// LastYear is the last year of a period that somebody may name: a caller, or the
// markers of an object at Stripe. What follows from such a period, the next one
// first of all, is written into facts and rows, and has a spelling, too.
const LastYear = 2999

// Nameable reports whether p is not after LastYear.
func (p Period) Nameable() bool { return p.first/12 <= LastYear }

// Next is the period that follows p without a gap.
func (p Period) Next() Period { return Period{p.first + p.length, p.length} }

// Previous is the period that p follows without a gap.
func (p Period) Previous() Period { return Period{p.first - p.length, p.length} }

// Start is the year and month (1–12) in which p begins.
func (p Period) Start() (year, month int) { return p.first / 12, p.first%12 + 1 }

// Fits reports whether p is a period of the cadence.
func (p Period) Fits(c Cadence) bool { return p.length != 0 && p.length == c.Months() }

// Overlaps reports whether p and q share a month.
func (p Period) Overlaps(q Period) bool {
	return p.first < q.first+q.length && q.first < p.first+p.length
}

// BeginsBy reports whether p begins before the end of q; no period begins by
// none.
func (p Period) BeginsBy(q Period) bool { return p.first < q.first+q.length }

// DayAfter is the first day that p does not cover.
func (p Period) DayAfter() Date {
	y, m := p.Next().Start()
	return Date{y, time.Month(m), 1}
}

// Before orders periods by their first month, then by length.
func (p Period) Before(q Period) bool {
	return p.first < q.first || p.first == q.first && p.length < q.length
}

// IsZero reports whether p names nothing.
func (p Period) IsZero() bool { return p.length == 0 }

// String is p's one spelling.
func (p Period) String() string {
	y, m := p.Start()
	switch p.length {
	case 1:
		return fmt.Sprintf("%04d-%02d", y, m)
	case 3:
		return fmt.Sprintf("%04d-Q%d", y, (m-1)/3+1)
	case 12:
		return fmt.Sprintf("%04d", y)
	}
	return ""
}

// MarshalText spells p.
func (p Period) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText accepts what ParsePeriod accepts, and an empty text as none.
func (p *Period) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		*p = Period{}
		return nil
	}
	*p, err = ParsePeriod(string(text))
	return err
}
