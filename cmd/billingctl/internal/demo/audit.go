package demo

import (
	"fmt"
	"slices"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/domain"
)

// audit compares what customers were charged with what they owe. It knows the
// ledger alone, and customers by their names at Stripe.
type audit struct {
	customers int
	charged   int        // customers, at least once
	charges   int        // that took money
	twice     []string   // customers who were charged more than once
	missing   []string   // customers who were not charged
	findings  []string   // everything that is wrong, in words
	sums      []subtotal // by currency
}

// subtotal is an audit's part in one currency.
type subtotal struct {
	currency         domain.Currency
	customers        int // who owe in it
	charges          int // made in it
	twice, missing   int // of those customers
	owed, chargedSum domain.Money
}

// right reports whether everybody was charged what they owe, once, and nobody
// else anything.
func (a audit) right() bool { return len(a.findings) == 0 }

func (a *audit) find(format string, args ...any) {
	a.findings = append(a.findings, fmt.Sprintf(format, args...))
}

// newAudit compares customers, who owe once each, with movements of one period.
func newAudit(customers []Customer, movements []parts.Movement) audit {
	a := audit{customers: len(customers)}
	sums := map[domain.Currency]*subtotal{}
	sum := func(c domain.Currency) *subtotal {
		if sums[c] == nil {
			sums[c] = &subtotal{currency: c, owed: domain.Money{Currency: c}, chargedSum: domain.Money{Currency: c}}
		}
		return sums[c]
	}
	add := func(to *domain.Money, m domain.Money) {
		total, err := to.Add(m)
		if err != nil {
			a.find("the sum of %s cannot be told: %v", m.Currency, err)
			return
		}
		*to = total
	}

	byCustomer := map[string][]parts.Movement{}
	for _, m := range movements {
		if !m.Moved() {
			continue
		}
		a.charges++
		s := sum(m.Money().Currency)
		s.charges++
		add(&s.chargedSum, m.Money())
		byCustomer[m.Customer] = append(byCustomer[m.Customer], m)
	}
	for _, c := range customers {
		s := sum(c.Owes().Currency)
		s.customers++
		add(&s.owed, c.Owes())
		charges := byCustomer[c.StripeCustomerID]
		delete(byCustomer, c.StripeCustomerID)
		for _, m := range charges {
			if m.Money() != c.Owes() {
				a.find("%s owes %s and was charged %s (%s)", c.CustomerID, c.Owes(), m.Money(), m.Charge)
			}
		}
		switch {
		case len(charges) == 0:
			a.missing, s.missing = append(a.missing, c.CustomerID), s.missing+1
			a.find("%s owes %s and was not charged", c.CustomerID, c.Owes())
			continue
		case len(charges) > 1:
			a.twice, s.twice = append(a.twice, c.CustomerID), s.twice+1
			a.find("%s owes %s and was charged %d times (%s, %s)", c.CustomerID, c.Owes(), len(charges), charges[0].Charge, charges[1].Charge)
		}
		a.charged++
	}
	for name, charges := range byCustomer { // those left over
		a.find("%q owes nothing and was charged %s (%s)", name, charges[0].Money(), charges[0].Charge)
	}
	for _, s := range sums {
		a.sums = append(a.sums, *s)
		if s.owed != s.chargedSum {
			a.find("%s are owed and %s were charged", s.owed, s.chargedSum)
		}
	}
	slices.SortFunc(a.sums, func(a, b subtotal) int {
		if a.currency < b.currency {
			return -1
		}
		return 1
	})
	slices.Sort(a.findings)
	return a
}

// ofPeriod are the movements of one billing period: those that say so, and
// those that do not say which.
func ofPeriod(movements []parts.Movement, period string) []parts.Movement {
	return slices.DeleteFunc(slices.Clone(movements), func(m parts.Movement) bool {
		p, says := m.Metadata["billing_period"]
		return says && p != period
	})
}

// span is how many charges there are and how long it took from the first to
// the last.
func span(movements []parts.Movement) (charges int, took time.Duration) {
	var first, last time.Time
	for _, m := range movements {
		if !m.Moved() {
			continue
		}
		if charges == 0 || m.At.Before(first) {
			first = m.At
		}
		if m.At.After(last) {
			last = m.At
		}
		charges++
	}
	return charges, last.Sub(first)
}

// perSecond is the rate of charges over the time from the first to the last.
func perSecond(charges int, took time.Duration) float64 {
	if charges < 2 || took <= 0 {
		return 0
	}
	return float64(charges-1) / took.Seconds()
}
