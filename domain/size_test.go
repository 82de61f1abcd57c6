package domain_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/billonce/billonce/domain"
)

// A customer's size is about what its state takes of memory, with one bill or
// with those of years.
func TestSizeOfCustomer(t *testing.T) { // alone: it measures what the process takes
	for _, months := range []int{0, 1, 12, 120} {
		const customers = 400
		var before, after runtime.MemStats
		states := make([]domain.Customer, customers)
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range states {
			id := domain.CustomerID(fmt.Sprintf("customer-%06d", i))
			c := states[i].Evolve(domain.CustomerRegistered{CustomerID: id, StripeCustomerID: fmt.Sprint("cus_", i), PaymentMethodID: fmt.Sprint("pm_", i)}).
				Evolve(domain.SubscriptionActivated{CustomerID: id, Money: domain.Money{Minor: 4900, Currency: "usd"}, Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC"})
			for m := range months {
				p := domain.PeriodOf(domain.Monthly, 2020+m/12, m%12+1)
				c = c.Evolve(domain.ChargeRequested{CustomerID: id, BillingPeriod: p, Attempt: 1, Key: domain.ChargeKey(id, p, 1), Money: domain.Money{Minor: 4900, Currency: "usd"}, StripeCustomerID: fmt.Sprint("cus_", i), PaymentMethodID: fmt.Sprint("pm_", i)}).
					Evolve(domain.ChargeIntentCommitted{CustomerID: id, BillingPeriod: p, IntentID: fmt.Sprint("pi_", i, m), IntentNo: 1}).
					Evolve(domain.CustomerBilled{CustomerID: id, BillingPeriod: p, Attempt: 1, ChargeID: fmt.Sprint("ch_", i, m), IntentID: fmt.Sprint("pi_", i, m), Money: domain.Money{Minor: 4900, Currency: "usd"}})
			}
			states[i] = c
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		// The customers themselves stand in the list, which was there before.
		taken := int(after.HeapAlloc-before.HeapAlloc)/customers + domain.Customer{}.Size()
		if size := states[7].Size(); taken > size*5/4 || taken < size*2/3 {
			t.Errorf("a customer of %d bills counts as %d bytes and takes %d", months, size, taken)
		} else {
			t.Logf("a customer of %d bills counts as %d bytes and takes %d", months, size, taken)
		}
		runtime.KeepAlive(states)
	}
}
