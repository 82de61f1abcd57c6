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

	"github.com/billonce/billonce/domain"
)

// Topic is the events table as watermill knows it.
const Topic = "events"

// insertion is one round of batches on its way into the log. It is the schema
// adapter of a watermill publisher: the messages are the events, the columns
// that a message has no room for travel beside them.
type insertion struct {
	wsql.DefaultPostgreSQLSchema // the reading half is tracking's; nothing of it is used here

	number               []int32
	stream, key, command []string
	expected, last       []int32
	partition            []int32
	fingerprint          [][]byte
	actor, request       []string
	requestDigest        [][]byte
	events               []Recorded
	owner                []int32 // events[i] belongs to batch owner[i]
	alone                bool    // one batch, with events
	answers              []answer
	positions            map[int64]place // by batch and version
}

type answer struct {
	fresh bool // the batch was written
	head  int  // where its stream was
}

type place struct {
	position int64
	at       time.Time
}

func newInsertion(n int) *insertion {
	return &insertion{answers: make([]answer, n), positions: make(map[int64]place, n)}
}

func (in *insertion) addBatch(n int, partition int16, b Batch) {
	in.number = append(in.number, int32(n))
	in.stream = append(in.stream, string(b.Stream))
	in.key = append(in.key, string(b.Key))
	in.command = append(in.command, b.Command)
	in.expected = append(in.expected, int32(b.Head.Version))
	in.last = append(in.last, int32(b.Head.Version+len(b.Events)))
	in.partition = append(in.partition, int32(partition))
	in.fingerprint = append(in.fingerprint, b.Fingerprint)
	var r RequestKey
	if b.Request != nil {
		r = *b.Request
	}
	in.actor = append(in.actor, r.Actor)
	in.request = append(in.request, string(r.Key))
	in.requestDigest = append(in.requestDigest, r.BodyDigest)
}

func (in *insertion) addEvent(n int, e Recorded) {
	in.events = append(in.events, e)
	in.owner = append(in.owner, int32(n))
}

// insertSQL writes batches whose stream is where they expect it and whose key
// is new, and says of each whether it did. The partitions' locks come first,
// then the keys, then the rows: the order that holds everywhere.
const insertSQL = `
WITH locked AS MATERIALIZED (
	SELECT count(pg_advisory_xact_lock(7310, p)) AS n FROM (SELECT DISTINCT unnest($4::int[]) AS p ORDER BY 1) AS ascending
), batch AS MATERIALIZED (
	SELECT b.*, coalesce((SELECT e.stream_version FROM events e WHERE e.stream_id = b.stream ORDER BY e.stream_version DESC LIMIT 1), 0) AS head
	FROM locked, unnest($1::int[], $2::text[], $3::int[], $5::int[], $6::text[], $7::text[], $8::bytea[], $9::text[], $10::text[], $11::bytea[])
		AS b(n, stream, expected, last, key, command, fingerprint, actor, request, request_digest)
), keys AS (
	INSERT INTO command_keys (key, command, fingerprint, stream_id, first_version, last_version)
	SELECT key, command, fingerprint, stream, expected + 1, last FROM batch WHERE key <> '' AND head = expected ORDER BY key
	ON CONFLICT (key) DO NOTHING
	RETURNING key
), fresh AS MATERIALIZED (
	SELECT n, stream FROM batch b WHERE head = expected AND (key = '' OR EXISTS (SELECT FROM keys k WHERE k.key = b.key))
), requests AS (
	INSERT INTO request_keys (actor, key, command, body_digest, command_key)
	SELECT actor, request, command, request_digest, key FROM batch JOIN fresh USING (n) WHERE request <> ''
), written AS (
	INSERT INTO events (partition, event_id, stream_id, stream_version, event_type, schema_version, sequence_key, payload, metadata, command_key, digest)
	SELECT e.partition, e.event_id, e.stream, e.version, e.name, e.schema, e.sequence, e.payload::json, e.metadata::json, nullif(e.key, ''), e.digest
	FROM unnest($12::int[], $13::smallint[], $14::uuid[], $15::text[], $16::int[], $17::text[], $18::smallint[], $19::text[], $20::text[], $21::text[], $22::text[], $23::bytea[])
		WITH ORDINALITY AS e(n, partition, event_id, stream, version, name, schema, sequence, payload, metadata, key, digest, ord)
	JOIN fresh USING (n)
	ORDER BY e.partition, e.ord
	RETURNING stream_id, stream_version, position, recorded_at
)
SELECT b.n, b.head, f.n IS NOT NULL, w.stream_version, w.position, w.recorded_at
FROM batch b LEFT JOIN fresh f USING (n) LEFT JOIN written w ON w.stream_id = b.stream`

// aloneSQL is insertSQL for one batch that brings events: a tenth of the work
// for the planner and the executor. No row means that the stream or the key is
// taken; a stream that moves between the check and the rows violates the
// unique index instead.
const aloneSQL = `
WITH locked AS MATERIALIZED (
	SELECT pg_advisory_xact_lock(7310, $1)
), keys AS (
	INSERT INTO command_keys (key, command, fingerprint, stream_id, first_version, last_version)
	SELECT $2, $3, $4, $5, $6::int + 1, $7 FROM locked
	WHERE $2 <> '' AND $6 = coalesce((SELECT stream_version FROM events WHERE stream_id = $5 ORDER BY stream_version DESC LIMIT 1), 0)
	ON CONFLICT (key) DO NOTHING
	RETURNING 1
), requests AS (
	INSERT INTO request_keys (actor, key, command, body_digest, command_key)
	SELECT $8, $9, $3, $10, $2 FROM keys WHERE $9 <> ''
)
INSERT INTO events (partition, event_id, stream_id, stream_version, event_type, schema_version, sequence_key, payload, metadata, command_key, digest)
SELECT $1, e.event_id, $5, $6 + e.ord, e.name, e.schema, $11, e.payload::json, $12::json, nullif($2, ''), e.digest
FROM unnest($13::uuid[], $14::text[], $15::smallint[], $16::text[], $17::bytea[]) WITH ORDINALITY AS e(event_id, name, schema, payload, digest, ord)
WHERE EXISTS (SELECT FROM keys) OR $2 = '' AND EXISTS (SELECT FROM locked)
RETURNING stream_version, position, recorded_at`

// InsertQuery implements wsql.SchemaAdapter for the messages of this insertion.
func (in *insertion) InsertQuery(_ string, msgs message.Messages) (wsql.Query, error) {
	if in.alone {
		return in.aloneQuery(msgs), nil
	}
	n := len(msgs)
	var (
		partitions, schemas                              = make([]int16, n), make([]int16, n)
		ids                                              = make([][16]byte, n)
		streams, names, sequences, payloads, metas, keys = make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		versions                                         = make([]int32, n)
		digests                                          = make([][]byte, n)
	)
	for i, msg := range msgs {
		e := &in.events[i]
		partitions[i], schemas[i], ids[i] = e.Partition, e.SchemaVersion, e.EventID
		streams[i], names[i], sequences[i] = string(e.Stream), e.Type, e.SequenceKey
		payloads[i], metas[i], keys[i] = string(msg.Payload), string(e.Metadata), string(e.CommandKey)
		versions[i], digests[i] = int32(e.Version), e.Digest
	}
	return wsql.Query{Query: insertSQL, Args: []any{
		in.number, in.stream, in.expected, in.partition, in.last, in.key, in.command, in.fingerprint, in.actor, in.request, in.requestDigest,
		in.owner, partitions, ids, streams, versions, names, schemas, sequences, payloads, metas, keys, digests,
	}}, nil
}

func (in *insertion) aloneQuery(msgs message.Messages) wsql.Query {
	n := len(msgs)
	ids, names, schemas, payloads, digests := make([][16]byte, n), make([]string, n), make([]int16, n), make([]string, n), make([][]byte, n)
	for i, msg := range msgs {
		e := &in.events[i]
		ids[i], names[i], schemas[i], payloads[i], digests[i] = e.EventID, e.Type, e.SchemaVersion, string(msg.Payload), e.Digest
	}
	return wsql.Query{Query: aloneSQL, Args: []any{
		int16(in.partition[0]), in.key[0], in.command[0], in.fingerprint[0], in.stream[0], in.expected[0], in.last[0],
		in.actor[0], in.request[0], in.requestDigest[0], in.events[0].SequenceKey, string(in.events[0].Metadata),
		ids, names, schemas, payloads, digests,
	}}
}

// run publishes the insertion on q. With lockFirst the partitions' locks are
// taken by a statement of their own, so that the insert's snapshot is younger
// than the locks and no stream can move between its check and its rows.
func (in *insertion) run(ctx context.Context, q Querier, lockFirst bool) ([]answer, error) {
	p := &pipe{ctx: ctx, q: q, in: in}
	if lockFirst {
		p.lock = in.partition
	} else {
		in.alone = len(in.number) == 1 && len(in.events) > 0
	}
	publisher, err := wsql.NewPublisher(p, wsql.PublisherConfig{SchemaAdapter: in}, watermill.NopLogger{})
	if err != nil {
		return nil, fmt.Errorf("open a publisher: %w", err)
	}
	msgs := make(message.Messages, len(in.events))
	for i := range in.events {
		msgs[i] = message.NewMessage(in.events[i].EventID.String(), message.Payload(in.events[i].Payload))
	}
	if err := publisher.Publish(Topic, msgs...); err != nil {
		return nil, err
	}
	return in.answers, nil
}

// result is the receipt and the events of the k-th batch, which was written.
func (in *insertion) result(k int, b Batch) Result {
	r := Result{Receipt: Receipt{Key: b.Key, Command: b.Command, Stream: b.Stream, Version: int(in.last[k]), Events: []EventRef{}}}
	for i, owner := range in.owner {
		if int(owner) != k {
			continue
		}
		e := in.events[i]
		at := in.positions[int64(k)<<32|int64(e.Version)]
		e.Position, e.RecordedAt = at.position, at.at
		r.Recorded = append(r.Recorded, e)
		r.Receipt.Position = e.Place
		r.Receipt.Events = append(r.Receipt.Events, EventRef{e.Type, e.Version, e.Place})
	}
	return r
}

// pipe is the database handle of one publish: it runs the insert on a pgx
// connection, in one round trip with the locks, under the caller's context,
// and keeps the rows that the insert returns.
type pipe struct {
	ctx  context.Context
	q    Querier
	in   *insertion
	lock []int32
}

// ExecContext implements wsql.ContextExecutor.
func (p *pipe) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	if p.lock == nil {
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
	if in.alone {
		in.answers[0].head = int(in.expected[0])
		for rows.Next() {
			var version int64
			var at place
			if err := rows.Scan(&version, &at.position, &at.at); err != nil {
				return err
			}
			in.answers[0].fresh = true
			in.positions[version] = at
		}
		return rows.Err()
	}
	for rows.Next() {
		var (
			n, head  int
			fresh    bool
			version  *int64
			position *int64
			at       *time.Time
		)
		if err := rows.Scan(&n, &head, &fresh, &version, &position, &at); err != nil {
			return err
		}
		in.answers[n] = answer{fresh, head}
		if version != nil {
			in.positions[int64(n)<<32|*version] = place{*position, *at}
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
