package sagas_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/sagas"
)

// BenchmarkDueScan measures how fast a month of 20,000 customers is declared due
// by one scanner, on a durable PostgreSQL: a fact, its key and a row of the
// schedule each, 200 to a transaction. Beside it, in turns, are the same rows
// written into tables with the same indexes, by as many transactions of three
// statements and nothing else.
func BenchmarkDueScan(b *testing.B) {
	const owing = 20_000
	r := rigOn(b, pgtest.Pool(b))
	s := r.scheduled(owing)
	r.exec(`CREATE TABLE raw_events (LIKE events INCLUDING ALL)`)
	r.exec(`CREATE TABLE raw_keys (LIKE command_keys INCLUDING ALL)`)
	r.exec(`CREATE TABLE raw_schedule (LIKE subscription_schedule INCLUDING ALL)`)
	r.exec(`INSERT INTO raw_schedule SELECT * FROM subscription_schedule`)
	now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	clock := sagas.NewClock(func(context.Context) (time.Time, error) { return now, nil }, 0)
	scanner := sagas.NewDueScanner(s.d, clock, time.Second, r.log)
	var declaring, raw time.Duration
	newest := int64(0)
	for b.Loop() {
		now = now.AddDate(0, 1, 0)
		began := time.Now()
		for {
			n, err := scanner.Scan(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			if n == 0 {
				break
			}
		}
		declaring += time.Since(began)
		took, last := r.rawDues(now, newest)
		raw, newest = raw+took, last
	}
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'billing.due.v1'`); n != owing*b.N || n != r.count(`SELECT count(*) FROM raw_events`) {
		b.Errorf("%d dues, want %d", n, owing*b.N)
	}
	dues := float64(owing * b.N)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(dues/declaring.Seconds(), "dues/s")
	b.ReportMetric(dues/raw.Seconds(), "raw_dues/s")
	b.ReportMetric(raw.Seconds()/declaring.Seconds(), "ratio")
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(context.Background(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// rawDues writes what is newer than a position once more, without deciding.
func (r *rig) rawDues(now time.Time, newer int64) (took time.Duration, newest int64) {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), `SELECT position FROM events WHERE event_type = 'billing.due.v1' AND position > $1 ORDER BY position`, newer)
	if err != nil {
		r.t.Fatal(err)
	}
	positions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		r.t.Fatal(err)
	}
	began := time.Now()
	for batch := range slices.Chunk(positions, 200) {
		if err := pgx.BeginFunc(context.Background(), r.pool, func(tx pgx.Tx) error {
			writes := &pgx.Batch{}
			writes.Queue(`INSERT INTO raw_events SELECT * FROM events WHERE position = ANY ($1)`, batch)
			writes.Queue(`INSERT INTO raw_keys SELECT k.* FROM events e JOIN command_keys k ON k.key = e.command_key WHERE e.position = ANY ($1)`, batch)
			writes.Queue(`UPDATE raw_schedule s SET due_at = $2 FROM events e WHERE e.position = ANY ($1) AND s.customer_id = e.sequence_key`, batch, now)
			return tx.SendBatch(context.Background(), writes).Close()
		}); err != nil {
			r.t.Fatal(err)
		}
	}
	return time.Since(began), positions[len(positions)-1]
}

// scheduled is a service whose schedule holds so many customers, due on the first
// of each month from December 2026 on.
func (r *rig) scheduled(n int) *service {
	r.t.Helper()
	s := r.start(options{noProcessors: true})
	for start := 0; start < n; start += 1000 {
		var streams []domain.StreamID
		var reqs []commands.Request
		for i := start; i < min(n, start+1000); i++ {
			id := domain.CustomerID(fmt.Sprintf("cust-%06d", i))
			streams = append(streams, id.Stream())
			reqs = append(reqs, commands.Of(commands.NewRegisterCustomer(id, fmt.Sprintf("cus_%06d", i), "pm_card_visa")),
				commands.Of(commands.NewActivateSubscription(id, usd(5000), domain.Schedule{Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "UTC", StartsOn: domain.Date{Year: 2026, Month: 12, Day: 1}})))
		}
		tx, err := r.pool.Begin(context.Background())
		if err != nil {
			r.t.Fatal(err)
		}
		unit, err := s.d.Begin(context.Background(), tx, streams, nil, nil)
		if err == nil {
			_, err = unit.Dispatch(context.Background(), eventstore.Meta{Actor: "test"}, reqs...)
		}
		if err == nil {
			err = tx.Commit(context.Background())
		}
		if err != nil {
			r.t.Fatal(err)
		}
		unit.Committed()
	}
	if _, err := r.pool.Exec(context.Background(), `INSERT INTO subscription_schedule (customer_id, partition, next_period, due_at, last_position)
		SELECT sequence_key, partition, '2026-12', '2026-12-01 00:00 UTC', position FROM events WHERE event_type = 'subscription.activated.v1'`); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.pool.Exec(context.Background(), `ANALYZE`); err != nil {
		r.t.Fatal(err)
	}
	return s
}
