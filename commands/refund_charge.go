package commands

import "github.com/billonce/billonce/domain"

// RefundCharge gives money of a paid bill back, or of a charge that a proposal
// names. The refund id is the caller's: two equal refunds have two ids, and one
// id moves money once.
type RefundCharge struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	RefundID      string            `json:"refund_id"`
	AmountMinor   int64             `json:"amount_minor"` // in the charge's currency
	ChargeID      string            `json:"charge_id,omitempty"`
}

// NewRefundCharge builds the command. An empty chargeID means the charge that
// paid the bill.
func NewRefundCharge(c domain.CustomerID, p domain.Period, refundID string, amountMinor int64, chargeID string) RefundCharge {
	return RefundCharge{domain.KeyOf("refund-charge", string(c), refundID), c, p, refundID, amountMinor, chargeID}
}

func (RefundCharge) Name() string              { return "refund-charge" }
func (c RefundCharge) Key() domain.Key         { return c.key }
func (c RefundCharge) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c RefundCharge) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	bill, ok := s.Bill(c.BillingPeriod)
	if !ok {
		return nil, domain.ErrUnknownBill
	}
	back := s.MoneyBack(c.BillingPeriod)
	charge := c.ChargeID
	if charge == "" {
		if bill.Status != domain.BillPaid {
			return nil, domain.ErrNotPaid.With("the bill for %s is %s", c.BillingPeriod, bill.Status)
		}
		if charge = back.ChargeID; charge == "" {
			return nil, domain.ErrUnknownCharge.With("which charge paid the bill for %s is not known", c.BillingPeriod)
		}
	}
	taken, ok := back.TakenBy(charge)
	if !ok {
		return nil, domain.ErrUnknownCharge.With("neither the bill for %s nor a proposal names %s", c.BillingPeriod, charge)
	}
	if known, ok := back.Refund(c.RefundID, ""); ok {
		// Found at Stripe by its marker, while the log knew nothing of it.
		if known.Amount.Minor == c.AmountMinor && known.ChargeID == charge {
			return nil, nil
		}
		return nil, domain.ErrRefundExists.With("refund %s is of %s from %s", c.RefundID, known.Amount, known.ChargeID)
	}
	if taken.Currency.Exponent() == 3 && c.AmountMinor%10 != 0 {
		return nil, domain.InvalidField("amount_minor", "must end in 0: %s amounts move in steps of 10 minor units", taken.Currency)
	}
	if room := taken.Minor - back.Refunded(charge); c.AmountMinor <= 0 || c.AmountMinor > room {
		return nil, domain.ErrRefundExceeds.With("of %s at most %s can still go back", taken, domain.Money{Minor: max(room, 0), Currency: taken.Currency})
	}
	return one(domain.RefundRequested{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, RefundID: c.RefundID, ChargeID: charge,
		Key:   domain.RefundKey(c.CustomerID, c.BillingPeriod, c.RefundID),
		Money: domain.Money{Minor: c.AmountMinor, Currency: taken.Currency},
	}), nil
}

type refundChargeBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	RefundID      string `json:"refund_id" doc:"Your name for this refund, once a customer: the same again is the same refund, another one is another refund." example:"r-1001"`
	AmountMinor   int64  `json:"amount_minor" doc:"In minor units of the bill's currency; at most what of the charge has not gone back." minimum:"1" example:"2450"`
	ChargeID      string `json:"charge_id,omitempty" doc:"The charge of a refund proposal; left out: the charge that paid the bill." example:"ch_3NvXyz"`
}

func (b refundChargeBody) build(Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	refund := check(&v, b.RefundID, domain.ParseRefundID)
	if b.AmountMinor <= 0 {
		v.add("amount_minor", "must be positive")
	}
	if b.ChargeID != "" {
		checkCharge(&v, b.ChargeID)
	}
	return v.request(Of(NewRefundCharge(id, period, refund, b.AmountMinor, b.ChargeID)))
}

// checkCharge accepts the id of a charge: ch_ of cards, py_ of other methods.
func checkCharge(v *validation, s string) string {
	if _, err := domain.ParseStripeID("charge_id", "py_", s); err == nil {
		return s
	}
	return checkStripeID(v, "charge_id", "ch_", s)
}
