package demo

import (
	"context"

	"github.com/billonce/billonce/cmd/billingctl/internal/parts"
)

// ledgerReader follows the ledger.
type ledgerReader struct {
	stand     parts.StandIn
	movements []parts.Movement
	charged   map[string]bool // customers, by their names at Stripe
}

// newLedgerReader follows the ledger from its end after what was there before.
func newLedgerReader(s parts.StandIn, before []parts.Movement) *ledgerReader {
	return &ledgerReader{stand: s, movements: before, charged: map[string]bool{}}
}

// read takes in what is new, and reports whether there was anything.
func (l *ledgerReader) read(ctx context.Context) (more bool, err error) {
	after := ""
	if n := len(l.movements); n > 0 {
		after = l.movements[n-1].Charge
	}
	fresh, err := l.stand.Ledger(ctx, after)
	if err != nil {
		return false, err
	}
	l.movements = append(l.movements, fresh...)
	for _, m := range fresh {
		if m.Moved() {
			l.charged[m.Customer] = true
		}
	}
	return len(fresh) > 0, nil
}
