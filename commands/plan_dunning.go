package commands

import (
	"strconv"
	"time"

	"github.com/billonce/billonce/domain"
)

// PlanDunning decides what follows the decline of an attempt: see
// domain.Customer.Dun. It is sent once a decline, and decides nothing about one
// that is not the bill's last word any more.
type PlanDunning struct {
	key           domain.Key
	CustomerID    domain.CustomerID  `json:"customer_id"`
	BillingPeriod domain.Period      `json:"billing_period"`
	Attempt       int                `json:"attempt"` // that was declined
	Days          domain.DunningDays `json:"-"`
	Now           time.Time          `json:"-"` // business time
}

// NewPlanDunning builds the command.
func NewPlanDunning(c domain.CustomerID, p domain.Period, attempt int, days domain.DunningDays, now time.Time) PlanDunning {
	return PlanDunning{PlanDunningKey(c, p, attempt), c, p, attempt, days, now}
}

// PlanDunningKey is the key under which a decline is decided about.
func PlanDunningKey(c domain.CustomerID, p domain.Period, attempt int) domain.Key {
	return domain.KeyOf("plan-dunning", string(c), p.String(), strconv.Itoa(attempt))
}

func (PlanDunning) Name() string              { return "plan-dunning" }
func (c PlanDunning) Key() domain.Key         { return c.key }
func (c PlanDunning) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c PlanDunning) Decide(s domain.Customer) ([]domain.Event, error) {
	if b, ok := s.Bill(c.BillingPeriod); !ok || b.Attempt != c.Attempt {
		return nil, nil
	}
	return s.Dun(c.BillingPeriod, c.Days, c.Now), nil
}
