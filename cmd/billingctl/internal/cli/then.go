package cli

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/domain"
)

// then is a stream as it was at some point: the domain's own fold, spelled out.
type then struct {
	Stream     string            `json:"stream"`
	Version    int               `json:"version"`
	Position   string            `json:"position"`
	RecordedAt time.Time         `json:"recorded_at"` // of the last event folded
	State      stateThen         `json:"state"`
	Events     []json.RawMessage `json:"events"`
}

// stateThen is a customer.
type stateThen struct {
	CustomerID       domain.CustomerID  `json:"customer_id"`
	Registered       bool               `json:"registered"`
	StripeCustomerID string             `json:"stripe_customer_id"`
	PaymentMethodID  string             `json:"payment_method_id"`
	Subscription     *subscriptionThen  `json:"subscription"` // null: never had one
	Requested        []domain.Period    `json:"requested_periods"`
	Billed           []domain.Period    `json:"billed_periods"`
	Bills            []billThen         `json:"bills"`
	MoneyBack        []domain.MoneyBack `json:"money_back"`
}

type subscriptionThen struct {
	Status      domain.SubscriptionStatus `json:"status"`
	AmountMinor int64                     `json:"amount_minor"`
	Currency    domain.Currency           `json:"currency"`
	Changes     []changeThen              `json:"changes"`
	Schedules   []scheduleThen            `json:"schedules,omitempty"`
	Pauses      []pauseThen               `json:"pauses,omitempty"`
	Cadence     domain.Cadence            `json:"cadence"`
	AnchorDay   int                       `json:"anchor_day"`
	TimeZone    string                    `json:"time_zone"`
	StartsOn    string                    `json:"starts_on"`
	EndMode     domain.CancelMode         `json:"end_mode,omitempty"`
	EndedAt     time.Time                 `json:"ended_at,omitzero"`
}

type changeThen struct {
	From        domain.Period `json:"from"`
	AmountMinor int64         `json:"amount_minor"`
}

type scheduleThen struct {
	From      domain.Period `json:"from"`
	AnchorDay int           `json:"anchor_day,omitempty"`
	TimeZone  string        `json:"time_zone,omitempty"`
}

type pauseThen struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until,omitzero"`
}

type billThen struct {
	BillingPeriod    domain.Period       `json:"billing_period"`
	Status           domain.BillStatus   `json:"status"`
	AmountMinor      int64               `json:"amount_minor"`
	Currency         domain.Currency     `json:"currency"`
	DueAt            time.Time           `json:"due_at,omitzero"`
	Attempt          int                 `json:"attempt"`
	Start            int                 `json:"start"`
	Key              domain.Key          `json:"key,omitempty"`
	StripeCustomerID string              `json:"stripe_customer_id,omitempty"`
	PaymentMethodID  string              `json:"payment_method_id,omitempty"`
	IntentID         string              `json:"intent_id,omitempty"`
	IntentNo         int                 `json:"intent_no"`
	ChargeID         string              `json:"charge_id,omitempty"`
	DeclineClass     domain.DeclineClass `json:"decline_class,omitempty"`
	Closing          domain.ClosingMode  `json:"closing,omitempty"`
	Reference        string              `json:"reference,omitempty"`
	Reason           string              `json:"reason,omitempty"`
	Unresolved       bool                `json:"unresolved,omitempty"`
	PerhapsSettled   bool                `json:"perhaps_settled,omitempty"`
	Released         bool                `json:"released,omitempty"`
	Cancelled        bool                `json:"cancelled,omitempty"`
}

func thenOf(stream string, last fact, c domain.Customer) then {
	s := stateThen{
		CustomerID: c.ID(), Registered: c.Registered(), StripeCustomerID: c.StripeCustomerID(), PaymentMethodID: c.PaymentMethodID(),
		Requested: append([]domain.Period{}, slices.Collect(c.Requested().All())...), Billed: append([]domain.Period{}, slices.Collect(c.BilledPeriods().All())...),
		Bills: []billThen{}, MoneyBack: append([]domain.MoneyBack{}, slices.Collect(c.MoneyBacks())...),
	}
	if sub, has := c.Subscription(); has {
		s.Subscription = &subscriptionThen{
			Status: sub.Status, AmountMinor: sub.Amount.Minor, Currency: sub.Amount.Currency, Changes: []changeThen{}, Cadence: sub.Cadence,
			AnchorDay: sub.AnchorDay, TimeZone: sub.TimeZone, StartsOn: sub.StartsOn.String(), EndMode: sub.EndMode, EndedAt: sub.EndedAt,
		}
		for _, change := range sub.Changes {
			s.Subscription.Changes = append(s.Subscription.Changes, changeThen(change))
		}
		for _, change := range sub.Schedules {
			s.Subscription.Schedules = append(s.Subscription.Schedules, scheduleThen(change))
		}
		for _, pause := range sub.Pauses {
			s.Subscription.Pauses = append(s.Subscription.Pauses, pauseThen(pause))
		}
	}
	for b := range c.Bills() {
		s.Bills = append(s.Bills, billThen{
			BillingPeriod: b.Period, Status: b.Status, AmountMinor: b.Amount.Minor, Currency: b.Amount.Currency, DueAt: b.DueAt, Attempt: b.Attempt, Start: b.Start,
			Key: b.Key, StripeCustomerID: b.StripeCustomerID, PaymentMethodID: b.PaymentMethodID, IntentID: b.IntentID, IntentNo: b.IntentNo, ChargeID: b.ChargeID,
			DeclineClass: b.DeclineClass, Closing: b.Closing, Reference: b.Reference, Reason: b.Reason, Unresolved: b.Unresolved,
			PerhapsSettled: b.PerhapsSettled, Released: b.Released, Cancelled: b.Cancelled,
		})
	}
	return then{Stream: stream, Version: last.Version, Position: last.Position, RecordedAt: last.RecordedAt.UTC(), State: s}
}

// write prints how things stood, for people.
func (t then) write(s *shell) error {
	if err := s.printf("\n%s at version %d, %s, recorded %s\n", t.Stream, t.Version, t.Position, t.RecordedAt.Format("2006-01-02 15:04:05.000")); err != nil {
		return err
	}
	who := console.NewTable("customer", "stripe customer", "payment method", "subscription", "amount", "next amounts", "cadence", "starts on")
	c := t.State
	if sub := c.Subscription; sub != nil {
		changes := ""
		for _, change := range sub.Changes {
			changes += domain.Money{Minor: change.AmountMinor, Currency: sub.Currency}.String() + " from " + change.From.String() + " "
		}
		who.Row(c.CustomerID, c.StripeCustomerID, c.PaymentMethodID, sub.Status, domain.Money{Minor: sub.AmountMinor, Currency: sub.Currency}, changes, sub.Cadence, sub.StartsOn)
	} else {
		who.Row(c.CustomerID, c.StripeCustomerID, c.PaymentMethodID, "none")
	}
	if err := who.Write(s.Out, "  "); err != nil || len(c.Bills) == 0 {
		return err
	}
	bills := console.NewTable("period", "status", "amount#", "attempt#", "start#", "intent", "charge", "why")
	for _, b := range c.Bills {
		why := b.Reason
		if why == "" {
			why = string(b.DeclineClass)
		}
		bills.Row(b.BillingPeriod, b.Status, domain.Money{Minor: b.AmountMinor, Currency: b.Currency}, b.Attempt, b.Start, b.IntentID, b.ChargeID, why)
	}
	return bills.Write(s.Out, "  ")
}
