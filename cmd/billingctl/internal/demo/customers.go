package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/billonce/billonce/domain"
)

// Customer is a line of a file for import.
type Customer struct {
	CustomerID       string `json:"customer_id"`
	StripeCustomerID string `json:"stripe_customer_id"`
	PaymentMethodID  string `json:"payment_method_id"`
	AmountMinor      int64  `json:"amount_minor"`
	Currency         string `json:"currency"`
	Cadence          string `json:"cadence"`
	AnchorDay        int    `json:"anchor_day"`
	TimeZone         string `json:"time_zone"`
	StartsOn         string `json:"starts_on"`
}

// Owes is what the customer owes for a period.
func (c Customer) Owes() domain.Money {
	return domain.Money{Minor: c.AmountMinor, Currency: domain.Currency(c.Currency)}
}

// Seed is that of the checked-in file.
const Seed = 20261201

// zones run once around the world, from UTC-11 to UTC+14.
var zones = []string{
	"Pacific/Pago_Pago", "Pacific/Honolulu", "America/Anchorage", "America/Los_Angeles", "America/Denver", "America/Mexico_City",
	"America/New_York", "America/Halifax", "America/St_Johns", "America/Sao_Paulo", "Atlantic/South_Georgia", "Atlantic/Azores",
	"Etc/UTC", "Europe/London", "Europe/Berlin", "Africa/Cairo", "Asia/Kuwait", "Asia/Tehran", "Asia/Dubai", "Asia/Kabul",
	"Asia/Karachi", "Asia/Kolkata", "Asia/Kathmandu", "Asia/Dhaka", "Asia/Bangkok", "Asia/Singapore", "Australia/Eucla", "Asia/Tokyo",
	"Australia/Adelaide", "Australia/Sydney", "Pacific/Noumea", "Pacific/Auckland", "Pacific/Chatham", "Pacific/Kiritimati",
}

// Generate makes n customers. A customer depends on the seed and its number
// alone, so that fewer customers are the first ones of more.
//
// All pay monthly from December 2026 on, on the first or second day of the
// month where they live, in amounts from the least to the most that can be
// charged.
func Generate(seed uint64, n int) []Customer {
	customers := make([]Customer, n)
	for i := range customers {
		customers[i] = generate(seed, i+1)
	}
	return customers
}

func generate(seed uint64, number int) Customer {
	source := rand.NewPCG(seed, uint64(number))
	draw := func(n int64) int64 { return int64(source.Uint64() % uint64(n)) }
	c := Customer{
		CustomerID:       fmt.Sprintf("cust_%06d", number),
		StripeCustomerID: fmt.Sprintf("cus_demo%06d", number),
		PaymentMethodID:  fmt.Sprintf("pm_demo%06d", number),
		Cadence:          string(domain.Monthly),
		AnchorDay:        int(1 + draw(2)),
		TimeZone:         zones[draw(int64(len(zones)))],
		StartsOn:         "2026-12-01",
	}
	least, steps, step := int64(50), int64(50_000), int64(1)
	switch n := draw(100); {
	case n < 40:
		c.Currency = "usd"
	case n < 70:
		c.Currency = "eur"
	case n < 90:
		c.Currency = "jpy"
		least, steps = 50, 90_000
	default:
		c.Currency = "kwd"
		least, steps, step = 500, 10_000, 10 // charged in steps of ten fils
	}
	switch draw(50) {
	case 0:
		c.AmountMinor = least
	case 1:
		c.AmountMinor = 99_999_999 / step * step // eight digits are the most that Stripe charges
	default:
		c.AmountMinor = least + step*draw(steps)
	}
	return c
}

// Write writes customers as a file for import.
func Write(w io.Writer, customers []Customer) error {
	encoder := json.NewEncoder(w)
	for _, c := range customers {
		if err := encoder.Encode(c); err != nil {
			return fmt.Errorf("write customers: %w", err)
		}
	}
	return nil
}

// Read reads what Write wrote.
func Read(file []byte) ([]Customer, error) {
	var customers []Customer
	decoder := json.NewDecoder(bytes.NewReader(file))
	decoder.DisallowUnknownFields()
	for decoder.More() {
		var c Customer
		if err := decoder.Decode(&c); err != nil {
			return nil, fmt.Errorf("read customer %d: %w", len(customers)+1, err)
		}
		customers = append(customers, c)
	}
	return customers, nil
}

// First are the first n customers of a file, and generated ones behind its end.
func First(file []byte, n int) ([]Customer, error) {
	customers, err := Read(file)
	if err != nil {
		return nil, err
	}
	if n > len(customers) {
		customers = append(customers, Generate(Seed, n)[len(customers):]...)
	}
	return customers[:n], nil
}
