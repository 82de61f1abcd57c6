package tracking

import (
	"errors"
	"fmt"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// What operators are refused.
var (
	ErrUnknownProcessor = &domain.Error{Kind: domain.NotFound, Code: "unknown_processor", Msg: "no such processor has ever run here"}
	ErrEffectful        = &domain.Error{Kind: domain.Refused, Code: "processor_effectful", Msg: "an effectful processor is reset only through a plan"}
	ErrNotEffectful     = &domain.Error{Kind: domain.Refused, Code: "processor_not_effectful", Msg: "a read model is reset or rebuilt, and needs no plan"}
	ErrNotResettable    = &domain.Error{Kind: domain.Refused, Code: "processor_not_resettable", Msg: "the processor does not say how its tables are emptied"}
	ErrNothingParked    = &domain.Error{Kind: domain.NotFound, Code: "nothing_parked", Msg: "the processor has nothing parked under this sequence key"}
	ErrLetterEnded      = &domain.Error{Kind: domain.Conflict, Code: "letter_ended", Msg: "the letter does not wait any more"}
	ErrNotFirst         = &domain.Error{Kind: domain.Conflict, Code: "not_first_letter", Msg: "the event is not the first one parked under its sequence key"}
	ErrPast             = &domain.Error{Kind: domain.Conflict, Code: "past_position", Msg: "the processor has come further already"}
	ErrNoPosition       = domain.InvalidField("position", "must be a position of the log, 1 or more")
	ErrReasonNeeded     = domain.InvalidField("reason", "say why, for whoever reads the record later")
)

// errStopping ends a worker's wait for work.
var errStopping = errors.New("the processor is stopping")

// stopped says why a processor does not go past an event.
type stopped struct {
	at    eventstore.Place
	cause error
}

func (s *stopped) Error() string { return fmt.Sprintf("stopped before %s: %v", s.at, s.cause) }

func (s *stopped) Unwrap() error { return s.cause }
