package commands

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// ChangePaymentMethod sets the method of attempts yet to be requested. An
// attempt that was requested keeps the one it was frozen with. Declined bills
// that wait for another method are tried again at once.
type ChangePaymentMethod struct {
	key             domain.Key
	CustomerID      domain.CustomerID `json:"customer_id"`
	PaymentMethodID string            `json:"payment_method_id"`
	At              time.Time         `json:"-"` // business time, UTC
}

// NewChangePaymentMethod builds the command; id is the caller's key.
func NewChangePaymentMethod(c domain.CustomerID, method string, at time.Time, id domain.Key) ChangePaymentMethod {
	return ChangePaymentMethod{domain.KeyOf("change-payment-method", string(c), string(id)), c, method, at.UTC()}
}

func (ChangePaymentMethod) Name() string              { return "change-payment-method" }
func (c ChangePaymentMethod) Key() domain.Key         { return c.key }
func (c ChangePaymentMethod) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c ChangePaymentMethod) Decide(s domain.Customer) ([]domain.Event, error) {
	if !s.Registered() {
		return nil, domain.ErrUnknownCustomer
	}
	if s.PaymentMethodID() == c.PaymentMethodID {
		return nil, nil
	}
	return append(one(domain.PaymentMethodChanged{CustomerID: c.CustomerID, PaymentMethodID: c.PaymentMethodID}), s.DunWithMethod(c.At)...), nil
}

type changePaymentMethodBody struct {
	CustomerID      string `json:"customer_id" example:"cust_123"`
	PaymentMethodID string `json:"payment_method_id" example:"pm_card_mastercard"`
}

func (b changePaymentMethodBody) build(in Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	method := checkPaymentMethodID(&v, "payment_method_id", b.PaymentMethodID)
	return v.request(Of(NewChangePaymentMethod(id, method, in.Now, in.Key)))
}
