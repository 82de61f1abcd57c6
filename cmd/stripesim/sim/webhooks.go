package sim

import (
	"container/heap"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Limits of delivery.
const (
	postsAtOnce   = 8              // requests to the endpoint at a time
	giveUpAfter   = 72 * time.Hour // on the stand-in's clock, as Stripe's live mode does
	deliveriesMax = 20_000         // remembered, if they are finished
)

// backoff is how long a delivery waits after each failed attempt, in units of
// Settings.WebhookRetry; the last one repeats. At 5 minutes it reads 5 m, 30 m,
// 2 h, 5 h, 10 h, 12 h.
var backoff = [...]time.Duration{1, 6, 24, 60, 120, 144}

// hooks is the state of webhooks, guarded by Sim.mu.
type hooks struct {
	url     string // empty: webhooks are off
	secrets []string
	client  *http.Client
	rules   []*WebhookRule
	waiting deliveries  // by due time
	log     []*delivery // oldest first; of finished ones the newest
	room    int         // length at which log is tidied again
	seq     int64
	busy    int
	running bool // the goroutine that posts
}

// delivery is the sending of one event to the endpoint, with all its attempts.
type delivery struct {
	seq      int64
	event    *event
	state    string
	due      int64 // nanoseconds, on the stand-in's clock
	began    int64 // …, when it was first due: attempts end giveUpAfter later
	started  bool
	attempts int
	status   int // of the last attempt; 0: no answer
	fault    string
	at       int64 // nanoseconds, when the last attempt ended
	rules    []WebhookFault

	telling      telling
	badSignature bool          // of the next attempt
	age          time.Duration // of the next attempt's timestamp
	written      int64         // journal position that must be written before it is sent
	tried        chan struct{} // closed after the first attempt, if anybody waits for it
	next         *delivery     // becomes due after the first attempt
}

// States of a delivery.
const (
	deliveryWaiting   = "waiting"
	deliverySending   = "sending"
	deliveryHeld      = "held"
	deliveryDelivered = "delivered"
	deliveryFailed    = "failed" // given up
	deliveryDropped   = "dropped"
)

type deliveries []*delivery

func (d deliveries) Len() int { return len(d) }
func (d deliveries) Less(i, j int) bool {
	return d[i].due < d[j].due || d[i].due == d[j].due && d[i].seq < d[j].seq
}
func (d deliveries) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *deliveries) Push(x any)   { *d = append(*d, x.(*delivery)) }
func (d *deliveries) Pop() any {
	old := *d
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return last
}

// parseEndpoint checks an endpoint. No URL is none; several secrets, separated
// by commas, sign side by side, as while one is rolled.
func parseEndpoint(to, secret string) (secrets []string, err error) {
	if to == "" {
		if secret != "" {
			return nil, errors.New("a webhook secret without a URL")
		}
		return nil, nil
	}
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("webhook URL %q is not an http URL", to)
	}
	for part := range strings.SplitSeq(secret, ",") {
		if part = strings.TrimSpace(part); part == "" {
			return nil, errors.New("the webhook secret is empty")
		}
		secrets = append(secrets, part)
	}
	return secrets, nil
}

// SetWebhook makes url the endpoint of all further deliveries, retries included,
// signed with the secret; several, separated by commas, sign side by side. An
// empty url turns webhooks off: events made meanwhile are owed to nobody. A
// reset brings back the endpoint of Options.
func (s *Sim) SetWebhook(url, secret string) error {
	secrets, err := parseEndpoint(url, secret)
	if err != nil {
		return fmt.Errorf("set webhook: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.useEndpoint(url, secrets)
	return nil
}

func (s *Sim) useEndpoint(url string, secrets []string) {
	s.hooks.url, s.hooks.secrets = url, secrets
	if url == "" {
		return
	}
	if s.hooks.client == nil {
		s.hooks.client = &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: postsAtOnce, IdleConnTimeout: time.Minute},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	if !s.hooks.running && !s.ended() {
		s.hooks.running = true
		s.posting.Go(s.post)
	}
	s.wake()
}

// announce queues the delivery of a new event, as the rules will have it. mu is
// held.
func (t *tx) announce(e *event) {
	h := &t.s.hooks
	if h.url == "" {
		return
	}
	e.Owed = true
	d := t.s.queue(e, t.now.UnixNano())
	t.queued = append(t.queued, d)
	for _, r := range h.rules {
		if r.Fault != WebhookTwoEventIDs && t.s.meets(r, e) {
			r.strike(t, d)
		}
	}
	if d.state == deliveryDropped {
		e.Owed, e.Missed = false, true
	}
	t.s.start(d)
}

// queue makes a delivery of the event, due at that time, that is not started.
func (s *Sim) queue(e *event, due int64) *delivery {
	h := &s.hooks
	if len(h.log) >= max(h.room, deliveriesMax) {
		old := len(h.log) - deliveriesMax/2
		kept := slices.DeleteFunc(slices.Clone(h.log[:old]), func(d *delivery) bool {
			return d.state == deliveryDelivered || d.state == deliveryFailed || d.state == deliveryDropped
		})
		h.log = append(kept, h.log[old:]...)
		h.room = 2 * len(h.log) // what cannot be forgotten is not looked through each time
	}
	h.seq++
	d := &delivery{seq: h.seq, event: e, state: deliveryWaiting, due: due, began: due, telling: telling{pending: 1}}
	if s.journal != nil {
		d.written = s.journal.position()
	}
	h.log = append(h.log, d)
	return d
}

// start lets a delivery wait for its time, unless it is held or dropped, or was
// started before.
func (s *Sim) start(d *delivery) {
	if d.state == deliveryWaiting && !d.started {
		d.started = true
		heap.Push(&s.hooks.waiting, d)
		s.wake()
		return
	}
	if d.state == deliveryDropped {
		d.firstTried()
	}
}

func (d *delivery) firstTried() {
	if d.tried != nil {
		close(d.tried)
		d.tried = nil
	}
}

// owe takes up deliveries that a former process owed.
func (s *Sim) owe() {
	if s.hooks.url == "" {
		return
	}
	for e := range s.events.oldestFirst {
		if e.Owed {
			s.start(s.queue(e, e.When))
		}
	}
}

// wake tells the goroutine that posts to look again.
func (s *Sim) wake() {
	select {
	case s.bell <- struct{}{}:
	default:
	}
}

// awaitWebhooks holds an answer back until the events of its request were tried,
// or cannot be any more.
func (c *call) awaitWebhooks() {
	if len(c.awaited) == 0 {
		return
	}
	timer := time.NewTimer(2 * c.s.Settings().WebhookTimeout)
	defer timer.Stop()
	for _, tried := range c.awaited {
		select {
		case <-tried:
		case <-timer.C:
			return
		case <-c.s.stopping:
			return
		}
	}
}

// ReplayFilter says which events are sent again.
type ReplayFilter struct {
	Event    string    // id
	Since    time.Time // made then or later
	Type     string    // pattern of path.Match
	Customer string
}

// ReplayWebhooks sends events again, at once and whatever became of their
// earlier deliveries, and tells how many. Rules do not meet them.
func (s *Sim) ReplayWebhooks(f ReplayFilter) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.now()
	s.settle(now)
	if s.hooks.url == "" {
		return 0, errors.New("replay webhooks: there is no endpoint")
	}
	n := 0
	again := func(e *event) {
		if e.When < f.Since.UnixNano() && !f.Since.IsZero() || f.Type != "" && !isType(f.Type, e.Type) ||
			f.Customer != "" && s.customerOfEvent(e) != f.Customer {
			return
		}
		s.start(s.queue(e, now.UnixNano()))
		n++
	}
	if f.Event != "" {
		e, ok := s.events.get(f.Event)
		if !ok {
			return 0, fmt.Errorf("replay %s: %w", f.Event, ErrNoSuchObject)
		}
		again(e)
		return n, nil
	}
	for e := range s.events.oldestFirst {
		again(e)
	}
	return n, nil
}

// ReleaseWebhooks sends what reorder rules hold, the newest first and one after
// the other, and tells how many there were.
func (s *Sim) ReleaseWebhooks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.hooks.rules {
		n += len(r.held)
		r.release(s)
	}
	return n
}

// Delivery is the sending of an event as control shows it.
type Delivery struct {
	Seq      int64          `json:"seq"` // counted from 1
	Event    string         `json:"event"`
	Type     string         `json:"type"`
	Object   string         `json:"object"`
	State    string         `json:"state"` // waiting, sending, held, delivered, failed (given up) or dropped
	Attempts int            `json:"attempts"`
	Status   int            `json:"status"`          // HTTP, of the last attempt; 0: no answer
	Error    string         `json:"error,omitempty"` // why the last attempt failed
	Due      time.Time      `json:"due"`             // of the next attempt, on the stand-in's clock
	Last     time.Time      `json:"last,omitzero"`   // end of the last attempt, on the stand-in's clock
	Faults   []WebhookFault `json:"faults,omitempty"`
}

// DeliveryFilter narrows the deliveries; empty fields let everything through.
type DeliveryFilter struct {
	Event, Object, State string
	Type                 string // pattern of path.Match
	After                int64  // Seq: only what follows it
	Limit                int    // 0: all
}

// Deliveries returns the remembered deliveries that pass the filter, oldest
// first.
func (s *Sim) Deliveries(f DeliveryFilter) []Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []Delivery{}
	for _, d := range s.hooks.log {
		if d.seq <= f.After || f.Event != "" && d.event.ID != f.Event || f.Object != "" && d.event.of.id() != f.Object ||
			f.State != "" && d.state != f.State || f.Type != "" && !isType(f.Type, d.event.Type) {
			continue
		}
		shown := Delivery{
			Seq: d.seq, Event: d.event.ID, Type: d.event.Type, Object: d.event.of.id(), State: d.state, Attempts: d.attempts,
			Status: d.status, Error: d.fault, Due: at(d.due), Faults: slices.Clone(d.rules),
		}
		if d.at != 0 {
			shown.Last = at(d.at)
		}
		found = append(found, shown)
		if len(found) == f.Limit {
			break
		}
	}
	return found
}

// WebhooksIdle tells whether nothing is being sent or due: what is left waits
// for its time, or is held.
func (s *Sim) WebhooksIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.now()
	s.settle(now)
	h := &s.hooks
	return h.busy == 0 && (len(h.waiting) == 0 || h.waiting[0].due > now.UnixNano())
}
