package sim

import (
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"time"
)

// Movement is one line of the ledger: one attempt to move money, successful or
// not, whatever its caller was told.
type Movement struct {
	Charge      string            `json:"charge"`
	Intent      string            `json:"payment_intent,omitempty"`
	Customer    string            `json:"customer,omitempty"`
	Amount      int64             `json:"amount"`   // minor units
	Refunded    int64             `json:"refunded"` // minor units
	Currency    string            `json:"currency"`
	Status      string            `json:"status"` // succeeded, failed, pending; authorized until it is captured, released if it never is
	FailureCode string            `json:"failure_code,omitempty"`
	DeclineCode string            `json:"decline_code,omitempty"`
	Key         string            `json:"key,omitempty"` // Idempotency-Key of the request that made it
	Fingerprint string            `json:"fingerprint,omitempty"`
	Request     string            `json:"request_id,omitempty"`
	Planted     bool              `json:"planted,omitempty"` // put here by control, asked for by nobody
	Metadata    map[string]string `json:"metadata"`
	At          time.Time         `json:"at"` // on the stand-in's clock
}

// LedgerFilter narrows the ledger; empty fields let everything through.
type LedgerFilter struct {
	Customer, Intent, Key, Status string
	After                         string // charge id: only what follows it
	Limit                         int    // 0: all
}

// Ledger returns every movement, oldest first.
func (s *Sim) Ledger() []Movement { return s.LedgerWhere(LedgerFilter{}) }

// LedgerWhere returns the movements that pass the filter, oldest first.
func (s *Sim) LedgerWhere(f LedgerFilter) []Movement {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(s.clock.now())
	found := []Movement{}
	for c := range s.charges.behind(f.After) {
		m := c.movement()
		if f.Customer != "" && m.Customer != f.Customer || f.Intent != "" && m.Intent != f.Intent ||
			f.Key != "" && m.Key != f.Key || f.Status != "" && m.Status != f.Status {
			continue
		}
		m.Metadata = c.Metadata.asMap()
		found = append(found, m)
		if len(found) == f.Limit {
			break
		}
	}
	return found
}

func (c *charge) movement() Movement {
	status := c.Status
	if status == succeeded && !c.Captured {
		status = "authorized"
		if c.Refunded == c.Amount {
			status = "released"
		}
	}
	return Movement{
		Charge: c.ID, Intent: c.Intent, Customer: c.Customer, Amount: c.Amount, Refunded: c.Refunded,
		Currency: c.Currency, Status: status, FailureCode: c.FailureCode, DeclineCode: c.DeclineCode,
		Key: c.Key, Fingerprint: c.Fingerprint, Request: c.Request, Planted: c.Planted, At: at(c.When),
	}
}

// Counters say what was asked since the stand-in started.
type Counters struct {
	Requests     map[string]int64 `json:"requests"` // by method and path, ids as *
	Unknown      int64            `json:"unknown_urls"`
	UnkeyedPOSTs int64            `json:"unkeyed_posts"` // POSTs that ran without an Idempotency-Key
	Mismatches   int64            `json:"mismatches"`    // 400 idempotency_error
	Replays      int64            `json:"replays"`
	Conflicts    int64            `json:"conflicts"` // 409 idempotency_key_in_use, scripted ones excepted
	Creates      int64            `json:"creates"`   // intents and legacy charges made
	Confirms     int64            `json:"confirms"`  // attempts on intents that began
	Declines     int64            `json:"declines"`
	Cancels      int64            `json:"cancels"`
	KeysHeld     int64            `json:"keys_held"`
	KeysPruned   int64            `json:"keys_pruned"`
	Faults       map[Kind]int64   `json:"faults"` // struck, by fault
}

// Counters returns the counts.
func (s *Sim) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counters
	c.Requests = make(map[string]int64, len(s.routes))
	for _, r := range s.routes {
		if r.n > 0 {
			c.Requests[r.name] = r.n
		}
	}
	c.KeysHeld, c.KeysPruned = int64(len(s.keys.entries)), s.keys.pruned
	c.Faults = maps.Clone(s.counters.Faults)
	return c
}

// Request is one request as it came, and what became of it.
type Request struct {
	Seq         int64     `json:"seq"` // counted from 1
	ID          string    `json:"request_id"`
	At          time.Time `json:"at"`       // on the stand-in's clock
	Received    time.Time `json:"received"` // real time
	Method      string    `json:"method"`
	Path        string    `json:"path"`
	Key         string    `json:"key,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"` // of method, path and parameters; POSTs
	Customer    string    `json:"customer,omitempty"`
	Status      int       `json:"status"` // 0: not answered (yet)
	Replayed    bool      `json:"replayed"`
	Executed    bool      `json:"executed"`
	Finished    bool      `json:"finished"` // false while it is being worked on
	Fault       Kind      `json:"fault,omitempty"`
}

// close notes the outcome.
func (r *Request) close(resp response, fault Kind) {
	r.Finished, r.Fault, r.Replayed, r.Executed = true, fault, resp.replayed, resp.executed
	if resp.wire == wireWhole {
		r.Status = resp.status
	}
}

// read notes what parsing brought to light.
func (r *Request) read(c *call) {
	r.Customer = c.customer
	if c.method == "POST" {
		r.Fingerprint = hex.EncodeToString(c.fingerprint[:16])
	}
}

// requestLog keeps the last requests in a ring.
type requestLog struct {
	limit int
	ring  []*Request
	n     int64
}

// watch notes a request's arrival, with mu held.
func (s *Sim) watch(c *call) *Request {
	if c.route != nil {
		c.route.n++
	} else {
		s.counters.Unknown++
	}
	l := &s.requests
	l.n++
	r := &Request{
		Seq: l.n, ID: c.id, At: c.received.Add(time.Duration(s.clock.offset.Load())).Round(0).UTC(),
		Received: c.received.Round(0).UTC(), Method: c.method, Path: c.path, Key: c.key,
	}
	switch {
	case l.limit <= 0:
	case len(l.ring) < l.limit:
		l.ring = append(l.ring, r)
	default:
		l.ring[(l.n-1)%int64(l.limit)] = r
	}
	return r
}

// RequestFilter narrows the request log; empty fields let everything through.
type RequestFilter struct {
	Method, Key, Customer string
	Path                  string // pattern of path.Match
	After                 int64  // Seq: only what follows it
	Limit                 int    // 0: all
}

// Requests returns the remembered requests, oldest first, those under way too.
func (s *Sim) Requests() []Request {
	all, _ := s.RequestsWhere(RequestFilter{})
	return all
}

// RequestsWhere returns the remembered requests that pass the filter, oldest
// first. It refuses a path that is not a pattern.
func (s *Sim) RequestsWhere(f RequestFilter) ([]Request, error) {
	if _, err := path.Match(f.Path, "/"); err != nil {
		return nil, fmt.Errorf("path is not a pattern: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []Request{}
	l := &s.requests
	for i := range l.ring {
		r := l.ring[(l.n+int64(i))%int64(len(l.ring))]
		if len(l.ring) < l.limit {
			r = l.ring[i]
		}
		if r.Seq <= f.After || f.Method != "" && r.Method != f.Method || f.Key != "" && r.Key != f.Key || f.Customer != "" && r.Customer != f.Customer {
			continue
		}
		if f.Path != "" {
			if ok, _ := path.Match(f.Path, r.Path); !ok {
				continue
			}
		}
		found = append(found, *r)
		if len(found) == f.Limit {
			break
		}
	}
	return found, nil
}
