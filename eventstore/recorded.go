package eventstore

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/billonce/billonce/domain"
)

// Head is the end of a stream: what an append builds on. The zero Head is an
// empty stream.
type Head struct {
	Version int
	Digest  []byte
}

// Meta says why an event exists: who asked, in which conversation, because of
// what.
type Meta struct {
	Actor       string `json:"actor,omitempty"`       // token name, processor or scheduler
	Correlation string `json:"correlation,omitempty"` // the first request of the conversation
	Causation   string `json:"causation,omitempty"`   // the event or request that led here
}

// Recorded is an event as it stands in the log.
type Recorded struct {
	Place
	EventID       uuid.UUID
	Stream        domain.StreamID
	Version       int
	Type          string
	SchemaVersion int16
	SequenceKey   string
	Payload       json.RawMessage
	Metadata      json.RawMessage
	CommandKey    domain.Key
	Digest        []byte
	RecordedAt    time.Time
	// Event is the decoded payload; nil if this build does not know the type or
	// version, and then Err says so.
	Event domain.Event
	Err   error
	// Part counts the events that one stored fact is read as, from 0, where an
	// upcaster has split it. All of them have its place, version and digest.
	Part int
}

// Name is the contract name of the event as this build knows it. Type is what
// is stored: another one, if the fact has been renamed or split since.
func (r Recorded) Name() string {
	if r.Event == nil {
		return r.Type
	}
	return r.Event.EventName()
}

// Head is the stream's head at this event.
func (r Recorded) Head() Head { return Head{r.Version, r.Digest} }

// Mark is how far a fold has come, for those that pass over what they have
// folded before. A stored mark is its position alone: what is folded of an event
// is kept together with all of it.
type Mark struct {
	Position int64
	parts    int // of the event there that are folded; 0: all
}

// Covers reports whether r was folded before.
func (m Mark) Covers(r Recorded) bool {
	return r.Position < m.Position || r.Position == m.Position && (m.parts == 0 || r.Part < m.parts)
}

// Move sets the mark after r.
func (m *Mark) Move(r Recorded) { m.Position, m.parts = r.Position, r.Part+1 }

// Receipt is the answer to a command: what was recorded for it, or that
// nothing had to be.
type Receipt struct {
	Key      domain.Key      `json:"key"`
	Command  string          `json:"command"`
	Stream   domain.StreamID `json:"stream"`
	Version  int             `json:"version"` // of the stream, after the command
	Position Place           `json:"position"`
	Replayed bool            `json:"replayed"`
	Events   []EventRef      `json:"events"`
}

// EventRef names one event of a receipt.
type EventRef struct {
	Type     string `json:"type"`
	Version  int    `json:"version"`
	Position Place  `json:"position"`
}
