package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/billonce/billonce/domain"
)

// lineReader reads lines of bounded length. Each must arrive within the time
// that arm allows.
type lineReader struct {
	in     *bufio.Reader
	most   int64
	arm    func()
	number int // of the line read last, from 1
}

func newLineReader(in io.Reader, most int64, arm func()) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(in, 64<<10), most: most, arm: arm}
}

var errLongLine = errors.New("the line is too long")

// next is the next line that is not blank, without its end. It returns io.EOF
// behind the last one, and errLongLine for one that is too long, which it has
// passed over. Other errors are the connection's: the line that they cut off is
// lost, since half a command must not be taken for a whole one.
func (l *lineReader) next() ([]byte, error) {
	for {
		line, err := l.read()
		if err != nil || len(line) > 0 {
			return line, err
		}
	}
}

func (l *lineReader) read() ([]byte, error) {
	l.arm()
	var line []byte
	size := int64(0)
	for {
		part, err := l.in.ReadSlice('\n')
		size += int64(len(part))
		if size <= l.most {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && size == 0:
			return nil, io.EOF
		}
		l.number++
		switch {
		case err != nil && !errors.Is(err, io.EOF): // the last line needs no end
			return nil, err
		case size > l.most:
			return nil, errLongLine
		}
		return bytes.TrimSpace(line), nil
	}
}

// batchLine is a line of a batch, taken apart.
type batchLine struct {
	command string
	key     domain.Key
	body    json.RawMessage
}

// parseLine reads a line as strictly as a body: known fields, each once.
func parseLine(line []byte) (l batchLine, err error) {
	bad := domain.InvalidField("line", "must be a JSON object with command, body and perhaps key")
	if !utf8.Valid(line) {
		return l, domain.InvalidField("line", "must be UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(line))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return l, bad
	}
	var faults []domain.FieldError
	fault := func(field, msg string) { faults = append(faults, domain.FieldError{Field: field, Msg: msg}) }
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		name, _ := t.(string)
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return l, bad
		}
		var text *string
		switch {
		case seen[name]:
			fault(name, "occurs more than once")
		case name == "body":
			l.body = value
		case name != "command" && name != "key":
			fault(name, "is not a field of a line")
		case json.Unmarshal(value, &text) != nil || text == nil:
			fault(name, "must be a string")
		case name == "command":
			l.command = *text
		default:
			key, err := domain.ParseKey(*text)
			if err != nil {
				fault("key", "must be 1 to 255 printable ASCII characters without spaces at its ends")
			}
			l.key = key
		}
		seen[name] = true
	}
	if _, err := d.Token(); err != nil {
		return l, bad
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return l, bad
	}
	for _, name := range []string{"command", "body"} {
		if !seen[name] {
			fault(name, "is required")
		}
	}
	if len(faults) > 0 {
		return l, domain.InvalidFields(faults...)
	}
	return l, nil
}
