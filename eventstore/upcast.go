package eventstore

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/billonce/billonce/domain"
)

// Shape is how a fact is stored: under a contract name, in a schema version.
type Shape struct {
	Name    string
	Version int16
}

func (s Shape) String() string { return fmt.Sprintf("%s, schema version %d", s.Name, s.Version) }

func (s Shape) compare(other Shape) int {
	return cmp.Or(cmp.Compare(s.Name, other.Name), cmp.Compare(s.Version, other.Version))
}

// Upcaster says how a shape that is no longer written is read. What is stored
// stays as it is, to the byte, and so do its place, its version in the stream
// and its digest.
type Upcaster struct {
	From Shape
	// Into are the shapes that take its place, in order: facts of the catalogue,
	// or older shapes with upcasters of their own. None: the fact is retired.
	Into []Shape
	// Raise gives a payload for each of Into. It is a pure function: the same
	// payload gives the same for ever.
	Raise func(payload json.RawMessage) ([]json.RawMessage, error)
}

// Renamed reads a fact under its new contract name.
func Renamed(from, into Shape) Upcaster {
	return Upcaster{from, []Shape{into}, func(payload json.RawMessage) ([]json.RawMessage, error) {
		return []json.RawMessage{payload}, nil
	}}
}

// Reshaped raises a version of a fact to the next.
func Reshaped(from Shape, raise func(payload json.RawMessage) (json.RawMessage, error)) Upcaster {
	return Upcaster{from, []Shape{{from.Name, from.Version + 1}}, func(payload json.RawMessage) ([]json.RawMessage, error) {
		raised, err := raise(payload)
		return []json.RawMessage{raised}, err
	}}
}

// Added raises a version of a fact to the next, which has more fields: what they
// are where nobody has stored them. A field that is there is left as it is.
func Added(from Shape, fields map[string]any) Upcaster {
	values := make(map[string]json.RawMessage, len(fields))
	for name, v := range fields {
		text, err := json.Marshal(v)
		if err != nil {
			panic(fmt.Sprintf("eventstore: the field %s added to %s: %v", name, from, err))
		}
		values[name] = text
	}
	return Reshaped(from, func(payload json.RawMessage) (json.RawMessage, error) {
		stored, err := object(payload)
		if err != nil {
			return nil, err
		}
		for name, v := range values {
			if _, ok := stored[name]; !ok {
				stored[name] = v
			}
		}
		return json.Marshal(stored)
	})
}

// Split reads a fact as several. They share its place and its version in the
// stream, [Recorded.Part] tells them apart, and they are handled together or
// not at all. Charges and refunds are listed by the places where they began, so two
// facts of one bill are not among them.
func Split(from Shape, into []Shape, raise func(payload json.RawMessage) ([]json.RawMessage, error)) Upcaster {
	return Upcaster{from, into, raise}
}

// Retired reads a fact that means nothing any more as [domain.Retired]. It
// still counts in its stream's versions and chain.
func Retired(from Shape) Upcaster { return Upcaster{From: from} }

func object(payload json.RawMessage) (fields map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(payload, &fields); err != nil {
		return nil, err
	}
	if fields == nil {
		return nil, errors.New("it is no object")
	}
	return fields, nil
}

// raise appends what a shape has become, by way of as many upcasters as it takes.
func (c *Codec) raise(events []domain.Event, at Shape, payload json.RawMessage) ([]domain.Event, error) {
	u, older := c.older[at]
	if !older {
		e, err := c.types[at.Name].decode(payload)
		if err != nil {
			return nil, err
		}
		return append(events, e), nil
	}
	if len(u.Into) == 0 {
		return events, nil
	}
	raised, err := u.Raise(payload)
	if err == nil && len(raised) != len(u.Into) {
		err = fmt.Errorf("it gave %d payloads for %d facts", len(raised), len(u.Into))
	}
	if err != nil {
		return nil, fmt.Errorf("upcast %s: %w", at, err)
	}
	for i, into := range u.Into {
		if events, err = c.raise(events, into, raised[i]); err != nil {
			return nil, err
		}
	}
	return events, nil
}
