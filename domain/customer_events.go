package domain

import "time"

// CustomerRegistered says whom a customer is at Stripe and how they pay.
type CustomerRegistered struct {
	fact
	CustomerID       CustomerID `json:"customer_id"`
	StripeCustomerID string     `json:"stripe_customer_id"`
	PaymentMethodID  string     `json:"payment_method_id"`
}

// PaymentMethodChanged replaces the payment method of attempts yet to be requested.
type PaymentMethodChanged struct {
	fact
	CustomerID      CustomerID `json:"customer_id"`
	PaymentMethodID string     `json:"payment_method_id"`
}

// SubscriptionActivated starts a subscription: what falls due, how often, and when.
type SubscriptionActivated struct {
	fact
	CustomerID CustomerID `json:"customer_id"`
	Money
	Cadence   Cadence `json:"cadence"`
	AnchorDay int     `json:"anchor_day"` // 1–31; 29–31 fall on the last day of a shorter month
	TimeZone  string  `json:"time_zone"`  // IANA name
	StartsOn  Date    `json:"starts_on"`  // local date
}

// SubscriptionAmountChanged sets the amount of dues from EffectivePeriod on.
type SubscriptionAmountChanged struct {
	fact
	CustomerID      CustomerID `json:"customer_id"`
	AmountMinor     int64      `json:"amount_minor"`
	EffectivePeriod Period     `json:"effective_period"`
}

// SubscriptionScheduleChanged sets the anchor day, the zone or both of dues from
// EffectivePeriod on.
type SubscriptionScheduleChanged struct {
	fact
	CustomerID      CustomerID `json:"customer_id"`
	AnchorDay       int        `json:"anchor_day,omitempty"` // 0: as it was
	TimeZone        string     `json:"time_zone,omitempty"`  // empty: as it was
	EffectivePeriod Period     `json:"effective_period"`
	At              time.Time  `json:"at"` // UTC, business time of the decision
}

// SubscriptionPaused stops what would fall due after At, and makes dues whose
// charge has not started wait.
type SubscriptionPaused struct {
	fact
	CustomerID CustomerID `json:"customer_id"`
	At         time.Time  `json:"at"`
	Reason     string     `json:"reason,omitempty"`
}

// SubscriptionResumed lets dues fall and waiting charges go on. Periods whose
// due time lies within the pause are not billed.
type SubscriptionResumed struct {
	fact
	CustomerID CustomerID `json:"customer_id"`
	At         time.Time  `json:"at"`
}

// SubscriptionCancelled ends a subscription. With Mode "now" whatever has not
// started to be charged is void; with "period_end" what is due is still
// charged and nothing more falls due.
type SubscriptionCancelled struct {
	fact
	CustomerID CustomerID `json:"customer_id"`
	Mode       CancelMode `json:"mode"`
	At         time.Time  `json:"at"`
	Reason     string     `json:"reason,omitempty"`
}

// HistoryImported says that another system has billed the customer through a
// period. Every period that begins before its end is billed already, whatever
// its cadence; charges of that time that are known by their ids are facts of
// their own, customer.billed.v1 with the source "import".
type HistoryImported struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BilledThrough Period     `json:"billed_through"`
}

// CancelMode is when a cancellation takes effect.
type CancelMode string

// The modes.
const (
	CancelNow       CancelMode = "now"
	CancelPeriodEnd CancelMode = "period_end"
)

// MonthlyBillingDue freezes what a customer owes for a period.
type MonthlyBillingDue struct {
	fact
	CustomerID    CustomerID `json:"customer_id"`
	BillingPeriod Period     `json:"billing_period"`
	DueAt         time.Time  `json:"due_at"` // UTC
	Money
}

// EventName implements Event.
func (CustomerRegistered) EventName() string          { return "customer.registered.v1" }
func (PaymentMethodChanged) EventName() string        { return "customer.payment_method_changed.v1" }
func (SubscriptionActivated) EventName() string       { return "subscription.activated.v1" }
func (SubscriptionAmountChanged) EventName() string   { return "subscription.amount_changed.v1" }
func (SubscriptionScheduleChanged) EventName() string { return "subscription.schedule_changed.v1" }
func (SubscriptionPaused) EventName() string          { return "subscription.paused.v1" }
func (SubscriptionResumed) EventName() string         { return "subscription.resumed.v1" }
func (SubscriptionCancelled) EventName() string       { return "subscription.cancelled.v1" }
func (MonthlyBillingDue) EventName() string           { return "billing.due.v1" }
func (HistoryImported) EventName() string             { return "customer.history_imported.v1" }
