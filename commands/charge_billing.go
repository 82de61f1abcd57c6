package commands

import "github.com/billonce/billonce/domain"

// ChargeBilling asks for a bill to be collected. The saga sends it for every
// due; a person or a program may send the very same command.
type ChargeBilling struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	Amount        domain.Money      `json:"amount"`
}

// NewChargeBilling builds the command. Its key is the charge key of attempt 1,
// whoever builds it and when.
func NewChargeBilling(c domain.CustomerID, p domain.Period, amount domain.Money) ChargeBilling {
	return ChargeBilling{domain.ChargeKey(c, p, 1), c, p, amount}
}

func (ChargeBilling) Name() string              { return "charge-billing" }
func (c ChargeBilling) Key() domain.Key         { return c.key }
func (c ChargeBilling) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ChargeBilling) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	bill, known := s.Bill(c.BillingPeriod)
	if known && bill.Amount.Minor != 0 && bill.Amount != c.Amount {
		return nil, domain.ErrAmountConflict.With("the bill for %s is frozen at %s", c.BillingPeriod, bill.Amount)
	}
	switch {
	case bill.Status == domain.BillPaid || bill.Attempt > 0 && !bill.Status.Final():
		return nil, nil // requested or paid already
	case bill.Status.Final(), bill.Status == domain.BillClosingStatus:
		return nil, domain.ErrBillClosed.With("the bill for %s is %s", c.BillingPeriod, bill.Status)
	}
	if s.BilledBefore(c.BillingPeriod) {
		return nil, domain.ErrBilledBefore.With("another system has billed the customer through %s", s.BilledThrough())
	}
	sub, _ := s.Subscription()
	if running := sub.Status == domain.SubscriptionActive || sub.Status == domain.SubscriptionOnHold; running && !bill.HasDue && !c.BillingPeriod.Fits(sub.Cadence) {
		return nil, domain.ErrPeriodCadence // a year charged by hand would swallow the months
	}
	if q, overlaps := s.Overlapping(c.BillingPeriod); overlaps {
		return nil, domain.ErrPeriodOverlaps.With("%s overlaps %s", c.BillingPeriod, q)
	}
	return []domain.Event{domain.ChargeRequested{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: 1, Key: c.key, Money: c.Amount,
		StripeCustomerID: s.StripeCustomerID(), PaymentMethodID: s.PaymentMethodID(),
	}}, nil
}

type chargeBillingBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" doc:"2026-11, 2026-Q3 or 2026." example:"2026-11"`
	AmountMinor   int64  `json:"amount_minor" doc:"In minor units." example:"5000"`
	Currency      string `json:"currency" doc:"Lower-case ISO code." example:"usd"`
}

func (b chargeBillingBody) build(Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	amount := checkMoney(&v, b.AmountMinor, b.Currency)
	return v.request(Of(NewChargeBilling(id, period, amount)))
}
