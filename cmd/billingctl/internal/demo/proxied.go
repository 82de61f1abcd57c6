package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/domain"
)

// proxyBooks are the spend proxy's own books of a run: what it saw succeed, and
// what it still holds.
type proxyBooks []parts.ProxySum

// readProxy reads the proxy's books once it holds nothing any more, or patience
// is at its end. What was under way when it was killed is held until Stripe has
// told it the outcome.
func (d *demo) readProxy(ctx context.Context) (b proxyBooks, err error) {
	err = parts.AwaitEvery(ctx, serviceEvery, d.Patience, func() (bool, error) {
		b, err = d.proxy.Books(ctx, d.period)
		for _, s := range b {
			if s.Held != 0 {
				return false, err
			}
		}
		return err == nil, err
	})
	if errors.Is(err, parts.ErrTooLong) {
		err = nil // the account will tell what is held
	}
	return b, err
}

func (b proxyBooks) of(c domain.Currency) parts.ProxySum {
	for _, s := range b {
		if s.Currency == string(c) {
			return s
		}
	}
	return parts.ProxySum{Currency: string(c)}
}

// settled is what the proxy saw succeed in a currency.
func (b proxyBooks) settled(c domain.Currency) domain.Money {
	return domain.Money{Minor: b.of(c).Settled, Currency: c}
}

// compare says in which figures the proxy's books differ from the ledger.
func (b proxyBooks) compare(a audit) (differences []string) {
	charged := map[domain.Currency]bool{}
	for _, s := range a.sums {
		charged[s.currency] = true
		in := b.of(s.currency)
		if in.Settled != s.chargedSum.Minor || in.Charges != int64(s.charges) {
			differences = append(differences, fmt.Sprintf("the proxy's books have %s in %d charges where Stripe has charged %s in %d", b.settled(s.currency), in.Charges, s.chargedSum, s.charges))
		}
		if in.Held != 0 {
			differences = append(differences, fmt.Sprintf("the proxy still holds %s", domain.Money{Minor: in.Held, Currency: s.currency}))
		}
	}
	for _, s := range b {
		if c := domain.Currency(s.Currency); !charged[c] && (s.Settled != 0 || s.Held != 0) {
			differences = append(differences, fmt.Sprintf("the proxy's books have %s where Stripe has charged nothing", b.settled(c)))
		}
	}
	return differences
}
