package eventstore

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/billonce/billonce/domain"
)

const eventColumns = `partition, position, event_id, stream_id, stream_version, event_type, schema_version, sequence_key,
	payload, metadata, command_key, digest, recorded_at`

// Load reads a stream's events after a version, oldest first. An event that
// this build does not know has Err set and Event nil; a decision must refuse
// to be made on it.
func (s *Store) Load(ctx context.Context, q Querier, stream domain.StreamID, after int) ([]Recorded, error) {
	rows, err := q.Query(ctx, loadSQL, string(stream), after)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", stream, err)
	}
	events, err := s.collect(rows)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", stream, err)
	}
	return events, nil
}

const loadSQL = `SELECT ` + eventColumns + ` FROM events WHERE stream_id = $1 AND stream_version > $2 ORDER BY stream_version`

// Since asks for the events of a stream after a version.
type Since struct {
	Stream domain.StreamID
	After  int
}

// LoadMany reads many streams in one round trip. The result has the events of
// each stream in order, streams in no order.
func (s *Store) LoadMany(ctx context.Context, q Querier, wanted []Since) ([]Recorded, error) {
	streams, after := columns(wanted)
	rows, err := q.Query(ctx, loadManySQL, streams, after)
	if err != nil {
		return nil, fmt.Errorf("load %d streams: %w", len(wanted), err)
	}
	events, err := s.collect(rows)
	if err != nil {
		return nil, fmt.Errorf("load %d streams: %w", len(wanted), err)
	}
	return events, nil
}

// QueueLoadMany is LoadMany as a statement of a pipeline; read its answer with
// CollectMany.
func QueueLoadMany(p *pgx.Batch, wanted []Since) {
	streams, after := columns(wanted)
	p.Queue(loadManySQL, streams, after)
}

// CollectMany reads the answer to QueueLoadMany.
func (s *Store) CollectMany(answers pgx.BatchResults) ([]Recorded, error) {
	rows, err := answers.Query()
	if err != nil {
		return nil, fmt.Errorf("load streams: %w", err)
	}
	events, err := s.collect(rows)
	if err != nil {
		return nil, fmt.Errorf("load streams: %w", err)
	}
	return events, nil
}

const loadManySQL = `SELECT e.partition, e.position, e.event_id, e.stream_id, e.stream_version, e.event_type, e.schema_version, e.sequence_key,
	e.payload, e.metadata, e.command_key, e.digest, e.recorded_at
	FROM unnest((SELECT $1::text[]), (SELECT $2::int[])) AS w(stream, after)
	CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.stream_id = w.stream AND e.stream_version > w.after ORDER BY e.stream_version) e`

func columns(wanted []Since) (streams []string, after []int32) {
	for _, w := range wanted {
		streams, after = append(streams, string(w.Stream)), append(after, int32(w.After))
	}
	return streams, after
}

// pageSize is how many events one read of the whole log fetches.
const pageSize = 2000

// ReadAll reads the log in position order after a position, page by page: the
// next page is fetched while the caller handles this one. It ends at what was
// committed when it got there. Positions of different partitions are not
// handed out in commit order; whoever follows the log as it grows keeps a
// position per partition instead.
func (s *Store) ReadAll(ctx context.Context, after int64) iter.Seq2[Recorded, error] {
	return func(yield func(Recorded, error) bool) {
		s.decoded(s.ReadRaw(ctx, s.pool, after), yield)
	}
}

// decoded yields the events of raw as this build reads them.
func (s *Store) decoded(raw iter.Seq2[Recorded, error], yield func(Recorded, error) bool) {
	var parts []Recorded
	for r, err := range raw {
		if err != nil {
			yield(r, err)
			return
		}
		parts = s.codec.AppendDecoded(parts[:0], r)
		for i := range parts {
			if !yield(parts[i], nil) {
				return
			}
		}
	}
}

// ReadRaw is ReadAll on q, with payloads as they are: Event and Err are not
// set. Where q is one connection nothing else may run on it meanwhile.
func (s *Store) ReadRaw(ctx context.Context, q Querier, after int64) iter.Seq2[Recorded, error] {
	return s.pages(func(after int64) (pgx.Rows, error) { return q.Query(ctx, readSQL, after, pageSize) }, after)
}

// ReadPartition reads one partition in order after a position, on q, as ReadAll
// reads the log. Where q is one connection nothing else may run on it meanwhile.
func (s *Store) ReadPartition(ctx context.Context, q Querier, partition int16, after int64) iter.Seq2[Recorded, error] {
	return func(yield func(Recorded, error) bool) {
		read := func(after int64) (pgx.Rows, error) { return q.Query(ctx, partitionSQL, partition, after, pageSize) }
		s.decoded(s.pages(read, after), yield)
	}
}

// ReadPage reads at most limit stored events of a partition, in order after a
// position and up to another, without those of the types skip. There are no more
// when it gives none. Nothing is read ahead, so that q is free in between.
func (s *Store) ReadPage(ctx context.Context, q Querier, partition int16, after, until int64, skip []string, limit int) ([]Recorded, error) {
	rows, err := q.Query(ctx, pageSQL, partition, after, until, skip, limit)
	if err == nil {
		var events []Recorded
		if events, err = s.collect(rows); err == nil {
			return events, nil
		}
	}
	return nil, fmt.Errorf("read partition %d: %w", partition, err)
}

// pages reads page after page and fetches each while the caller handles the
// one before it.
func (s *Store) pages(read func(after int64) (pgx.Rows, error), after int64) iter.Seq2[Recorded, error] {
	type page struct {
		events []Recorded
		err    error
	}
	return func(yield func(Recorded, error) bool) {
		pages, enough := make(chan page), make(chan struct{})
		defer func() {
			close(enough)
			for range pages { // until the fetcher has given its connection back
			}
		}()
		go func() {
			defer close(pages)
			for after := after; ; {
				rows, err := read(after)
				var events []Recorded
				if err == nil {
					events, err = s.scan(rows, pageSize)
				}
				select {
				case pages <- page{events, err}: // an interruption too: a part is not the whole
				case <-enough:
					return
				}
				if err != nil || len(events) < pageSize {
					return
				}
				after = events[len(events)-1].Position
			}
		}()
		for p := range pages {
			for i := range p.events {
				if !yield(p.events[i], nil) {
					return
				}
			}
			if p.err != nil {
				yield(Recorded{}, fmt.Errorf("read the log: %w", p.err))
				return
			}
		}
	}
}

const readSQL = `SELECT ` + eventColumns + ` FROM events WHERE position > $1 ORDER BY position LIMIT $2`

// partitionSQL compares (partition, position) as a row, as newestSQL does.
const partitionSQL = `SELECT ` + eventColumns + ` FROM events
	WHERE (partition, position) > ($1, $2) AND (partition, position) <= ($1, 9223372036854775807) ORDER BY partition, position LIMIT $3`

const pageSQL = `SELECT ` + eventColumns + ` FROM events
	WHERE (partition, position) > ($1, $2) AND (partition, position) <= ($1, $3) AND event_type <> ALL((SELECT $4::text[])::text[])
	ORDER BY partition, position LIMIT $5`

// newestSQL compares (partition, position) as a row, so that only the primary
// key can serve it: the index on position alone would read all partitions.
const newestSQL = `SELECT p, coalesce((SELECT e.position FROM events e WHERE (e.partition, e.position) > (p, 0) AND (e.partition, e.position) <= (p, 9223372036854775807)
	ORDER BY e.partition DESC, e.position DESC LIMIT 1), 0) FROM generate_series(0, 63) AS p`

// Newest is the newest position of each partition, 0 for an empty one.
func (s *Store) Newest(ctx context.Context, q Querier) (newest [Partitions]int64, err error) {
	rows, err := q.Query(ctx, newestSQL)
	if err != nil {
		return newest, fmt.Errorf("read the newest positions: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var p int
		var n int64
		if err := rows.Scan(&p, &n); err != nil {
			return newest, fmt.Errorf("read the newest positions: %w", err)
		}
		newest[p] = n
	}
	return newest, rows.Err()
}

// collect scans and decodes rows of eventColumns.
func (s *Store) collect(rows pgx.Rows) ([]Recorded, error) {
	raw, err := s.scan(rows, 16)
	events := make([]Recorded, 0, len(raw))
	for _, r := range raw {
		events = s.codec.AppendDecoded(events, r)
	}
	return events, err
}

// scan reads rows of eventColumns and leaves their payloads as they are. Of
// each row it takes one copy of all texts and one of all bytes.
func (s *Store) scan(rows pgx.Rows, expected int) ([]Recorded, error) {
	defer rows.Close()
	events := make([]Recorded, 0, expected)
	var stream, name, sequence, payload, metadata, key, digest pgtype.DriverBytes // until the next row
	for rows.Next() {
		events = append(events, Recorded{})
		r := &events[len(events)-1]
		if err := rows.Scan(&r.Partition, &r.Position, (*[16]byte)(&r.EventID), &stream, &r.Version, &name, &r.SchemaVersion, &sequence,
			&payload, &metadata, &key, &digest, &r.RecordedAt); err != nil {
			return events[:len(events)-1], err
		}
		r.RecordedAt = r.RecordedAt.UTC()
		r.Type = s.codec.name(name)
		texts := string(slices.Concat(stream, sequence, key))
		r.Stream, texts = domain.StreamID(texts[:len(stream)]), texts[len(stream):]
		r.SequenceKey, r.CommandKey = texts[:len(sequence)], domain.Key(texts[len(sequence):])
		data := slices.Concat(payload, metadata, digest)
		n := len(payload)
		r.Payload = json.RawMessage(data[:n:n])
		r.Metadata = json.RawMessage(data[n : n+len(metadata) : n+len(metadata)])
		if digest != nil {
			r.Digest = data[n+len(metadata):]
		}
	}
	return events, rows.Err()
}
