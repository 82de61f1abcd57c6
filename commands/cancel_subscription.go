package commands

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// CancelSubscription ends a subscription.
//
// At "period_end", what has fallen due is still charged and nothing falls due
// after that. At "now", every bill that is not paid and not in flight ends
// without money: void, through a cancel at Stripe where an intent exists. A
// charge in flight is never pulled back; if it succeeds, that is recorded.
type CancelSubscription struct {
	key        domain.Key
	CustomerID domain.CustomerID `json:"customer_id"`
	Mode       domain.CancelMode `json:"at"`
	Reason     string            `json:"-"`
	At         time.Time         `json:"-"` // business time, UTC
}

// NewCancelSubscription builds the command; id is the caller's key.
func NewCancelSubscription(c domain.CustomerID, mode domain.CancelMode, reason string, at time.Time, id domain.Key) CancelSubscription {
	return CancelSubscription{domain.KeyOf("cancel-subscription", string(c), string(id)), c, mode, reason, at.UTC()}
}

func (CancelSubscription) Name() string              { return "cancel-subscription" }
func (c CancelSubscription) Key() domain.Key         { return c.key }
func (c CancelSubscription) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c CancelSubscription) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	sub, ok := s.Subscription()
	switch {
	case !ok:
		return nil, domain.ErrNoSubscription
	case sub.Status == domain.SubscriptionEnded && (sub.EndMode == domain.CancelNow || c.Mode == domain.CancelPeriodEnd):
		return nil, domain.ErrCancelled
	}
	events := []domain.Event{domain.SubscriptionCancelled{CustomerID: c.CustomerID, Mode: c.Mode, At: c.At, Reason: c.Reason}}
	if c.Mode != domain.CancelNow {
		return events, nil
	}
	const rule = "the subscription was cancelled with immediate effect before this bill was paid"
	for b := range s.Bills() {
		switch {
		case b.Status.Final() || b.InFlight() || b.Status == domain.BillClosingStatus || b.Unresolved:
		case b.IntentID != "":
			events = append(events, domain.BillClosing{CustomerID: c.CustomerID, BillingPeriod: b.Period, Mode: domain.ClosingVoid, Reason: rule})
		default:
			events = append(events, domain.ChargeVoided{CustomerID: c.CustomerID, BillingPeriod: b.Period, Attempt: b.Attempt, Reason: rule})
		}
	}
	return events, nil
}

type cancelSubscriptionBody struct {
	CustomerID string `json:"customer_id" example:"cust_123"`
	At         string `json:"at" doc:"now: what is not paid and not in flight is void. period_end: what is due is still charged." enum:"now,period_end" example:"period_end"`
	Reason     string `json:"reason,omitempty" doc:"Why, for the record; no personal data." maxLength:"500"`
}

func (b cancelSubscriptionBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	mode := domain.CancelMode(b.At)
	if mode != domain.CancelNow && mode != domain.CancelPeriodEnd {
		v.add("at", "must be now or period_end")
	}
	reason := checkText(&v, "reason", b.Reason, false)
	return v.request(Of(NewCancelSubscription(id, mode, reason, in.Now, in.Key)))
}
