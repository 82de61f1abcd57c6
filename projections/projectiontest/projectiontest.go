// Package projectiontest writes a log and checks read models against it.
//
//	log := projectiontest.New(t)
//	log.Given("acme", registered, activated, due)
//	log.Check(projections.Bills)
//
// Check proves, unasked, what every projection promises: the rows are the same
// whether the log comes in one page, event by event, in pages of several
// partitions that are cut anyhow and delivered twice, or once more after a
// reset.
package projectiontest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/projections"
)

// T is what a Log asks of a test: *testing.T and *rapid.T have it.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Context() context.Context
}

// Log is a log on a database of its own.
type Log struct {
	Pool  *pgxpool.Pool
	Store *eventstore.Store

	t     T
	heads map[domain.CustomerID]eventstore.Head
	all   []eventstore.Recorded
}

// New makes an empty log.
func New(t testing.TB) *Log {
	t.Helper()
	pool := pgtest.Pool(t)
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), slog.New(slog.DiscardHandler))
	t.Cleanup(store.Close)
	return &Log{Pool: pool, Store: store, t: t, heads: map[domain.CustomerID]eventstore.Head{}}
}

// Cleared is the log for another test on the same database: empty, as are all
// read models.
func (l *Log) Cleared(t T) *Log {
	t.Helper()
	cleared := &Log{Pool: l.Pool, Store: l.Store, t: t, heads: map[domain.CustomerID]eventstore.Head{}}
	cleared.exec(`TRUNCATE events, command_keys, processor_tokens, dead_letters`)
	for _, p := range projections.All() {
		cleared.reset(p)
	}
	return cleared
}

// Given appends facts to a customer's stream and returns them as recorded.
func (l *Log) Given(customer domain.CustomerID, facts ...domain.Event) []eventstore.Recorded {
	l.t.Helper()
	if len(facts) == 0 {
		return nil
	}
	result, err := l.Store.Append(l.t.Context(), eventstore.Batch{Stream: customer.Stream(), Head: l.heads[customer], Command: "test", Events: facts})
	if err != nil {
		l.t.Fatalf("append to %s: %v", customer, err)
	}
	l.heads[customer] = result.Recorded[len(result.Recorded)-1].Head()
	l.all = append(l.all, result.Recorded...)
	return result.Recorded
}

// Reads are the reads over the log's database.
func (l *Log) Reads() projections.Reads { return projections.NewReads(l.Store) }

// Project folds the whole log into the projections and moves their tokens.
func (l *Log) Project(ps ...projections.Projection) {
	l.t.Helper()
	for _, p := range ps {
		l.deliver(p, l.all)
		for _, e := range l.all {
			l.exec(`INSERT INTO processor_tokens (processor, partition, position) VALUES ($1, $2, $3)
				ON CONFLICT (processor, partition) DO UPDATE SET position = greatest(processor_tokens.position, excluded.position)`,
				p.Name, e.Partition, e.Position)
		}
	}
}

// Check delivers the log to p in every way that the promise covers and fails
// the test where the rows differ. It leaves the tables folded, and returns them
// as text.
func (l *Log) Check(p projections.Projection) string {
	l.t.Helper()
	l.reset(p)
	l.deliver(p, l.all)
	want := l.Rows(p)
	same := func(way string) {
		l.t.Helper()
		if got := l.Rows(p); got != want {
			l.t.Fatalf("%s: delivered %s the rows are\n%s\nand in one page\n%s", p.Name, way, got, want)
		}
	}
	l.deliver(p, l.all)
	same("twice")
	for i := range l.all {
		l.deliver(p, l.all[i:i+1])
	}
	same("once more, event by event,")

	random := rand.New(rand.NewPCG(1, uint64(len(l.all))))
	l.reset(p)
	for _, page := range cut(random, l.all) {
		l.deliver(p, page)
		if random.IntN(3) == 0 {
			l.deliver(p, page)
		}
	}
	same("in pages of any cut")
	for _, page := range cut(random, l.all) {
		l.deliver(p, page)
	}
	same("once more, in pages of another cut,")

	l.reset(p)
	if got := l.Rows(p); strings.ContainsRune(got, '(') {
		l.t.Fatalf("%s: a reset leaves rows:\n%s", p.Name, got)
	}
	for e, err := range l.Store.ReadAll(l.t.Context(), 0) {
		if err != nil {
			l.t.Fatalf("read the log: %v", err)
		}
		l.deliver(p, []eventstore.Recorded{e})
	}
	same("from the log, event by event, after a reset,")
	return want
}

// Rows is all that the projection's tables hold, as text, in a fixed order.
func (l *Log) Rows(p projections.Projection) string {
	l.t.Helper()
	var text strings.Builder
	for _, table := range p.Tables {
		name := pgx.Identifier{table}.Sanitize()
		rows, err := l.Pool.Query(l.t.Context(), "SELECT t::text FROM "+name+` t ORDER BY t::text COLLATE "C"`)
		if err != nil {
			l.t.Fatalf("read %s: %v", table, err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			l.t.Fatalf("read %s: %v", table, err)
		}
		fmt.Fprintf(&text, "%s\n\t%s\n", table, strings.Join(lines, "\n\t"))
	}
	return text.String()
}

func (l *Log) reset(p projections.Projection) {
	l.t.Helper()
	if err := pgx.BeginFunc(l.t.Context(), l.Pool, func(tx pgx.Tx) error { return p.Reset(l.t.Context(), tx) }); err != nil {
		l.t.Fatalf("reset %s: %v", p.Name, err)
	}
}

// deliver hands p a page in a transaction of its own.
func (l *Log) deliver(p projections.Projection, page []eventstore.Recorded) {
	l.t.Helper()
	if err := pgx.BeginFunc(l.t.Context(), l.Pool, func(tx pgx.Tx) error { return p.Fold(l.t.Context(), tx, page) }); err != nil {
		l.t.Fatalf("deliver %d events to %s: %v", len(page), p.Name, err)
	}
}

func (l *Log) exec(sql string, args ...any) {
	l.t.Helper()
	if _, err := l.Pool.Exec(l.t.Context(), sql, args...); err != nil {
		l.t.Fatalf("%v", err)
	}
}

// cut makes pages as a tracking processor may: some next events of some
// partitions, in order within each.
func cut(random *rand.Rand, events []eventstore.Recorded) (pages [][]eventstore.Recorded) {
	waiting := map[int16][]eventstore.Recorded{}
	var partitions []int16
	for _, e := range events {
		if waiting[e.Partition] == nil {
			partitions = append(partitions, e.Partition)
		}
		waiting[e.Partition] = append(waiting[e.Partition], e)
	}
	for left := len(events); left > 0; {
		var page []eventstore.Recorded
		random.Shuffle(len(partitions), func(i, j int) { partitions[i], partitions[j] = partitions[j], partitions[i] })
		for _, p := range partitions[:1+random.IntN(len(partitions))] {
			n := min(len(waiting[p]), random.IntN(6))
			page = append(page, waiting[p][:n]...)
			waiting[p] = waiting[p][n:]
		}
		left -= len(page)
		pages = append(pages, page)
	}
	return pages
}
