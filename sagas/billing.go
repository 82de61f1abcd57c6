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
// customer. A decline is handed to the dunning; what that has scheduled becomes
// a timer, and whatever ends the bill cancels it.
var Billing = Saga[BillingState]{
	Name: "billing",
	Events: []string{
		domain.MonthlyBillingDue{}.EventName(), domain.ChargeRequested{}.EventName(), domain.CustomerBilled{}.EventName(),
		domain.ChargeDeclined{}.EventName(), domain.ChargeRejected{}.EventName(), domain.ChargeVoided{}.EventName(),
		domain.BillSettled{}.EventName(), domain.BillWrittenOff{}.EventName(),
		domain.DunningScheduled{}.EventName(), domain.DunningWaiting{}.EventName(), domain.BillUncollectible{}.EventName(),
	},
	Correlate: func(e domain.Event) (string, domain.StreamID, bool) {
		switch e.(type) {
		case domain.MonthlyBillingDue, domain.ChargeRequested, domain.CustomerBilled, domain.ChargeDeclined, domain.ChargeRejected,
			domain.ChargeVoided, domain.BillSettled, domain.BillWrittenOff, domain.DunningScheduled, domain.DunningWaiting, domain.BillUncollectible:
			c, p, _ := domain.BillOf(e)
			return string(c) + "/" + p.String(), c.Stream(), true
		}
		return "", "", false
	},
	React: func(s BillingState, e domain.Event) (BillingState, Reaction) {
		var follows Reaction
		switch e := e.(type) {
		case domain.MonthlyBillingDue:
			s.Dues++
			if s.Dues > 1 || s.Attempt > 0 || s.Status.Final() {
				return s, Reaction{} // a duplicate, or requested by another road
			}
			s.Status = domain.BillDue
			return s, Reaction{Commands: []commands.Request{commands.Of(commands.NewChargeBilling(e.CustomerID, e.BillingPeriod, e.Money))}}
		case domain.ChargeRequested:
			s.Attempt = e.Attempt
			s.to(domain.BillRequested)
			follows = s.cancelTimer(e.CustomerID, e.BillingPeriod)
		case domain.ChargeDeclined:
			s.Decline = string(e.Class)
			s.to(domain.BillDeclined)
			follows = setTimer(planTimer(e.CustomerID, e.BillingPeriod, e.Attempt))
		case domain.ChargeRejected:
			s.to(domain.BillRejected)
		case domain.DunningScheduled:
			return s, setTimer(retryTimer(e.CustomerID, e.BillingPeriod, e.Attempt, e.At))
		case domain.DunningWaiting:
			return s, s.cancelTimer(e.CustomerID, e.BillingPeriod)
		case domain.BillUncollectible:
			s.to(domain.BillUncollectibleStatus)
		case domain.CustomerBilled:
			s.Status, s.ChargeID = domain.BillPaid, e.ChargeID
			follows = s.cancelTimer(e.CustomerID, e.BillingPeriod)
		case domain.ChargeVoided:
			s.to(domain.BillVoid)
			follows = s.cancelTimer(e.CustomerID, e.BillingPeriod)
		case domain.BillSettled:
			s.to(domain.BillSettledStatus)
			follows = s.cancelTimer(e.CustomerID, e.BillingPeriod)
		case domain.BillWrittenOff:
			s.to(domain.BillWrittenOffStatus)
			follows = s.cancelTimer(e.CustomerID, e.BillingPeriod)
		}
		return s, follows
	},
	Step: func(s BillingState) (string, int) { return string(s.Status), s.Attempt },
}

// cancelTimer cancels what the dunning has scheduled. Only a bill that was
// declined can have a timer.
func (s BillingState) cancelTimer(c domain.CustomerID, p domain.Period) Reaction {
	if s.Decline == "" {
		return Reaction{}
	}
	return Reaction{Timers: []TimerChange{{Token: DunningToken(c, p)}}}
}

func setTimer(t Timer) Reaction { return Reaction{Timers: []TimerChange{{Token: t.Token, Set: &t}}} }

func (s *BillingState) to(status domain.BillStatus) {
	if !s.Status.Ended() {
		s.Status = status
	}
}
