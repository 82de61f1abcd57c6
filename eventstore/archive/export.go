package archive

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

// Selection is what to export; the zero value is everything.
type Selection struct {
	Part
	// Progress is called now and then with how much of how much is written;
	// nil: nobody asks.
	Progress func(done, total int64)
}

// progressEvery is how many lines pass between two calls of Progress.
const progressEvery = 1000

// Export writes the log to w as it is at one moment, in the order of its
// positions, and gives the trailer. It reads in one transaction that changes
// nothing, keeps a few pages in memory however long the log is, and holds up
// nobody who appends.
func Export(ctx context.Context, s *eventstore.Store, w io.Writer, what Selection) (t Trailer, err error) {
	err = pgx.BeginTxFunc(ctx, s.Pool(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		t, err = export(ctx, s, tx, newWriter(w), what)
		return err
	})
	if err != nil {
		return Trailer{}, fmt.Errorf("export: %w", err)
	}
	return t, nil
}

func export(ctx context.Context, s *eventstore.Store, tx pgx.Tx, w *writer, what Selection) (Trailer, error) {
	h, err := readHeader(ctx, tx, what.Part)
	if err != nil {
		return Trailer{}, err
	}
	if err := w.line(kindHeader, h); err != nil {
		return Trailer{}, err
	}
	written := int64(0)
	total := h.Events + h.CommandKeys + h.RequestKeys
	line := func(kind string, v any) error {
		if written++; what.Progress != nil && (written%progressEvery == 0 || written == total) {
			what.Progress(written, total)
		}
		return w.line(kind, v)
	}
	if err := exportEvents(ctx, s, tx, h.Part, line); err != nil {
		return Trailer{}, err
	}
	if h.Part == nil {
		if err := exportKeys(ctx, tx, line); err != nil {
			return Trailer{}, err
		}
	}
	if written != total {
		return Trailer{}, fmt.Errorf("%d lines were to be written, and there were %d", total, written)
	}
	return w.trailer(h.Counts)
}

func readHeader(ctx context.Context, tx pgx.Tx, part Part) (Header, error) {
	h := Header{Format: Format}
	if part != (Part{}) {
		h.Part = &part
	}
	err := tx.QueryRow(ctx, `SELECT clock_timestamp(), coalesce((SELECT name FROM environment), ''),
		count(*), coalesce(max(position), 0) FROM events WHERE ($1 = '' OR stream_id = $1) AND position >= $2`, string(part.Stream), part.From).
		Scan(&h.ExportedAt, &h.Environment, &h.Events, &h.LastPosition)
	if err == nil && h.Part == nil {
		err = tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM command_keys), (SELECT count(*) FROM request_keys)`).Scan(&h.CommandKeys, &h.RequestKeys)
	}
	if err != nil {
		return h, fmt.Errorf("count what there is: %w", err)
	}
	h.ExportedAt = h.ExportedAt.UTC()
	return h, nil
}

func exportEvents(ctx context.Context, s *eventstore.Store, tx pgx.Tx, part *Part, line func(string, any) error) error {
	if part != nil && part.Stream != "" { // one stream is read by its own index
		events, err := s.Load(ctx, tx, part.Stream, 0)
		if err != nil {
			return err
		}
		for _, r := range events {
			if r.Position < part.From || r.Part > 0 { // what is exported is what is stored
				continue
			}
			if err := line(kindEvent, lineOf(r)); err != nil {
				return err
			}
		}
		return nil
	}
	after := int64(0)
	if part != nil {
		after = part.From - 1
	}
	for r, err := range s.ReadRaw(ctx, tx, after) {
		if err != nil {
			return err
		}
		if err := line(kindEvent, lineOf(r)); err != nil {
			return err
		}
	}
	return nil
}

func exportKeys(ctx context.Context, tx pgx.Tx, line func(string, any) error) error {
	rows, err := tx.Query(ctx, `SELECT key, command, fingerprint, stream_id, first_version, last_version, receipt::text, recorded_at FROM command_keys ORDER BY key`)
	if err != nil {
		return fmt.Errorf("read command keys: %w", err)
	}
	var k CommandKey
	_, err = pgx.ForEachRow(rows, []any{(*string)(&k.Key), &k.Command, (*[]byte)(&k.Fingerprint), (*string)(&k.Stream), &k.FirstVersion, &k.LastVersion, &k.Receipt, &k.RecordedAt}, func() error {
		k.RecordedAt = k.RecordedAt.UTC()
		return line(kindCommand, k)
	})
	if err != nil {
		return fmt.Errorf("read command keys: %w", err)
	}
	rows, err = tx.Query(ctx, `SELECT actor, key, command, body_digest, command_key, receipt::text, recorded_at FROM request_keys ORDER BY actor, key`)
	if err != nil {
		return fmt.Errorf("read request keys: %w", err)
	}
	var q RequestKey
	_, err = pgx.ForEachRow(rows, []any{&q.Actor, (*string)(&q.Key), &q.Command, (*[]byte)(&q.BodyDigest), (*string)(&q.CommandKey), &q.Receipt, &q.RecordedAt}, func() error {
		q.RecordedAt = q.RecordedAt.UTC()
		return line(kindRequest, q)
	})
	if err != nil {
		return fmt.Errorf("read request keys: %w", err)
	}
	return nil
}
