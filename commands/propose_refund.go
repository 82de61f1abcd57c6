package commands

import "github.com/billonce/billonce/domain"

// ProposeRefund says that a charge has taken money which is not owed. Whether
// it goes back is for a person to decide, so this is never done silently.
type ProposeRefund struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	ChargeID      string            `json:"charge_id"`
	Money         domain.Money      `json:"-"` // as Stripe states it; several paths find the same charge
	Reason        string            `json:"-"`
}

// NewProposeRefund builds the command. It is keyed by the charge: however
// often it is found, it is proposed once.
func NewProposeRefund(c domain.CustomerID, p domain.Period, chargeID string, m domain.Money, reason string) ProposeRefund {
	return ProposeRefund{domain.KeyOf("propose-refund", string(c), p.String(), chargeID), c, p, chargeID, m, reason}
}

func (ProposeRefund) Name() string              { return "propose-refund" }
func (c ProposeRefund) Key() domain.Key         { return c.key }
func (c ProposeRefund) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ProposeRefund) Decide(s domain.Customer) ([]domain.Event, error) {
	return propose(s.MoneyBack(c.BillingPeriod), c.CustomerID, c.ChargeID, c.Money, c.Reason), nil
}

// propose proposes to refund a charge, unless it was proposed before.
func propose(back domain.MoneyBack, c domain.CustomerID, chargeID string, m domain.Money, reason string) []domain.Event {
	if _, before := back.Proposal(chargeID); before || chargeID == "" || m.Minor <= 0 {
		return nil
	}
	return one(domain.RefundProposed{CustomerID: c, BillingPeriod: back.Period, ChargeID: chargeID, Money: m, Reason: reason})
}
