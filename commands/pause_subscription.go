package commands

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// PauseSubscription stops new dues, and makes charges that have not started
// wait. A charge in flight goes on.
type PauseSubscription struct {
	key        domain.Key
	CustomerID domain.CustomerID `json:"customer_id"`
	Reason     string            `json:"-"`
	At         time.Time         `json:"-"` // business time, UTC
}

// NewPauseSubscription builds the command; id is the caller's key.
func NewPauseSubscription(c domain.CustomerID, reason string, at time.Time, id domain.Key) PauseSubscription {
	return PauseSubscription{domain.KeyOf("pause-subscription", string(c), string(id)), c, reason, at.UTC()}
}

func (PauseSubscription) Name() string              { return "pause-subscription" }
func (c PauseSubscription) Key() domain.Key         { return c.key }
func (c PauseSubscription) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c PauseSubscription) Decide(s domain.Customer) ([]domain.Event, error) {
	sub, err := activeSubscription(s)
	if err != nil {
		return nil, err
	}
	if sub.Status == domain.SubscriptionOnHold {
		return nil, nil
	}
	return []domain.Event{domain.SubscriptionPaused{CustomerID: c.CustomerID, At: c.At, Reason: c.Reason}}, nil
}

type pauseSubscriptionBody struct {
	CustomerID string `json:"customer_id" example:"cust_123"`
	Reason     string `json:"reason,omitempty" doc:"Why, for the record; no personal data." maxLength:"500"`
}

func (b pauseSubscriptionBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	reason := checkText(&v, "reason", b.Reason, false)
	return v.request(Of(NewPauseSubscription(id, reason, in.Now, in.Key)))
}
