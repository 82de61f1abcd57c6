package commands

import "github.com/billonce/billonce/domain"

// ImportCharge names the charge by which another system has collected a period
// of the history that was imported. A comparison with Stripe finds it again.
type ImportCharge struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BillingPeriod domain.Period     `json:"billing_period"`
	ChargeID      string            `json:"charge_id"`
	Amount        domain.Money      `json:"amount"`
}

// NewImportCharge builds the command; its key is the bill.
func NewImportCharge(c domain.CustomerID, p domain.Period, charge string, amount domain.Money) ImportCharge {
	return ImportCharge{domain.KeyOf("import-charge", string(c), p.String()), c, p, charge, amount}
}

func (ImportCharge) Name() string              { return "import-charge" }
func (c ImportCharge) Key() domain.Key         { return c.key }
func (c ImportCharge) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ImportCharge) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	if through := s.BilledThrough(); !s.BilledBefore(c.BillingPeriod) {
		if through.IsZero() {
			return nil, domain.ErrNotHistory.With("no history was imported for the customer; import-history comes first")
		}
		return nil, domain.ErrNotHistory.With("the history that was imported ends with %s", through)
	}
	switch bill, _ := s.Bill(c.BillingPeriod); {
	case bill.Status == domain.BillPaid && bill.ChargeID == c.ChargeID:
		return nil, nil // found at Stripe meanwhile
	case bill.Status == domain.BillPaid:
		return nil, domain.ErrAlreadyBilled.With("the bill for %s is paid by %s", c.BillingPeriod, bill.ChargeID)
	}
	if q, overlaps := s.Overlapping(c.BillingPeriod); overlaps {
		return nil, domain.ErrPeriodOverlaps.With("%s overlaps %s", c.BillingPeriod, q)
	}
	return one(domain.CustomerBilled{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, Attempt: 1, ChargeID: c.ChargeID, Money: c.Amount,
		Source: domain.SourceImport, Recovered: true,
	}), nil
}

type importChargeBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BillingPeriod string `json:"billing_period" doc:"2026-10, 2026-Q3 or 2026." example:"2026-10"`
	ChargeID      string `json:"charge_id" doc:"The charge at Stripe." example:"ch_3MmlLrLkdIwHu7ix0snN0B15"`
	AmountMinor   int64  `json:"amount_minor" doc:"What it took, in minor units." example:"5000"`
	Currency      string `json:"currency" doc:"Lower-case ISO code." example:"usd"`
}

func (b importChargeBody) build(Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	charge := checkCharge(&v, b.ChargeID)
	amount := checkMoney(&v, b.AmountMinor, b.Currency)
	return v.request(Of(NewImportCharge(id, period, charge, amount)))
}
