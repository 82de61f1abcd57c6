package imports

import (
	"context"
	"fmt"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
)

// Events lists Stripe's events, newest first.
type Events interface {
	Events(context.Context, sagas.EventListing) (sagas.EventPage, error)
}

// UsedKeys are idempotency keys of the form of Billonce's own that somebody has
// used at Stripe. A bill whose charge key is among them would not be charged by
// Stripe but answered with whatever the key stands for there. Nil is none.
type UsedKeys struct {
	objects map[string]string // by the charge key within: what it made
	bills   map[string]string // the bill that the object's markers name
}

const (
	chargeKeyLength = 32  // the hexadecimal part that all keys of an attempt share
	eventPage       = 100 // Stripe's limit
)

// ReadUsedKeys reads the keys of all events that Stripe still lists: those of
// the last 30 days (https://docs.stripe.com/api/events), which is longer than it
// honours a key. Read is told how many events were read.
func ReadUsedKeys(ctx context.Context, stripe Events, read func(events int)) (*UsedKeys, error) {
	used := &UsedKeys{objects: map[string]string{}, bills: map[string]string{}}
	listing := sagas.EventListing{PageSize: eventPage}
	for events := 0; ; {
		page, err := stripe.Events(ctx, listing)
		if err != nil {
			return nil, fmt.Errorf("read the keys used at Stripe: %w", err)
		}
		for _, n := range page.News {
			used.add(n)
		}
		events += len(page.News)
		read(events)
		if !page.More || len(page.News) == 0 {
			return used, nil
		}
		listing.After = page.News[len(page.News)-1].EventID
	}
}

func (u *UsedKeys) add(n sagas.News) {
	key := n.IdempotencyKey
	if len(key) < chargeKeyLength {
		return
	}
	for _, c := range []byte(key[:chargeKeyLength]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return
		}
	}
	u.objects[key[:chargeKeyLength]] = n.ObjectID
	if n.Charge != nil && n.Charge.CustomerID != "" {
		u.bills[key[:chargeKeyLength]] = n.Charge.CustomerID + " " + n.Charge.Period
	}
}

// Len is how many keys there are.
func (u *UsedKeys) Len() int {
	if u == nil {
		return 0
	}
	return len(u.objects)
}

// How far ahead keys are compared: a key that is used is forgotten at Stripe
// long before.
const (
	periodsAhead = 12
	attempts     = 4
)

// check compares the keys of a row's next bills. A key that has made an object
// with the bill's own markers is Billonce's.
func (u *UsedKeys) check(r *row) error {
	if u.Len() == 0 {
		return nil
	}
	p := domain.PeriodOf(r.cadence, r.starts.Year, int(r.starts.Month))
	for p.BeginsBy(r.through) {
		p = p.Next()
	}
	for range periodsAhead {
		for attempt := 1; attempt <= attempts; attempt++ {
			key := string(domain.ChargeKey(domain.CustomerID(r.customer), p, attempt))
			object, used := u.objects[key]
			if used && u.bills[key] != r.customer+" "+p.String() {
				return fmt.Errorf("the charge key of %s, %s, is in use at Stripe: it made %s. Another system makes the same keys; import the customer under another customer_id", p, key, object)
			}
		}
		p = p.Next()
	}
	return nil
}
