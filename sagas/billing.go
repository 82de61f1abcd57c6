package sagas

import (
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// BillingState is what a billing instance, one (customer, period), remembers.
type BillingState struct {
	Dues     int               `json:"dues"` // dues seen; what follows the first is a duplicate
	Attempt  int               `json:"attempt"`
	Status   domain.BillStatus `json:"status"`
	Decline  string            `json:"decline,omitempty"`
	ChargeID string            `json:"charge_id,omitempty"`
}

// Billing asks for every due bill to be collected, once. Its instances are
// keyed by customer and period: the guard belongs to the period, never to the
// customer. A decline rests until somebody asks for a retry.
var Billing = Saga[BillingState]{
	Name: "billing",
	Events: []string{
		domain.MonthlyBillingDue{}.EventName(), domain.ChargeRequested{}.EventName(), domain.CustomerBilled{}.EventName(),
		domain.ChargeDeclined{}.EventName(), domain.ChargeRejected{}.EventName(), domain.ChargeVoided{}.EventName(),
		domain.BillSettled{}.EventName(), domain.BillWrittenOff{}.EventName(),
	},
	Correlate: func(e domain.Event) (string, domain.StreamID, bool) {
		switch e := e.(type) {
		case domain.MonthlyBillingDue:
			return billingInstance(e.CustomerID, e.BillingPeriod)
		case domain.ChargeRequested:
			return billingInstance(e.CustomerID, e.BillingPeriod)
		case domain.CustomerBilled:
			return billingInstance(e.CustomerID, e.BillingPeriod)
		case domain.ChargeDeclined:
			return billingInstance(e.CustomerID, e.BillingPeriod)
		case domain.ChargeRejected:
			return billingInstance(e.CustomerID, e.BillingPeriod)
		case domain.ChargeVoided:
			return billingInstance(e.CustomerID, e.BillingPeriod)
		case domain.BillSettled:
			return billingInstance(e.CustomerID, e.BillingPeriod)
		case domain.BillWrittenOff:
			return billingInstance(e.CustomerID, e.BillingPeriod)
		}
		return "", "", false
	},
	React: func(s BillingState, e domain.Event) (BillingState, []commands.Request) {
		switch e := e.(type) {
		case domain.MonthlyBillingDue:
			s.Dues++
			if s.Dues > 1 || s.Attempt > 0 || s.Status.Final() {
				return s, nil // a duplicate, or requested by another road
			}
			s.Status = domain.BillDue
			return s, []commands.Request{commands.Of(commands.NewChargeBilling(e.CustomerID, e.BillingPeriod, e.Money))}
		case domain.ChargeRequested:
			s.Attempt = e.Attempt
			s.to(domain.BillRequested)
		case domain.ChargeDeclined:
			s.Decline = string(e.Class)
			s.to(domain.BillDeclined)
		case domain.ChargeRejected:
			s.to(domain.BillRejected)
		case domain.CustomerBilled:
			s.Status, s.ChargeID = domain.BillPaid, e.ChargeID
		case domain.ChargeVoided:
			s.to(domain.BillVoid)
		case domain.BillSettled:
			s.to(domain.BillSettledStatus)
		case domain.BillWrittenOff:
			s.to(domain.BillWrittenOffStatus)
		}
		return s, nil
	},
	Step: func(s BillingState) (string, int) { return string(s.Status), s.Attempt },
}

func billingInstance(c domain.CustomerID, p domain.Period) (string, domain.StreamID, bool) {
	return string(c) + "/" + p.String(), c.Stream(), true
}

func (s *BillingState) to(status domain.BillStatus) {
	if !s.Status.Final() {
		s.Status = status
	}
}
