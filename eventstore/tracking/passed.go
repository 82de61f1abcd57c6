package tracking

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

// Passed is what a tolerant processor passed over: the events of one type and
// version that the builds it ran in did not know. It lacks them until it is
// reset, or rebuilt, by a build that does.
type Passed struct {
	Type          string           `json:"type"`
	SchemaVersion int16            `json:"schema_version"`
	Events        int64            `json:"events"`
	First         eventstore.Place `json:"first"`
	Last          eventstore.Place `json:"last"`
}

// pass writes down what a page passes over, on its transaction. An event that
// is met again is not counted again.
func (w *worker) pass(ctx context.Context, tx pgx.Tx, events []eventstore.Recorded) error {
	n := len(events)
	if n == 0 {
		return nil
	}
	partitions, positions := make([]int16, n), make([]int64, n)
	types, versions := make([]string, n), make([]int16, n)
	for i, e := range events {
		partitions[i], positions[i], types[i], versions[i] = e.Partition, e.Position, e.Type, e.SchemaVersion
	}
	if _, err := tx.Exec(ctx, passSQL, w.processor.Name, partitions, positions, types, versions); err != nil {
		return fmt.Errorf("write down what is passed over: %w", err)
	}
	return nil
}

const passSQL = `
INSERT INTO passed_events AS p (processor, partition, event_type, schema_version, events, first_position, last_position)
SELECT $1, e.partition, e.type, e.version, count(*), min(e.position), max(e.position)
FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::smallint[]) AS e(partition, position, type, version)
LEFT JOIN passed_events was ON was.processor = $1 AND was.partition = e.partition AND was.event_type = e.type AND was.schema_version = e.version
WHERE was.last_position IS NULL OR e.position > was.last_position
GROUP BY e.partition, e.type, e.version
ON CONFLICT (processor, partition, event_type, schema_version) DO UPDATE SET events = p.events + excluded.events, last_position = excluded.last_position`

// addPassed adds what was passed over to the processors' statuses.
func addPassed(ctx context.Context, q eventstore.Querier, all []ProcessorStatus) error {
	rows, err := q.Query(ctx, `SELECT DISTINCT ON (processor, event_type, schema_version) processor, event_type, schema_version, sum(events) OVER same,
			first_value(partition) OVER (same ORDER BY first_position), min(first_position) OVER same,
			first_value(partition) OVER (same ORDER BY last_position DESC), max(last_position) OVER same
		FROM passed_events WINDOW same AS (PARTITION BY processor, event_type, schema_version) ORDER BY processor, event_type, schema_version`)
	if err != nil {
		return fmt.Errorf("read what was passed over: %w", err)
	}
	var name string
	var p Passed
	if _, err := pgx.ForEachRow(rows, []any{&name, &p.Type, &p.SchemaVersion, &p.Events, &p.First.Partition, &p.First.Position, &p.Last.Partition, &p.Last.Position}, func() error {
		if i := slices.IndexFunc(all, func(s ProcessorStatus) bool { return s.Processor == name }); i >= 0 {
			all[i].PassedOver = append(all[i].PassedOver, p)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("read what was passed over: %w", err)
	}
	return nil
}
