// Package unreadable answers requests that net/http cannot read in a program's
// own words. net/http answers those itself, in plain text, before any handler
// sees them; callers who go by one shape of errors could not read that.
package unreadable

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
)

// Answer is what is said instead: the header, Content-Length and Connection
// excepted, and the body. It is called for each such request, with one of the
// statuses 400, 417, 431, 501 and 505.
type Answer func(status int) (http.Header, []byte)

// Listener makes a server's listener answer so. Connections that are not TCP
// are left as they are.
func Listener(l net.Listener, answer Answer) net.Listener { return &listener{l, answer} }

type listener struct {
	net.Listener
	answer Answer
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		return &conn{tcp, l.answer}, err
	}
	return c, err
}

// conn keeps what net/http wants of a TCP connection beside reading and writing.
type conn struct {
	*net.TCPConn
	answer Answer
}

// Write writes b, or what is said instead of it. net/http writes a refusal of
// its own at once, and with no header but these; answers of handlers have a Date.
func (c *conn) Write(b []byte) (int, error) {
	status, ok := refusalOf(b)
	if !ok {
		return c.TCPConn.Write(b)
	}
	header, body := c.answer(status)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Set("Connection", "close")
	var out bytes.Buffer
	fmt.Fprintf(&out, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	_ = header.Write(&out) // into memory
	out.WriteString("\r\n")
	out.Write(body)
	if _, err := c.TCPConn.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(b), nil
}

const protocol = "HTTP/1.1 "

// refusalHeader follows the status line of a request that cannot be read.
var refusalHeader = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// refusalOf is the status of net/http's own refusals. An unknown expectation is
// refused like any answer, without a body; no handler answers by that status.
func refusalOf(b []byte) (status int, ok bool) {
	if !bytes.HasPrefix(b, []byte(protocol)) {
		return 0, false
	}
	line, _, ok := bytes.Cut(b, []byte("\r\n"))
	if !ok || len(line) < len(protocol)+3 {
		return 0, false
	}
	status, err := strconv.Atoi(string(line[len(protocol) : len(protocol)+3]))
	if err != nil {
		return 0, false
	}
	return status, status == http.StatusExpectationFailed || bytes.HasPrefix(b[len(line):], refusalHeader)
}
