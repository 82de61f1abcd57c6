package commands

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// ImportHistory says that another system has billed a customer through a
// period, before anything of it is billed here.
type ImportHistory struct {
	key           domain.Key
	CustomerID    domain.CustomerID `json:"customer_id"`
	BilledThrough domain.Period     `json:"billed_through"`
}

// NewImportHistory builds the command. Its key is the customer's: a customer
// has one history.
func NewImportHistory(c domain.CustomerID, through domain.Period) ImportHistory {
	return ImportHistory{domain.KeyOf("import-history", string(c)), c, through}
}

func (ImportHistory) Name() string              { return "import-history" }
func (c ImportHistory) Key() domain.Key         { return c.key }
func (c ImportHistory) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ImportHistory) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	if _, begun := s.Subscription(); begun {
		return nil, domain.ErrHistoryLate.With("the customer's subscription has begun; history comes before it")
	}
	for b := range s.Bills() {
		if b.Period.BeginsBy(c.BilledThrough) {
			return nil, domain.ErrHistoryLate.With("there is a bill for %s already", b.Period)
		}
	}
	return one(domain.HistoryImported{CustomerID: c.CustomerID, BilledThrough: c.BilledThrough}), nil
}

type importHistoryBody struct {
	CustomerID    string `json:"customer_id" example:"cust_123"`
	BilledThrough string `json:"billed_through" doc:"The last period that another system has billed: 2026-10, 2026-Q3 or 2026. It begins within a year from now." example:"2026-10"`
}

// build refuses what can only be a slip of the pen: a year may have been paid in
// advance, and what lies beyond it would never be billed, without a word.
func (b importHistoryBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	through := checkPeriod(&v, "billed_through", b.BilledThrough)
	year, month := through.Start()
	if begins := time.Date(year, time.Month(month), 1, 0, 0, 0, 0, time.UTC); !in.Now.IsZero() && begins.After(in.Now.AddDate(1, 0, 0)) {
		v.add("billed_through", "begins more than a year from now")
	}
	return v.request(Of(NewImportHistory(id, through)))
}
