package commands

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/billonce/billonce/domain"
)

// Command is an intent towards one aggregate whose state is S.
type Command[S any] interface {
	// Name is the command's public name, such as charge-billing.
	Name() string
	// Key is set by the constructor, never later. Empty: the command is decided
	// anew each time, under the partition's lock (internal commands only).
	Key() domain.Key
	Stream() domain.StreamID
	// Decide says what happens, or refuses with a *domain.Error. No events and
	// no error: nothing has to happen, and that is remembered under the key.
	Decide(S) ([]domain.Event, error)
}

// Request is a command whose state type has been forgotten, so that sagas, the
// scheduler and HTTP can hold commands of different aggregates in one slice.
type Request struct {
	command interface {
		Name() string
		Key() domain.Key
		Stream() domain.StreamID
	}
	decide func(state any) ([]domain.Event, error)
	zero   func() any
	evolve func(state any, e domain.Event) any
}

// Of forgets the state type of a command.
func Of[S domain.State[S]](c Command[S]) Request {
	return Request{
		command: c,
		decide:  func(state any) ([]domain.Event, error) { return c.Decide(state.(S)) },
		zero:    func() any { var s S; return s },
		evolve:  func(state any, e domain.Event) any { return state.(S).Evolve(e) },
	}
}

// Name is the command's name.
func (r Request) Name() string { return r.command.Name() }

// Key is the command's key.
func (r Request) Key() domain.Key { return r.command.Key() }

// Stream is the stream the command is decided on.
func (r Request) Stream() domain.StreamID { return r.command.Stream() }

// Fingerprint is a hash of what the caller meant: the command's name and its
// exported fields. A field that an honest repeat may fill differently (a time
// of day, the wording of a reason) is tagged json:"-".
func (r Request) Fingerprint() ([]byte, error) {
	body, err := json.Marshal(r.command)
	if err != nil {
		return nil, fmt.Errorf("fingerprint %s: %w", r.Name(), err)
	}
	sum := sha256.Sum256(append([]byte(r.Name()+"\n"), body...))
	return sum[:], nil
}
