package eventstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/billonce/billonce/domain"
)

// Batch is what one command adds to one stream.
type Batch struct {
	Stream      domain.StreamID
	Head        Head       // where the decision saw the stream
	Key         domain.Key // remembered for ever; empty: not remembered
	Command     string
	Fingerprint []byte      // of what the caller meant; compared when the key comes again
	Request     *RequestKey // the caller's Idempotency-Key, if there was one
	Meta        Meta
	Events      []domain.Event // none: the decision was that nothing has to happen
}

// RequestKey is an Idempotency-Key header, as remembered per actor.
type RequestKey struct {
	Actor      string
	Key        domain.Key
	BodyDigest []byte
}

// Result is the answer to one batch.
type Result struct {
	Receipt  Receipt
	Recorded []Recorded // the events as appended; none if the receipt is a replay
	Err      error      // *VersionConflict, or domain.ErrKeyReused
}

// Append adds one batch in a transaction of its own, which it may share with
// the appends of other callers that wait at the same time.
//
// It returns *VersionConflict if the stream is not at b.Head, and
// domain.ErrKeyReused if b.Key or b.Request was used for something else. A key
// used for the same thing returns the first receipt, with Replayed set. An
// error that wraps ErrCommitUnknown says nothing about whether the facts are
// there; asking again with the same key does.
func (s *Store) Append(ctx context.Context, b Batch) (Result, error) {
	r, err := s.appender.append(ctx, b)
	if err != nil {
		return Result{}, fmt.Errorf("append to %s: %w", b.Stream, err)
	}
	return r, r.Err
}

// AppendTx adds batches inside tx, in order, and answers each by itself: one
// that clashes leaves the others as they are. It takes the partitions' locks
// first, ascending; a caller that has decided on what it read in tx after
// taking the same locks (LockPartitions) cannot meet a conflict. Only a
// Request that another transaction writes at the same moment fails the whole.
// After the commit the caller tells Committed what was added ([Grown]).
func (s *Store) AppendTx(ctx context.Context, tx Querier, batches ...Batch) ([]Result, error) {
	results := make([]Result, len(batches))
	lock := partitionsOfBatches(batches)
	for _, round := range rounds(batches) {
		for part := range slices.Chunk(round, statementMost) {
			if err := s.appendRound(ctx, tx, batches, part, results, lock); err != nil {
				return nil, fmt.Errorf("append %d batches: %w", len(batches), err)
			}
			lock = nil // all of them are held by now
		}
	}
	return results, nil
}

// statementMost is how many batches one statement writes: enough to make its
// fixed cost small, few enough for the buffers on both sides to be kept.
const statementMost = 200

// rounds splits batches so that no stream and no key occurs twice in a round:
// within one statement neither would see the other.
func rounds(batches []Batch) (rounds [][]int) {
	left := make([]int, len(batches))
	for i := range left {
		left[i] = i
	}
	for len(left) > 0 {
		var now, later []int
		seen := make(map[string]bool, 2*len(left))
		for _, i := range left {
			b := batches[i]
			names := []string{"s" + string(b.Stream)}
			if b.Key != "" {
				names = append(names, "k"+string(b.Key))
			}
			if b.Request != nil {
				names = append(names, "r"+b.Request.Actor+"\x00"+string(b.Request.Key))
			}
			wait := false
			for _, name := range names {
				wait = wait || seen[name]
			}
			for _, name := range names {
				seen[name] = true // what shares anything with it stays behind it
			}
			if wait {
				later = append(later, i)
				continue
			}
			now = append(now, i)
		}
		rounds, left = append(rounds, now), later
	}
	return rounds
}

// appendRound runs the insert for the batches of one round and fills results.
// The partitions in lock are locked first.
func (s *Store) appendRound(ctx context.Context, q Querier, batches []Batch, round []int, results []Result, lock []int16) error {
	in, err := s.prepare(batches, round)
	if err != nil {
		return err
	}
	if err := in.run(ctx, q, lock); err != nil {
		return err
	}
	for k, i := range round {
		if in.answers[k] == fresh {
			results[i] = in.result(k)
			continue
		}
		// The receipt is read in a new statement: under READ COMMITTED only that
		// one sees what the transaction we waited for has committed. It is read
		// after a conflict too, which may be with our own first try.
		if results[i], err = s.clashed(ctx, q, batches[i], in.answers[k]); err != nil {
			return err
		}
	}
	return nil
}

// clashed answers a batch that was not written.
func (s *Store) clashed(ctx context.Context, q Querier, b Batch, why answer) (Result, error) {
	if b.Key != "" {
		receipt, found, err := s.Receipt(ctx, q, b.Key, b.Command, b.Fingerprint)
		switch {
		case errors.Is(err, domain.ErrKeyReused):
			return Result{Err: err}, nil
		case err != nil:
			return Result{}, err
		case found:
			return Result{Receipt: receipt}, nil
		}
	}
	if why == taken && b.Request != nil {
		return Result{Err: keyReused(b.Request.Key)}, nil
	}
	return Result{Err: &VersionConflict{b.Stream, b.Head.Version}}, nil
}

// Receipt looks a key up. It returns domain.ErrKeyReused if the key was used
// for something else than command and fingerprint say.
func (s *Store) Receipt(ctx context.Context, q Querier, key domain.Key, command string, fingerprint []byte) (Receipt, bool, error) {
	rows, err := q.Query(ctx, receiptSQL, string(key))
	if err != nil {
		return Receipt{}, false, fmt.Errorf("read the receipt of %s: %w", key, err)
	}
	return scanReceipt(rows, key, command, fingerprint)
}

// receiptSQL reads a key with the events its command made.
const receiptSQL = `
	SELECT k.command, k.fingerprint, k.stream_id, k.last_version, e.event_type, e.stream_version, e.partition, e.position
	FROM command_keys k
	LEFT JOIN events e ON e.stream_id = k.stream_id AND e.stream_version BETWEEN k.first_version AND k.last_version
	WHERE k.key = $1
	ORDER BY e.stream_version`

func scanReceipt(rows pgx.Rows, key domain.Key, command string, fingerprint []byte) (r Receipt, found bool, err error) {
	defer rows.Close()
	var (
		print              []byte
		name               *string
		version            *int
		partition          *int16
		position           *int64
		storedCmd, storedS string
	)
	r = Receipt{Key: key, Replayed: true, Events: []EventRef{}}
	for rows.Next() {
		if err := rows.Scan(&storedCmd, &print, &storedS, &r.Version, &name, &version, &partition, &position); err != nil {
			return Receipt{}, false, fmt.Errorf("read the receipt of %s: %w", key, err)
		}
		found = true
		r.Command, r.Stream = storedCmd, domain.StreamID(storedS)
		if name != nil {
			r.Position = Place{*partition, *position}
			r.Events = append(r.Events, EventRef{*name, *version, r.Position})
		}
	}
	if err := rows.Err(); err != nil {
		return Receipt{}, false, fmt.Errorf("read the receipt of %s: %w", key, err)
	}
	if !found {
		return Receipt{}, false, nil
	}
	if storedCmd != command || !bytes.Equal(print, fingerprint) {
		return Receipt{}, false, domain.ErrKeyReused.With("key %s was used before for another %s", key, storedCmd)
	}
	return r, true, nil
}

// prepare encodes and chains the events of a round.
func (s *Store) prepare(batches []Batch, round []int) (*insertion, error) {
	total := 0
	for _, i := range round {
		total += len(batches[i].Events)
	}
	in := &insertion{
		batches: make([]Batch, 0, len(round)), first: make([]int, 1, len(round)+1),
		events: make([]Recorded, 0, total), answers: make([]answer, len(round)),
	}
	var meta []byte // of batches[n]
	var n int
	var err error
	for _, i := range round {
		b := batches[i]
		if b.Key == "" && len(b.Events) == 0 {
			return nil, fmt.Errorf("batch for %s has neither events nor a key", b.Stream)
		}
		if meta == nil || b.Meta != batches[n].Meta { // the batches of one call often share it
			if meta, err = json.Marshal(b.Meta); err != nil {
				return nil, fmt.Errorf("encode metadata: %w", err)
			}
			n = i
		}
		sequence := b.Stream.SequenceKey()
		partition := PartitionOf(sequence)
		previous := b.Head.Digest
		for k, e := range b.Events {
			name, schema, payload, err := s.codec.Encode(e)
			if err != nil {
				return nil, err
			}
			id, err := uuid.NewV7()
			if err != nil {
				return nil, fmt.Errorf("draw an event id: %w", err)
			}
			version := b.Head.Version + k + 1
			previous = digest(previous, string(b.Stream), version, name, schema, payload, meta)
			in.events = append(in.events, Recorded{
				Place: Place{Partition: partition}, EventID: id, Stream: b.Stream, Version: version,
				Type: name, SchemaVersion: schema, SequenceKey: sequence, Payload: payload, Metadata: meta,
				CommandKey: b.Key, Digest: previous, Event: e,
			})
		}
		in.batches, in.first = append(in.batches, b), append(in.first, len(in.events))
	}
	return in, nil
}

// LockPartitions takes the append locks of the partitions of streams,
// ascending, until the end of the transaction q runs in. What is read after it
// in the same transaction is the end of those streams.
func LockPartitions(ctx context.Context, q Querier, streams ...domain.StreamID) error {
	if _, err := q.Exec(ctx, lockSQL, lockClass, partitionsOf(streams)); err != nil {
		return fmt.Errorf("lock partitions: %w", err)
	}
	return nil
}

// QueueLock is LockPartitions as a statement of a pipeline.
func QueueLock(p *pgx.Batch, streams ...domain.StreamID) {
	p.Queue(lockSQL, lockClass, partitionsOf(streams))
}

// lockSQL locks partitions in the order given. The sub-select hides the array's
// length from the planner, which then keeps its plan.
const lockSQL = `SELECT count(pg_advisory_xact_lock($1, p)) FROM unnest((SELECT $2::smallint[])) AS p`

func partitionsOf(streams []domain.StreamID) []int16 {
	ps := make([]int16, len(streams))
	for i, s := range streams {
		ps[i] = PartitionOfStream(s)
	}
	return ascending(ps)
}

func partitionsOfBatches(batches []Batch) []int16 {
	ps := make([]int16, len(batches))
	for i := range batches {
		ps[i] = PartitionOfStream(batches[i].Stream)
	}
	return ascending(ps)
}

// ascending sorts partitions and removes repetitions.
func ascending(ps []int16) []int16 {
	slices.Sort(ps)
	return slices.Compact(ps)
}

// clash tells a violated unique index apart from other failures.
func clash(err error, constraint string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "23505" && pg.ConstraintName == constraint
}

// QueueReceipt is Receipt as a statement of a pipeline; read its answer with
// CollectReceipt.
func QueueReceipt(p *pgx.Batch, key domain.Key) { p.Queue(receiptSQL, string(key)) }

// CollectReceipt reads the answer to QueueReceipt.
func (s *Store) CollectReceipt(answers pgx.BatchResults, key domain.Key, command string, fingerprint []byte) (Receipt, bool, error) {
	rows, err := answers.Query()
	if err != nil {
		return Receipt{}, false, fmt.Errorf("read the receipt of %s: %w", key, err)
	}
	return scanReceipt(rows, key, command, fingerprint)
}

// KeyQuery asks for the receipt of a key.
type KeyQuery struct {
	Key         domain.Key
	Command     string
	Fingerprint []byte
}

// Receipts looks many keys up in one round trip. The result has the keys that
// were seen before: each with its receipt, or with domain.ErrKeyReused.
func (s *Store) Receipts(ctx context.Context, q Querier, queries []KeyQuery) (map[domain.Key]Result, error) {
	keys := make([]string, len(queries))
	for i, k := range queries {
		keys[i] = string(k.Key)
	}
	rows, err := q.Query(ctx, `SELECT key FROM command_keys WHERE key = ANY($1)`, keys)
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	seen, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	found := make(map[domain.Key]Result, len(seen))
	for _, key := range seen { // rare: a repeat
		for _, k := range queries {
			if string(k.Key) != key {
				continue
			}
			receipt, _, err := s.Receipt(ctx, q, k.Key, k.Command, k.Fingerprint)
			if err != nil && !errors.Is(err, domain.ErrKeyReused) {
				return nil, err
			}
			found[k.Key] = Result{Receipt: receipt, Err: err}
			break
		}
	}
	return found, nil
}
