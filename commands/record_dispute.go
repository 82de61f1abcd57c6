package commands

import "github.com/billonce/billonce/domain"

// RecordDispute reports where a dispute over a charge stands. Like
// RecordRefundOutcome it is never refused, and old news changes nothing.
type RecordDispute struct {
	key           domain.Key
	CustomerID    domain.CustomerID  `json:"customer_id"`
	BillingPeriod domain.Period      `json:"billing_period"`
	DisputeID     string             `json:"dispute_id"`
	Status        string             `json:"status"`
	News          domain.DisputeNews `json:"-"`
}

// NewRecordDispute builds the command, keyed by the dispute and its status.
func NewRecordDispute(c domain.CustomerID, p domain.Period, n domain.DisputeNews) RecordDispute {
	return RecordDispute{domain.KeyOf("record-dispute", string(c), p.String(), n.DisputeID, n.Status), c, p, n.DisputeID, n.Status, n}
}

func (RecordDispute) Name() string              { return "record-dispute" }
func (c RecordDispute) Key() domain.Key         { return c.key }
func (c RecordDispute) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c RecordDispute) Decide(s domain.Customer) ([]domain.Event, error) {
	known, met := s.MoneyBack(c.BillingPeriod).Dispute(c.News.DisputeID)
	if met && (known.Status == c.News.Status || domain.DisputeRank(c.News.Status) < domain.DisputeRank(known.Status)) {
		return nil, nil
	}
	return one(domain.ChargeDisputed{
		CustomerID: c.CustomerID, BillingPeriod: c.BillingPeriod, DisputeID: c.News.DisputeID, ChargeID: c.News.ChargeID,
		Money: c.News.Money, Status: c.News.Status, Reason: c.News.Reason, Source: c.News.Source,
	}), nil
}
