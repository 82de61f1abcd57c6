package sagas_test

import (
	"fmt"
	"slices"
	"time"
)

// The model of who owes what, and when: plain Go with date arithmetic of its own,
// beside the domain's and written without it. A month is the number of months
// since the year 0; a period is the first of its months and how many there are.

// modelYear is the world: what each customer owes, and how far it was looked at.
type modelYear struct {
	customers map[string]*modelCustomer
	looked    time.Time // all that was due by then is declared
}

type modelCustomer struct {
	sub   *modelSubscription
	bills []*modelBill // declared, in the order they fell due
	card  bool         // it can be charged
}

type modelBill struct {
	first, months int
	due           time.Time
	minor         int64
	currency      string
	asked, card   bool // the charge was asked for, with a card that can be charged
	paid, void    bool
}

type modelSubscription struct {
	months   int // of a period
	starts   modelDate
	terms    []modelTerm
	pauses   [][2]time.Time // the second is zero while it goes on
	ended    time.Time      // zero: it goes on
	currency string
}

// modelTerm is what holds from a period on; what is not set stays.
type modelTerm struct {
	from   int
	minor  int64
	anchor int
	zone   string
}

type modelDate struct{ year, month, day int }

func (d modelDate) String() string { return fmt.Sprintf("%04d-%02d-%02d", d.year, d.month, d.day) }

// monthDays counts the days of a month.
func monthDays(month int) int {
	year, of := month/12, month%12+1
	switch {
	case of == 2 && (year%400 == 0 || year%4 == 0 && year%100 != 0):
		return 29
	case of == 2:
		return 28
	case of == 4 || of == 6 || of == 9 || of == 11:
		return 30
	}
	return 31
}

// dayBegins finds the first moment at which a zone's clocks show a day, by looking
// at them every quarter of an hour.
func dayBegins(zone string, d modelDate) time.Time {
	key := zone + d.String()
	if at, ok := beginnings[key]; ok {
		return at
	}
	location, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	at := time.Date(d.year, time.Month(d.month), d.day-1, 6, 0, 0, 0, time.UTC)
	for at.In(location).Format(time.DateOnly) < d.String() {
		at = at.Add(15 * time.Minute)
	}
	beginnings[key] = at
	return at
}

var beginnings = map[string]time.Time{}

// at is the term of a period.
func (s *modelSubscription) at(first int) (t modelTerm) {
	for _, next := range s.terms {
		if next.from > first {
			continue
		}
		if next.minor != 0 {
			t.minor = next.minor
		}
		if next.anchor != 0 {
			t.anchor = next.anchor
		}
		if next.zone != "" {
			t.zone = next.zone
		}
	}
	return t
}

func dueOn(t modelTerm, first int) time.Time {
	return dayBegins(t.zone, modelDate{first / 12, first%12 + 1, min(t.anchor, monthDays(first))})
}

// first is the first month of the first period.
func (s *modelSubscription) first() int {
	first := s.starts.year*12 + s.starts.month - 1
	first -= first % s.months
	anchor := s.terms[0].anchor
	if day := (modelDate{first / 12, first%12 + 1, min(anchor, monthDays(first))}); day.String() < s.starts.String() {
		first += s.months
	}
	return first
}

// due is when a period falls due: by its term, but never before the one before it.
func (s *modelSubscription) due(first int) time.Time {
	at := dueOn(s.at(first), first)
	if first > s.first() && slices.ContainsFunc(s.terms[1:], func(t modelTerm) bool { return t.from == first && t.minor == 0 }) {
		if before := s.due(first - s.months); before.After(at) {
			return before
		}
	}
	return at
}

func (s *modelSubscription) billed(first int) bool {
	at := s.due(first)
	if !s.ended.IsZero() && at.After(s.ended) {
		return false
	}
	for _, p := range s.pauses {
		if at.After(p[0]) && (p[1].IsZero() || at.Before(p[1])) {
			return false
		}
	}
	return true
}

func (c *modelCustomer) paused() bool {
	s := c.sub
	return s.ended.IsZero() && len(s.pauses) > 0 && s.pauses[len(s.pauses)-1][1].IsZero()
}

// declare takes down what is due by an instant.
func (c *modelCustomer) declare(now time.Time) {
	for first := c.sub.first(); !c.sub.due(first).After(now); first += c.sub.months {
		overlaps := slices.ContainsFunc(c.bills, func(b *modelBill) bool { return b.first < first+c.sub.months && first < b.first+b.months })
		if overlaps || !c.sub.billed(first) {
			continue
		}
		c.bills = append(c.bills, c.bill(first))
	}
}

func (c *modelCustomer) bill(first int) *modelBill {
	return &modelBill{first: first, months: c.sub.months, due: c.sub.due(first), minor: c.sub.at(first).minor, currency: c.sub.currency}
}

// early declares the first period that is neither due nor declared.
func (c *modelCustomer) early(now time.Time) *modelBill {
	b := c.bill(c.open(now))
	c.bills = append(c.bills, b)
	return b
}

// collect takes the money of what is declared: by the card that was asked first, or
// by the one there is now. Nothing is sent while the subscription is paused.
func (c *modelCustomer) collect() {
	for _, b := range c.bills {
		if !b.void && (b.card || c.card) && !c.paused() {
			b.paid = true
		}
	}
}

// look is a moment at which all scanners have looked, and, if they could, all
// collectors have collected.
func (y *modelYear) look(now time.Time, collecting bool) {
	y.looked = now
	for _, c := range y.customers {
		c.declare(now)
		for _, b := range c.bills { // the card there is when the saga meets the due
			b.card = b.card || !b.asked && c.card
			b.asked = true
		}
		if collecting {
			c.collect()
		}
	}
}

// open is the first period that a change at an instant can touch.
func (c *modelCustomer) open(now time.Time) int {
	first := c.sub.first()
	for {
		known := slices.ContainsFunc(c.bills, func(b *modelBill) bool { return b.first+b.months > first })
		if !known && c.sub.due(first).After(now) {
			return first
		}
		first += c.sub.months
	}
}

func (c *modelCustomer) price(now time.Time, minor int64) {
	c.sub.terms = append(c.sub.terms, modelTerm{from: c.open(now), minor: minor})
}

func (c *modelCustomer) move(now time.Time, anchor int, zone string) {
	first := c.open(now)
	for {
		term := c.sub.at(first)
		if anchor != 0 {
			term.anchor = anchor
		}
		if zone != "" {
			term.zone = zone
		}
		if dueOn(term, first).After(now) {
			break
		}
		first += c.sub.months
	}
	c.sub.terms = append(c.sub.terms, modelTerm{from: first, anchor: anchor, zone: zone})
}

func (c *modelCustomer) cancel(now time.Time, atOnce bool) {
	if !atOnce {
		c.sub.ended = now
		return
	}
	c.sub.ended = time.Unix(0, 0) // what is late is not declared either
	for _, b := range c.bills {
		b.void = !b.paid
	}
}

// activate starts another subscription, after what the former one owes.
func (c *modelCustomer) activate(s *modelSubscription) {
	if c.sub != nil {
		c.declare(c.sub.ended)
	}
	c.sub = s
}

// label spells a period.
func (b *modelBill) label() string {
	year, month := b.first/12, b.first%12
	switch b.months {
	case 1:
		return fmt.Sprintf("%04d-%02d", year, month+1)
	case 3:
		return fmt.Sprintf("%04d-Q%d", year, month/3+1)
	}
	return fmt.Sprintf("%04d", year)
}
