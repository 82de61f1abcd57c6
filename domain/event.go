package domain

import (
	"iter"
	"slices"
)

// Event is a fact about the business. Its name is a contract: a new shape gets
// a new name or a higher schema version, and no name is ever reused. Event
// payloads hold no names, e-mail addresses, card data or secrets.
//
//sumtype:decl
type Event interface {
	// EventName is the contract name, such as customer.billed.v1.
	EventName() string
	isFact()
}

// fact makes a struct an Event of this package and of no other.
type fact struct{}

func (fact) isFact() {}

// Retired stands in a history for a fact of long ago that means nothing any
// more. It changes no state, is never recorded, and is not in the catalogue.
type Retired struct {
	Name string // the contract name it is stored under
	never
}

// EventName is the contract name of the fact that it stands for.
func (r Retired) EventName() string { return r.Name }

// never makes a struct an Event that is not in the catalogue.
type never struct{}

func (never) isFact() {}

// State is a value rebuilt from facts. Evolve cannot fail, block, look at a
// clock or change its receiver.
type State[S any] interface{ Evolve(Event) S }

// Fold rebuilds a state from its history, oldest first.
func Fold[S State[S]](history iter.Seq[Event]) S {
	var s S
	for e := range history {
		s = s.Evolve(e)
	}
	return s
}

// Events is the catalogue: one zero value of every fact there is.
func Events() iter.Seq[Event] {
	return slices.Values([]Event{
		CustomerRegistered{}, PaymentMethodChanged{}, HistoryImported{},
		SubscriptionActivated{}, SubscriptionAmountChanged{}, SubscriptionScheduleChanged{}, SubscriptionPaused{}, SubscriptionResumed{}, SubscriptionCancelled{},
		MonthlyBillingDue{},
		ChargeRequested{}, ChargeAttemptStarted{}, ChargeIntentCommitted{},
		CustomerBilled{}, ChargeDeclined{}, ChargeActionRequired{}, ChargeRejected{}, ChargeHeld{}, ChargeNotSent{}, ChargeUnknown{},
		ChargeNeedsReview{}, ChargeOutcomeSurprise{},
		ChargeWaiting{}, ChargeReleased{}, ChargeVoided{},
		BillClosing{}, BillSettled{}, BillWrittenOff{},
		DunningScheduled{}, DunningWaiting{}, BillUncollectible{}, SubscriptionDelinquent{},
		RefundRequested{}, RefundRecorded{}, RefundProposed{}, RefundProposalDismissed{}, ChargeDisputed{},
		RunPaused{}, RunResumed{}, RunClosed{},
	})
}
