package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/sagas"
)

// instance is a billing instance as the log makes it.
type instance struct {
	customer string
	state    sagas.BillingState
	position int64
	version  int
	timer    *sagas.Timer // that is set
}

// instances are those of a partition, by their ids.
type instances map[string]*instance

func (all instances) react(r eventstore.Recorded) {
	id, _, ok := sagas.Billing.Correlate(r.Event)
	if !ok {
		return
	}
	in := all[id]
	if in == nil {
		in = &instance{customer: r.SequenceKey}
		all[id] = in
	}
	state, reaction := sagas.Billing.React(in.state, r.Event)
	in.state = state
	for _, change := range reaction.Timers {
		in.timer = change.Set
	}
	in.position = r.Position
	in.version++
}

// sagas compares the billing instances of a partition.
func (w *worker) sagas(ctx context.Context, a *auditor, all instances) error {
	if len(all) == 0 {
		return nil
	}
	ids := make([]string, 0, len(all))
	for id := range all {
		ids = append(ids, id)
	}
	differs := func(id, detail string) {
		w.found(Difference{KindSaga, "sagas billing " + id, detail, readAgain("billing")})
	}
	rows, err := w.fold.Query(ctx, `SELECT id, state::text, attempt, version, last_position FROM sagas WHERE saga = $1 AND id = ANY($2)`, sagas.Billing.Name, ids)
	if err == nil {
		var id, text string
		var attempt, version int
		var position int64
		_, err = pgx.ForEachRow(rows, []any{&id, &text, &attempt, &version, &position}, func() error {
			w.met.mark(metSaga, id, "")
			in := all[id]
			defer delete(all, id)
			if a.customers[in.customer].broken {
				return nil
			}
			var state sagas.BillingState
			_, should := sagas.Billing.Step(in.state)
			switch err := json.Unmarshal([]byte(text), &state); {
			case err != nil:
				differs(id, "its state cannot be read: "+err.Error())
			case position != in.position || version != in.version:
				differs(id, fmt.Sprintf("it has seen %d facts up to position %d, the log has %d up to %d", version, position, in.version, in.position))
			case !reflect.DeepEqual(state, in.state):
				differs(id, fmt.Sprintf("its state is %s, the log makes %s", text, document(in.state)))
			case attempt != should:
				differs(id, fmt.Sprintf("it is at attempt %d, the log at %d", attempt, should))
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("compare sagas: %w", err)
	}
	for id := range all {
		differs(id, "the row is missing")
	}
	return nil
}

func document(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// never is when the next period of a subscription falls due that is paused.
const never = 9999

// schedules compares when the next periods of a partition's subscriptions fall
// due. That a period was left out is not found: a due may have been refused.
func (w *worker) schedules(ctx context.Context, a *auditor) error {
	expected := map[string]*account{}
	var ids []string
	for id, c := range a.customers {
		if c.newest[schedule] > 0 {
			expected[id] = c
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	differs := func(c *account, detail string) {
		w.found(Difference{KindSchedule, "subscription_schedule " + c.id, detail, "delete the row, and " + readAgain("schedule")})
	}
	rows, err := w.fold.Query(ctx, `SELECT customer_id, partition, next_period, due_at FROM subscription_schedule WHERE customer_id = ANY($1)`, ids)
	if err == nil {
		var id, next string
		var partition int16
		var due time.Time
		_, err = pgx.ForEachRow(rows, []any{&id, &partition, &next, &due}, func() error {
			w.met.mark(metSchedule, id, "")
			c := expected[id]
			delete(expected, id)
			sub, _ := c.state.Subscription()
			if c.broken || w.readers[schedule].behindOn(c, schedule) {
				return nil
			}
			period, err := domain.ParsePeriod(next)
			resting := due.UTC().Year() >= never
			switch {
			case err != nil:
				differs(c, fmt.Sprintf("its next period is %q", next))
			case partition != c.partition:
				differs(c, fmt.Sprintf("it stands in partition %d, its customer in %d", partition, c.partition))
			case resting:
				if owed, at := c.state.NextDue(period); !owed.IsZero() {
					differs(c, fmt.Sprintf("%s falls due at %s, not never", owed, at.Format(time.RFC3339)))
				}
			case sub.Status == domain.SubscriptionEnded: // the scanner moves it on when its time has come
			case !sub.Bills(period):
				differs(c, fmt.Sprintf("%s does not fall due, at %s or ever", period, due.UTC().Format(time.RFC3339)))
			case !due.Equal(sub.DueAt(period)):
				differs(c, fmt.Sprintf("%s falls due at %s, not at %s", period, sub.DueAt(period).Format(time.RFC3339), due.UTC().Format(time.RFC3339)))
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("compare subscription_schedule: %w", err)
	}
	for _, c := range expected {
		if sub, _ := c.state.Subscription(); !c.broken && sub.Status == domain.SubscriptionActive && !w.readers[schedule].behindOn(c, schedule) {
			differs(c, "the row is missing: nothing falls due for the subscription")
		}
	}
	return nil
}
