package sagas_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/sagas"
)

// BenchmarkDueScan measures how fast a month of 20,000 customers is declared due
// by one scanner, on a durable PostgreSQL: a fact, its key and a row of the
// schedule each.
func BenchmarkDueScan(b *testing.B) {
	const owing = 20_000
	r := rigOn(b, pgtest.Pool(b))
	now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	s := r.scheduled(owing)
	clock := sagas.NewClock(func(context.Context) (time.Time, error) { return now, nil }, time.Hour)
	for b.Loop() {
		now = now.AddDate(0, 1, 0)
		clock = sagas.NewClock(func(context.Context) (time.Time, error) { return now, nil }, time.Hour)
		scanner := sagas.NewDueScanner(s.d, clock, time.Second, r.log)
		for {
			n, err := scanner.Scan(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			if n == 0 {
				break
			}
		}
	}
	b.StopTimer()
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'billing.due.v1'`); n != owing*b.N {
		b.Errorf("%d dues, want %d", n, owing*b.N)
	}
	b.ReportMetric(float64(owing*b.N)/b.Elapsed().Seconds(), "dues/s")
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
