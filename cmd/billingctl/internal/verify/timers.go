package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/sagas"
)

// dunned is a bill of which something was to be sent at a time.
type dunned struct {
	*account
	period domain.Period
	met    bool // its row
}

// timers compares the commands that wait for their time with what the billing
// saga makes of a partition's declines. A customer that it is behind on is
// compared when it has read all.
func (w *worker) timers(ctx context.Context, a *auditor, all instances) error {
	bills := map[string]*dunned{}
	var tokens []string
	for id, c := range a.customers {
		for p, t := range c.bills {
			if t.dunned {
				token := sagas.DunningToken(domain.CustomerID(id), p)
				bills[token] = &dunned{account: c, period: p}
				tokens = append(tokens, token)
			}
		}
	}
	if len(tokens) == 0 {
		return nil
	}
	settled := func(b *dunned) bool { return !b.broken && !w.readers[billing].behindOn(b.account, billing) }
	expected := func(b *dunned) *sagas.Timer {
		if in := all[b.id+"/"+b.period.String()]; in != nil {
			return in.timer
		}
		return nil
	}
	rows, err := w.fold.Query(ctx, `SELECT token, key, command, customer_id, billing_period, attempt, coalesce(nullif(due_at, '-infinity'), '0001-01-01Z')
		FROM scheduled_commands WHERE token = ANY($1)`, tokens)
	if err == nil {
		var token, customer, period string
		var row sagas.Timer
		_, err = pgx.ForEachRow(rows, []any{&token, (*string)(&row.Key), &row.Command, &customer, &period, &row.Attempt, &row.Due}, func() error {
			w.met.mark(metTimer, token, string(row.Key))
			b := bills[token]
			if !settled(b) {
				return nil
			}
			about := "scheduled_commands " + string(row.Key)
			timer := expected(b)
			if timer == nil {
				w.found(Difference{KindTimer, about, "the log has cancelled it", "delete the row, before it is sent: a retry that is due is a charge"})
				return nil
			}
			detail := ""
			switch {
			case row.Key != timer.Key || row.Command != timer.Command || row.Attempt != timer.Attempt:
				detail = fmt.Sprintf("it is %s for attempt %d, the log makes %s", row.Command, row.Attempt, timer.Key)
			case customer != b.id || period != b.period.String():
				detail = fmt.Sprintf("it is for %s %s, its token for %s %s", customer, period, b.id, b.period)
			case !row.Due.Round(time.Microsecond).Equal(timer.Due.Round(time.Microsecond)):
				detail = fmt.Sprintf("it is due %s, by the log %s", whenDue(row.Due), whenDue(timer.Due))
			}
			b.met = b.met || row.Key == timer.Key
			if detail != "" {
				w.found(Difference{KindTimer, about, detail, readAgain("billing")})
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("compare scheduled_commands: %w", err)
	}
	for _, b := range bills {
		if timer := expected(b); !b.met && settled(b) && timer != nil && awaited(b.state, *timer) {
			w.found(Difference{KindTimer, "scheduled_commands " + string(timer.Key), "the row is missing: nothing follows the decline", readAgain("billing")})
		}
	}
	return nil
}

// awaited reports whether a timer that is not there should be: it was not sent,
// since what it sends would still be decided.
func awaited(c domain.Customer, t sagas.Timer) bool {
	if b, ok := c.Bill(t.Bill.Period); !ok || b.Status != domain.BillDeclined {
		return false
	}
	var facts []domain.Event
	var err error
	if t.Command == (commands.PlanDunning{}).Name() { // of which days does not matter
		facts, err = commands.NewPlanDunning(t.Bill.Customer, t.Bill.Period, t.Attempt, domain.DunningDays{1}, time.Unix(0, 0)).Decide(c)
	} else {
		facts, err = commands.NewRetryCharge(t.Bill.Customer, t.Bill.Period, t.Attempt, commands.StepDunning).Decide(c)
	}
	return err == nil && len(facts) > 0
}

// whenDue is a timer's time for people; the zero time is as soon as may be.
func whenDue(at time.Time) string {
	if at.IsZero() {
		return "at once"
	}
	return "at " + at.UTC().Format(time.RFC3339Nano)
}

// imported compares what charges of another system's bills belong to. A charge
// that several bills name belongs to the one that was read first.
func (w *worker) imported(ctx context.Context, a *auditor) error {
	missing := map[string]string{} // the bill, by its charge
	var charges []string
	for _, c := range a.customers {
		for p, t := range c.bills {
			for _, r := range t.imported {
				w.met.mark(metImported, r.charge, c.id+" "+p.String())
				if w.readers[preflight].handledAt(r.place, c.id) {
					missing[r.charge] = c.id + " " + p.String()
					charges = append(charges, r.charge)
				}
			}
		}
	}
	if len(charges) == 0 {
		return nil
	}
	rows, err := w.fold.Query(ctx, `SELECT charge_id FROM imported_charges WHERE charge_id = ANY($1)`, charges)
	if err == nil {
		var charge string
		_, err = pgx.ForEachRow(rows, []any{&charge}, func() error {
			delete(missing, charge)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("compare imported_charges: %w", err)
	}
	for charge, bill := range missing {
		w.found(Difference{KindImport, "imported_charges " + charge, "the row is missing: what Stripe tells of the charge finds no way to " + bill, readAgain("preflight")})
	}
	return nil
}

// importedCharge is a charge that another system has made, and the fact of it.
type importedCharge struct {
	charge string
	place  eventstore.Place
}
