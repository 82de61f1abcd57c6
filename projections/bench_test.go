package projections_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// BenchmarkBacklog folds a month of 2,000 customers, six facts a bill, page by
// page, each page and its token in a transaction: what a rebuild costs beside
// reading the log.
func BenchmarkBacklog(b *testing.B) {
	const customers, pageSize = 2000, 500
	log := projectiontest.New(b)
	events := month(customers)
	for _, p := range projections.All() {
		b.Run(p.Name, func(b *testing.B) {
			ctx := b.Context()
			for b.Loop() {
				if err := pgx.BeginFunc(ctx, log.Pool, func(tx pgx.Tx) error { return p.Reset(ctx, tx) }); err != nil {
					b.Fatal(err)
				}
				for from := 0; from < len(events); from += pageSize {
					page := events[from:min(from+pageSize, len(events))]
					if err := pgx.BeginFunc(ctx, log.Pool, func(tx pgx.Tx) error { return p.Fold(ctx, tx, page) }); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(len(events)*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// month is the log of a month that is billed, wave by wave, as it happens:
// every page holds facts of many customers.
func month(customers int) (events []eventstore.Recorded) {
	codec := eventstore.NewCodec(domain.Events())
	for _, wave := range []func(domain.CustomerID) domain.Event{
		registered, activated,
		func(id domain.CustomerID) domain.Event { return due(id, november) },
		func(id domain.CustomerID) domain.Event { return requested(id, november, 1) },
		func(id domain.CustomerID) domain.Event { return started(id, november, 1, 1) },
		func(id domain.CustomerID) domain.Event { return committed(id, november, "pi_"+string(id)) },
		func(id domain.CustomerID) domain.Event { return billed(id, november, 1, "ch_"+string(id)) },
	} {
		for i := range customers {
			id := domain.CustomerID(fmt.Sprintf("customer-%d", i))
			e := wave(id)
			name, version, payload, err := codec.Encode(e)
			if err != nil {
				panic(err)
			}
			events = append(events, eventstore.Recorded{
				Place:  eventstore.Place{Partition: eventstore.PartitionOfStream(id.Stream()), Position: int64(len(events) + 1)},
				Stream: id.Stream(), SequenceKey: string(id), Type: name, SchemaVersion: version, Payload: payload,
				RecordedAt: noon.Add(time.Duration(len(events)) * time.Millisecond), Event: e,
			})
		}
	}
	return events
}
