package projections

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Story is everything that is known of one bill. It is folded from the log
// when it is read, by the same functions that fold the read models: it is
// never behind.
type Story struct {
	Bill      Bill           `json:"bill"`
	Attempts  []Charge       `json:"attempts"`
	Facts     []Fact         `json:"facts"`    // about the bill, and pauses, resumptions and cancellations since its first one
	Commands  []CommandKey   `json:"commands"` // whose keys made these facts
	Record    *BillingRecord `json:"billing_record,omitempty"`
	Saga      *Saga          `json:"saga,omitempty"`
	Stripe    StripeIDs      `json:"stripe"`
	Parked    []DeadLetter   `json:"parked"`              // facts of the customer that a processor could not handle
	Undecoded []string       `json:"undecoded,omitempty"` // types that this build cannot read: the bill is folded without them
	AsOf      AsOf           `json:"as_of"`
}

// CommandKey is a command that was decided, by its key.
type CommandKey struct {
	Key        domain.Key `json:"key"`
	Command    string     `json:"command"`
	RecordedAt time.Time  `json:"recorded_at"`
}

// BillingRecord is the bill's pre-flight row: what the collector works from.
type BillingRecord struct {
	Attempt          int             `json:"attempt"`
	Start            int             `json:"start"`
	Key              domain.Key      `json:"key"`
	Amount           Money           `json:"amount"`
	StripeCustomerID string          `json:"stripe_customer_id"`
	PaymentMethod    string          `json:"payment_method"`
	Params           json.RawMessage `json:"params"`
	State            string          `json:"state"`
	IntentID         *string         `json:"intent_id"`
	IntentNo         int             `json:"intent_no"`
	LatestCharge     *string         `json:"latest_charge"` // before this attempt's confirm; "": none, null: not yet known
	Again            int             `json:"again"`
	LeaseUntil       *time.Time      `json:"lease_until"`
	Fence            int64           `json:"fence"`
	Epoch            int64           `json:"epoch"`
	FirstSentAt      *time.Time      `json:"first_sent_at"`
	LastSentAt       *time.Time      `json:"last_sent_at"`
	LastSentWall     *time.Time      `json:"last_sent_wall"`
	NextTryAt        *time.Time      `json:"next_try_at"`
	Tries            int             `json:"tries"`
	Outcome          json.RawMessage `json:"outcome"`
	CreatedAt        time.Time       `json:"created_at"`
	UpdatedAt        time.Time       `json:"updated_at"`
}

// Saga is the bill's instance of the billing saga.
type Saga struct {
	ID        string          `json:"id"`
	State     json.RawMessage `json:"state"`
	Step      string          `json:"step"`
	Attempt   int             `json:"attempt"`
	Key       *domain.Key     `json:"key"`     // of the last command it sent
	Refusal   *string         `json:"refusal"` // why that command was refused, if it was
	Version   int             `json:"version"`
	UpdatedAt time.Time       `json:"updated_at"`
}

// StripeIDs are the objects at Stripe that the facts name, in their order.
type StripeIDs struct {
	Customers      []string `json:"customers"`
	PaymentMethods []string `json:"payment_methods"`
	Intents        []string `json:"intents"`
	Charges        []string `json:"charges"`
}

// DeadLetter is a fact that a processor could not handle.
type DeadLetter struct {
	Processor string           `json:"processor"`
	Position  eventstore.Place `json:"position"`
	Type      string           `json:"type"`
	Status    string           `json:"status"` // parked, or behind one that is
	Attempts  int              `json:"attempts"`
	Error     string           `json:"error"`
	Since     time.Time        `json:"since"`
}

// BillingSaga is the name of the saga whose instances are bills.
const BillingSaga = "billing"

// SagaID is the id of a bill's instance of the billing saga.
func SagaID(id domain.CustomerID, p domain.Period) string { return string(id) + "/" + p.String() }

// Story tells everything about one bill, as of the newest fact. It returns
// domain.ErrUnknownCustomer or domain.ErrUnknownBill.
func (r Reads) Story(ctx context.Context, customer, period string) (Story, error) {
	id, p, err := parseBill(customer, period)
	if err != nil {
		return Story{}, err
	}
	story := Story{Attempts: []Charge{}, Facts: []Fact{}, Commands: []CommandKey{}, Parked: []DeadLetter{}}
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		history, err := r.history(ctx, tx, id, p)
		if err != nil {
			return err
		}
		story.Bill, story.Attempts = history.bill.read(), history.charges()
		story.Stripe, story.Undecoded = history.stripe(), history.undecoded
		for _, fact := range history.facts {
			story.Facts = append(story.Facts, factOf(fact))
		}
		story.AsOf = AsOf{Position: history.end, Vector: vectorOf(history.end).String()}
		if err := story.readRows(ctx, tx, id, p, history.facts); err != nil {
			return err
		}
		for i := range story.Attempts {
			story.Attempts[i].Parked = len(story.Parked) > 0
		}
		return nil
	})
	if err != nil {
		return Story{}, wrap(err, "tell the bill's story")
	}
	return story, nil
}

// Bill is one bill as of the newest fact: Story without the rest.
func (r Reads) Bill(ctx context.Context, customer, period string) (Bill, error) {
	id, p, err := parseBill(customer, period)
	if err != nil {
		return Bill{}, err
	}
	var bill Bill
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		history, err := r.history(ctx, tx, id, p)
		if err == nil {
			bill = history.bill.read()
		}
		return err
	})
	return bill, wrap(err, "read the bill")
}

// parseBill names everything that is wrong at once.
func parseBill(customer, period string) (domain.CustomerID, domain.Period, error) {
	id, err := domain.ParseCustomerID(customer)
	p, errPeriod := domain.ParsePeriod(period)
	var fields []domain.FieldError
	for _, err := range []error{err, errPeriod} {
		if e, ok := errors.AsType[*domain.Error](err); ok {
			fields = append(fields, e.Fields...)
		}
	}
	if len(fields) > 0 {
		return id, p, domain.InvalidFields(fields...)
	}
	return id, p, nil
}

// history is a bill folded from its customer's stream.
type history struct {
	bill      *billRow
	attempts  *attempts
	facts     []eventstore.Recorded
	undecoded []string
	end       eventstore.Place // newest fact of the customer
}

func (r Reads) history(ctx context.Context, tx pgx.Tx, id domain.CustomerID, p domain.Period) (history, error) {
	stream, err := r.store.Load(ctx, tx, id.Stream(), 0)
	if err != nil {
		return history{}, err
	}
	if len(stream) == 0 {
		return history{}, domain.ErrUnknownCustomer
	}
	h := history{bill: blankBillRow(stream[0], p), attempts: &attempts{of: p}, end: stream[len(stream)-1].Place}
	known := false
	for _, fact := range stream {
		if fact.Event == nil {
			if mayConcern(fact, p) {
				h.facts, h.undecoded = append(h.facts, fact), append(h.undecoded, fact.Type)
			}
			continue
		}
		_, of, own := domain.BillOf(fact.Event)
		_, paused := fact.Event.(domain.SubscriptionPaused) // moves no bill by itself, but says why one waits
		whole := known && !own && (paused || slices.Contains(Bills.Events, fact.Type))
		if !whole && of != p {
			continue
		}
		known = true
		h.facts = append(h.facts, fact)
		h.bill.apply(fact)
		if slices.Contains(Charges.Events, fact.Type) {
			h.attempts.apply(fact)
		}
	}
	if !known {
		return history{}, domain.ErrUnknownBill
	}
	return h, nil
}

// mayConcern reports whether a fact that this build cannot read is about the
// bill, or about no bill.
func mayConcern(r eventstore.Recorded, p domain.Period) bool {
	var about struct {
		BillingPeriod string `json:"billing_period"`
	}
	err := json.Unmarshal(r.Payload, &about)
	return err != nil || about.BillingPeriod == "" || about.BillingPeriod == p.String()
}

func (h history) charges() []Charge {
	charges := []Charge{}
	for _, row := range h.attempts.rows {
		if row.attempt > 0 {
			charges = append(charges, row.read())
		}
	}
	return charges
}

// stripe gathers the ids in the bill's facts, each once.
func (h history) stripe() StripeIDs {
	ids := StripeIDs{Customers: []string{}, PaymentMethods: []string{}, Intents: []string{}, Charges: []string{}}
	add := func(to *[]string, id string) {
		if id != "" && !slices.Contains(*to, id) {
			*to = append(*to, id)
		}
	}
	for _, fact := range h.facts {
		switch e := fact.Event.(type) {
		case domain.ChargeRequested:
			add(&ids.Customers, e.StripeCustomerID)
			add(&ids.PaymentMethods, e.PaymentMethodID)
		case domain.ChargeIntentCommitted:
			add(&ids.Intents, e.IntentID)
		case domain.CustomerBilled:
			add(&ids.Intents, e.IntentID)
			add(&ids.Charges, e.ChargeID)
		case domain.ChargeDeclined:
			add(&ids.Charges, e.ChargeID)
		}
	}
	return ids
}

// readRows reads what stands about the bill outside the log.
func (s *Story) readRows(ctx context.Context, tx pgx.Tx, id domain.CustomerID, p domain.Period, facts []eventstore.Recorded) error {
	keys := []string{}
	for _, fact := range facts {
		if fact.CommandKey != "" {
			keys = append(keys, string(fact.CommandKey))
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(`SELECT key, command, recorded_at FROM command_keys WHERE key = ANY ($1) ORDER BY recorded_at, key`, keys).Query(func(rows pgx.Rows) (err error) {
		s.Commands, err = pgx.AppendRows(s.Commands, rows, func(row pgx.CollectableRow) (c CommandKey, err error) {
			err = row.Scan(&c.Key, &c.Command, &c.RecordedAt)
			c.RecordedAt = c.RecordedAt.UTC()
			return c, err
		})
		return err
	})
	batch.Queue(`SELECT attempt, start, key, amount, currency, stripe_customer_id, payment_method, params::text, state, intent_id, intent_no, latest_charge, again,
			lease_until, fence, epoch, first_sent_at, last_sent_at, last_sent_wall, next_try_at, tries, outcome::text, created_at, updated_at
		FROM billing_records WHERE customer_id = $1 AND billing_period = $2`, string(id), p.String()).QueryRow(func(row pgx.Row) error {
		var b BillingRecord
		var minor int64
		var currency, params string
		var outcome *string
		err := row.Scan(&b.Attempt, &b.Start, &b.Key, &minor, &currency, &b.StripeCustomerID, &b.PaymentMethod, &params, &b.State, &b.IntentID, &b.IntentNo,
			&b.LatestCharge, &b.Again, &b.LeaseUntil, &b.Fence, &b.Epoch, &b.FirstSentAt, &b.LastSentAt, &b.LastSentWall, &b.NextTryAt, &b.Tries,
			&outcome, &b.CreatedAt, &b.UpdatedAt)
		b.Amount, b.Params, b.Outcome = money(minor, currency), json.RawMessage(params), raw(outcome)
		b.CreatedAt, b.UpdatedAt = b.CreatedAt.UTC(), b.UpdatedAt.UTC()
		for _, t := range []**time.Time{&b.LeaseUntil, &b.FirstSentAt, &b.LastSentAt, &b.LastSentWall, &b.NextTryAt} {
			*t = inUTC(*t)
		}
		return found(err, &s.Record, b)
	})
	batch.Queue(`SELECT id, state::text, step, attempt, key, refusal, version, updated_at FROM sagas WHERE saga = $1 AND id = $2`,
		BillingSaga, SagaID(id, p)).QueryRow(func(row pgx.Row) error {
		var saga Saga
		var state string
		err := row.Scan(&saga.ID, &state, &saga.Step, &saga.Attempt, &saga.Key, &saga.Refusal, &saga.Version, &saga.UpdatedAt)
		saga.State, saga.UpdatedAt = json.RawMessage(state), saga.UpdatedAt.UTC()
		return found(err, &s.Saga, saga)
	})
	batch.Queue(`SELECT processor, partition, position, event_type, status, attempts, error, enqueued_at FROM dead_letters
		WHERE sequence_key = $1 AND status IN ('parked', 'behind') ORDER BY position, processor`, id.Stream().SequenceKey()).Query(func(rows pgx.Rows) (err error) {
		s.Parked, err = pgx.AppendRows(s.Parked, rows, func(row pgx.CollectableRow) (d DeadLetter, err error) {
			err = row.Scan(&d.Processor, &d.Position.Partition, &d.Position.Position, &d.Type, &d.Status, &d.Attempts, &d.Error, &d.Since)
			d.Since = d.Since.UTC()
			return d, err
		})
		return err
	})
	return tx.SendBatch(ctx, batch).Close()
}

// found sets *at to v, unless there is no such row.
func found[T any](err error, at **T, v T) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	*at = &v
	return err
}

func raw(s *string) json.RawMessage {
	if s == nil {
		return json.RawMessage("null")
	}
	return json.RawMessage(*s)
}
