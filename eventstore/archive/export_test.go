package archive

import (
	"bytes"
	"testing"

	"github.com/billonce/billonce/eventstore"
)

// Resealed is a file after a forger's work: its lines as change leaves them,
// with sums, counts and trailer made anew. Lines are pointers.
func Resealed(t testing.TB, file []byte, change func([]any) []any) []byte {
	t.Helper()
	r, err := Open(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var lines []any
	for r.Next() {
		switch v := r.Line().(type) {
		case eventstore.Recorded:
			lines = append(lines, &v)
		case CommandKey:
			lines = append(lines, &v)
		case RequestKey:
			lines = append(lines, &v)
		}
	}
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	lines = change(lines)
	h := r.Header()
	h.Counts = Counts{}
	for _, l := range lines {
		switch v := l.(type) {
		case *eventstore.Recorded:
			h.Events++
			h.LastPosition = v.Position
		case *CommandKey:
			h.CommandKeys++
		case *RequestKey:
			h.RequestKeys++
		}
	}
	var forged bytes.Buffer
	w := newWriter(&forged)
	write := func(kind string, v any) {
		if err := w.line(kind, v); err != nil {
			t.Fatal(err)
		}
	}
	write(kindHeader, h)
	for _, l := range lines {
		switch v := l.(type) {
		case *eventstore.Recorded:
			write(kindEvent, lineOf(*v))
		case *CommandKey:
			write(kindCommand, v)
		case *RequestKey:
			write(kindRequest, v)
		}
	}
	if _, err := w.trailer(h.Counts); err != nil {
		t.Fatal(err)
	}
	return forged.Bytes()
}
