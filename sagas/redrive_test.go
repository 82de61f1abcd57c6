package sagas_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/tracking"
)

// refuse makes the database refuse rows of one customer in a table, and returns
// what ends that.
func (r *rig) refuse(table, column string, id domain.CustomerID) (mend func()) {
	r.t.Helper()
	exec := func(sql string) {
		r.t.Helper()
		if _, err := r.pool.Exec(r.t.Context(), sql); err != nil {
			r.t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`CREATE FUNCTION refuse_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'this row is refused'; END $$`)
	exec(fmt.Sprintf(`CREATE TRIGGER refuse_row BEFORE INSERT OR UPDATE ON %s FOR EACH ROW WHEN (NEW.%s LIKE '%s%%') EXECUTE FUNCTION refuse_row()`, table, column, id))
	return func() {
		exec(fmt.Sprintf(`DROP TRIGGER refuse_row ON %s`, table))
		exec(`DROP FUNCTION refuse_row`)
	}
}

// pressed has two operators retry a customer's letters at once, five times.
func (s *service) pressed(processor string, id domain.CustomerID) (total tracking.Redelivery) {
	s.t.Helper()
	var mu sync.Mutex
	for range 5 {
		var operators sync.WaitGroup
		for _, actor := range []string{"ann", "bob"} {
			operators.Go(func() {
				done, err := s.runtime.Retry(s.t.Context(), processor, string(id), actor)
				if err != nil && !errors.Is(err, tracking.ErrNothingParked) && !errors.Is(err, tracking.ErrLetterEnded) {
					s.t.Errorf("%s retries: %v", actor, err)
				}
				mu.Lock()
				defer mu.Unlock()
				total.Handled, total.Void = total.Handled+done.Handled, total.Void+done.Void
			})
		}
		operators.Wait()
	}
	return total
}

// letter is the first letter of a processor: its status and reason.
func (r *rig) letter(processor string) (said string) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), `SELECT event_type || ' ' || status || ': ' || note FROM dead_letters WHERE processor = $1 ORDER BY position LIMIT 1`, processor).Scan(&said); err != nil {
		r.t.Fatal(err)
	}
	return said
}

// C124, one step after the due: what is parked is the request, and how its bill ended
// is heard of by another road. Between its retry and that of the facts behind
// it there is no moment in which the bill could be collected.
func TestARequestThatEndedMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		end   commands.Request
		state string
		said  string
	}{
		"paid": {commands.Of(commands.NewRecordChargeOutcome("acme", november, 1, 1, domain.Outcome{Class: domain.Paid, ChargeID: "ch_1", IntentID: "pi_1", Money: usd(5000)})),
			"succeeded", "charge.requested.v1 retried: already billed"},
		"settled": {commands.Of(commands.NewSettleBilling("acme", november, "a bank transfer", "settle-1")),
			"void", "charge.requested.v1 retried: already settled"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.start(options{})
			mend := r.refuse("billing_records", "customer_id", "acme")
			s.owe("acme")
			r.eventually("the request is parked", func() bool {
				return r.count(`SELECT count(*) FROM dead_letters WHERE processor = 'preflight' AND status = 'parked'`) == 1
			})
			s.must(c.end)
			r.eventually("its end waits behind it", func() bool {
				return r.count(`SELECT count(*) FROM dead_letters WHERE processor = 'preflight' AND status = 'behind'`) > 0
			})
			mend()
			if done := s.pressed("preflight", "acme"); done.Handled < 2 {
				t.Errorf("%+v, want the request and what followed", done)
			}
			if got := r.letter("preflight"); got != c.said {
				t.Errorf("the letter ended as %s", got)
			}
			r.awaitState("acme", november, c.state)
			s.owe("bell") // whose bill shows that the collector is at work
			r.once(november, "bell")
			for _, q := range r.stripe.Requests() {
				if q.Method == "POST" && q.Customer == "cus_acme" {
					t.Errorf("a call that could move money: %+v", q)
				}
			}
		})
	}
}
