package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Format is the version of the file's format that this build writes and reads.
const Format = 1

// Header is the first line of a file.
type Header struct {
	Format      int       `json:"format"`
	Environment string    `json:"environment"` // of the service that wrote it; empty if it never ran
	ExportedAt  time.Time `json:"exported_at"`
	Counts
	Part *Part `json:"part,omitempty"` // nil: the file is the whole log
}

// Part says which part of a log a file holds. A part has no keys, and cannot be
// imported.
type Part struct {
	Stream domain.StreamID `json:"stream,omitempty"` // one stream alone
	From   int64           `json:"from,omitempty"`   // from this position on
}

// Counts is how much there is of everything in a file.
type Counts struct {
	Events       int64 `json:"events"`
	CommandKeys  int64 `json:"command_keys"`
	RequestKeys  int64 `json:"request_keys"`
	LastPosition int64 `json:"last_position"` // of the last event
}

// Trailer is the last line of a file.
type Trailer struct {
	Counts
	SHA256 string `json:"sha256"` // of all lines before, in hexadecimal
}

// CommandKey is a remembered command.
type CommandKey struct {
	Key          domain.Key      `json:"key"`
	Command      string          `json:"command"`
	Fingerprint  hexBytes        `json:"fingerprint"`
	Stream       domain.StreamID `json:"stream"`
	FirstVersion int             `json:"first_version"`
	LastVersion  int             `json:"last_version"`
	Receipt      *string         `json:"receipt"`
	RecordedAt   time.Time       `json:"recorded_at"`
}

// RequestKey is a remembered Idempotency-Key.
type RequestKey struct {
	Actor      string     `json:"actor"`
	Key        domain.Key `json:"key"`
	Command    string     `json:"command"`
	BodyDigest hexBytes   `json:"body_digest"`
	CommandKey domain.Key `json:"command_key"`
	Receipt    *string    `json:"receipt"`
	RecordedAt time.Time  `json:"recorded_at"`
}

// eventLine is an event as a line spells it.
type eventLine struct {
	At            eventstore.Place `json:"at"`
	EventID       uuid.UUID        `json:"event_id"`
	Stream        domain.StreamID  `json:"stream"`
	Version       int              `json:"version"`
	Type          string           `json:"type"`
	SchemaVersion int16            `json:"schema"`
	Sequence      string           `json:"sequence"`
	Payload       string           `json:"payload"`
	Metadata      string           `json:"metadata"`
	CommandKey    domain.Key       `json:"command_key,omitempty"`
	Digest        hexBytes         `json:"digest"`
	RecordedAt    time.Time        `json:"recorded_at"`
}

func lineOf(r eventstore.Recorded) eventLine {
	return eventLine{
		At: r.Place, EventID: r.EventID, Stream: r.Stream, Version: r.Version, Type: r.Type, SchemaVersion: r.SchemaVersion,
		Sequence: r.SequenceKey, Payload: string(r.Payload), Metadata: string(r.Metadata), CommandKey: r.CommandKey,
		Digest: r.Digest, RecordedAt: r.RecordedAt.UTC(),
	}
}

func (l eventLine) recorded() eventstore.Recorded {
	return eventstore.Recorded{
		Place: l.At, EventID: l.EventID, Stream: l.Stream, Version: l.Version, Type: l.Type, SchemaVersion: l.SchemaVersion,
		SequenceKey: l.Sequence, Payload: json.RawMessage(l.Payload), Metadata: json.RawMessage(l.Metadata), CommandKey: l.CommandKey,
		Digest: l.Digest, RecordedAt: l.RecordedAt.UTC(),
	}
}

// hexBytes are bytes as hexadecimal text; "" is none.
type hexBytes []byte

// MarshalText spells the bytes.
func (b hexBytes) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, b), nil }

// UnmarshalText reads what MarshalText wrote.
func (b *hexBytes) UnmarshalText(text []byte) (err error) {
	*b = nil
	if len(text) > 0 {
		*b, err = hex.AppendDecode(nil, text)
	}
	return err
}

// The kinds of lines, as they begin.
const (
	kindHeader  = "header"
	kindEvent   = "event"
	kindCommand = "command_key"
	kindRequest = "request_key"
	kindEnd     = "end"
)

func opening(kind string) []byte { return []byte(`{"line":"` + kind + `",`) }

// sumBytes is how much of the running SHA-256 a line shows.
const sumBytes = 16

// sumField is how a line's sum follows its fields.
const sumField = `,"sum":"`

// seal is the running SHA-256 over a file.
type seal struct {
	hash hash.Hash
	sum  [sha256.Size]byte
}

func newSeal() *seal { return &seal{hash: sha256.New()} }

// over takes in a line's fields and gives the sum that belongs behind them.
func (s *seal) over(fields []byte) []byte {
	s.hash.Write(fields)
	return hex.AppendEncode(nil, s.hash.Sum(s.sum[:0])[:sumBytes])
}

func (s *seal) rest(end []byte)       { s.hash.Write(end) }
func (s *seal) whole() string         { return hex.EncodeToString(s.hash.Sum(s.sum[:0])) }
func (s *seal) end(sum []byte) []byte { return append(append([]byte(sumField), sum...), "\"}\n"...) }

// writer writes lines.
type writer struct {
	to      io.Writer
	seal    *seal
	buffer  bytes.Buffer
	encoder *json.Encoder
}

func newWriter(to io.Writer) *writer {
	w := &writer{to: to, seal: newSeal()}
	w.encoder = json.NewEncoder(&w.buffer)
	w.encoder.SetEscapeHTML(false)
	return w
}

// fields spells v as the fields of a line of a kind, without its closing brace.
func (w *writer) fields(kind string, v any) ([]byte, error) {
	w.buffer.Reset()
	if err := w.encoder.Encode(v); err != nil {
		return nil, fmt.Errorf("write a line: %w", err)
	}
	text := w.buffer.Bytes()
	return append(opening(kind), text[1:len(text)-2]...), nil // {…}\n
}

func (w *writer) line(kind string, v any) error {
	fields, err := w.fields(kind, v)
	if err != nil {
		return err
	}
	end := w.seal.end(w.seal.over(fields))
	w.seal.rest(end)
	return w.write(append(fields, end...))
}

func (w *writer) trailer(counts Counts) (Trailer, error) {
	return w.end(Trailer{counts, w.seal.whole()})
}

func (w *writer) end(t Trailer) (Trailer, error) {
	fields, err := w.fields(kindEnd, t)
	if err != nil {
		return t, err
	}
	return t, w.write(append(fields, "}\n"...))
}

func (w *writer) write(line []byte) error {
	if _, err := w.to.Write(line); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	return nil
}
