package projections

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Reads answers questions out of the read models and the log. Each answer is
// of one moment: the rows and the place they were folded up to are read in one
// snapshot.
//
// Input comes as it was typed; what cannot be accepted is a domain refusal
// that names the parameter. Other errors are the database's.
type Reads struct {
	store *eventstore.Store
	looks chan struct{} // a slot for each look of those who wait
}

// NewReads makes the reads over a store's database.
func NewReads(store *eventstore.Store) Reads { return Reads{store, make(chan struct{}, awaitLooks)} }

// AsOf says which facts an answer contains.
type AsOf struct {
	// Position is the newest place that is contained: whatever stands in the
	// log up to there, of its partition, has been folded in. Where an answer is about one
	// customer it is a place of the customer's partition, so that it can be
	// compared with the position of a receipt.
	Position eventstore.Place `json:"position"`
	// Vector is the place in every partition that the answer spans, opaque.
	Vector string `json:"vector"`
	// Parked is the number of customers whose facts wait in the dead letters of
	// this read model: what is shown of them is old, whatever Position says.
	Parked int `json:"parked,omitempty"`
}

// Money is an amount as readers see it.
type Money struct {
	Minor    int64           `json:"minor"`
	Currency domain.Currency `json:"currency"`
	Display  string          `json:"display" example:"$50.00"`
}

func money(minor int64, currency string) Money {
	m := domain.Money{Minor: minor, Currency: domain.Currency(currency)}
	if currency == "" {
		return Money{Minor: minor}
	}
	return Money{m.Minor, m.Currency, m.String()}
}

// add adds minor units of the same currency.
func (m *Money) add(minor int64) error {
	sum, err := domain.Money{Minor: m.Minor, Currency: m.Currency}.Add(domain.Money{Minor: minor, Currency: m.Currency})
	*m = money(sum.Minor, string(m.Currency))
	return err
}

// snapshot runs f in a read-only transaction in which every statement sees the
// same moment. It burns no transaction id.
func (r Reads) snapshot(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, r.store.Pool(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// containedSQL is how far a projection has come in a partition p: its token,
// or the partition's end if nothing that it wants lies between them.
const containedSQL = `
	CASE WHEN EXISTS (SELECT FROM events WHERE partition = p AND position > coalesce(t.position, 0) AND event_type = ANY ($2))
	THEN coalesce(t.position, 0)
	ELSE greatest(t.position, coalesce((SELECT position FROM events WHERE partition = p ORDER BY position DESC LIMIT 1), 0)) END`

// codec tells under which names a projection's facts stand in the log.
var codec = eventstore.Current()

// asOf reads how far a projection has come.
func asOf(ctx context.Context, tx pgx.Tx, p Projection) (AsOf, error) {
	rows, err := tx.Query(ctx, `SELECT p, `+containedSQL+`,
				(SELECT count(DISTINCT sequence_key) FROM dead_letters WHERE processor = $1 AND status IN ('parked', 'behind'))
			FROM generate_series(0, 63) AS p LEFT JOIN processor_tokens t ON t.processor = $1 AND t.partition = p`,
		pgx.QueryExecModeCacheDescribe, p.Name, codec.StoredAs(p.Events...))
	if err != nil {
		return AsOf{}, fmt.Errorf("read the tokens of %s: %w", p.Name, err)
	}
	var v vector
	var partition, parked int
	var position int64
	if _, err := pgx.ForEachRow(rows, []any{&partition, &position, &parked}, func() error {
		v[partition] = position
		return nil
	}); err != nil {
		return AsOf{}, fmt.Errorf("read the tokens of %s: %w", p.Name, err)
	}
	return AsOf{Position: v.max(), Vector: v.String(), Parked: parked}, nil
}

// asOfCustomer reads how far a projection has come with one customer.
func asOfCustomer(ctx context.Context, tx pgx.Tx, p Projection, id domain.CustomerID) (AsOf, error) {
	place := eventstore.Place{Partition: eventstore.PartitionOfStream(id.Stream())}
	var as AsOf
	err := tx.QueryRow(ctx, `SELECT `+containedSQL+`,
				(SELECT count(DISTINCT sequence_key) FROM dead_letters WHERE processor = $1 AND sequence_key = $4 AND status IN ('parked', 'behind'))
			FROM (SELECT $3::smallint) AS one (p) LEFT JOIN processor_tokens t ON t.processor = $1 AND t.partition = p`,
		pgx.QueryExecModeCacheDescribe, p.Name, codec.StoredAs(p.Events...), place.Partition, id.Stream().SequenceKey()).Scan(&place.Position, &as.Parked)
	if err != nil {
		return AsOf{}, fmt.Errorf("read the token of %s: %w", p.Name, err)
	}
	as.Position, as.Vector = place, vectorOf(place).String()
	return as, nil
}

func vectorOf(place eventstore.Place) (v vector) {
	v[place.Partition] = place.Position
	return v
}

// How often Await looks: often at first, then ever less, so that a wait is at
// most doubled by it. However many wait, few look at a time: the connections are
// for those who have something to do.
const (
	awaitFirst = 2 * time.Millisecond
	awaitLast  = time.Second
	awaitLooks = 4
)

// Await waits until a projection contains the fact at place, so that a caller
// reads what it has written. It reports whether that is so; after wait (0: one
// look) it is not. A fact that is parked is not contained, however far the
// projection has come.
func (r Reads) Await(ctx context.Context, p Projection, place eventstore.Place, wait time.Duration) (bool, error) {
	end := time.Now().Add(wait)
	for pause := awaitFirst; ; pause = min(2*pause, awaitLast) {
		reached, err := r.contained(ctx, p, place)
		if err != nil {
			return false, err
		}
		left := time.Until(end)
		if reached || left <= 0 {
			return reached, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(min(pause, left)):
		}
	}
}

// contained is one look of Await.
func (r Reads) contained(ctx context.Context, p Projection, place eventstore.Place) (reached bool, err error) {
	select {
	case r.looks <- struct{}{}:
		defer func() { <-r.looks }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	err = r.store.Pool().QueryRow(ctx, `SELECT `+containedSQL+` >= $4
				AND NOT EXISTS (SELECT FROM dead_letters WHERE processor = $1 AND position = $4 AND status IN ('parked', 'behind'))
			FROM (SELECT $3::smallint) AS one (p) LEFT JOIN processor_tokens t ON t.processor = $1 AND t.partition = p`,
		pgx.QueryExecModeCacheDescribe, p.Name, codec.StoredAs(p.Events...), place.Partition, place.Position).Scan(&reached)
	if err != nil {
		return false, fmt.Errorf("wait for %s at %s: %w", p.Name, place, err)
	}
	return reached, nil
}

// parse accepts a parameter by a parser whose error names another field.
func parse[T any](name, s string, parser func(string) (T, error)) (T, error) {
	v, err := parser(s)
	if err == nil {
		return v, nil
	}
	if e, ok := errors.AsType[*domain.Error](err); ok && len(e.Fields) == 1 {
		return v, domain.InvalidField(name, "%s", e.Fields[0].Msg)
	}
	return v, err
}

// wrap says what was being done, unless the error is a refusal that speaks for
// itself.
func wrap(err error, doing string) error {
	if _, refusal := errors.AsType[*domain.Error](err); err == nil || refusal {
		return err
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// inUTC shows a time that the driver gives in the machine's zone.
func inUTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return utc(*t)
}
