package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
	"github.com/billonce/billonce/domain"
)

// books are what the service itself says of a period.
type books struct {
	Bills  int `json:"bills"`
	Paid   int `json:"paid"`
	Open   int `json:"open"`
	Totals []struct {
		Currency string     `json:"currency"`
		Bills    int        `json:"bills"`
		Expected minorUnits `json:"expected"`
		Taken    minorUnits `json:"taken"`
	} `json:"totals"`

	charges map[string]bool // ids at Stripe of the paid charges
}

type minorUnits struct {
	Minor int64 `json:"minor"`
}

// readBooks reads the service's books of a period once they are complete: all
// bills paid and every read model at the end of the log, or patience at its
// end.
func readBooks(ctx context.Context, c *client.Client, period string, bills int, patience time.Duration) (b books, err error) {
	err = parts.AwaitEvery(ctx, serviceEvery, patience, func() (bool, error) {
		b = books{}
		err := c.Read(ctx, "/v1/runs/"+period, nil, &b)
		if p, ok := errors.AsType[*client.Problem](err); ok && p.Status == http.StatusNotFound {
			return bills == 0, nil
		}
		if err != nil || b.Paid < bills || b.Open > 0 {
			return false, err
		}
		p, err := parts.ReadProcessors(ctx, c)
		return err == nil && p.Behind() == "", err
	})
	if err != nil && !errors.Is(err, parts.ErrTooLong) {
		return b, fmt.Errorf("read the service's books: %w", err)
	}
	b.charges = map[string]bool{}
	query := url.Values{"period": {period}, "status": {"paid"}, "limit": {"500"}}
	for {
		var page struct {
			Items []struct {
				ChargeID string `json:"charge_id"`
			} `json:"items"`
			NextCursor string `json:"next_cursor"`
		}
		if err := c.Read(ctx, "/v1/charges", query, &page); err != nil {
			return b, fmt.Errorf("read the service's books: %w", err)
		}
		for _, i := range page.Items {
			b.charges[i.ChargeID] = true
		}
		if page.NextCursor == "" {
			return b, nil
		}
		query.Set("cursor", page.NextCursor)
	}
}

// taken is what the service says that Stripe has taken in a currency.
func (b books) taken(c domain.Currency) domain.Money {
	for _, t := range b.Totals {
		if t.Currency == string(c) {
			return domain.Money{Minor: t.Taken.Minor, Currency: c}
		}
	}
	return domain.Money{Currency: c}
}

// compare says in which figures the books differ from the ledger.
func (b books) compare(a audit, movements []parts.Movement) (differences []string) {
	differ := func(format string, args ...any) { differences = append(differences, fmt.Sprintf(format, args...)) }
	if b.Bills != a.customers || b.Paid != a.customers || b.Open != 0 {
		differ("the service's books have %d bills of %d customers, %d of them paid and %d open", b.Bills, a.customers, b.Paid, b.Open)
	}
	owed, charged := map[domain.Currency]int64{}, map[domain.Currency]int64{}
	for _, s := range a.sums {
		owed[s.currency], charged[s.currency] = s.owed.Minor, s.chargedSum.Minor
	}
	for _, t := range b.Totals {
		c := domain.Currency(t.Currency)
		money := func(minor int64) domain.Money { return domain.Money{Minor: minor, Currency: c} }
		if t.Expected.Minor != owed[c] {
			differ("the service expects %s where %s are owed", money(t.Expected.Minor), money(owed[c]))
		}
		if t.Taken.Minor != charged[c] {
			differ("the service has taken %s where Stripe has charged %s", money(t.Taken.Minor), money(charged[c]))
		}
		delete(owed, c)
	}
	for c, minor := range owed {
		differ("the service's books have nothing in %s where %s are owed", c, domain.Money{Minor: minor, Currency: c})
	}
	unknown := 0
	for _, m := range movements {
		if m.Moved() && !b.charges[m.Charge] {
			unknown++
		}
	}
	if unknown > 0 {
		differ("%s of Stripe's ledger are not in the service's books", plural(unknown, "charge", "charges"))
	}
	return differences
}

// The metrics that tell what a bill costs.
const (
	moneyCommits    = `billonce_commits_total{path="money"}`
	deliveryCommits = `billonce_commits_total{path="delivery"}`
	billsDecided    = `billonce_bills_decided_total`
	roundTrips      = `billonce_database_round_trips_total`
	resident        = `process_resident_memory_bytes`
)

// cost is what bills took of the service and of its database.
type cost struct {
	money, delivery float64 // committed transactions
	trips           float64 // round trips to the database
	bills           float64 // that were decided
}

// costBetween is that of the bills that were decided between two readings of one
// process; before may be nil, for its whole life.
func costBetween(before, after map[string]float64) cost {
	of := func(name string) float64 { return after[name] - before[name] }
	return cost{of(moneyCommits), of(deliveryCommits), of(roundTrips), of(billsDecided)}
}

// commits are those a bill.
func (c cost) commits() string {
	if c.bills == 0 {
		return "not known"
	}
	return fmt.Sprintf("%.2f on the money path (claims, intent ids, outcomes), %.2f of delivery (processors)", c.money/c.bills, c.delivery/c.bills)
}
