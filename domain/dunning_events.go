package domain

import "time"

// DunningScheduled is the decision to try a declined bill again. Attempt is the
// one to come, At the business time from which it may be asked for. Day is the
// day of the schedule, 0 if something else has brought it on; the days count
// from From, a day in the customer's zone.
type DunningScheduled struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Attempt       int        `json:"attempt"`
	At            time.Time  `json:"at"`
	Day           int        `json:"day,omitempty"`
	From          Date       `json:"from"`
	Reason        string     `json:"reason"`
}

// Awaited is what a declined bill waits for before it is tried again.
type Awaited string

// What is waited for.
const (
	AwaitsMethod   Awaited = "payment_method" // another payment method
	AwaitsCustomer Awaited = "customer"       // the customer must authenticate with their bank
	AwaitsOperator Awaited = "operator"       // somebody has stopped the dunning
)

// DunningWaiting is the decision not to try a declined bill again by itself
// before something has happened. Attempt is the one that was declined.
type DunningWaiting struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Attempt       int        `json:"attempt"`
	Awaits        Awaited    `json:"awaits"`
	From          Date       `json:"from"`
	Reason        string     `json:"reason"`
}

// BillUncollectible: the last scheduled attempt was declined. Nothing more is
// collected by itself. The debt stands: a success that comes late is recorded,
// and a person may still ask for an attempt, settle the bill or write it off.
type BillUncollectible struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Attempt       int        `json:"attempt"`
	From          Date       `json:"from"`
	Reason        string     `json:"reason"`
}

// SubscriptionDelinquent says that a subscription owes a bill which could not
// be collected, so that others may act: restrict the service, ask by letter.
type SubscriptionDelinquent struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	Money
	Reason string `json:"reason"`
}

// EventName implements Event.
func (DunningScheduled) EventName() string       { return "dunning.scheduled.v1" }
func (DunningWaiting) EventName() string         { return "dunning.waiting.v1" }
func (BillUncollectible) EventName() string      { return "bill.uncollectible.v1" }
func (SubscriptionDelinquent) EventName() string { return "subscription.delinquent.v1" }
