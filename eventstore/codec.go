package eventstore

import (
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"slices"

	"github.com/billonce/billonce/domain"
)

// Codec turns facts into named, versioned payloads and back.
type Codec struct {
	types map[string]*fact
	names []string
	older map[Shape]Upcaster
}

// fact is a fact of the catalogue, as this build writes it.
type fact struct {
	Shape
	typ reflect.Type
}

// Current is the codec of this build: the catalogue of facts, and an upcaster
// for every shape that an earlier build has stored and this one no longer
// writes.
func Current() *Codec { return NewCodec(domain.Events(), upcasters...) }

// upcasters are added to and never taken away: what was stored once is read
// for ever. So far no fact has changed its shape.
var upcasters []Upcaster

// NewCodec makes a codec for a catalogue of facts and the upcasters that lead to
// it. A fact is written with the version after the highest that an upcaster of
// its name reads, 1 if there is none. NewCodec panics where programmers have
// made a mistake: two facts of one name, two upcasters of one shape, one that
// leads to no fact of the catalogue or in a circle, a version left out.
func NewCodec(catalogue iter.Seq[domain.Event], upcasters ...Upcaster) *Codec {
	c := &Codec{types: map[string]*fact{}, older: map[Shape]Upcaster{}}
	for e := range catalogue {
		name := e.EventName()
		if _, twice := c.types[name]; twice {
			panic("eventstore: two facts are named " + name)
		}
		c.types[name] = &fact{Shape{name, 1}, reflect.TypeOf(e)}
		c.names = append(c.names, name)
	}
	for _, u := range upcasters {
		if _, twice := c.older[u.From]; twice {
			panic("eventstore: two upcasters read " + u.From.String())
		}
		c.older[u.From] = u
		if f, ok := c.types[u.From.Name]; ok && u.From.Version >= f.Version {
			f.Version = u.From.Version + 1
		}
	}
	for _, f := range c.types {
		for v := range f.Version - 1 {
			if _, ok := c.older[Shape{f.Name, v + 1}]; !ok {
				panic("eventstore: nothing reads " + Shape{f.Name, v + 1}.String())
			}
		}
	}
	for shape := range c.older {
		c.mustLead(shape, shape, 0)
	}
	return c
}

// mustLead panics unless every way from a shape ends at a fact of the catalogue
// or at nothing.
func (c *Codec) mustLead(from, at Shape, steps int) {
	u, older := c.older[at]
	switch {
	case !older && !c.current(at):
		panic(fmt.Sprintf("eventstore: the upcaster of %s leads to %s, which is no fact of the catalogue", from, at))
	case steps > len(c.older):
		panic(fmt.Sprintf("eventstore: the upcaster of %s leads in a circle", from))
	}
	for _, into := range u.Into {
		c.mustLead(from, into, steps+1)
	}
}

func (c *Codec) current(s Shape) bool {
	f, ok := c.types[s.Name]
	return ok && f.Version == s.Version
}

// Names lists the contract names that this build writes.
func (c *Codec) Names() []string { return c.names }

// Older lists the shapes that this build reads and no longer writes, in order.
func (c *Codec) Older() []Shape {
	shapes := make([]Shape, 0, len(c.older))
	for s := range c.older {
		shapes = append(shapes, s)
	}
	slices.SortFunc(shapes, Shape.compare)
	return shapes
}

// StoredAs lists the contract names under which facts of these names may stand
// in the log: theirs, and those that upcasters lead from to one of them.
func (c *Codec) StoredAs(names ...string) []string {
	stored := slices.Clone(names)
	for _, s := range c.Older() {
		if !slices.Contains(stored, s.Name) && c.leadsTo(s, names) {
			stored = append(stored, s.Name)
		}
	}
	return stored
}

func (c *Codec) leadsTo(s Shape, names []string) bool {
	return slices.Contains(names, s.Name) ||
		slices.ContainsFunc(c.older[s].Into, func(into Shape) bool { return c.leadsTo(into, names) })
}

// name is a contract name as a string, without a copy if the codec knows it.
func (c *Codec) name(text []byte) string {
	if f, ok := c.types[string(text)]; ok {
		return f.Name
	}
	return string(text)
}

// Encode gives a fact's contract name, schema version and payload.
func (c *Codec) Encode(e domain.Event) (name string, version int16, payload json.RawMessage, err error) {
	f, ok := c.types[e.EventName()]
	if !ok {
		return "", 0, nil, fmt.Errorf("encode %s: %w", e.EventName(), &UnknownEvent{Type: e.EventName()})
	}
	payload, err = json.Marshal(e)
	if err != nil {
		return "", 0, nil, fmt.Errorf("encode %s: %w", f.Name, err)
	}
	return f.Name, f.Version, payload, nil
}

// Decode reads a payload as this build knows the fact: one event, or several
// where the fact has been split since, or [domain.Retired]. The error is an
// *UnknownEvent if the name, or this version of it, is not known here.
func (c *Codec) Decode(name string, version int16, payload json.RawMessage) ([]domain.Event, error) {
	at := Shape{name, version}
	if f, ok := c.types[name]; ok && f.Version == version {
		e, err := f.decode(payload)
		if err != nil {
			return nil, err
		}
		return []domain.Event{e}, nil
	}
	if _, ok := c.older[at]; !ok {
		return nil, &UnknownEvent{name, version}
	}
	events, err := c.raise(nil, at, payload)
	if err != nil {
		return nil, err
	}
	if len(events) == 0 {
		events = append(events, domain.Retired{Name: name})
	}
	return events, nil
}

// AppendDecoded appends r to list as this build reads it: with Event set, or
// with Err; once, or where the fact has been split once for each part of it.
func (c *Codec) AppendDecoded(list []Recorded, r Recorded) []Recorded {
	r.Event, r.Err, r.Part = nil, nil, 0
	if f, ok := c.types[r.Type]; ok && f.Version == r.SchemaVersion { // as nearly all are
		r.Event, r.Err = f.decode(r.Payload)
		return append(list, r)
	}
	events, err := c.Decode(r.Type, r.SchemaVersion, r.Payload)
	if err != nil {
		r.Err = err
		return append(list, r)
	}
	for i, e := range events {
		r.Event, r.Part = e, i
		list = append(list, r)
	}
	return list
}

func (f *fact) decode(payload json.RawMessage) (domain.Event, error) {
	e := reflect.New(f.typ)
	if err := json.Unmarshal(payload, e.Interface()); err != nil {
		return nil, fmt.Errorf("decode %s: %w", f.Name, err)
	}
	return e.Elem().Interface().(domain.Event), nil
}
