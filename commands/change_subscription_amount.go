package commands

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// ChangeSubscriptionAmount sets what is owed from a period on. A period that
// has fallen due keeps its amount, whether it is declared yet or not.
type ChangeSubscriptionAmount struct {
	key             domain.Key
	CustomerID      domain.CustomerID `json:"customer_id"`
	AmountMinor     int64             `json:"amount_minor"`
	Currency        domain.Currency   `json:"currency,omitempty"`         // empty: the subscription's
	EffectivePeriod domain.Period     `json:"effective_period,omitempty"` // none: the first that is not frozen yet
	At              time.Time         `json:"-"`                          // business time, UTC
}

// NewChangeSubscriptionAmount builds the command; id is the caller's key, since
// equal changes at different times are legitimate.
func NewChangeSubscriptionAmount(c domain.CustomerID, minor int64, currency domain.Currency, from domain.Period, at time.Time, id domain.Key) ChangeSubscriptionAmount {
	return ChangeSubscriptionAmount{domain.KeyOf("change-subscription-amount", string(c), string(id)), c, minor, currency, from, at.UTC()}
}

func (ChangeSubscriptionAmount) Name() string              { return "change-subscription-amount" }
func (c ChangeSubscriptionAmount) Key() domain.Key         { return c.key }
func (c ChangeSubscriptionAmount) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ChangeSubscriptionAmount) Decide(s domain.Customer) ([]domain.Event, error) {
	sub, err := activeSubscription(s)
	if err != nil {
		return nil, err
	}
	if c.Currency != "" && c.Currency != sub.Amount.Currency {
		return nil, domain.ErrCurrencyMismatch.With("the subscription is in %s", sub.Amount.Currency)
	}
	if _, err := domain.ParseMoney(c.AmountMinor, string(sub.Amount.Currency)); err != nil {
		return nil, err
	}
	open := s.OpenPeriod(c.At)
	from := c.EffectivePeriod
	switch {
	case from.IsZero():
		from = open
	case !from.Fits(sub.Cadence):
		return nil, domain.ErrPeriodCadence
	case from.Before(open):
		return nil, domain.ErrAmountConflict.With("the amount of %s is frozen; the first open period is %s", from, open)
	}
	return []domain.Event{domain.SubscriptionAmountChanged{CustomerID: c.CustomerID, AmountMinor: c.AmountMinor, EffectivePeriod: from}}, nil
}

type changeSubscriptionAmountBody struct {
	CustomerID      string `json:"customer_id" example:"cust_123"`
	AmountMinor     int64  `json:"amount_minor" doc:"The new amount, in minor units." example:"6000"`
	Currency        string `json:"currency,omitempty" doc:"If given, must be the subscription's." example:"usd"`
	EffectivePeriod string `json:"effective_period,omitempty" doc:"First period of the new amount; the first that has not fallen due if left out." example:"2026-12"`
}

func (b changeSubscriptionAmountBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	var currency domain.Currency
	if b.Currency != "" {
		currency = check(&v, b.Currency, domain.ParseCurrency)
	}
	if b.AmountMinor <= 0 {
		v.add("amount_minor", "must be positive")
	}
	var from domain.Period
	if b.EffectivePeriod != "" {
		from = checkPeriod(&v, "effective_period", b.EffectivePeriod)
	}
	return v.request(Of(NewChangeSubscriptionAmount(id, b.AmountMinor, currency, from, in.Now, in.Key)))
}

// activeSubscription is the customer's subscription, unless there is none or
// it has ended.
func activeSubscription(s domain.Customer) (domain.Subscription, error) {
	if !s.Registered() {
		return domain.Subscription{}, domain.ErrUnknownCustomer
	}
	sub, ok := s.Subscription()
	switch {
	case !ok:
		return sub, domain.ErrNoSubscription
	case sub.Status == domain.SubscriptionEnded:
		return sub, domain.ErrCancelled
	}
	return sub, nil
}
