package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/eventstore"
)

// ErrNotEmpty refuses an import: the database has a history of its own.
var ErrNotEmpty = errors.New("a log is imported into a new database only")

// ErrPart refuses an import: the file is one stream, or the end of a log.
var ErrPart = errors.New("the file holds a part of a log; only a whole one is imported")

// lockWait is how long an import waits for those who are just writing.
const lockWait = "10s"

// Import writes the log of a file into a database that has none, in one
// transaction, and gives the file's trailer. Everything is checked as it
// streams: sums, order of positions, holes in versions, chains, trailer, and
// that every event's command key is remembered. If anything is wrong the error
// is a *[Fault], which names the line, and nothing is written.
//
// The log, its keys and the tokens of its readers must be empty, as must the
// tables that empty names: whatever a former log has left would contradict this
// one. Services may run on the database; what they write waits. Memory: what
// [eventstore.Chain] keeps, about 150 bytes a stream. Progress is called with
// the lines that are written; nil: nobody asks.
func Import(ctx context.Context, pool *pgxpool.Pool, from io.Reader, empty []string, progress func(done, total int64)) (Trailer, error) {
	r, err := Open(from)
	if err != nil {
		return Trailer{}, fmt.Errorf("import: %w", err)
	}
	if r.Header().Part != nil {
		return Trailer{}, fmt.Errorf("import: %w", ErrPart)
	}
	in := &importing{Reader: r, progress: progress}
	if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return in.run(ctx, tx, empty) }); err != nil {
		if fault, ok := errors.AsType[*Fault](err); ok {
			err = fault // whatever else it broke on its way
		}
		return Trailer{}, fmt.Errorf("import: %w", err)
	}
	if total := r.trailer.Events + r.trailer.CommandKeys + r.trailer.RequestKeys; progress != nil {
		progress(total, total)
	}
	return r.Trailer(), nil
}

type importing struct {
	*Reader
	chain    eventstore.Chain
	progress func(done, total int64)
	held     bool // a line was read that its table did not take
}

func (in *importing) run(ctx context.Context, tx pgx.Tx, empty []string) error {
	if err := takeEmpty(ctx, tx, empty); err != nil {
		return err
	}
	for _, copying := range []struct {
		table   string
		columns []string
		row     func() ([]any, bool, error)
	}{
		{"events", eventColumns, in.event},
		{"command_keys", commandColumns, in.command},
		{"request_keys", requestColumns, in.request},
	} {
		rows := &source{in: in, row: copying.row}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{copying.table}, copying.columns, rows); err != nil {
			return in.blame(rows.err, err)
		}
	}
	if in.held || in.Next() {
		return in.fault("this line does not belong here")
	}
	if err := in.Err(); err != nil {
		return err
	}
	if err := fitting(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `ANALYZE events, command_keys, request_keys`); err != nil {
		return fmt.Errorf("analyse the log: %w", err)
	}
	// A sequence is not taken back with a transaction, so this comes last; were
	// the commit to fail, a few positions would stay unused.
	if _, err := tx.Exec(ctx, `SELECT setval('events_position_seq', greatest($1::bigint, 1), $1::bigint > 0)`, in.trailer.LastPosition); err != nil {
		return fmt.Errorf("set the next position: %w", err)
	}
	return nil
}

// blame tells what the file did wrong from what the database did.
func (in *importing) blame(own, err error) error {
	if own != nil {
		return own
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(pg.Code, "2") { // data exceptions, violated constraints
		return in.fault("the database refuses this line, or one shortly before it: %s", pg.Message)
	}
	return err
}

// takeEmpty keeps everybody else from writing, and makes sure that there is
// nothing yet.
func takeEmpty(ctx context.Context, tx pgx.Tx, others []string) error {
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '`+lockWait+`'`); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `LOCK TABLE events, command_keys, request_keys IN EXCLUSIVE MODE`); err != nil {
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" {
			return errors.New("the log is being written by somebody else; stop the service, and try again")
		}
		return fmt.Errorf("lock the log: %w", err)
	}
	for _, table := range append([]string{"events", "command_keys", "request_keys"}, others...) {
		var there bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+pgx.Identifier{table}.Sanitize()+`)`).Scan(&there); err != nil {
			return fmt.Errorf("look whether %s is empty: %w", table, err)
		}
		if there {
			return fmt.Errorf("%w: %s is not empty", ErrNotEmpty, table)
		}
	}
	var processor string
	err := tx.QueryRow(ctx, `SELECT coalesce(min(processor), '') FROM processor_tokens WHERE position > 0`).Scan(&processor)
	if err != nil {
		return fmt.Errorf("look how far processors are: %w", err)
	}
	if processor != "" {
		return fmt.Errorf("%w: processor %s has read another log", ErrNotEmpty, processor)
	}
	return nil
}

// fitting makes sure that what the events' commands would be answered with is
// remembered.
func fitting(ctx context.Context, tx pgx.Tx) error {
	var missing, first string
	err := tx.QueryRow(ctx, `SELECT coalesce(min(e.command_key), ''), coalesce(min(e.stream_id || ' version ' || e.stream_version), '')
		FROM events e LEFT JOIN command_keys k ON k.key = e.command_key
		WHERE e.command_key IS NOT NULL AND (k.key IS NULL OR k.stream_id <> e.stream_id OR e.stream_version NOT BETWEEN k.first_version AND k.last_version)`).Scan(&missing, &first)
	if err != nil {
		return fmt.Errorf("compare events with command keys: %w", err)
	}
	if missing != "" {
		return fmt.Errorf("the file remembers no command for %s, such as %s: the log that it was exported from is damaged (billingctl verify)", first, missing)
	}
	return nil
}

var (
	eventColumns = []string{"partition", "position", "event_id", "stream_id", "stream_version", "event_type", "schema_version", "sequence_key",
		"payload", "metadata", "command_key", "digest", "recorded_at"}
	commandColumns = []string{"key", "command", "fingerprint", "stream_id", "first_version", "last_version", "receipt", "recorded_at"}
	requestColumns = []string{"actor", "key", "command", "body_digest", "command_key", "receipt", "recorded_at"}
)

// event is the current line as a row of events; ok is false if it is none.
func (in *importing) event() ([]any, bool, error) {
	r, ok := in.Line().(eventstore.Recorded)
	if !ok {
		return nil, false, nil
	}
	for _, f := range in.chain.Follow(r) {
		return nil, true, in.fault("%s version %d at %s: %s", r.Stream, r.Version, r.Place, f.Detail)
	}
	var key any
	if r.CommandKey != "" {
		key = string(r.CommandKey)
	}
	return []any{r.Partition, r.Position, [16]byte(r.EventID), string(r.Stream), int32(r.Version), r.Type, r.SchemaVersion, r.SequenceKey,
		[]byte(r.Payload), []byte(r.Metadata), key, r.Digest, r.RecordedAt}, true, nil
}

func (in *importing) command() ([]any, bool, error) {
	k, ok := in.Line().(CommandKey)
	if !ok {
		return nil, false, nil
	}
	if head := in.chain.Head(k.Stream); k.LastVersion > head.Version {
		return nil, true, in.fault("the command made version %d of %s, which ends at %d", k.LastVersion, k.Stream, head.Version)
	}
	return []any{string(k.Key), k.Command, []byte(k.Fingerprint), string(k.Stream), int32(k.FirstVersion), int32(k.LastVersion), document(k.Receipt), k.RecordedAt}, true, nil
}

func (in *importing) request() ([]any, bool, error) {
	k, ok := in.Line().(RequestKey)
	if !ok {
		return nil, false, nil
	}
	return []any{k.Actor, string(k.Key), k.Command, []byte(k.BodyDigest), string(k.CommandKey), document(k.Receipt), k.RecordedAt}, true, nil
}

func document(text *string) any {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

// source gives the lines of one kind to COPY, and stops before the first one of
// another kind.
type source struct {
	in     *importing
	row    func() ([]any, bool, error)
	values []any
	err    error
}

// Next implements pgx.CopyFromSource.
func (s *source) Next() bool {
	in := s.in
	if s.err != nil || !in.held && !in.Next() {
		if s.err == nil {
			s.err = in.Err()
		}
		return false
	}
	var own bool
	s.values, own, s.err = s.row()
	in.held = !own
	if in.progress != nil && int64(in.number)%progressEvery == 0 {
		in.progress(int64(in.number-1), in.header.Events+in.header.CommandKeys+in.header.RequestKeys)
	}
	return own && s.err == nil
}

// Values implements pgx.CopyFromSource.
func (s *source) Values() ([]any, error) { return s.values, nil }

// Err implements pgx.CopyFromSource.
func (s *source) Err() error { return s.err }
