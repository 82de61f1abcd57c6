package rebuild_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// rounds is how often each of two rivals is measured, in turns, after a turn to
// warm up.
const rounds = 5

// BenchmarkRebuild rebuilds each read model of 2,000 customers and a month,
// from the empty tables to the switch, beside the least that a drain of the
// same log takes: pages read by position, decoded, one insert of a row an event
// and the place in one pipelined transaction. Both in turns, on the same server.
func BenchmarkRebuild(b *testing.B) {
	const customers = 2_000
	log := aMonth(b, customers)
	events := ask[int64](b, log, `SELECT count(*) FROM events`)
	exec(b, log, `CREATE TABLE seen (turn int, partition smallint, position bigint, sequence_key text, stream_version int, PRIMARY KEY (turn, position))`)
	exec(b, log, `CREATE TABLE place (position bigint)`)
	exec(b, log, `INSERT INTO place VALUES (0)`)
	exec(b, log, `ANALYZE`)
	turn := 0
	floor := func() float64 {
		turn++
		begun := time.Now()
		drain(b, log, turn, events)
		return float64(events) / time.Since(begun).Seconds()
	}
	for _, p := range projections.All() {
		b.Run(p.Name, func(b *testing.B) {
			rate := func() float64 {
				begun := time.Now()
				if r := run(b, log, p, why); r.Events != events || r.Rows().Rows() != 0 {
					b.Fatalf("got %+v", r)
				}
				return float64(events) / time.Since(begun).Seconds()
			}
			floor()
			rate()
			var rates, ratios []float64
			for b.Loop() {
				for range rounds {
					raw, r := floor(), rate()
					rates, ratios = append(rates, r), append(ratios, r/raw)
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(rates), "events/s")
			b.ReportMetric(median(ratios), "ratio")
			fmt.Printf("bench: rebuild-%s %.0f events/s ratio=%.2f\n", p.Name, median(rates), median(ratios))
		})
	}
}

func median(xs []float64) float64 {
	sorted := slices.Sorted(slices.Values(xs))
	return sorted[len(sorted)/2]
}

// drain reads the log and writes a row an event.
func drain(b *testing.B, log *projectiontest.Log, turn int, events int64) {
	conn, err := log.Pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	for after, done := int64(0), int64(0); done < events; {
		rows, err := conn.Query(b.Context(), `SELECT partition, position, sequence_key, stream_version, event_type, schema_version, payload FROM events
			WHERE position > $1 ORDER BY position LIMIT 500`, after)
		if err != nil {
			b.Fatal(err)
		}
		var partitions []int16
		var positions []int64
		var versions []int32
		var keys []string
		var partition, schema int16
		var version int32
		var key, name string
		var payload []byte
		if _, err := pgx.ForEachRow(rows, []any{&partition, &after, &key, &version, &name, &schema, &payload}, func() error {
			partitions, positions, keys, versions = append(partitions, partition), append(positions, after), append(keys, key), append(versions, version)
			_, err := log.Store.Codec().Decode(name, schema, payload)
			return err
		}); err != nil {
			b.Fatal(err)
		}
		batch := &pgx.Batch{}
		batch.Queue(`INSERT INTO seen SELECT $1, * FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::int[])`, turn, partitions, positions, keys, versions)
		batch.Queue(`UPDATE place SET position = $1`, after)
		if err := conn.SendBatch(b.Context(), batch).Close(); err != nil {
			b.Fatal(err)
		}
		done += int64(len(positions))
	}
}
