package projections

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// billKey is a bill's identity as the tables spell it.
type billKey struct{ customer, period string }

// touched is what a page of facts may change: the bills it names, and every
// bill of the customers of whom it says something as a whole.
type touched struct {
	bills     map[billKey]struct{}
	customers map[string]struct{}
}

func touchedBy(events []eventstore.Recorded) touched {
	t := touched{bills: map[billKey]struct{}{}, customers: map[string]struct{}{}}
	for _, r := range events {
		if _, p, ok := domain.BillOf(r.Event); ok {
			t.bills[billKey{r.SequenceKey, p.String()}] = struct{}{}
		} else {
			t.customers[r.SequenceKey] = struct{}{}
		}
	}
	return t
}

// load reads the touched rows of a table whose primary key begins with
// customer_id and billing_period.
func load[R any](ctx context.Context, tx pgx.Tx, t table[R], touched touched) ([]*R, error) {
	var customers, periods []string
	for k := range touched.bills {
		if _, whole := touched.customers[k.customer]; !whole {
			customers, periods = append(customers, k.customer), append(periods, k.period)
		}
	}
	rows, err := t.query(ctx, tx, t.selectSQL(`JOIN unnest($1::text[], $2::text[]) AS k (customer, period)
		ON customer_id = k.customer AND billing_period = k.period`), customers, periods)
	if err != nil || len(touched.customers) == 0 {
		return rows, err
	}
	more, err := t.query(ctx, tx, t.selectSQL(`WHERE customer_id = ANY ($1)`), slices.Collect(maps.Keys(touched.customers)))
	return append(rows, more...), err
}

// openPage is a page's bills in memory: a B is all that a projection keeps of
// one bill.
type openPage[B any] struct {
	all   []*B
	bills map[billKey]*B
	of    map[string][]*B // a customer's
}

func newPage[B any]() *openPage[B] {
	return &openPage[B]{bills: map[billKey]*B{}, of: map[string][]*B{}}
}

// bill is the page's copy of a bill; a new one is made by blank.
func (p *openPage[B]) bill(k billKey, blank func() *B) *B {
	b, ok := p.bills[k]
	if !ok {
		b = blank()
		p.bills[k] = b
		p.all, p.of[k.customer] = append(p.all, b), append(p.of[k.customer], b)
	}
	return b
}

// each applies every fact to the bills it is about.
func (p *openPage[B]) each(events []eventstore.Recorded, blank func(r eventstore.Recorded, period domain.Period) *B, apply func(*B, eventstore.Recorded)) {
	for _, r := range events {
		if _, period, ok := domain.BillOf(r.Event); ok {
			apply(p.bill(billKey{r.SequenceKey, period.String()}, func() *B { return blank(r, period) }), r)
			continue
		}
		for _, b := range p.of[r.SequenceKey] {
			apply(b, r)
		}
	}
}
