package commands_test

import (
	"errors"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

func history(through string) domain.Event {
	return domain.HistoryImported{CustomerID: ada, BilledThrough: period(through)}
}

func TestImportHistory(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	through := commands.NewImportHistory(ada, oct)

	customer.Given(registered).When(through).Then(history("2026-10"))
	customer.Given().When(through).ThenRefused(domain.ErrUnknownCustomer)
	customer.Given(registered, activated).When(through).ThenRefused(domain.ErrHistoryLate)
	customer.Given(registered, activated, cancelledNow).When(through).ThenRefused(domain.ErrHistoryLate)
	customer.Given(registered, askedFor(oct, 1)).When(through).ThenRefused(domain.ErrHistoryLate)
	customer.Given(registered, askedFor(nov, 1)).When(through).Then(history("2026-10"))
	customer.Given(registered, askedFor(oct, 1)).When(commands.NewImportHistory(ada, period("2026"))).ThenRefused(domain.ErrHistoryLate)
}

// What has been billed elsewhere may lie a year ahead, and no further.
func TestImportHistoryOfTheFuture(t *testing.T) {
	t.Parallel()
	spec := must(commands.Lookup("import-history"))
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	for through, accepted := range map[string]bool{
		"2026-11": true, "2027": true, "2027-12": true, "2027-Q4": true, "2028-01": false, "2028": false, "2028-Q1": false, "2099-10": false,
	} {
		_, err := spec.Decode(commands.Input{Body: []byte(`{"customer_id":"ada","billed_through":"` + through + `"}`), Now: now})
		if accepted && err != nil || !accepted && !errors.Is(err, domain.ErrInvalidInput) {
			t.Errorf("%s: %v", through, err)
		}
	}
}

func TestImportCharge(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	charge := commands.NewImportCharge(ada, oct, "ch_old", usd49)
	paid := domain.CustomerBilled{
		CustomerID: ada, BillingPeriod: oct, Attempt: 1, ChargeID: "ch_old", Money: usd49, Source: domain.SourceImport, Recovered: true,
	}

	customer.Given(registered, history("2026-10")).When(charge).Then(paid)
	customer.Given(registered, history("2026-Q4")).When(charge).Then(paid)
	customer.Given(registered, history("2026-10"), activated).When(charge).Then(paid)
	customer.Given(registered, history("2026-10"), paid).When(charge).ThenNothing()
	customer.Given(registered, history("2026-10"), paid).When(commands.NewImportCharge(ada, oct, "ch_other", usd49)).ThenRefused(domain.ErrAlreadyBilled)
	customer.Given(registered, history("2026-10"), paid).When(commands.NewImportCharge(ada, period("2026-Q4"), "ch_other", usd49)).ThenRefused(domain.ErrPeriodOverlaps)
	customer.Given(registered, history("2026-09")).When(charge).ThenRefused(domain.ErrNotHistory)
	customer.Given(registered).When(charge).ThenRefused(domain.ErrNotHistory)
	customer.Given().When(charge).ThenRefused(domain.ErrUnknownCustomer)
}

// Nothing that another system has billed is billed again, whoever asks.
func TestHistoryIsNotBilledAgain(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	moved := customer.Given(registered, history("2026-11"))
	moved.When(commands.NewChargeBilling(ada, nov, usd49)).ThenRefused(domain.ErrBilledBefore)
	moved.When(commands.NewChargeBilling(ada, period("2026-Q4"), usd49)).ThenRefused(domain.ErrBilledBefore)
	moved.When(commands.NewChargeBilling(ada, dec, usd49)).Then(askedFor(dec, 1))

	for _, test := range []struct {
		through, cadence, starts string
		anchor                   int
		first                    string // due here
	}{
		{"2026-10", "monthly", "2024-01-15", 15, "2026-11"},
		{"2026-10", "monthly", "2026-10-20", 1, "2026-11"},
		{"2026-10", "monthly", "2026-11-20", 1, "2026-12"},
		{"2026-10", "monthly", "2027-02-01", 1, "2027-02"},
		{"2026-Q3", "quarterly", "2024-01-01", 31, "2026-Q4"},
		{"2026-11", "quarterly", "2024-01-01", 1, "2027-Q1"}, // the quarter has begun to be billed: never a second time
		{"2026", "yearly", "2019-05-05", 5, "2027"},
		{"2026-Q2", "monthly", "2024-01-01", 1, "2026-07"},
	} {
		cadence, err := domain.ParseCadence(test.cadence)
		if err != nil {
			t.Fatal(err)
		}
		starts, err := domain.ParseDate("starts_on", test.starts)
		if err != nil {
			t.Fatal(err)
		}
		schedule := domain.Schedule{Cadence: cadence, AnchorDay: test.anchor, TimeZone: "Pacific/Kiritimati", StartsOn: starts}
		s := domain.Customer{}.Evolve(registered).Evolve(history(test.through))
		events, err := commands.NewActivateSubscription(ada, usd49, schedule).Decide(s)
		if err != nil || len(events) != 1 {
			t.Fatalf("%+v: %v, %v", test, events, err)
		}
		s = s.Evolve(events[0])
		sub, _ := s.Subscription()
		first := sub.First()
		if first.String() != test.first {
			t.Errorf("%+v: the first period is %s", test, first)
		}
		if events, err := commands.NewDeclareBillingDue(ada, first).Decide(s); err != nil || len(events) != 1 {
			t.Errorf("%+v: %s: %v, %v", test, first, events, err)
		}
		for p := period(test.through); p.Before(first); p = p.Next() {
			if !p.Fits(cadence) {
				break
			}
			if events, err := commands.NewDeclareBillingDue(ada, p).Decide(s); err == nil {
				t.Errorf("%+v: %s is declared: %v", test, p, events)
			}
		}
	}
}
