package parts

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// Movement is a line of the stand-in's ledger: an attempt to move money.
type Movement struct {
	Charge   string            `json:"charge"`
	Intent   string            `json:"payment_intent"`
	Customer string            `json:"customer"`
	Amount   int64             `json:"amount"`
	Currency string            `json:"currency"`
	Status   string            `json:"status"`
	Key      string            `json:"key"` // of the request that made it
	Metadata map[string]string `json:"metadata"`
	At       time.Time         `json:"at"` // on the stand-in's clock
}

// Moved reports whether the movement took money.
func (m Movement) Moved() bool { return m.Status == "succeeded" }

// Money is what the movement is about.
func (m Movement) Money() domain.Money {
	return domain.Money{Minor: m.Amount, Currency: domain.Currency(m.Currency)}
}
