package archive

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// lineMost bounds a line. A command's body is at most 1 MiB, and the facts it
// leads to are smaller.
const lineMost = 8 << 20

// Fault is what is wrong with a file, and in which line of it.
type Fault struct {
	Line   int
	Detail string
}

func (f *Fault) Error() string { return fmt.Sprintf("line %d: %s", f.Line, f.Detail) }

// Reader reads a file and checks it as it goes: the sums of its lines, the
// order of its positions, and at the end its trailer. It holds a line at a time.
//
//	for r.Next() {
//		switch v := r.Line().(type) { … }
//	}
//	if r.Err() != nil { … }
type Reader struct {
	from    *bufio.Reader
	seal    *seal
	header  Header
	trailer Trailer
	counts  Counts
	number  int
	line    any
	err     error
}

// Open reads the header. The error is a *Fault if it is none.
func Open(from io.Reader) (*Reader, error) {
	r := &Reader{from: bufio.NewReaderSize(from, lineMost), seal: newSeal()}
	text, err := r.read()
	if err != nil {
		return nil, err
	}
	kind, fields, sum, ok := parts(text)
	if !ok || kind != kindHeader || json.Unmarshal(object(kind, fields), &r.header) != nil {
		return nil, r.fault("this is not the beginning of an exported log")
	}
	if r.header.Format != Format {
		return nil, r.fault("it is of format %d; this build reads format %d", r.header.Format, Format)
	}
	if !r.sealed(text, fields, sum) {
		return nil, r.fault("it was changed after it was written")
	}
	return r, nil
}

// Header is the file's first line.
func (r *Reader) Header() Header { return r.header }

// Trailer is the file's last line, once Next has said that there is no more.
func (r *Reader) Trailer() Trailer { return r.trailer }

// Number is the number of the line that Line gives; the header's is 1.
func (r *Reader) Number() int { return r.number }

// Err is why Next has stopped; nil at the end of a file that is whole. It is a
// *Fault if the file is to blame.
func (r *Reader) Err() error { return r.err }

// Line is an [eventstore.Recorded] whose payload is not decoded, a [CommandKey]
// or a [RequestKey].
func (r *Reader) Line() any { return r.line }

// Next goes on to the next line, and is false at the end of the file and at the
// first fault.
func (r *Reader) Next() bool {
	if r.err != nil || r.trailer.SHA256 != "" {
		return false
	}
	text, err := r.read()
	if err != nil {
		r.err = err
		return false
	}
	r.err = r.take(text)
	return r.err == nil && r.trailer.SHA256 == ""
}

func (r *Reader) take(text []byte) error {
	kind, fields, sum, ok := parts(text)
	if !ok {
		return r.fault("it is not a line of an exported log")
	}
	if kind == kindEnd {
		return r.end(text)
	}
	if !r.sealed(text, fields, sum) {
		return r.fault("it was changed after it was written, or a line before it was added, removed or moved")
	}
	var err error
	switch kind {
	case kindEvent:
		var l eventLine
		if err = json.Unmarshal(object(kind, fields), &l); err == nil {
			if l.At.Position <= r.counts.LastPosition {
				return r.fault("position %d comes after %d", l.At.Position, r.counts.LastPosition)
			}
			if r.counts.CommandKeys+r.counts.RequestKeys > 0 {
				return r.fault("an event comes after the keys")
			}
			r.counts.Events++
			r.counts.LastPosition = l.At.Position
			r.line = l.recorded()
		}
	case kindCommand:
		var k CommandKey
		err = json.Unmarshal(object(kind, fields), &k)
		r.counts.CommandKeys++
		r.line = k
	case kindRequest:
		var k RequestKey
		err = json.Unmarshal(object(kind, fields), &k)
		r.counts.RequestKeys++
		r.line = k
	default:
		return r.fault("there are no lines of the kind %q", kind)
	}
	if err != nil {
		return r.fault("it cannot be read: %v", err)
	}
	return nil
}

// end checks the trailer, and that nothing follows it.
func (r *Reader) end(text []byte) error {
	var t Trailer
	if err := json.Unmarshal(text, &t); err != nil || t.SHA256 == "" {
		return r.fault("the trailer cannot be read")
	}
	var same bytes.Buffer
	if _, err := newWriter(&same).end(t); err != nil || !bytes.Equal(same.Bytes(), text) {
		return r.fault("the trailer was changed after it was written")
	}
	switch {
	case t.SHA256 != r.seal.whole():
		return r.fault("the trailer's SHA-256 is not that of the lines before it")
	case t.Counts != r.counts:
		return r.fault("the trailer tells of %s; the file holds %s", t.Counts, r.counts)
	case r.header.Counts != r.counts:
		return r.fault("the header tells of %s; the file holds %s", r.header.Counts, r.counts)
	}
	if _, err := r.from.ReadByte(); !errors.Is(err, io.EOF) {
		r.number++
		if err != nil {
			return fmt.Errorf("read the file: %w", err)
		}
		return r.fault("something follows the trailer")
	}
	r.trailer = t
	return nil
}

func (c Counts) String() string {
	return fmt.Sprintf("%d events, %d command keys, %d request keys and last position %d", c.Events, c.CommandKeys, c.RequestKeys, c.LastPosition)
}

// read gives the next line with its end, valid until the next one.
func (r *Reader) read() ([]byte, error) {
	r.number++
	text, err := r.from.ReadSlice('\n')
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, r.fault("it is longer than %d bytes", lineMost)
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("read the file: %w", err)
	case r.number == 1 && len(text) == 0:
		return nil, r.fault("the file is empty")
	case len(text) == 0:
		return nil, r.fault("the file ends here, without its trailer: it is a part of what was exported")
	}
	return nil, r.fault("the file ends in the middle of this line: it is a part of what was exported")
}

// parts takes a line apart: its kind, its fields as they were sealed, its sum.
func parts(text []byte) (kind string, fields, sum []byte, ok bool) {
	rest, ok := bytes.CutPrefix(text, []byte(`{"line":"`))
	name, _, found := bytes.Cut(rest, []byte(`"`))
	if !ok || !found || !bytes.HasSuffix(text, []byte("}\n")) {
		return "", nil, nil, false
	}
	if string(name) == kindEnd {
		return kindEnd, text, nil, true
	}
	at := len(text) - len(sumField) - 2*sumBytes - len("\"}\n")
	if at < 0 || !bytes.HasPrefix(text[at:], []byte(sumField)) || !bytes.HasPrefix(text[:at], opening(string(name))) {
		return "", nil, nil, false
	}
	return string(name), text[:at], text[at+len(sumField) : len(text)-len("\"}\n")], true
}

// sealed takes a line into the running sum and reports whether that is the
// line's.
func (r *Reader) sealed(text, fields, sum []byte) bool {
	same := bytes.Equal(r.seal.over(fields), sum)
	r.seal.rest(text[len(fields):])
	return same
}

// object is a line's fields as a document, without its kind.
func object(kind string, fields []byte) []byte {
	inner := fields[len(opening(kind)):]
	return append(append(append(make([]byte, 0, len(inner)+2), '{'), inner...), '}')
}

func (r *Reader) fault(format string, args ...any) error {
	return &Fault{r.number, fmt.Sprintf(format, args...)}
}
