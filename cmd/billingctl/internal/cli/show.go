package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/console"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// streamCommand prints a stream, or what it had come to.
type streamCommand struct {
	Stream string `arg:"" help:"Stream such as customer/cust_123, or a customer's id."`
	At     string `help:"Print the events up to here and what they fold to: a version, or a time such as 2026-11-30T12:00:00Z." placeholder:"VERSION|TIME"`
}

// asOf is a version or a time.
type asOf struct {
	version int
	at      time.Time
}

func parseAsOf(s string) (m asOf, err error) {
	if m.version, err = strconv.Atoi(s); err == nil && m.version > 0 {
		return m, nil
	}
	if m.at, err = time.Parse(time.RFC3339, s); err != nil || m.version != 0 {
		return m, usage("--at must be a version from 1 on, or a time such as 2026-11-30T12:00:00Z")
	}
	return m, nil
}

// past reports whether f came after it. Times are those of the
// recording; the first event of a later time ends what was known.
func (m asOf) past(f fact) bool {
	if m.version > 0 {
		return f.Version > m.version
	}
	return f.RecordedAt.After(m.at)
}

// recordedFact is a fact with what decoding needs.
type recordedFact struct {
	fact
	SchemaVersion int16 `json:"schema_version"`
}

// Run prints the stream, or how things stood.
func (e streamCommand) Run(s *shell) error {
	if e.At == "" {
		c, err := s.client()
		if err != nil {
			return err
		}
		if page, err := readFacts(s.ctx, c, url.Values{"limit": {"1"}, "stream": {streamOf(e.Stream)}}); err != nil {
			return err
		} else if len(page.Items) == 0 {
			return fmt.Errorf("there is no stream %s", streamOf(e.Stream))
		}
		t := tailCommand{Stream: e.Stream, After: "0", Once: true}
		return t.Run(s)
	}
	m, err := parseAsOf(e.At)
	if err != nil {
		return err
	}
	stream := streamOf(e.Stream)
	items, facts, first, err := e.until(s, stream, m)
	if err != nil {
		return err
	}
	switch last := len(facts); {
	case first == nil:
		return fmt.Errorf("there is no stream %s", stream)
	case m.version > 0 && last < m.version:
		return fmt.Errorf("%s has no version %d; its newest is %d", stream, m.version, last)
	case last == 0:
		return fmt.Errorf("%s had no event by %s; its first is of %s", stream, m.at.UTC().Format(time.RFC3339Nano), first.RecordedAt.UTC().Format(time.RFC3339Nano))
	}
	var customer domain.Customer
	codec := eventstore.Current()
	for _, f := range facts {
		events, err := codec.Decode(f.Type, f.SchemaVersion, f.Payload)
		if err != nil {
			return fmt.Errorf("fold %s, version %d: %w", stream, f.Version, err)
		}
		for _, e := range events {
			customer = customer.Evolve(e)
		}
	}
	then := thenOf(stream, facts[len(facts)-1].fact, customer)
	if s.asJSON() {
		then.Events = items
		document, err := json.Marshal(then)
		if err != nil {
			return err
		}
		return console.JSON(s.Out, document)
	}
	if err := s.facts(items, nil); err != nil {
		return err
	}
	return then.write(s)
}

// until reads the stream's events up to some point. First is the stream's first
// event, whether it was before that or not.
func (e streamCommand) until(s *shell, stream string, m asOf) (items []json.RawMessage, facts []recordedFact, first *recordedFact, err error) {
	c, err := s.client()
	if err != nil {
		return nil, nil, nil, err
	}
	query := url.Values{"limit": {strconv.Itoa(factsOfPage)}, "stream": {stream}}
	for {
		page, err := readFacts(s.ctx, c, query)
		if err != nil {
			return nil, nil, nil, err
		}
		for _, item := range page.Items {
			var f recordedFact
			if err := json.Unmarshal(item, &f); err != nil {
				return nil, nil, nil, fmt.Errorf("read the answer of billingd: %w", err)
			}
			if first == nil {
				first = &f
			}
			if m.past(f.fact) {
				return items, facts, first, nil
			}
			items, facts = append(items, item), append(facts, f)
		}
		if len(page.Items) < factsOfPage {
			return items, facts, first, nil
		}
		query.Set("after", page.NextCursor)
	}
}
