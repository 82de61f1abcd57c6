package commands_test

import (
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/commands/commandstest"
	"github.com/billonce/billonce/domain"
)

func TestRegisterCustomer(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	register := commands.NewRegisterCustomer(ada, "cus_1", "pm_1")

	customer.Given().When(register).Then(registered)
	customer.Given(registered).When(register).ThenNothing()
	customer.Given(registered).When(commands.NewRegisterCustomer(ada, "cus_2", "pm_1")).ThenRefused(domain.ErrAlreadyRegistered)
	customer.Given(registered).When(commands.NewRegisterCustomer(ada, "cus_1", "pm_2")).ThenRefused(domain.ErrAlreadyRegistered)
}

func TestChangePaymentMethod(t *testing.T) {
	t.Parallel()
	customer := commandstest.For[domain.Customer](t)
	changed := domain.PaymentMethodChanged{CustomerID: ada, PaymentMethodID: "pm_2"}
	toNew, toOld := commands.NewChangePaymentMethod(ada, "pm_2", time.Time{}, "k1"), commands.NewChangePaymentMethod(ada, "pm_1", time.Time{}, "k2")

	customer.Given(registered).When(toNew).Then(changed)
	customer.Given(registered).When(toOld).ThenNothing()
	customer.Given(registered, changed).When(toNew).ThenNothing()
	customer.Given(registered, changed).When(toOld).Then(domain.PaymentMethodChanged{CustomerID: ada, PaymentMethodID: "pm_1"})
	customer.Given().When(toNew).ThenRefused(domain.ErrUnknownCustomer)

	// An attempt keeps the method it was frozen with; the next one has the new.
	declined := declinedBy("ch_no")
	retry := commands.NewRetryCharge(ada, nov, 2, commands.StepManual)
	again := askedFor(nov, 2)
	again.PaymentMethodID = "pm_2"
	customer.Given(registered, due, asked, begun, declined, changed).When(retry).Then(again)
}
