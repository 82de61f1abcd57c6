package pgtest

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// late is a connection to which everything gets later than it was written, in
// order and without holding up the writer: a long line, not a slow one.
type late struct {
	net.Conn
	by    time.Duration
	queue chan parcel
	gone  chan struct{}
	once  sync.Once
}

type parcel struct {
	due  time.Time
	data []byte
}

// lateQueue is how many messages may be on the way; more than that wait.
const lateQueue = 1024

func newLate(conn net.Conn, by time.Duration) *late {
	return &late{Conn: conn, by: by, queue: make(chan parcel, lateQueue), gone: make(chan struct{})}
}

// Write implements net.Conn.
func (l *late) Write(b []byte) (int, error) {
	select {
	case l.queue <- parcel{time.Now().Add(l.by), bytes.Clone(b)}:
		return len(b), nil
	case <-l.gone:
		return 0, net.ErrClosed
	}
}

// Close implements net.Conn. What is on the way is lost.
func (l *late) Close() error {
	l.once.Do(func() { close(l.gone) })
	return l.Conn.Close()
}

// deliver writes until the connection is closed.
func (l *late) deliver() {
	defer l.Close()
	for {
		select {
		case p := <-l.queue:
			select {
			case <-time.After(time.Until(p.due)):
			case <-l.gone:
				return
			}
			if _, err := l.Conn.Write(p.data); err != nil {
				return
			}
		case <-l.gone:
			return
		}
	}
}
