package imports

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Format is how a file holds its rows.
type Format string

// The formats.
const (
	NDJSON Format = "ndjson"
	CSV    Format = "csv"
)

// reader reads a file row by row.
type reader interface {
	// next is the number of the line on which the next row begins, and its
	// fields. The error is io.EOF at the end, unreadable if the file cannot be
	// read on, and else about this row alone.
	next() (number int, fields map[string]json.RawMessage, err error)
}

// unreadable ends a file.
type unreadable struct{ error }

var errTooLong = fmt.Errorf("the line is longer than %d bytes", lineMost)

func (f Format) read(in io.Reader) (reader, error) {
	if f == CSV {
		return newTable(in)
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), lineMost)
	return &ndjson{lines: lines}, nil
}

// ndjson is a file of one object a line; blank lines are passed over.
type ndjson struct {
	lines  *bufio.Scanner
	number int
}

func (f *ndjson) next() (int, map[string]json.RawMessage, error) {
	for f.lines.Scan() {
		f.number++
		if line := bytes.TrimSpace(f.lines.Bytes()); len(line) > 0 {
			fields, err := readObject(bytes.Clone(line))
			return f.number, fields, err
		}
	}
	switch err := f.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return f.number + 1, nil, unreadable{errTooLong}
	case err != nil:
		return f.number + 1, nil, unreadable{err}
	}
	return 0, nil, io.EOF
}

// readObject reads one JSON object, each field at most once.
func readObject(line []byte) (map[string]json.RawMessage, error) {
	notObject := errors.New("not a JSON object")
	if !utf8.Valid(line) {
		return nil, errors.New("not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(line))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, notObject
	}
	fields := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		name, _ := t.(string)
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return nil, notObject
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("%s occurs more than once", name)
		}
		fields[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, notObject
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	return fields, nil
}

// table is a CSV file (RFC 4180) whose first line names the columns.
type table struct {
	meter   *meter
	records *csv.Reader
	names   []string
}

func newTable(in io.Reader) (*table, error) {
	m := &meter{in: in, left: lineMost}
	t := &table{meter: m, records: csv.NewReader(m)}
	t.records.FieldsPerRecord = -1 // counted here, so that one bad row is one bad row
	names, err := t.records.Read()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the first line must name the columns")
		}
		return nil, RowError{1, err}
	}
	names[0] = strings.TrimPrefix(names[0], "\ufeff")
	for i, name := range names {
		if _, known := columns[name]; !known {
			return nil, RowError{1, fmt.Errorf("%q is not a column of an import", name)}
		}
		if slices.Contains(names[:i], name) {
			return nil, RowError{1, fmt.Errorf("the column %s occurs more than once", name)}
		}
	}
	t.names = names
	return t, nil
}

var integer = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

func (t *table) next() (int, map[string]json.RawMessage, error) {
	t.meter.left = lineMost
	cells, err := t.records.Read()
	if errors.Is(err, io.EOF) {
		return 0, nil, io.EOF
	}
	if fault, ok := errors.AsType[*csv.ParseError](err); ok { // where the row ends is not known
		return fault.StartLine, nil, unreadable{fault.Err}
	}
	number, _ := t.records.FieldPos(0)
	if err != nil {
		return number, nil, unreadable{err}
	}
	if len(cells) != len(t.names) {
		return number, nil, fmt.Errorf("it has %d cells, the first line names %d columns", len(cells), len(t.names))
	}
	fields := map[string]json.RawMessage{}
	for i, cell := range cells {
		switch name := t.names[i]; {
		case cell == "":
		case !utf8.ValidString(cell):
			return number, nil, errors.New("not valid UTF-8")
		case columns[name] && integer.MatchString(cell), name == charges && json.Valid([]byte(cell)):
			fields[name] = json.RawMessage(cell)
		default:
			if fields[name], err = json.Marshal(cell); err != nil {
				return number, nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return number, fields, nil
}

// meter bounds what is read for one row: a quote that is never closed would
// else take the whole file for a cell.
type meter struct {
	in   io.Reader
	left int
}

func (m *meter) Read(b []byte) (int, error) {
	if m.left <= 0 {
		return 0, errTooLong
	}
	n, err := m.in.Read(b)
	m.left -= n
	return n, err
}
