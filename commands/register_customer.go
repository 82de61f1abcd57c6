package commands

import "github.com/billonce/billonce/domain"

// RegisterCustomer makes a customer known: whom they are at Stripe, and the
// method their charges use.
type RegisterCustomer struct {
	key              domain.Key
	CustomerID       domain.CustomerID `json:"customer_id"`
	StripeCustomerID string            `json:"stripe_customer_id"`
	PaymentMethodID  string            `json:"payment_method_id"`
}

// NewRegisterCustomer builds the command; its key is the customer's id.
func NewRegisterCustomer(c domain.CustomerID, stripeCustomer, paymentMethod string) RegisterCustomer {
	return RegisterCustomer{domain.KeyOf("register-customer", string(c)), c, stripeCustomer, paymentMethod}
}

func (RegisterCustomer) Name() string              { return "register-customer" }
func (c RegisterCustomer) Key() domain.Key         { return c.key }
func (c RegisterCustomer) Stream() domain.StreamID { return c.CustomerID.Stream() }

// Decide implements Command.
func (c RegisterCustomer) Decide(s domain.Customer) ([]domain.Event, error) {
	if s.Registered() {
		if s.StripeCustomerID() == c.StripeCustomerID && s.PaymentMethodID() == c.PaymentMethodID {
			return nil, nil
		}
		return nil, domain.ErrAlreadyRegistered
	}
	return []domain.Event{domain.CustomerRegistered{
		CustomerID: c.CustomerID, StripeCustomerID: c.StripeCustomerID, PaymentMethodID: c.PaymentMethodID,
	}}, nil
}

type registerCustomerBody struct {
	CustomerID       string `json:"customer_id" doc:"Who is billed; chosen by you." example:"cust_123"`
	StripeCustomerID string `json:"stripe_customer_id" doc:"The customer at Stripe." example:"cus_9s6XKzkNRiz8i3"`
	PaymentMethodID  string `json:"payment_method_id" doc:"The payment method to charge." example:"pm_card_visa"`
}

func (b registerCustomerBody) build(Input) (Request, error) {
	var v validation
	id := check(&v, b.CustomerID, domain.ParseCustomerID)
	stripe := checkStripeID(&v, "stripe_customer_id", "cus_", b.StripeCustomerID)
	method := checkPaymentMethodID(&v, "payment_method_id", b.PaymentMethodID)
	return v.request(Of(NewRegisterCustomer(id, stripe, method)))
}
