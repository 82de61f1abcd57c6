package projections

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Fact is an event of the log as readers see it.
type Fact struct {
	Position      eventstore.Place `json:"position"`
	EventID       uuid.UUID        `json:"event_id"`
	Stream        domain.StreamID  `json:"stream"`
	Version       int              `json:"version"` // in its stream
	Type          string           `json:"type"`    // contract name
	SchemaVersion int16            `json:"schema_version"`
	Payload       json.RawMessage  `json:"payload"`
	Metadata      json.RawMessage  `json:"metadata"`              // actor, correlation, causation
	CommandKey    domain.Key       `json:"command_key,omitempty"` // of the command that made it
	Digest        string           `json:"digest"`                // hexadecimal
	RecordedAt    time.Time        `json:"recorded_at"`
}

func factOf(r eventstore.Recorded) Fact {
	return Fact{
		Position: r.Place, EventID: r.EventID, Stream: r.Stream, Version: r.Version, Type: r.Type, SchemaVersion: r.SchemaVersion,
		Payload: r.Payload, Metadata: r.Metadata, CommandKey: r.CommandKey, Digest: hex.EncodeToString(r.Digest), RecordedAt: r.RecordedAt.UTC(),
	}
}

// FactsQuery asks for a part of the log.
type FactsQuery struct {
	After  string // a place such as 17-40213, the next_cursor of a page or, when ascending, a vector; empty: from the beginning
	Stream string // such as customer/cust_123; empty: all
	Type   string // contract name; empty: all
	Limit  int    // as in Page
	Order  Order
}

// parse finds the part of the log that is asked for.
func (q FactsQuery) parse(codec *eventstore.Codec) (span, keyset, error) {
	page := Page{Limit: q.Limit, Order: q.Order}
	place, err := eventstore.ParsePlace(q.After)
	from, isVector := parseVector(q.After)
	switch {
	case err == nil:
		for p := range from {
			from[p] = place.Position
		}
	case !isVector || q.Order == Descending: // a vector has nothing to say of what lies before it
		page.Cursor = q.After
	}
	k, err := page.keyset(1, "facts", q.Stream, q.Type)
	if err != nil {
		return span{}, k, afterNotCursor(err)
	}
	s, err := q.span(k, from, codec)
	return s, k, err
}

// Facts lists events in the order of their positions. Its cursor is a place in
// every partition: positions of different partitions are not handed out in the
// order of commits, so whoever follows the log by its cursor misses nothing,
// though a later page may hold a smaller position of another partition.
//
// There is always a cursor; an ascending page with fewer than limit items is at
// the end of the log for now.
func (r Reads) Facts(ctx context.Context, q FactsQuery) (List[Fact], error) {
	list := List[Fact]{Items: []Fact{}}
	span, k, err := q.parse(r.store.Codec())
	if err != nil {
		return list, err
	}
	err = r.snapshot(ctx, func(tx pgx.Tx) error {
		if list.AsOf, err = endOfLog(ctx, tx); err != nil {
			return err
		}
		list.Items, err = span.read(ctx, tx, k)
		if err != nil {
			return err
		}
		seen, err := span.seen(ctx, tx, k, list.Items)
		list.NextCursor = k.next(seen.String())
		return err
	})
	return list, wrap(err, "read the log")
}

// span is a part of the log: some partitions, each from a place on.
type span struct {
	vector     vector // not beyond; when descending, 0 is the log's end
	partitions []int16
	stream     string
	types      []string
}

// afterNotCursor names the parameter that a cursor comes in here.
func afterNotCursor(err error) error {
	if e, ok := errors.AsType[*domain.Error](err); ok && len(e.Fields) == 1 && e.Fields[0].Field == "cursor" {
		return domain.InvalidField("after", "must be a place such as 17-40213, the vector of an as_of, or the next_cursor of a page with these filters and this order")
	}
	return err
}

func (q FactsQuery) span(k keyset, from vector, codec *eventstore.Codec) (span, error) {
	s := span{vector: from, stream: q.Stream}
	for p := range int16(eventstore.Partitions) {
		s.partitions = append(s.partitions, p)
	}
	if q.Stream != "" {
		if !streamShape(q.Stream) {
			return s, domain.InvalidField("stream", "must be a stream such as customer/cust_123")
		}
		s.partitions = []int16{eventstore.PartitionOfStream(domain.StreamID(q.Stream))}
	}
	if q.Type != "" {
		older := func(shape eventstore.Shape) bool { return shape.Name == q.Type }
		if !slices.Contains(codec.Names(), q.Type) && !slices.ContainsFunc(codec.Older(), older) {
			return s, domain.InvalidField("type", "is not the name of a fact")
		}
		s.types = codec.StoredAs(q.Type)
	}
	if k.after != nil {
		v, ok := parseVector(k.after[0])
		if !ok {
			return s, afterNotCursor(badCursor())
		}
		s.vector = v
	}
	return s, nil
}

// streamShape accepts what can be a stream's name: printable, without spaces.
func streamShape(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) <= 200
}

// bounds are the arrays of a span's partitions and where each begins.
func (s span) bounds(k keyset) (partitions []int16, positions []int64) {
	for _, p := range s.partitions {
		n := s.vector[p]
		if n == 0 && k.order == "DESC" {
			n = math.MaxInt64
		}
		positions = append(positions, n)
	}
	return s.partitions, positions
}

// read reads the next facts: the first of each partition, merged by position.
func (s span) read(ctx context.Context, q eventstore.Querier, k keyset) ([]Fact, error) {
	partitions, positions := s.bounds(k)
	rows, err := q.Query(ctx, `
		SELECT e.partition, e.position, e.event_id, e.stream_id, e.stream_version, e.event_type, e.schema_version,
			e.payload::text, e.metadata::text, coalesce(e.command_key, ''), e.digest, e.recorded_at
		FROM (
			SELECT f.partition, f.position FROM unnest($1::smallint[], $2::bigint[]) AS s (partition, seen)
			CROSS JOIN LATERAL (
				SELECT partition, position FROM events
				WHERE partition = s.partition AND position `+k.compare+` s.seen
					AND ($3::text = '' OR stream_id = $3) AND ($4::text[] IS NULL OR event_type = ANY ($4))
				ORDER BY position `+k.order+` LIMIT $5) f
			ORDER BY f.position `+k.order+` LIMIT $5) AS found
		JOIN events e ON e.partition = found.partition AND e.position = found.position
		ORDER BY e.position `+k.order,
		pgx.QueryExecModeCacheDescribe, partitions, positions, s.stream, s.types, k.limit)
	if err != nil {
		return nil, err
	}
	return pgx.AppendRows([]Fact{}, rows, func(row pgx.CollectableRow) (f Fact, err error) {
		var payload, metadata string
		var digest []byte
		err = row.Scan(&f.Position.Partition, &f.Position.Position, &f.EventID, &f.Stream, &f.Version, &f.Type, &f.SchemaVersion,
			&payload, &metadata, &f.CommandKey, &digest, &f.RecordedAt)
		f.Payload, f.Metadata, f.Digest, f.RecordedAt = json.RawMessage(payload), json.RawMessage(metadata), hex.EncodeToString(digest), f.RecordedAt.UTC()
		return f, err
	})
}

// seen is the vector behind a page. What the page has not shown of a partition
// lies beyond the page's last position or, if the page has room left, nowhere:
// within a partition nothing appears later at a smaller position.
func (s span) seen(ctx context.Context, tx pgx.Tx, k keyset, page []Fact) (vector, error) {
	full := len(page) == k.limit
	if k.order == "DESC" {
		last := int64(1) // nothing lies before it
		if full {
			last = page[len(page)-1].Position.Position
		}
		v := s.vector
		for _, p := range s.partitions {
			v[p] = last
		}
		return v, nil
	}
	last := int64(math.MaxInt64)
	if full {
		last = page[len(page)-1].Position.Position
	}
	partitions, positions := s.bounds(k)
	rows, err := tx.Query(ctx, `
		SELECT s.partition, e.position FROM unnest($1::smallint[], $2::bigint[]) AS s (partition, seen)
		CROSS JOIN LATERAL (
			SELECT position FROM events WHERE partition = s.partition AND position > s.seen AND position <= $3
			ORDER BY position DESC LIMIT 1) e`,
		pgx.QueryExecModeCacheDescribe, partitions, positions, last)
	if err != nil {
		return s.vector, err
	}
	v := s.vector
	var partition int16
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&partition, &position}, func() error {
		v[partition] = position
		return nil
	})
	return v, err
}

// endOfLog is the place of the newest fact there is.
func endOfLog(ctx context.Context, q eventstore.Querier) (AsOf, error) {
	v, err := logEnd(ctx, q)
	return AsOf{Position: v.max(), Vector: v.String()}, err
}

// logEnd is the newest position of each partition.
func logEnd(ctx context.Context, q eventstore.Querier) (v vector, err error) {
	rows, err := q.Query(ctx, `SELECT p, (SELECT position FROM events WHERE partition = p ORDER BY position DESC LIMIT 1)
		FROM generate_series(0, 63) AS p`, pgx.QueryExecModeCacheDescribe)
	if err != nil {
		return v, err
	}
	var partition int
	var position *int64
	_, err = pgx.ForEachRow(rows, []any{&partition, &position}, func() error {
		if position != nil {
			v[partition] = *position
		}
		return nil
	})
	return v, err
}
