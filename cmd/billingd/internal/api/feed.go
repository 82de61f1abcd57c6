package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/projections"
)

const (
	lastEventID = "Last-Event-ID"
	eventStream = "text/event-stream"
)

// How a feed looks for news. The bell rings for what is recorded, here or
// elsewhere; what it misses is found by looking.
const (
	feedPage = 100                   // facts read at once: all that a reader's feed holds
	feedPace = 20 * time.Millisecond // between two pages at the end of the log
	feedLook = time.Second
	// feedReads is how many pages an instance reads at a time, whatever the
	// number of its readers: the pool is there for commands as well.
	feedReads = 3
)

func (s *Server) registerFeed() {
	op := operation("follow-events", http.MethodGet, "/v1/events/stream", tagReads, "Follow the log", access.Read)
	op.Description = "Server-sent events: every fact there is and, as they are recorded, every new one; each once, and in a partition, so for a customer, in order. " +
		"An event's `id` is the place behind it in all 64 partitions. Come back with the last one as `Last-Event-ID`, as an EventSource does by itself, and nothing is missed or repeated, also over restarts of the service and its database. " +
		"`event` is the type of the fact, `data` the fact as GET /v1/events shows it, on one line. When there is nothing new a comment comes every 15 seconds, with an `id` if facts that the filters keep out were passed over. " +
		"A reader who takes nothing for 30 seconds is cut off, and loses nothing by it. Beyond 100 readers of an instance the answer is 503."
	text := func(name, in, doc, example string) *huma.Param {
		return &huma.Param{Name: name, In: in, Description: doc, Schema: &huma.Schema{Type: huma.TypeString}, Example: example}
	}
	op.Parameters = []*huma.Param{
		text("after", "query", "Where to begin: an id of a feed, the vector of an answer's as_of, next_cursor of GET /v1/events in ascending order, or a place. Not given: at the beginning.", "17-40213"),
		text("type", "query", "One type of fact alone.", "customer.billed.v1"),
		text("stream", "query", "One stream alone.", "customer/cust_123"),
		text("customer", "query", "One customer alone.", "cust_123"),
		text(lastEventID, "header", "The id of the last event received. It takes the place of after.", ""),
	}
	op.Responses = map[string]*huma.Response{
		"200":     {Description: "The facts, without end.", Content: map[string]*huma.MediaType{eventStream: {Schema: &huma.Schema{Type: huma.TypeString}}}},
		"default": s.problemResponse(),
	}
	s.handle(op, s.serveFeed)
}

func (s *Server) serveFeed(w http.ResponseWriter, r *http.Request) error {
	feed, err := s.openFeed(r)
	if err != nil {
		return err
	}
	if n := s.readers.Add(1); n > s.limits.Readers {
		s.readers.Add(-1)
		p := problem(http.StatusServiceUnavailable, "too_many_readers", "this instance has %d readers of the feed, which is all it takes", s.limits.Readers)
		p.retryAfter = 10 * retryAfter
		return p
	}
	defer s.readers.Add(-1)
	ctx, cancel := s.untilDrained(r.Context())
	defer cancel()
	rung := s.bell.nextAny()
	facts, err := s.readFeed(ctx, feed) // before anything is said: what cannot be read is a problem, not an empty feed
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("X-Accel-Buffering", "no") // proxies that gather answers are to pass this one on
	out := &feedWriter{w: w, control: http.NewResponseController(w), sent: feed.Cursor()}
	err = out.begin()
	for err == nil {
		if err = out.write(facts); err != nil {
			break
		}
		s.metrics.feedEvents.Add(float64(len(facts)))
		if len(facts) < feedPage {
			if err = s.awaitNews(ctx, rung, out, feed); err != nil {
				break
			}
		}
		rung = s.bell.nextAny()
		facts, err = s.nextFacts(ctx, feed)
	}
	x := exchangeOf(ctx)
	x.attrs = append(x.attrs, slog.Int("events", out.events))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.metrics.feedSlow.Inc()
		x.attrs = append(x.attrs, slog.Bool("slow_reader", true))
	case ctx.Err() != nil: // the reader has gone, or the service goes
	default:
		x.failed(err) // for the log: the reader sees the end of the connection
	}
	return nil
}

// readFeed reads a page when it is its turn.
func (s *Server) readFeed(ctx context.Context, feed *projections.Feed) ([]projections.Passed, error) {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
		return feed.Next(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// nextFacts reads a page. With the database away there is none, for now.
func (s *Server) nextFacts(ctx context.Context, feed *projections.Feed) ([]projections.Passed, error) {
	facts, err := s.readFeed(ctx, feed)
	if err != nil && ctx.Err() == nil && eventstore.Transient(err) {
		s.log.Debug("a feed cannot be read; it goes on when the database is back", "request_id", exchangeOf(ctx).id, "error", err)
		return nil, sleep(ctx, feedLook)
	}
	return facts, err
}

// openFeed reads where the feed begins and what it is of.
func (s *Server) openFeed(r *http.Request) (*projections.Feed, error) {
	given := r.URL.Query()
	q := projections.FactsQuery{After: given.Get("after"), Stream: given.Get("stream"), Type: given.Get("type"), Limit: feedPage}
	if customer := given.Get("customer"); customer != "" {
		id, err := domain.ParseCustomerID(customer)
		switch {
		case err != nil:
			return nil, domain.InvalidField("customer", "is not a customer's id")
		case q.Stream != "":
			return nil, domain.InvalidField("customer", "goes with no stream: it is one")
		}
		q.Stream = string(id.Stream())
	}
	last := r.Header.Get(lastEventID)
	if last != "" {
		q.After = last
	}
	feed, err := s.reads.Feed(r.Context(), q)
	if e, ok := errors.AsType[*domain.Error](err); ok && last != "" && len(e.Fields) == 1 && e.Fields[0].Field == "after" {
		return nil, domain.InvalidField(lastEventID, "%s", e.Fields[0].Msg)
	}
	return feed, err
}

// awaitNews waits until there may be something new, and shows the reader
// meanwhile that the connection is alive.
func (s *Server) awaitNews(ctx context.Context, rung <-chan struct{}, out *feedWriter, feed *projections.Feed) error {
	if time.Since(out.last) >= s.limits.Heartbeat {
		if err := out.beat(feed.Cursor()); err != nil {
			return err
		}
	}
	if err := sleep(ctx, feedPace); err != nil {
		return err
	}
	look := time.NewTimer(min(feedLook, s.limits.Heartbeat))
	defer look.Stop()
	select {
	case <-rung:
	case <-look.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// feedWriter writes facts as server-sent events, a page at a time. A write
// returns once the page is on its way to the reader.
type feedWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	page    bytes.Buffer
	sent    string // the reader's place
	events  int
	last    time.Time // when something was written
}

func (f *feedWriter) begin() error {
	f.page.WriteString("retry: 1000\n\n")
	return f.flush()
}

func (f *feedWriter) write(facts []projections.Passed) error {
	if len(facts) == 0 {
		return nil
	}
	data := json.NewEncoder(&f.page)
	data.SetEscapeHTML(false)
	for _, fact := range facts {
		fmt.Fprintf(&f.page, "id: %s\nevent: %s\ndata: ", fact.Cursor, fact.Type)
		if err := data.Encode(fact.Fact); err != nil { // ends the line
			return fmt.Errorf("write the fact at %s: %w", fact.Position, err)
		}
		f.page.WriteByte('\n')
		f.sent = fact.Cursor
	}
	if err := f.flush(); err != nil {
		return err
	}
	f.events += len(facts)
	return nil
}

// beat shows that the connection is alive, and moves the reader's place past
// what the filters keep out.
func (f *feedWriter) beat(cursor string) error {
	f.page.WriteString(": nothing new\n")
	if cursor != f.sent {
		fmt.Fprintf(&f.page, "id: %s\n", cursor)
		f.sent = cursor
	}
	f.page.WriteByte('\n')
	return f.flush()
}

func (f *feedWriter) flush() error {
	defer f.page.Reset()
	f.last = time.Now()
	if _, err := f.w.Write(f.page.Bytes()); err != nil {
		return err
	}
	return f.control.Flush()
}
