package eventstore

import (
	"encoding/json"
	"fmt"
	"iter"
	"reflect"

	"github.com/billonce/billonce/domain"
)

// Upcast raises an event's payload by one schema version.
type Upcast func(payload json.RawMessage) (json.RawMessage, error)

// Codec turns facts into named, versioned payloads and back.
type Codec struct {
	types   map[string]*shape
	names   []string
	catalog iter.Seq[domain.Event]
}

type shape struct {
	name    string
	version int16 // written by this build
	typ     reflect.Type
	upcasts []Upcast // upcasts[i] raises version i+1 to i+2
}

// NewCodec makes a codec for a catalogue of facts. It panics if two facts
// share a name: that is a mistake of the programmer.
func NewCodec(catalogue iter.Seq[domain.Event]) *Codec {
	c := &Codec{types: map[string]*shape{}, catalog: catalogue}
	for e := range catalogue {
		name := e.EventName()
		if _, twice := c.types[name]; twice {
			panic("eventstore: two facts are named " + name)
		}
		c.types[name] = &shape{name: name, version: 1, typ: reflect.TypeOf(e)}
		c.names = append(c.names, name)
	}
	return c
}

// Upcasting declares how older payloads of a fact are raised: the i-th upcast
// (from 0) raises schema version i+1 to i+2, and this build writes version
// len(upcasts)+1. It panics if the fact is not in the catalogue.
func (c *Codec) Upcasting(name string, upcasts ...Upcast) *Codec {
	s, ok := c.types[name]
	if !ok {
		panic("eventstore: no fact is named " + name)
	}
	s.upcasts, s.version = upcasts, int16(len(upcasts)+1)
	return c
}

// Names lists the contract names this codec knows.
func (c *Codec) Names() []string { return c.names }

// name is a contract name as a string, without a copy if the codec knows it.
func (c *Codec) name(text []byte) string {
	if s, ok := c.types[string(text)]; ok {
		return s.name
	}
	return string(text)
}

// Encode gives a fact's contract name, schema version and payload.
func (c *Codec) Encode(e domain.Event) (name string, version int16, payload json.RawMessage, err error) {
	s, ok := c.types[e.EventName()]
	if !ok {
		return "", 0, nil, fmt.Errorf("encode %s: %w", e.EventName(), &UnknownEvent{Type: e.EventName()})
	}
	payload, err = json.Marshal(e)
	if err != nil {
		return "", 0, nil, fmt.Errorf("encode %s: %w", s.name, err)
	}
	return s.name, s.version, payload, nil
}

// Decode reads a payload, raising it to this build's version first. The error
// is an *UnknownEvent if the name or a newer version is not known here.
func (c *Codec) Decode(name string, version int16, payload json.RawMessage) (domain.Event, error) {
	s, ok := c.types[name]
	if !ok || version > s.version || version < 1 {
		return nil, &UnknownEvent{name, version}
	}
	for v := version; v < s.version; v++ {
		raised, err := s.upcasts[v-1](payload)
		if err != nil {
			return nil, fmt.Errorf("upcast %s from schema version %d: %w", name, v, err)
		}
		payload = raised
	}
	e := reflect.New(s.typ)
	if err := json.Unmarshal(payload, e.Interface()); err != nil {
		return nil, fmt.Errorf("decode %s: %w", name, err)
	}
	return e.Elem().Interface().(domain.Event), nil
}
