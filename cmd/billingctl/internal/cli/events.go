package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
)

// eventsCommand reads the log, and carries it from one database to another.
type eventsCommand struct {
	Tail   tailCommand      `cmd:"" help:"Print the newest facts and go on as they come."`
	Show   streamCommand    `cmd:"" help:"Print one stream from its beginning, or what it had come to at some point."`
	Export exportCommand    `cmd:"" help:"Write the log to a file that can be checked and imported."`
	Import importLogCommand `cmd:"" help:"Build a log anew from an exported file, in an empty database."`
}

type tailCommand struct {
	Stream string `help:"One stream or customer alone." placeholder:"STREAM"`
	Type   string `help:"One type of fact alone." placeholder:"TYPE"`
	After  string `help:"Begin behind this place of the log, such as 17-40213; 0 for the beginning." placeholder:"PLACE"`
	Last   int    `short:"n" help:"How many of the newest facts to begin with." default:"10"`
	Once   bool   `help:"Do not wait for more."`
}

// fact is what is shown of an event.
type fact struct {
	Position   string          `json:"position"`
	EventID    string          `json:"event_id"`
	Stream     string          `json:"stream"`
	Version    int             `json:"version"`
	Type       string          `json:"type"`
	Payload    json.RawMessage `json:"payload"`
	RecordedAt time.Time       `json:"recorded_at"`
}

// factPage is a page of the log.
type factPage struct {
	Items      []json.RawMessage `json:"items"`
	NextCursor string            `json:"next_cursor"`
}

const (
	factsOfPage = 200
	tailEvery   = 500 * time.Millisecond
)

// Run prints the tail.
func (t tailCommand) Run(s *shell) error {
	if t.Last < 0 || t.Last > factsOfPage {
		return usage("--last must be 0 to %d", factsOfPage)
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	query := url.Values{"limit": {strconv.Itoa(factsOfPage)}}
	if t.Stream != "" {
		query.Set("stream", streamOf(t.Stream))
	}
	if t.Type != "" {
		query.Set("type", t.Type)
	}
	if t.After != "" && t.After != "0" {
		query.Set("after", t.After)
	}
	seen := map[string]bool{}
	if t.After == "" {
		if seen, err = t.newest(s, c, query); err != nil {
			return err
		}
	}
	for {
		page, err := readFacts(s.ctx, c, query)
		if err != nil {
			return err
		}
		if err := s.facts(page.Items, seen); err != nil {
			return err
		}
		query.Set("after", page.NextCursor)
		if len(page.Items) == factsOfPage {
			continue
		}
		if t.Once {
			return nil
		}
		if !pause(s.ctx, tailEvery) {
			return nil // Ctrl-C is how one leaves
		}
	}
}

// newest prints the newest facts and sets query to go on from a page before
// them: places of different partitions are not handed out in the order of
// commits, so what was not to be seen yet may lie before what was. It returns
// what must not be printed again.
func (t tailCommand) newest(s *shell, c *client.Client, query url.Values) (seen map[string]bool, err error) {
	query.Set("order", "desc")
	page, err := readFacts(s.ctx, c, query)
	if err != nil {
		return nil, err
	}
	query.Del("order")
	slices.Reverse(page.Items)
	seen = map[string]bool{}
	for i, item := range page.Items {
		var f fact
		if err := json.Unmarshal(item, &f); err != nil {
			return nil, fmt.Errorf("read the answer of billingd: %w", err)
		}
		if i == 0 {
			query.Set("after", f.Position)
		}
		seen[f.EventID] = true
	}
	return seen, s.facts(page.Items[max(0, len(page.Items)-t.Last):], nil)
}

func readFacts(ctx context.Context, c *client.Client, query url.Values) (page factPage, err error) {
	err = c.Read(ctx, "/v1/events", query, &page)
	return page, err
}

// facts prints facts that were not seen, a line each.
func (s *shell) facts(items []json.RawMessage, seen map[string]bool) error {
	for _, item := range items {
		var f fact
		if err := json.Unmarshal(item, &f); err != nil {
			return fmt.Errorf("read the answer of billingd: %w", err)
		}
		if seen[f.EventID] {
			continue
		}
		var line bytes.Buffer
		if s.asJSON() {
			if err := json.Compact(&line, item); err != nil {
				return fmt.Errorf("read the answer of billingd: %w", err)
			}
		} else {
			fmt.Fprintf(&line, "%-10s %s  %s/%d  %s  ", f.Position, f.RecordedAt.UTC().Format("2006-01-02 15:04:05.000"), f.Stream, f.Version, f.Type)
			if err := json.Compact(&line, f.Payload); err != nil {
				return fmt.Errorf("read the answer of billingd: %w", err)
			}
		}
		if err := s.printf("%s\n", line.String()); err != nil {
			return err
		}
	}
	return nil
}

// streamOf takes a customer's id for their stream.
func streamOf(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return "customer/" + name
}

// pause waits, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
