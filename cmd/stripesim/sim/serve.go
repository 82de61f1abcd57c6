package sim

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// call is one request on its way through the layers.
type call struct {
	s           *Sim
	w           http.ResponseWriter
	r           *http.Request
	id          string    // Request-Id
	received    time.Time // real time
	method      string
	path        string // cleaned
	route       *route
	object      string // the id in the path
	params      params
	key         string
	keyed       bool // the key counts: it came with a POST
	fingerprint [sha256.Size]byte
	customer    string
	hit         hit
	log         *Request
	flushed     int64           // journal position that must be written before the answer
	inner       bool            // no request: an errand, or control
	awaited     []chan struct{} // webhooks that are tried before the answer
}

func (c *call) methodPath() string { return c.method + " " + c.path }

// response is an answer, whole. How it gets to the client, and whether, is
// decided in wire.go.
type response struct {
	status   int
	body     []byte
	html     bool
	replayed bool
	original string // request id that first gave this answer
	location string
	executed bool // something began to execute
	bare     bool // not Stripe's: none of its headers
	wire     wire
}

// maxBody is the longest request body that is read.
const maxBody = 1 << 20

// API is the handler of Stripe's own routes.
func (s *Sim) API() http.Handler { return http.HandlerFunc(s.serve) }

func (s *Sim) serve(w http.ResponseWriter, r *http.Request) {
	c := &call{s: s, w: w, r: r, id: newID("req_", 14), received: time.Now(), method: r.Method}
	c.route, c.object, c.path = s.find(r.Method, r.URL)
	if keys, ok := r.Header["Idempotency-Key"]; ok { // logged on all, obeyed on POST
		c.key, c.keyed = keys[0], r.Method == http.MethodPost
	}
	resp := s.handle(c)
	if s.journal != nil {
		if err := s.journal.flush(c.flushed); err != nil {
			s.fail(err)
			resp = response{wire: wireDrop}
		}
	}
	c.awaitWebhooks()
	resp = c.onTheWay(resp)
	s.mu.Lock()
	c.log.close(resp, c.hit.kind)
	s.mu.Unlock()
	c.answer(resp)
}

// handle takes the request from the first layer to its answer.
func (s *Sim) handle(c *call) response {
	s.mu.Lock()
	c.log = s.watch(c)
	limiters := []*rate.Limiter{s.limiter}
	if c.route != nil {
		limiters = append(limiters, c.route.limiter)
	}
	if len(s.faults) > 0 {
		c.hit = s.pick(c, true, fresh)
	}
	s.mu.Unlock()
	if c.hit.kind == DropBeforeRead {
		return response{wire: wireDrop}
	}
	if e := s.authenticate(c.r.Header); e != nil {
		return e.response()
	}
	for _, limiter := range limiters {
		if !limiter.AllowN(c.received, 1) {
			return rateLimited().response()
		}
	}
	if e := c.parse(); e != nil {
		return e.response()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if s.journal != nil { // an answer may tell of anything that has happened so far
			c.flushed = s.journal.position()
		}
	}()
	now := s.clock.now()
	s.settle(now)
	c.customer = s.customerOf(c)
	c.log.read(c)
	how, entry := s.keys.look(&s.settings, c, now)
	if len(s.faults) > 0 {
		c.hit = s.pick(c, false, how)
	}
	if resp, ok := c.atDoor(); ok {
		return resp
	}
	if c.route == nil {
		return unknownURL(c.method, c.path).response()
	}
	switch how {
	case mismatched:
		s.counters.Mismatches++
		entry.counts.Mismatches++
		if entry.path != c.methodPath() {
			return keyOtherEndpoint(c.key, c.path, entry.path[strings.IndexByte(entry.path, ' ')+1:]).response()
		}
		return keyMismatch(c.key).response()
	case inProgress:
		s.counters.Conflicts++
		entry.counts.Conflicts++
		return keyInUse(c.key).response()
	case replayed:
		s.counters.Replays++
		entry.counts.Replays++
		return s.replay(entry)
	case fresh:
		var counts KeyCounts
		if entry != nil {
			counts = entry.counts
		}
		entry = s.keys.begin(&s.settings, c, now, counts)
	case unkeyed:
		if c.method == http.MethodPost && !c.keyed {
			s.counters.UnkeyedPOSTs++
		}
	}
	resp, keep := s.execute(c, entry)
	if entry != nil && !keep {
		s.keys.forget(entry)
	}
	return resp
}

// execute validates and runs a request that nothing was known about. keep tells
// whether its key keeps the answer; if so that has been recorded.
func (s *Sim) execute(c *call, entry *keyEntry) (resp response, keep bool) {
	if e := c.validate(); e != nil {
		if entry == nil || !s.settings.StoreValidationErrors {
			return e.response(), false
		}
		t := &tx{s: s, c: c, now: s.clock.now()}
		resp = e.response()
		t.commit(entry, &resp)
		return resp, true
	}
	if c.hit.kind == LockTimeout429 {
		return lockTimeout().response(), false
	}
	world := s.world
	unlock, e := s.lockObject(c)
	if e != nil {
		return e.response(), false
	}
	if c.hit.kind == DelayBeforeCommit {
		s.mu.Unlock()
		s.pause(c.hit.fault.Delay)
		s.mu.Lock()
	}
	unlock()
	if world != s.world { // a reset took away what this request was about
		return response{wire: wireDrop}, false
	}
	now := s.clock.now()
	s.settle(now)
	t := &tx{s: s, c: c, now: now}
	switch c.hit.kind {
	case Error500BeforeCommit:
		resp = internal500().response()
	case Error404Stored:
		resp = missing("object", "id", c.object).response()
	case Error500RolledForward:
		t.later(c.hit.fault.Delay)
		resp = internal500().response()
	default:
		resp = c.route.run(t)
		if resp.status == http.StatusTooManyRequests { // search has a limiter of its own
			return resp, false
		}
		resp.executed = true
	}
	if c.hit.kind == Error500AfterCommit {
		resp = internal500().response()
		resp.executed = true
	}
	t.commit(entry, &resp)
	return resp, true
}

var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// parse reads and decodes the request and its key.
func (c *call) parse() *apiError {
	buf := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(buf)
	buf.Reset()
	n, err := buf.ReadFrom(io.LimitReader(c.r.Body, maxBody+1))
	if err != nil {
		return invalid("", "", "Invalid request (the body could not be read).")
	}
	if n > maxBody {
		e := invalid("", "", "Request body is too large.")
		e.status = http.StatusRequestEntityTooLarge
		return e
	}
	if n > 0 {
		if kind, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";"); kind != "application/x-www-form-urlencoded" {
			return invalid("", "", "Invalid request (check that your POST content type is application/x-www-form-urlencoded). If you have questions, we can help at https://support.stripe.com/.")
		}
	}
	p, e := parseParams(c.r.URL.RawQuery, buf.String())
	if e != nil {
		return e
	}
	c.params = p
	if c.keyed {
		switch {
		case strings.TrimSpace(c.key) == "":
			return invalid("", "", "You passed an empty string for 'Idempotency-Key'. An idempotency key must have at least one character.")
		case len(c.key) > maxKey:
			return invalid("", "", fmt.Sprintf("Idempotency keys must be at most %d characters, but the one you passed has %d.", maxKey, len(c.key)))
		}
	}
	if c.method == http.MethodPost {
		c.fingerprint = p.fingerprint(c.method, c.path)
	}
	return nil
}

func (c *call) validate() *apiError {
	if e := c.route.shapes.check(c.params); e != nil {
		return e
	}
	if c.route.check == nil {
		return nil
	}
	return c.route.check(c)
}

// customerOf is the customer that a request is about.
func (s *Sim) customerOf(c *call) string {
	if id := c.params.get("customer"); id != "" {
		return id
	}
	id := c.object
	if id == "" {
		if id = c.params.get("payment_intent"); id == "" {
			id = c.params.get("charge")
		}
	}
	switch {
	case strings.HasPrefix(id, "pi_"):
		if p, ok := s.intents.get(id); ok {
			return p.Customer
		}
	case strings.HasPrefix(id, "seti_"):
		if si, ok := s.setups.get(id); ok {
			return si.Customer
		}
	case strings.HasPrefix(id, "ch_"):
		if ch, ok := s.charges.get(id); ok {
			return ch.Customer
		}
	case strings.HasPrefix(id, "cus_"):
		return id
	}
	return ""
}

// replay answers from the key's memory.
func (s *Sim) replay(e *keyEntry) response {
	body := e.body
	if body == nil {
		var err error
		if body, err = s.journal.read(e.offset, e.length); err != nil {
			s.fail(err)
			return response{wire: wireDrop}
		}
	}
	return response{status: e.status, body: body, replayed: true, original: e.request}
}

// lockObject takes the lock of the object in the path, which only a request that
// is being delayed holds for any time. It gives up after Settings.LockWait with
// 429 lock_timeout. mu is held, and let go while waiting.
func (s *Sim) lockObject(c *call) (unlock func(), e *apiError) {
	if c.object == "" || !c.route.write {
		return func() {}, nil
	}
	deadline := time.Now().Add(s.settings.LockWait)
	for {
		busy, ok := s.locks[c.object]
		if !ok {
			break
		}
		s.mu.Unlock()
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-busy:
		case <-timer.C:
		}
		timer.Stop()
		s.mu.Lock()
		if _, still := s.locks[c.object]; still && !time.Now().Before(deadline) {
			return nil, lockTimeout()
		}
	}
	if c.hit.kind != DelayBeforeCommit { // runs to its end under mu
		return func() {}, nil
	}
	busy := make(chan struct{})
	s.locks[c.object] = busy
	return func() {
		delete(s.locks, c.object)
		close(busy)
	}, nil
}

// parsePath makes a URL of a path that was cleaned before.
func parsePath(path string) (*url.URL, error) { return url.Parse(path) }

func lower(s string) string { return strings.ToLower(s) }
