package projections

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Feed is one reader's way through the log. It remembers a place in every
// partition and nothing else: each page is read anew, and between two pages
// neither a transaction nor a connection is held. It is not for concurrent use.
type Feed struct {
	reads    Reads
	span     span
	k        keyset
	filtered bool
}

// Passed is a fact that a feed has come to, and the cursor behind it: whoever
// begins a feed there gets every later fact of these filters, each once, and in
// a partition in order.
type Passed struct {
	Fact
	Cursor string
}

// Feed begins behind q.After: a place, a cursor of Facts in ascending order, or
// a vector, which is what an answer's as_of and a feed's own cursors are. The
// feed ascends, whatever q.Order says, by q.Limit facts a page.
//
// It returns domain.ErrAheadOfLog for a cursor or vector that names what the log
// does not have: whoever went on from there would miss what the log has yet to
// record.
func (r Reads) Feed(ctx context.Context, q FactsQuery) (*Feed, error) {
	q.Order = Ascending
	s, k, err := q.parse(r.store.Codec())
	if err != nil {
		return nil, err
	}
	if _, err := eventstore.ParsePlace(q.After); err != nil && s.vector != (vector{}) { // a place is not of every partition
		end, err := logEnd(ctx, r.store.Pool())
		if err != nil {
			return nil, wrap(err, "read the end of the log")
		}
		for p, n := range s.vector {
			if n > end[p] {
				return nil, domain.ErrAheadOfLog
			}
		}
	}
	return &Feed{reads: r, span: s, k: k, filtered: q.Stream != "" || q.Type != ""}, nil
}

// Next reads the next facts, up to the limit. There are none at the end of the
// log for now.
func (f *Feed) Next(ctx context.Context) ([]Passed, error) {
	facts, behind, err := f.read(ctx)
	if err != nil {
		return nil, wrap(err, "read the feed")
	}
	passed := make([]Passed, len(facts))
	at := f.span.vector
	for i, fact := range facts {
		at[fact.Position.Partition] = fact.Position.Position
		passed[i] = Passed{fact, at.String()}
	}
	if f.span.vector = at; f.filtered {
		f.span.vector = behind
	}
	return passed, nil
}

// Cursor is the place behind all that Next has read, and behind what it has
// passed over because of the filters.
func (f *Feed) Cursor() string { return f.span.vector.String() }

// read reads a page and, if facts may lie between those of the page, the place
// behind them all.
func (f *Feed) read(ctx context.Context) (facts []Fact, behind vector, err error) {
	if !f.filtered {
		facts, err = f.span.read(ctx, f.reads.store.Pool(), f.k)
		return facts, behind, err
	}
	err = f.reads.snapshot(ctx, func(tx pgx.Tx) error {
		if facts, err = f.span.read(ctx, tx, f.k); err != nil {
			return err
		}
		behind, err = f.span.seen(ctx, tx, f.k, facts)
		return err
	})
	return facts, behind, err
}
