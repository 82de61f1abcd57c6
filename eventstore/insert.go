package eventstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/billonce/billonce/domain"
)

// Topic is the events table as watermill knows it.
const Topic = "events"

// insertion is one round of batches on its way into the log. It is the schema
// adapter of a watermill publisher: the messages are the events, the columns
// that a message has no room for travel beside them.
type insertion struct {
	wsql.DefaultPostgreSQLSchema // the reading half is tracking's; nothing of it is used here

	batches []Batch
	first   []int // events[first[i]:first[i+1]] are those of batches[i]
	events  []Recorded
	answers []answer
}

// answer says what became of a batch.
type answer int

const (
	fresh answer = iota // it is written
	taken               // its key, or its request's, was there before
	moved               // its stream is not where it expects it
	stale               // taken or moved
)

// lone reports whether batches are of the most frequent kind, which has
// statements of its own: events of one command under its key.
func lone(batches []Batch) bool {
	return len(batches) == 1 && len(batches[0].Events) > 0 && batches[0].Key != "" && batches[0].Request == nil
}

func (in *insertion) requests() bool {
	for i := range in.batches {
		if in.batches[i].Request != nil {
			return true
		}
	}
	return false
}

// oneSQL writes one event under a key: a third of the work of manySQL; fewSQL
// writes several. No row means that the stream or the key is taken; a stream
// that moves between the check and the row violates the unique index instead.
// The lock comes first, then the key, then the row: the order that holds
// everywhere.
const (
	loneKey = `
WITH key AS (
	INSERT INTO command_keys (key, command, fingerprint, stream_id, first_version, last_version)
	SELECT $2, $3, $4, $5, $6::int + 1, $7::int FROM pg_advisory_xact_lock(7310, $1::smallint)
	WHERE $6 = coalesce((SELECT stream_version FROM events WHERE stream_id = $5 ORDER BY stream_version DESC LIMIT 1), 0)
	ON CONFLICT (key) DO NOTHING
	RETURNING key
)
INSERT INTO events (partition, position, event_id, stream_id, stream_version, event_type, schema_version, sequence_key, payload, metadata, command_key, digest)`

	oneSQL = loneKey + `
SELECT $1, nextval('events_position_seq'), $10, $5, $7, $11, $12, $8, $13, $9, key, $14 FROM key
RETURNING stream_version, position, recorded_at`

	fewSQL = loneKey + `
SELECT $1, nextval('events_position_seq'), e.event_id, $5, $6 + e.ord, e.name, e.schema, $8, e.payload::json, $9, key, e.digest
FROM key, unnest((SELECT $10::uuid[]), (SELECT $11::text[]), (SELECT $12::smallint[]), (SELECT $13::text[]), (SELECT $14::bytea[]))
	WITH ORDINALITY AS e(event_id, name, schema, payload, digest, ord)
ORDER BY e.ord
RETURNING stream_version, position, recorded_at`
)

// The many statement writes batches whose stream is where they expect it and
// whose keys are new. It returns the events' places, and a row for each batch
// that was not written. The partitions are locked by the statement before it.
//
// Arrays are wrapped in sub-selects to hide their lengths from the planner: a
// plan that does not depend on them is made once and kept, and making one takes
// longer than executing it. The series beside them lets the planner expect a
// thousand batches, so that the plan it keeps joins by hash.
const (
	manyBatches = `
WITH batch AS MATERIALIZED (
	SELECT b.*, expected = coalesce((SELECT e.stream_version FROM events e WHERE e.stream_id = b.stream ORDER BY e.stream_version DESC LIMIT 1), 0) AS here
	FROM ROWS FROM (generate_series(1, (SELECT $1::int)), unnest((SELECT $2::text[])), unnest((SELECT $3::int[])), unnest((SELECT $4::int[])), unnest((SELECT $5::text[])),
		unnest((SELECT $6::text[])), unnest((SELECT $7::bytea[])), unnest((SELECT $8::smallint[])), unnest((SELECT $9::text[])), unnest((SELECT $10::text[]))`
	manyHeaders = `,
		unnest((SELECT $18::text[])), unnest((SELECT $19::text[])), unnest((SELECT $20::bytea[]))`
	manyNames   = `) AS b(n, stream, expected, last, key, command, fingerprint, partition, sequence, metadata`
	headerNames = `, actor, header, body_digest`
	manyKeys    = `)
), keys AS (
	INSERT INTO command_keys (key, command, fingerprint, stream_id, first_version, last_version)
	SELECT key, command, fingerprint, stream, expected + 1, last FROM batch b WHERE here AND key <> ''`
	unlessRequested = ` AND NOT EXISTS (SELECT FROM request_keys r WHERE r.actor = b.actor AND r.key = b.header)`
	manyFresh       = ` ORDER BY key COLLATE "C"
	ON CONFLICT (key) DO NOTHING
	RETURNING key
), fresh AS MATERIALIZED (
	SELECT * FROM batch b WHERE here AND (key IN (SELECT key FROM keys) OR key = '')`
	manyRequests = `
), requests AS (
	INSERT INTO request_keys (actor, key, command, body_digest, command_key)
	SELECT actor, header, command, body_digest, key FROM fresh WHERE header <> '' ORDER BY actor COLLATE "C", header COLLATE "C"`
	manyEvents = `
), written AS (
	INSERT INTO events (partition, position, event_id, stream_id, stream_version, event_type, schema_version, sequence_key, payload, metadata, command_key, digest)
	SELECT b.partition, nextval('events_position_seq'), e.event_id, b.stream, e.version, e.name, e.schema, b.sequence, e.payload::json, b.metadata::json, nullif(b.key, ''), e.digest
	FROM unnest((SELECT $11::int[]), (SELECT $12::uuid[]), (SELECT $13::int[]), (SELECT $14::text[]), (SELECT $15::smallint[]), (SELECT $16::text[]), (SELECT $17::bytea[]))
		WITH ORDINALITY AS e(n, event_id, version, name, schema, payload, digest, ord)
	JOIN fresh b USING (n)
	ORDER BY e.ord
	RETURNING stream_id, stream_version, position, recorded_at
)
SELECT 0, false, stream_id, stream_version, position, recorded_at FROM written
UNION ALL
SELECT n, here, '', 0, 0, 'epoch' FROM batch WHERE (n IN (SELECT n FROM fresh)) IS NOT TRUE`

	manySQL          = manyBatches + manyNames + manyKeys + manyFresh + manyEvents
	manyRequestedSQL = manyBatches + manyHeaders + manyNames + headerNames + manyKeys + unlessRequested + manyFresh + unlessRequested + manyRequests + manyEvents
)

// InsertQuery implements wsql.SchemaAdapter for the messages of this insertion.
func (in *insertion) InsertQuery(_ string, msgs message.Messages) (wsql.Query, error) {
	if lone(in.batches) {
		return in.loneQuery(msgs), nil
	}
	q := wsql.Query{Query: manySQL, Args: append(in.batchColumns(), in.eventColumns(msgs)...)}
	if in.requests() {
		q.Query = manyRequestedSQL
		q.Args = append(q.Args, in.requestColumns()...)
	}
	return q, nil
}

func (in *insertion) loneQuery(msgs message.Messages) wsql.Query {
	b, e := &in.batches[0], &in.events[0]
	args := make([]any, 9, 14)
	copy(args, []any{
		e.Partition, string(b.Key), b.Command, b.Fingerprint, string(b.Stream), int32(b.Head.Version), int32(b.Head.Version + len(b.Events)),
		e.SequenceKey, []byte(e.Metadata),
	})
	if len(in.events) == 1 {
		return wsql.Query{Query: oneSQL, Args: append(args, [16]byte(e.EventID), e.Type, e.SchemaVersion, []byte(msgs[0].Payload), e.Digest)}
	}
	columns := in.eventColumns(msgs) // owners, ids, versions, names, schemas, payloads, digests
	return wsql.Query{Query: fewSQL, Args: append(args, columns[1], columns[3], columns[4], columns[5], columns[6])}
}

func (in *insertion) batchColumns() []any {
	n := len(in.batches)
	texts, bytes := make([]string, 4*n), make([][]byte, 2*n) // one allocation for the columns of a kind
	streams, keys, commands, sequences := texts[:n], texts[n:2*n], texts[2*n:3*n], texts[3*n:]
	fingerprints, metas := bytes[:n], bytes[n:]
	expected, last, partitions := make([]int32, n), make([]int32, n), make([]int16, n)
	for i := range in.batches {
		b := &in.batches[i]
		streams[i], keys[i], commands[i], fingerprints[i] = string(b.Stream), string(b.Key), b.Command, b.Fingerprint
		expected[i], last[i] = int32(b.Head.Version), int32(b.Head.Version+len(b.Events))
		if in.first[i] < in.first[i+1] {
			e := &in.events[in.first[i]]
			partitions[i], sequences[i], metas[i] = e.Partition, e.SequenceKey, e.Metadata
		}
	}
	return []any{int32(n), streams, expected, last, keys, commands, fingerprints, partitions, sequences, metas}
}

func (in *insertion) eventColumns(msgs message.Messages) []any {
	n := len(msgs)
	owners, versions := make([]int32, n), make([]int32, n)
	names, schemas, ids := make([]string, n), make([]int16, n), make([][16]byte, n)
	payloads, digests := make([][]byte, n), make([][]byte, n)
	for i := range in.batches {
		for k := in.first[i]; k < in.first[i+1]; k++ {
			owners[k] = int32(i + 1)
		}
	}
	for k, msg := range msgs {
		e := &in.events[k]
		ids[k], versions[k], names[k], schemas[k], payloads[k], digests[k] = e.EventID, int32(e.Version), e.Type, e.SchemaVersion, msg.Payload, e.Digest
	}
	return []any{owners, ids, versions, names, schemas, payloads, digests}
}

func (in *insertion) requestColumns() []any {
	n := len(in.batches)
	actors, headers, digests := make([]string, n), make([]string, n), make([][]byte, n)
	for i := range in.batches {
		if r := in.batches[i].Request; r != nil {
			actors[i], headers[i], digests[i] = r.Actor, string(r.Key), r.BodyDigest
		}
	}
	return []any{actors, headers, digests}
}

// run publishes the insertion on q, and says of each batch what became of it.
// The partitions to lock are locked by a statement of their own, so that the
// insert's snapshot is younger than the locks and no stream can move between
// its check and its rows.
func (in *insertion) run(ctx context.Context, q Querier, lock []int16) error {
	p := &pipe{ctx: ctx, q: q, in: in, lock: lock}
	publisher, err := wsql.NewPublisher(p, wsql.PublisherConfig{SchemaAdapter: in}, watermill.NopLogger{})
	if err != nil {
		return fmt.Errorf("open a publisher: %w", err)
	}
	// Nobody acknowledges these messages, so they need no more than a payload;
	// the event's id is among the columns.
	all, msgs := make([]message.Message, len(in.events)), make(message.Messages, len(in.events))
	for i := range in.events {
		all[i].Payload = message.Payload(in.events[i].Payload)
		msgs[i] = &all[i]
	}
	return publisher.Publish(Topic, msgs...)
}

// result is the receipt and the events of the i-th batch, which was written.
func (in *insertion) result(i int) Result {
	b, events := &in.batches[i], in.events[in.first[i]:in.first[i+1]:in.first[i+1]]
	r := Result{Receipt: Receipt{
		Key: b.Key, Command: b.Command, Stream: b.Stream, Version: b.Head.Version + len(events), Events: make([]EventRef, len(events)),
	}}
	for k, e := range events {
		r.Receipt.Events[k] = EventRef{e.Type, e.Version, e.Place}
		r.Receipt.Position = e.Place
	}
	if len(events) > 0 {
		r.Recorded = events
	}
	return r
}

// pipe is the database handle of one publish: it runs the insert on a pgx
// connection, in one round trip with the locks, under the caller's context,
// and takes in the rows that the insert returns.
type pipe struct {
	ctx  context.Context
	q    Querier
	in   *insertion
	lock []int16
}

// ExecContext implements wsql.ContextExecutor.
func (p *pipe) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	if len(p.lock) == 0 {
		rows, err := p.q.Query(p.ctx, query, args...)
		if err != nil {
			return nil, err
		}
		return nil, p.in.scan(rows)
	}
	batch := &pgx.Batch{}
	batch.Queue(lockSQL, lockClass, p.lock)
	batch.Queue(query, args...)
	answers := p.q.SendBatch(p.ctx, batch)
	defer answers.Close()
	if _, err := answers.Exec(); err != nil {
		return nil, err
	}
	rows, err := answers.Query()
	if err != nil {
		return nil, err
	}
	if err := p.in.scan(rows); err != nil {
		return nil, err
	}
	return nil, answers.Close()
}

func (in *insertion) scan(rows pgx.Rows) error {
	defer rows.Close()
	if lone(in.batches) {
		in.answers[0] = stale
		for rows.Next() {
			var version int
			var position int64
			var at time.Time
			if err := rows.Scan(&version, &position, &at); err != nil {
				return err
			}
			e := &in.events[version-in.batches[0].Head.Version-1]
			e.Position, e.RecordedAt = position, at.UTC()
			in.answers[0] = fresh
		}
		return rows.Err()
	}
	owner := make(map[string]int, len(in.batches)) // no stream occurs twice in a round
	for i := range in.batches {
		owner[string(in.batches[i].Stream)] = i
	}
	for rows.Next() {
		var (
			n, version int
			here       bool
			stream     pgtype.DriverBytes // until the next row
			position   int64
			at         time.Time
		)
		if err := rows.Scan(&n, &here, &stream, &version, &position, &at); err != nil {
			return err
		}
		switch {
		case n == 0:
			i := owner[string(stream)]
			e := &in.events[in.first[i]+version-in.batches[i].Head.Version-1]
			e.Position, e.RecordedAt = position, at.UTC()
		case here:
			in.answers[n-1] = taken
		default:
			in.answers[n-1] = moved
		}
	}
	return rows.Err()
}

var errUnused = errors.New("eventstore: a publisher only executes")

// The rest of wsql.ContextExecutor; a publisher never calls it.

func (p *pipe) Exec(string, ...any) (sql.Result, error) { return nil, errUnused }
func (p *pipe) Query(string, ...any) (*sql.Rows, error) { return nil, errUnused }
func (p *pipe) QueryRow(string, ...any) *sql.Row        { return nil }
func (p *pipe) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, errUnused
}
func (p *pipe) QueryRowContext(context.Context, string, ...any) *sql.Row { return nil }

var _ wsql.ContextExecutor = (*pipe)(nil)
var _ wsql.SchemaAdapter = (*insertion)(nil)

// keyReused is what a clash on request_keys means.
func keyReused(key domain.Key) error {
	return domain.ErrKeyReused.With("Idempotency-Key %s was used before for something else", key)
}
