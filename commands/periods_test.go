package commands_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// Whoever looks, and however late: the same bills fall due, at the same instants,
// for the same amounts, oldest first. One scanner looks after every change, the
// other now and then, after weeks or months.
func TestWhoLooksWhenChangesNothing(t *testing.T) {
	t.Parallel()
	zones := []string{"UTC", "Europe/Berlin", "Pacific/Kiritimati", "Pacific/Pago_Pago", "America/Havana", "Australia/Lord_Howe"}
	rapid.Check(t, func(t *rapid.T) {
		at := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.IntRange(0, 24*30).Draw(t, "start")) * time.Hour)
		activate := commands.NewActivateSubscription(ada, usd49, domain.Schedule{
			Cadence:   rapid.SampledFrom([]domain.Cadence{domain.Monthly, domain.Quarterly, domain.Yearly}).Draw(t, "cadence"),
			AnchorDay: rapid.IntRange(1, 31).Draw(t, "anchor"), TimeZone: rapid.SampledFrom(zones).Draw(t, "zone"),
			StartsOn: domain.Date{Year: 2027, Month: time.Month(rapid.IntRange(1, 3).Draw(t, "month")), Day: rapid.IntRange(1, 28).Draw(t, "day")},
		})
		var prompt, late follower
		for _, f := range []*follower{&prompt, &late} {
			f.take(registered)
			f.send(t, activate)
		}
		for n := range rapid.IntRange(1, 12).Draw(t, "changes") {
			at = at.Add(time.Duration(rapid.IntRange(1, 24*60).Draw(t, "hours")) * time.Hour)
			id := domain.Key(fmt.Sprint("k", n))
			change := rapid.SampledFrom([]commands.Command[domain.Customer]{
				commands.NewPauseSubscription(ada, "", at, id), commands.NewResumeSubscription(ada, at, id), commands.NewResumeSubscription(ada, at, id),
				commands.NewChangeSubscriptionAmount(ada, int64(5000+n), "", domain.Period{}, at, id),
				commands.NewChangeSubscriptionSchedule(ada, rapid.IntRange(1, 31).Draw(t, "anchor"), "", domain.Period{}, at, id),
				commands.NewChangeSubscriptionSchedule(ada, 0, rapid.SampledFrom(zones).Draw(t, "zone"), domain.Period{}, at, id),
			}).Draw(t, "change")
			if rapid.IntRange(0, 30).Draw(t, "end") == 0 {
				change = commands.NewCancelSubscription(ada, domain.CancelPeriodEnd, "", at, id)
			}
			prompt.scan(t, at)
			if rapid.IntRange(0, 4).Draw(t, "the late one looks") == 0 {
				late.scan(t, at)
			}
			prompt.send(t, change)
			late.send(t, change)
		}
		end := at.AddDate(1, 3, 0)
		prompt.scan(t, end)
		late.scan(t, end)
		if !slices.Equal(prompt.dues, late.dues) {
			t.Fatalf("who looked at once declared\n%+v, who was late\n%+v", prompt.dues, late.dues)
		}
		last := domain.MonthlyBillingDue{}
		for _, due := range prompt.dues {
			if due.DueAt.Before(last.DueAt) || !last.BillingPeriod.IsZero() && !last.BillingPeriod.Before(due.BillingPeriod) {
				t.Fatalf("%s at %s follows %s at %s", due.BillingPeriod, due.DueAt, last.BillingPeriod, last.DueAt)
			}
			last = due
		}
	})
}

// follower is a customer, and a scanner of its own.
type follower struct {
	customer domain.Customer
	dues     []domain.MonthlyBillingDue
}

func (f *follower) send(t *rapid.T, c commands.Command[domain.Customer]) {
	events, err := c.Decide(f.customer)
	if _, refused := errors.AsType[*domain.Error](err); err != nil && !refused {
		t.Fatalf("%s: %v", c.Name(), err)
	}
	f.take(events...)
}

func (f *follower) take(events ...domain.Event) {
	for _, e := range events {
		if due, ok := e.(domain.MonthlyBillingDue); ok {
			f.dues = append(f.dues, due)
		}
		f.customer = f.customer.Evolve(e)
	}
}

// scan declares everything that is due at an instant.
func (f *follower) scan(t *rapid.T, at time.Time) {
	for {
		p, due := f.customer.NextDue(domain.Period{})
		if p.IsZero() || due.After(at) {
			return
		}
		f.send(t, commands.NewDeclareBillingDue(ada, p))
	}
}

// TestC075_NoParts: a bill is one amount, without proration or credit. Several
// changes within one period leave its bill alone, and what asks for parts, or for
// less than nothing, is refused.
func TestC075_NoParts(t *testing.T) {
	t.Parallel()
	var f follower
	for _, e := range []domain.Event{registered, activated, due} {
		f.customer = f.customer.Evolve(e)
	}
	for n, minor := range []int64{9900, 1900, 2900} {
		change := commands.NewChangeSubscriptionAmount(ada, minor, "", domain.Period{}, noon.AddDate(0, 0, n), domain.Key(fmt.Sprint("k", n)))
		events, err := change.Decide(f.customer)
		if err != nil {
			t.Fatal(err)
		}
		f.take(events...)
	}
	if bill, _ := f.customer.Bill(nov); bill.Amount != usd49 {
		t.Errorf("November is now over %s", bill.Amount)
	}
	sub, _ := f.customer.Subscription()
	for p, want := range map[domain.Period]int64{dec: 2900, dec.Next(): 2900} {
		if got := sub.AmountFor(p).Minor; got != want {
			t.Errorf("%s is over %d, want %d", p, got, want)
		}
	}
	spec := must(commands.Lookup("change-subscription-amount"))
	for _, body := range []string{
		`{"customer_id":"ada","amount_minor":2900,"credit_minor":5000}`, `{"customer_id":"ada","amount_minor":2900,"prorate":true}`,
		`{"customer_id":"ada","amount_minor":2900,"lines":[{"amount_minor":1450},{"amount_minor":1450}]}`, `{"customer_id":"ada","amount_minor":-2900}`, `{"customer_id":"ada","amount_minor":0}`,
	} {
		if _, err := spec.Decode(commands.Input{Key: "k", Body: []byte(body), Now: noon}); !errors.Is(err, domain.ErrInvalidInput) {
			t.Errorf("%s: %v", body, err)
		}
	}
}
