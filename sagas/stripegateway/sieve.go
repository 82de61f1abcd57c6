package stripegateway

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
)

// A page of a hundred objects is some 300 kB, of which this package reads a
// tenth, and stripe-go goes over an answer four times before it is read. So a
// page is sifted as it comes in: members that nobody reads are left out, what
// is left is stripe-go's to read, as ever.

// members names what is kept of an object, or of each object of an array. Nil
// keeps a value as it stands.
type members map[string]members

// membersOf are the members that a type reads, by its tags. A type that reads
// itself is kept as it stands.
func membersOf(t reflect.Type) members {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t != reflect.TypeFor[json.RawMessage]() {
		t = t.Elem()
	}
	if t == reflect.TypeFor[charge]() { // it reads itself only where it is a bare id
		t = reflect.TypeFor[chargeMembers]()
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	keep := members{}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			keep[name] = membersOf(f.Type)
		}
	}
	return keep
}

// siftedBody is an answer's body, sifted when it is first read. What is not
// JSON through and through passes as it is: the library shall say so.
type siftedBody struct {
	io.ReadCloser
	keep  members
	spare chan *bytes.Buffer // for a page as it comes in
	rest  *bytes.Reader
}

func (b *siftedBody) Read(p []byte) (int, error) {
	if b.rest == nil {
		var whole *bytes.Buffer
		select {
		case whole = <-b.spare:
		default:
			whole = new(bytes.Buffer)
		}
		defer func() {
			whole.Reset()
			select {
			case b.spare <- whole:
			default:
			}
		}()
		if _, err := whole.ReadFrom(b.ReadCloser); err != nil {
			return 0, err
		}
		sifted, ok := sift(whole.Bytes(), b.keep)
		if !ok {
			sifted = bytes.Clone(whole.Bytes())
		}
		b.rest = bytes.NewReader(sifted)
	}
	return b.rest.Read(p)
}

// sift copies a JSON text without the members that are not to be kept. It
// reports false for what is not one JSON value; in what it leaves out it looks
// at the structure alone.
func sift(text []byte, keep members) ([]byte, bool) {
	s := sieve{in: text, out: make([]byte, 0, len(text)/4)}
	s.blank()
	ok := s.value(keep, 0)
	s.blank()
	return s.out, ok && s.at == len(s.in)
}

// deepest bounds the nesting that is followed.
const deepest = 100

type sieve struct {
	in  []byte
	at  int
	out []byte
}

// peek is the byte that comes next; 0 at the end.
func (s *sieve) peek() byte {
	if s.at < len(s.in) {
		return s.in[s.at]
	}
	return 0
}

func (s *sieve) blank() {
	for s.at < len(s.in) {
		switch s.in[s.at] {
		case ' ', '\n', '\r', '\t':
			s.at++
		default:
			return
		}
	}
}

// value copies a value, with the members that are kept.
func (s *sieve) value(keep members, depth int) bool {
	switch first := s.peek(); {
	case keep == nil || first != '{' && first != '[':
		from := s.at
		ok := s.skip(depth)
		s.out = append(s.out, s.in[from:s.at]...)
		return ok
	case first == '[':
		s.out = append(s.out, '[')
		for n := 0; ; n++ {
			more, ok := s.element(n, ']')
			if !ok || !more {
				s.out = append(s.out, ']')
				return ok
			}
			if n > 0 {
				s.out = append(s.out, ',')
			}
			if !s.value(keep, depth+1) {
				return false
			}
		}
	}
	s.out = append(s.out, '{')
	kept := 0
	for n := 0; ; n++ {
		more, ok := s.element(n, '}')
		if !ok || !more {
			s.out = append(s.out, '}')
			return ok
		}
		name, ok := s.name()
		if !ok {
			return false
		}
		of, wanted := keep[string(name)]
		if !wanted {
			if !s.skip(depth + 1) {
				return false
			}
			continue
		}
		if kept++; kept > 1 {
			s.out = append(s.out, ',')
		}
		s.out = append(append(append(s.out, '"'), name...), '"', ':')
		if !s.value(of, depth+1) {
			return false
		}
	}
}

// element goes to the n-th element of what is open, or over its closing
// bracket.
func (s *sieve) element(n int, closing byte) (more, ok bool) {
	if n == 0 {
		s.at++ // the opening bracket
	}
	s.blank()
	switch c := s.peek(); {
	case c == closing:
		s.at++
		return false, true
	case n == 0:
		return true, c != 0
	case c != ',':
		return false, false
	}
	s.at++
	s.blank()
	return true, s.peek() != closing
}

// name goes over a member's name and colon, to its value.
func (s *sieve) name() (name []byte, ok bool) {
	from := s.at + 1
	if s.peek() != '"' || !s.text() {
		return nil, false
	}
	name = s.in[from : s.at-1]
	s.blank()
	if s.peek() != ':' {
		return nil, false
	}
	s.at++
	s.blank()
	return name, true
}

// text goes over a string.
func (s *sieve) text() bool {
	for s.at++; ; s.at++ {
		n := bytes.IndexByte(s.in[s.at:], '"')
		if n < 0 {
			return false
		}
		s.at += n
		escapes := 0
		for s.in[s.at-1-escapes] == '\\' { // it ends at the opening quote
			escapes++
		}
		if escapes%2 == 0 {
			s.at++
			return true
		}
	}
}

// skip goes over a value.
func (s *sieve) skip(depth int) bool {
	if depth > deepest {
		return false
	}
	switch s.peek() {
	case '"':
		return s.text()
	case '{', '[':
		closing := s.peek() + 2 // in ASCII, of both
		for n := 0; ; n++ {
			more, ok := s.element(n, closing)
			if !ok || !more {
				return ok
			}
			if closing == '}' {
				if _, ok := s.name(); !ok {
					return false
				}
			}
			if !s.skip(depth + 1) {
				return false
			}
		}
	}
	from := s.at
	for s.at < len(s.in) {
		c := s.in[s.at]
		if c != '-' && c != '+' && c != '.' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			break
		}
		s.at++
	}
	return s.at > from
}
