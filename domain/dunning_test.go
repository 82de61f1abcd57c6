package domain_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/domain"
)

var (
	days     = domain.DunningDays{1, 3, 5, 7}
	berlin   = domain.SubscriptionActivated{CustomerID: ada, Money: usd49, Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "Europe/Berlin", StartsOn: domain.Date{Year: 2026, Month: 1, Day: 1}}
	dueInTZ  = domain.MonthlyBillingDue{CustomerID: ada, BillingPeriod: period("2026-10"), DueAt: at("2026-09-30T22:00:00Z"), Money: usd49}
	newCard  = domain.PaymentMethodChanged{CustomerID: ada, PaymentMethodID: "pm_2"}
	firstDay = domain.Date{Year: 2026, Month: time.October, Day: 1}
)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t
}

func declinedAs(attempt int, class domain.DeclineClass) domain.Event {
	return domain.ChargeDeclined{CustomerID: ada, BillingPeriod: period("2026-10"), Attempt: attempt, ChargeID: "ch_no", Code: "card_declined", Class: class}
}

// tried is one attempt of October that was declined.
func tried(attempt int, class domain.DeclineClass) []domain.Event {
	return []domain.Event{asked("2026-10", attempt), started("2026-10", attempt, 1), declinedAs(attempt, class)}
}

func retryAt(attempt int, when string) domain.Event {
	return domain.DunningScheduled{CustomerID: ada, BillingPeriod: period("2026-10"), Attempt: attempt, At: at(when), Day: 1, From: firstDay, Reason: "a test"}
}

func history(parts ...[]domain.Event) domain.Customer {
	return after(slices.Concat(append([][]domain.Event{{registered, berlin, dueInTZ}}, parts...)...)...)
}

// What follows a decline (C013, C046, C080, C084): given what happened to a bill
// that fell due on 1 October in Berlin, when its decline is decided about at now.
func TestDun(t *testing.T) {
	t.Parallel()
	one := func(e domain.Event) []domain.Event { return []domain.Event{e} }
	for name, c := range map[string]struct {
		given domain.Customer
		now   string
		retry string         // the next attempt is scheduled at
		waits domain.Awaited // or it waits for
		over  bool           // or it is uncollectible
	}{
		"soft, on the due day: the next local day":          {history(tried(1, domain.Soft)), "2026-10-01T09:00:00Z", "2026-10-01T22:00:00Z", "", false},
		"soft, on the first day: the third":                 {history(tried(1, domain.Soft), one(retryAt(2, "2026-10-01T22:00:00Z")), tried(2, domain.Soft)), "2026-10-01T22:00:01Z", "2026-10-03T22:00:00Z", "", false},
		"by hand on the second day: the third stays":        {history(tried(1, domain.Soft), one(retryAt(2, "2026-10-03T22:00:00Z")), tried(2, domain.Soft)), "2026-10-02T22:00:01Z", "2026-10-03T22:00:00Z", "", false},
		"soft, after the last day: uncollectible":           {history(tried(1, domain.Soft), one(retryAt(2, "2026-10-07T22:00:00Z")), tried(2, domain.Soft)), "2026-10-07T22:00:01Z", "", "", true},
		"collected late: the days count from then":          {history(tried(1, domain.Soft)), "2026-12-24T09:00:00Z", "2026-12-24T23:00:00Z", "", false},
		"at the limit of tries a day: a day of rest":        {history(tried(1, domain.RateLimited)), "2026-10-01T09:00:00Z", "2026-10-03T22:00:00Z", "", false},
		"hard: another method":                              {history(tried(1, domain.Hard)), "2026-10-01T09:00:00Z", "", domain.AwaitsMethod, false},
		"hard, and the method has changed: now":             {history(tried(1, domain.Hard), one(newCard)), "2026-10-01T09:00:00Z", "2026-10-01T09:00:00Z", "", false},
		"no method":                                         {history(tried(1, domain.MethodMissing)), "2026-10-01T09:00:00Z", "", domain.AwaitsMethod, false},
		"authentication: the customer":                      {history(tried(1, domain.Authentication)), "2026-10-01T09:00:00Z", "", domain.AwaitsCustomer, false},
		"decided already":                                   {history(tried(1, domain.Soft), one(retryAt(2, "2026-10-01T22:00:00Z"))), "2026-10-01T10:00:00Z", "", "", false},
		"the next attempt is under way":                     {history(tried(1, domain.Soft), one(asked("2026-10", 2))), "2026-10-01T10:00:00Z", "", "", false},
		"unknown":                                           {history([]domain.Event{asked("2026-10", 1), started("2026-10", 1, 1), unknown("2026-10")}), "2026-10-01T10:00:00Z", "", "", false},
		"paid after all":                                    {history(tried(1, domain.Soft), one(paid("2026-10", "ch_late"))), "2026-10-01T10:00:00Z", "", "", false},
		"being settled":                                     {history(tried(1, domain.Soft), one(closing("2026-10", domain.ClosingSettled))), "2026-10-01T10:00:00Z", "", "", false},
		"settled":                                           {history(tried(1, domain.Soft), one(settled("2026-10"))), "2026-10-01T10:00:00Z", "", "", false},
		"written off":                                       {history(tried(1, domain.Soft), one(writtenOff("2026-10"))), "2026-10-01T10:00:00Z", "", "", false},
		"cancelled with immediate effect":                   {history(tried(1, domain.Soft), one(cancelledNow)), "2026-10-01T10:00:00Z", "", "", false},
		"cancelled with its period: what is due is pursued": {history(tried(1, domain.Soft), one(cancelledEnd)), "2026-10-01T10:00:00Z", "2026-10-01T22:00:00Z", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events := c.given.Dun(period("2026-10"), days, at(c.now))
			var retry string
			var waits domain.Awaited
			var over, delinquent bool
			for _, e := range events {
				switch e := e.(type) {
				case domain.DunningScheduled:
					retry = e.At.Format(time.RFC3339)
				case domain.DunningWaiting:
					waits = e.Awaits
				case domain.BillUncollectible:
					over = true
				case domain.SubscriptionDelinquent:
					delinquent = e.Money == usd49
				}
			}
			if retry != c.retry || waits != c.waits || over != c.over || delinquent != c.over {
				t.Errorf("decided %+v", events)
			}
			if more := c.given.Dun(period("2026-10"), nil, at(c.now)); more != nil {
				t.Errorf("without days decided %+v", more)
			}
			next := c.given
			for _, e := range events {
				next = next.Evolve(e)
			}
			if again := next.Dun(period("2026-10"), days, at(c.now)); again != nil {
				t.Errorf("decided once more: %+v", again)
			}
		})
	}
}

// A method that takes the place of a declined one brings each bill back once.
func TestDunWithMethod(t *testing.T) {
	t.Parallel()
	waiting := domain.DunningWaiting{CustomerID: ada, BillingPeriod: period("2026-10"), Attempt: 1, Awaits: domain.AwaitsMethod, From: firstDay}
	c := history(tried(1, domain.Hard), []domain.Event{waiting, newCard})
	events := c.DunWithMethod(at("2026-10-09T09:00:00Z"))
	if len(events) != 1 || events[0].(domain.DunningScheduled).Attempt != 2 || !events[0].(domain.DunningScheduled).At.Equal(at("2026-10-09T09:00:00Z")) {
		t.Fatalf("decided %+v", events)
	}
	if again := c.Evolve(events[0]).DunWithMethod(noon); again != nil {
		t.Errorf("decided once more: %+v", again)
	}
}

// One method is tried as often as card networks allow, whoever asks; another
// one begins anew. In any order of hands and days the schedule's attempts are
// no more than its days.
func TestDunningIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		class := rapid.SampledFrom([]domain.DeclineClass{domain.Soft, domain.RateLimited})
		c := history(tried(1, class.Draw(t, "class")))
		now, scheduled := at("2026-10-01T09:00:00Z"), 0
		for attempt := 2; ; attempt++ {
			for _, e := range c.Dun(period("2026-10"), days, now) {
				c = c.Evolve(e)
			}
			b, _ := c.Bill(period("2026-10"))
			if b.Status == domain.BillUncollectibleStatus || b.Dunning.Awaits != "" {
				if attempt > domain.MethodBudget+1 && b.Dunning.Awaits != domain.AwaitsMethod {
					t.Fatalf("%d attempts, and then %+v", attempt-1, b.Dunning)
				}
				break
			}
			if b.Dunning.Attempt != attempt || !b.Dunning.At.After(now) {
				t.Fatalf("attempt %d is planned as %+v at %s", attempt, b.Dunning, now)
			}
			if rapid.Bool().Draw(t, "by hand") {
				now = now.Add(time.Minute)
			} else {
				now = b.Dunning.At
				scheduled++
			}
			for _, e := range tried(attempt, class.Draw(t, "class")) {
				c = c.Evolve(e)
			}
		}
		if scheduled > len(days) {
			t.Fatalf("%d attempts by a schedule of %d days", scheduled, len(days))
		}
	})
}

func TestParseDunningDays(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]domain.DunningDays{"none": nil, "1": {1}, "1,3,5,7": days, "2, 30": {2, 30}} {
		if got, err := domain.ParseDunningDays(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q gives %v, %v", in, got, err)
		}
	}
	tooMany := "1"
	for day := 2; day <= domain.MethodBudget; day++ {
		tooMany += "," + strconv.Itoa(day)
	}
	for _, in := range []string{"", "0", "-1", "3,1", "1,1", "91", "one", "1,,2", tooMany} {
		if got, err := domain.ParseDunningDays(in); err == nil {
			t.Errorf("%q gives %v", in, got)
		}
	}
}
