package sim

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// wire is how an answer leaves.
type wire uint8

const (
	wireWhole wire = iota
	wireDrop
	wireTruncateBody
	wireTruncateHeaders
	wireHang
)

// atDoor answers for the faults that strike in front of the key layer.
func (c *call) atDoor() (response, bool) {
	refuse := func(e *apiError) (response, bool) { return e.response(), true }
	switch kind := c.hit.kind; kind {
	case DropBeforeCommit, DropBeforeRead:
		return response{wire: wireDrop}, true
	case Hang:
		return response{wire: wireHang}, true
	case Error500NotStored:
		return refuse(internal500())
	case RateLimit429:
		return refuse(rateLimited())
	case KeyInUse409:
		return refuse(keyInUse(c.key))
	case Error401:
		return refuse(&apiError{status: 401, kind: invalidRequest, message: "Invalid API Key provided: sk_test_********"})
	case Error403:
		return refuse(&apiError{status: 403, kind: invalidRequest, message: "The provided key 'rk_test_********' does not have the required permissions for this endpoint on account '" + c.s.account + "'."})
	case Error404:
		return refuse(missing("object", "id", c.object))
	case Gateway502, Gateway503, Gateway504, Empty200, HTML200:
		return foreign(kind, c.hit.fault.Body), true
	case Redirect307:
		return response{status: http.StatusTemporaryRedirect, location: c.hit.fault.Location, html: true, bare: true}, true
	default: // strikes elsewhere, or there is none
		return response{}, false
	}
}

// foreign is an answer that does not come from Stripe's API but from something
// on the way.
func foreign(kind Kind, body string) response {
	r := response{status: http.StatusOK, bare: true}
	switch kind {
	case Empty200, Empty200AfterCommit:
		r.body = []byte(`{}`)
		return r
	case HTML200, HTML200AfterCommit:
		body = "html"
	case Gateway502, Gateway502AfterCommit:
		r.status = http.StatusBadGateway
	case Gateway503, Gateway503AfterCommit:
		r.status = http.StatusServiceUnavailable
	case Gateway504, Gateway504AfterCommit:
		r.status = http.StatusGatewayTimeout
	default: // no other kind answers for a gateway
	}
	switch body {
	case "html":
		r.html = true
		r.body = fmt.Appendf(nil, "<html><head><title>%d %s</title></head><body><h1>%s</h1></body></html>\n", r.status, http.StatusText(r.status), http.StatusText(r.status))
	case "empty":
	default:
		e := internal500()
		e.status = r.status
		r.body = e.response().body
	}
	return r
}

// onTheWay lets the faults of the answer strike.
func (c *call) onTheWay(resp response) response {
	if c.hit.stage() != stageAnswer || resp.wire != wireWhole {
		return resp
	}
	switch kind := c.hit.kind; kind {
	case CommitThenDrop:
		resp.wire = wireDrop
	case TruncateBody:
		resp.wire = wireTruncateBody
	case TruncateHeaders:
		resp.wire = wireTruncateHeaders
	case CommitThenHang:
		resp.wire = wireHang
	case DelayAfterCommit:
	default:
		other := foreign(kind, c.hit.fault.Body)
		other.executed, other.replayed = resp.executed, resp.replayed
		return other
	}
	return resp
}

// answer sends the response, or fails to in the way the fault says.
func (c *call) answer(resp response) {
	if d := c.hit.pauses(); d > 0 {
		c.s.pause(d)
	}
	switch resp.wire {
	case wireDrop:
		c.drop(nil)
		return
	case wireHang:
		c.hang()
		return
	case wireTruncateBody, wireTruncateHeaders:
		c.headers(resp)
		c.truncate(resp)
		return
	case wireWhole:
		c.headers(resp)
	}
	c.w.WriteHeader(resp.status)
	c.w.Write(resp.body) //nolint:errcheck // the client may have gone; the request is done all the same
}

func (c *call) headers(resp response) {
	h := c.w.Header()
	if resp.html {
		h["Content-Type"] = []string{"text/html"}
	} else {
		h["Content-Type"] = []string{"application/json"}
	}
	h["Content-Length"] = []string{strconv.Itoa(len(resp.body))}
	if resp.location != "" {
		h["Location"] = []string{resp.location}
	}
	if f := c.hit.fault; f != nil && resp.status >= 400 {
		if f.ShouldRetry != nil {
			h["Stripe-Should-Retry"] = []string{strconv.FormatBool(*f.ShouldRetry)}
		}
		if f.RetryAfter > 0 {
			h["Retry-After"] = []string{strconv.Itoa(f.RetryAfter)}
		}
	}
	if resp.bare {
		return
	}
	h["Request-Id"] = []string{c.id}
	h["Stripe-Version"] = []string{"2023-10-16"}
	if c.keyed {
		h["Idempotency-Key"] = []string{c.key}
	}
	switch {
	case resp.replayed:
		h["Idempotent-Replayed"] = []string{"true"}
		h["Original-Request"] = []string{resp.original}
	case c.keyed && resp.executed:
		h["Original-Request"] = []string{c.id}
	}
}

// hang keeps the connection open without a byte until the client or the
// stand-in gives up, or the fault's delay is over.
func (c *call) hang() {
	var over <-chan time.Time
	if d := c.hit.fault.Delay; d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-c.r.Context().Done():
	case <-c.s.stopping:
	case <-over:
	}
	c.drop(nil)
}

// truncate sends the beginning of the answer and drops the connection.
func (c *call) truncate(resp response) {
	head := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\n", resp.status, http.StatusText(resp.status))
	if resp.wire == wireTruncateHeaders {
		c.drop(append(head, "Content-Type: applicat"...))
		return
	}
	for name, values := range c.w.Header() {
		head = fmt.Appendf(head, "%s: %s\r\n", name, values[0])
	}
	head = append(head, "\r\n"...)
	c.drop(append(head, resp.body[:len(resp.body)/2]...))
}

// drop closes the client's connection after sending the bytes. Without access
// to the connection it lets net/http abort the request.
func (c *call) drop(send []byte) {
	conn, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second)) //nolint:errcheck // the connection dies here anyway
	if len(send) > 0 {
		conn.Write(send) //nolint:errcheck // as above
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if f := c.hit.fault; f != nil && f.Close == "rst" {
		tcp.SetLinger(0) //nolint:errcheck // as above
		return
	}
	// Closing with unread bytes would send a RST: say FIN first and read on
	// until the client has gone.
	if tcp.CloseWrite() == nil {
		io.Copy(io.Discard, tcp) //nolint:errcheck // as above
	}
}

// pause waits, but not longer than the stand-in runs.
func (s *Sim) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.stopping:
	}
}
