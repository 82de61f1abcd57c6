package commands

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// ResumeSubscription ends a pause: waiting charges go on, and the next period
// to fall due is the first at or after the resumption. Periods whose due day
// passed during the pause are not billed.
type ResumeSubscription struct {
	key        domain.Key
	CustomerID domain.CustomerID `json:"customer_id"`
	At         time.Time         `json:"-"` // business time, UTC
}

// NewResumeSubscription builds the command; id is the caller's key.
func NewResumeSubscription(c domain.CustomerID, at time.Time, id domain.Key) ResumeSubscription {
	return ResumeSubscription{domain.KeyOf("resume-subscription", string(c), string(id)), c, at.UTC()}
}

func (ResumeSubscription) Name() string              { return "resume-subscription" }
func (c ResumeSubscription) Key() domain.Key         { return c.key }
func (c ResumeSubscription) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ResumeSubscription) Decide(s domain.Customer) ([]domain.Event, error) {
	sub, err := activeSubscription(s)
	if err != nil {
		return nil, err
	}
	if sub.Status == domain.SubscriptionActive {
		return nil, nil
	}
	return []domain.Event{domain.SubscriptionResumed{CustomerID: c.CustomerID, At: c.At}}, nil
}

type resumeSubscriptionBody struct {
	CustomerID string `json:"customer_id" example:"cust_123"`
}

func (b resumeSubscriptionBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	return v.request(Of(NewResumeSubscription(id, in.Now, in.Key)))
}
