package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
)

// processorList is how the processors stand.
type processorList struct {
	Items []tracking.ProcessorStatus `json:"items"`
}

// letterList is a page of dead letters.
type letterList struct {
	Items      []tracking.Letter `json:"items"`
	NextCursor string            `json:"next_cursor,omitempty"`
}

func (s *Server) registerDelivery() {
	processors := operation("list-processors", http.MethodGet, "/v1/processors", tagDelivery, "See how far the processors have come", access.Read)
	processors.Description = "Ordered by name. Each partition is told by its token, the newest position of the log and what lies between."
	read(s, processors, func(ctx context.Context, _ *struct{}) (processorList, error) {
		all, err := s.processors(ctx)
		if all == nil {
			all = []tracking.ProcessorStatus{}
		}
		return processorList{all}, err
	})

	type lettersQuery struct {
		Processor string `query:"processor" example:"billing" doc:"One processor alone."`
		Customer  string `query:"customer" example:"cust_123" doc:"One customer alone."`
		Type      string `query:"type" example:"billing.due.v1" doc:"Events of this contract name alone."`
		Error     string `query:"error" doc:"Those whose error holds this text."`
		Resolved  bool   `query:"resolved" doc:"Those too that were retried or skipped."`
		Cursor    string `query:"cursor" doc:"next_cursor of the page before."`
		Limit     int    `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"Letters of a page at most."`
	}
	letters := operation("list-dead-letters", http.MethodGet, "/v1/dead-letters", tagDelivery, "List the events that could not be handled", access.Read)
	letters.Description = "Ordered by position, then by processor: the order in which they are dealt with."
	read(s, letters, func(ctx context.Context, q *lettersQuery) (letterList, error) {
		filter := tracking.LetterFilter{Processor: q.Processor, SequenceKey: q.Customer, EventType: q.Type, Error: q.Error, Resolved: q.Resolved, Limit: q.Limit}
		return s.letters(ctx, filter, q.Cursor)
	})

	type letterPath struct {
		Processor string `path:"processor" example:"billing"`
		Place     string `path:"place" example:"17-40213" doc:"The event's place in the log."`
	}
	one := operation("get-dead-letter", http.MethodGet, "/v1/dead-letters/{processor}/{place}", tagDelivery, "See one event that could not be handled", access.Read)
	one.Description = "With the event itself, everything that happened to the letter, and where its bill stands beside the log."
	read(s, one, func(ctx context.Context, q *letterPath) (letterDetail, error) {
		return s.letter(ctx, q.Processor, q.Place)
	})
}

// letterDetail is a dead letter with what an operator needs to decide about it.
type letterDetail struct {
	tracking.LetterStory
	Event projections.Fact           `json:"event"`
	Saga  *projections.Saga          `json:"saga,omitempty" doc:"The billing saga's instance of the event's bill."`
	Row   *projections.BillingRecord `json:"row,omitempty" doc:"The pre-flight row of the event's bill."`
}

// letter reads one letter. The state beside it is left out if the event is not
// about a bill.
func (s *Server) letter(ctx context.Context, processor, place string) (d letterDetail, err error) {
	at, err := eventstore.ParsePlace(place)
	if err != nil {
		return d, domain.InvalidField("place", "must be a place in the log, such as 17-40213")
	}
	if d.LetterStory, err = tracking.StoryOf(ctx, s.store.Pool(), processor, at.Position); err != nil {
		return d, err
	}
	facts, err := s.reads.Facts(ctx, projections.FactsQuery{
		After: eventstore.Place{Partition: d.Place.Partition, Position: d.Place.Position - 1}.String(), Type: d.EventType, Limit: 1, Order: projections.Ascending,
	})
	if err != nil || len(facts.Items) != 1 {
		return d, err
	}
	d.Event = facts.Items[0]
	var about struct {
		CustomerID string `json:"customer_id"`
		Period     string `json:"billing_period"`
	}
	if json.Unmarshal(d.Event.Payload, &about) != nil || about.Period == "" || about.CustomerID == "" {
		return d, nil
	}
	story, err := s.reads.Story(ctx, about.CustomerID, about.Period)
	if _, unknown := errors.AsType[*domain.Error](err); unknown {
		return d, nil // its bill is not known to the read models yet
	}
	d.Saga, d.Row = story.Saga, story.Record
	return d, err
}

// mostProcessors bounds how many letters there can be at one position: one a
// processor.
const mostProcessors = 100

// letters reads a page. An event may be a letter of several processors, so a
// page can begin in the middle of a position.
func (s *Server) letters(ctx context.Context, f tracking.LetterFilter, cursor string) (letterList, error) {
	list := letterList{Items: []tracking.Letter{}}
	at, processor, err := parseLetterCursor(cursor)
	if err != nil {
		return list, err
	}
	limit := f.Limit
	f.After, f.Limit = max(at.Position-1, 0), limit+1+mostProcessors
	found, err := tracking.Letters(ctx, s.store.Pool(), f)
	if err != nil {
		return list, err
	}
	for _, l := range found {
		if l.Place.Position == at.Position && l.Processor <= processor {
			continue // on the page before
		}
		if len(list.Items) == limit {
			last := list.Items[limit-1]
			list.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(last.Place.String() + " " + last.Processor))
			break
		}
		list.Items = append(list.Items, l)
	}
	return list, nil
}

func parseLetterCursor(s string) (at eventstore.Place, processor string, err error) {
	if s == "" {
		return at, "", nil
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err == nil {
		var place string
		place, processor, _ = strings.Cut(string(text), " ")
		at, err = eventstore.ParsePlace(place)
	}
	if err != nil {
		return at, "", domain.InvalidField("cursor", "is not a cursor of this list; begin again without one")
	}
	return at, processor, nil
}
