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
	Refunds   []RefundRecord `json:"refund_records"`
	Saga      *Saga          `json:"saga,omitempty"`
	Stripe    StripeIDs      `json:"stripe"`
	Webhooks  []Webhook      `json:"webhooks"`            // Stripe's news of the bill, as it came
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
	Refunds        []string `json:"refunds"`
	Disputes       []string `json:"disputes"`
}

// RefundRecord is a refund's pre-flight row: what the refund worker works from.
type RefundRecord struct {
	RefundID       string          `json:"refund_id"`
	ChargeID       string          `json:"charge_id"`
	Key            domain.Key      `json:"key"`
	Amount         Money           `json:"amount"`
	State          string          `json:"state"`
	StripeRefundID *string         `json:"stripe_refund_id"`
	LeaseUntil     *time.Time      `json:"lease_until"`
	Fence          int64           `json:"fence"`
	FirstSentAt    *time.Time      `json:"first_sent_at"`
	LastSentAt     *time.Time      `json:"last_sent_at"`
	NextTryAt      *time.Time      `json:"next_try_at"`
	Tries          int             `json:"tries"`
	Outcome        json.RawMessage `json:"outcome"`
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`
}

// Webhook is one event of Stripe's about the bill: what it says, not its body.
type Webhook struct {
	EventID    string     `json:"event_id"`
	Type       string     `json:"type"`
	ObjectID   string     `json:"object_id"`
	Says       string     `json:"says,omitempty"` // the state of the object that it tells
	APIVersion string     `json:"api_version"`
	Source     string     `json:"source"` // webhook, or events: read from Stripe's list
	State      string     `json:"state"`  // received, applied, unknown_kind, deferred or failed
	Note       string     `json:"note,omitempty"`
	Created    time.Time  `json:"created"` // Stripe's time
	ReceivedAt time.Time  `json:"received_at"`
	AppliedAt  *time.Time `json:"applied_at"`
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
	story := Story{Attempts: []Charge{}, Facts: []Fact{}, Commands: []CommandKey{}, Refunds: []RefundRecord{}, Webhooks: []Webhook{}, Parked: []DeadLetter{}}
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
		whole := known && !own && (paused || slices.Contains(Bills.Events, fact.Name()))
		if !whole && of != p {
			continue
		}
		known = true
		h.facts = append(h.facts, fact)
		h.bill.apply(fact)
		if slices.Contains(Charges.Events, fact.Name()) {
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
	ids := StripeIDs{Customers: []string{}, PaymentMethods: []string{}, Intents: []string{}, Charges: []string{}, Refunds: []string{}, Disputes: []string{}}
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
		case domain.RefundRecorded:
			add(&ids.Refunds, e.StripeRefundID)
		case domain.RefundProposed:
			add(&ids.Charges, e.ChargeID)
		case domain.ChargeDisputed:
			add(&ids.Disputes, e.DisputeID)
		}
	}
	return ids
}
