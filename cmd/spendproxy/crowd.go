package main

import (
	"container/list"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// crowd bounds the connections that wait: those that have said nothing, or half a
// request, or nothing since their last answer. Each costs 15 to 30 KiB, which
// net/http does not let one have for less. When there are too many, whichever
// has waited longest is closed, so that memory is bounded and who has something to
// ask is served. One whose request is being served is never closed.
type crowd struct {
	most   int
	closed prometheus.Counter

	mu       sync.Mutex
	visitors map[net.Conn]*visitor
	waiting  *list.List // of *visitor, that which has waited longest first
}

// visitor is a connection.
type visitor struct {
	conn   net.Conn
	waits  *list.Element // nil: it is being served, or closed
	closed bool
}

func newCrowd(most int, registry prometheus.Registerer) *crowd {
	c := &crowd{most: most, visitors: map[net.Conn]*visitor{}, waiting: list.New(), closed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "spendproxy_connections_closed_total", Help: "Connections that waited and were closed because more than SPENDPROXY_IDLE_CONNECTIONS did.",
	})}
	registry.MustRegister(c.closed)
	return c
}

// watch makes a server's connections part of the crowd.
func (c *crowd) watch(s *http.Server) {
	s.ConnState = c.changed
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, visitorKey{}, c.visitor(conn))
	}
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, ok := r.Context().Value(visitorKey{}).(*visitor)
		switch {
		case ok && r.ContentLength != 0:
			r.Body = &arriving{r.Body, c, v}
		case ok && !c.serves(v):
			return // it was closed before its request was whole: nobody waits for an answer
		}
		next.ServeHTTP(w, r)
	})
}

type visitorKey struct{}

// arriving is a body on its way. Its connection waits until it is whole; what
// comes of it counts as a sign of life.
type arriving struct {
	io.ReadCloser
	crowd   *crowd
	visitor *visitor
}

// Read reads on. A body whose connection has been closed never becomes whole.
func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF) && !a.crowd.serves(a.visitor):
		err = io.ErrUnexpectedEOF
	case n > 0 && err == nil:
		a.crowd.lives(a.visitor)
	}
	return n, err
}

func (c *crowd) visitor(conn net.Conn) *visitor {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.visitors[conn]
	if v == nil {
		v = &visitor{conn: conn}
		c.visitors[conn] = v
	}
	return v
}

// changed follows a connection. One that becomes active goes on waiting until its
// request is whole.
func (c *crowd) changed(conn net.Conn, to http.ConnState) {
	v := c.visitor(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch to {
	case http.StateNew, http.StateIdle:
		if v.waits == nil && !v.closed {
			v.waits = c.waiting.PushBack(v)
		}
		if c.waiting.Len() > c.most {
			c.close(c.waiting.Front().Value.(*visitor))
		}
	case http.StateClosed, http.StateHijacked:
		c.leave(v)
		delete(c.visitors, conn)
	case http.StateActive:
	}
}

// serves takes a connection out of those that wait; false: it has been closed.
func (c *crowd) serves(v *visitor) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave(v)
	return !v.closed
}

// lives makes a connection that waits the one that has waited for the shortest.
func (c *crowd) lives(v *visitor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.waits != nil {
		c.waiting.MoveToBack(v.waits)
	}
}

func (c *crowd) leave(v *visitor) {
	if v.waits != nil {
		c.waiting.Remove(v.waits)
		v.waits = nil
	}
}

func (c *crowd) close(v *visitor) {
	c.leave(v)
	v.closed = true
	delete(c.visitors, v.conn)
	c.closed.Inc()
	_ = v.conn.Close() // who reads it notices
}
