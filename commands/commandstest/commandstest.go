package commandstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// Fixture is where the sentences of one test begin.
type Fixture[S domain.State[S]] struct {
	t    testing.TB
	keys map[domain.Key]string // what each key met so far belongs to
}

// For returns a fixture of decisions on S.
func For[S domain.State[S]](t testing.TB) Fixture[S] {
	return Fixture[S]{t, map[domain.Key]string{}}
}

// Given is a history, oldest fact first.
func (f Fixture[S]) Given(history ...domain.Event) Given[S] { return Given[S]{f, history} }

// Given is a history that a command is about to meet.
type Given[S domain.State[S]] struct {
	fixture Fixture[S]
	history []domain.Event
}

// And is the history with more facts at its end.
func (g Given[S]) And(more ...domain.Event) Given[S] {
	return Given[S]{g.fixture, append(g.history[:len(g.history):len(g.history)], more...)}
}

// When decides a command on the history, and checks the laws.
func (g Given[S]) When(command commands.Command[S]) Decision {
	g.fixture.t.Helper()
	return g.decide(command)
}

// WhenBuilt is When for what a constructor builds, which is called twice.
func (g Given[S]) WhenBuilt(build func() commands.Command[S]) Decision {
	t := g.fixture.t
	t.Helper()
	first, second := build(), build()
	if first.Key() != second.Key() {
		t.Errorf("%s is built with key %q, and then with key %q", first.Name(), first.Key(), second.Key())
	} else if !reflect.DeepEqual(first, second) {
		t.Errorf("%s is built as %+v, and then as %+v", first.Name(), first, second)
	}
	return g.decide(first)
}

func (g Given[S]) decide(command commands.Command[S]) Decision {
	t := g.fixture.t
	t.Helper()
	state, same := g.fold(), g.fold() // two values that share nothing
	key, before := command.Key(), fmt.Sprintf("%#v", command)

	events, err := command.Decide(state)
	again, errAgain := command.Decide(state)
	d := Decision{t, command.Name(), events, err}
	if !reflect.DeepEqual(events, again) || !reflect.DeepEqual(err, errAgain) {
		t.Errorf("%s decided twice: first %s, then %s", d.command, d, Decision{t, d.command, again, errAgain})
	}
	if !reflect.DeepEqual(state, same) {
		t.Errorf("%s: the decision changed the state to\n%+v, it was\n%+v", d.command, state, same)
	}
	if command.Key() != key || fmt.Sprintf("%#v", command) != before {
		t.Errorf("%s: the decision changed the command to %#v, it was %s", d.command, command, before)
	}
	g.checkKey(command)
	g.checkContinuations(d)
	d.check(string(command.Stream()))
	return d
}

func (g Given[S]) fold() (state S) {
	for _, e := range g.history {
		state = state.Evolve(e)
	}
	return state
}

func (g Given[S]) checkKey(command commands.Command[S]) {
	t := g.fixture.t
	t.Helper()
	key := command.Key()
	if key == "" { // decided anew each time
		return
	}
	if len(key) > 255 {
		t.Errorf("%s: the key has %d characters: %s", command.Name(), len(key), key)
	}
	owner := command.Name() + " on " + string(command.Stream())
	if other, met := g.fixture.keys[key]; met && other != owner {
		t.Errorf("%s and %s have the same key %s", other, owner, key)
	}
	g.fixture.keys[key] = owner
}

// checkContinuations lets the history go on in several ways from one state:
// with what was decided, and with each of its own facts once more.
func (g Given[S]) checkContinuations(d Decision) {
	t := g.fixture.t
	t.Helper()
	ways := [][]domain.Event{d.events}
	for _, e := range g.history {
		ways = append(ways, []domain.Event{e}, append([]domain.Event{e}, d.events...))
	}
	base := g.fold()
	ends := make([]S, len(ways))
	for i, way := range ways {
		ends[i] = base
		for _, e := range way {
			ends[i] = ends[i].Evolve(e)
		}
	}
	if !reflect.DeepEqual(base, g.fold()) {
		t.Errorf("%s: a continuation changed the state it began with", d.command)
	}
	for i, way := range ways {
		alone := g.fold()
		for _, e := range way {
			alone = alone.Evolve(e)
		}
		if !reflect.DeepEqual(ends[i], alone) {
			t.Errorf("%s: two continuations of one state see each other", d.command)
			return
		}
	}
}

// Decision is what a command decided.
type Decision struct {
	t       testing.TB
	command string
	events  []domain.Event
	err     error
}

// check holds a decision to what every decision promises.
func (d Decision) check(stream string) {
	d.t.Helper()
	if d.err != nil {
		e, ok := errors.AsType[*domain.Error](d.err)
		if !ok || e.Code == "" || e.Kind.String() == "internal" {
			d.t.Errorf("%s is refused without a code: %v", d.command, d.err)
		}
		if len(d.events) > 0 {
			d.t.Errorf("%s is refused, and decides %s all the same", d.command, d)
		}
	}
	for _, e := range d.events {
		if owner := reflect.ValueOf(e).FieldByName("CustomerID"); owner.IsValid() && string(domain.CustomerID(owner.String()).Stream()) != stream {
			d.t.Errorf("%s on %s decided a fact about %s: %s", d.command, stream, owner, e.EventName())
		}
	}
}

// Then says what happens: exactly these facts, in this order.
func (d Decision) Then(want ...domain.Event) {
	d.t.Helper()
	if d.err != nil || !reflect.DeepEqual(d.events, want) {
		d.t.Errorf("%s: %s\nwant %s", d.command, d, Decision{events: want})
	}
}

// ThenNothing says that nothing has to happen, and that this is no refusal.
func (d Decision) ThenNothing() {
	d.t.Helper()
	if d.err != nil || len(d.events) > 0 {
		d.t.Errorf("%s: %s\nwant nothing", d.command, d)
	}
}

// ThenRefused says by which refusal, whatever its wording.
func (d Decision) ThenRefused(want error) {
	d.t.Helper()
	if !errors.Is(d.err, want) {
		d.t.Errorf("%s: %s\nwant the refusal %v", d.command, d, want)
	}
}

// Events is what was decided, for what a sentence cannot say.
func (d Decision) Events() []domain.Event { return d.events }

// String tells a decision as a reader would like to see it in a failure.
func (d Decision) String() string {
	if d.err != nil {
		return "refused: " + d.err.Error()
	}
	if len(d.events) == 0 {
		return "nothing"
	}
	told := make([]string, len(d.events))
	for i, e := range d.events {
		payload, err := json.Marshal(e)
		if err != nil {
			payload = fmt.Appendf(nil, "%+v", e)
		}
		told[i] = e.EventName() + " " + string(payload)
	}
	return strings.Join(told, "\n     ")
}
