package api

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestContentTypes(t *testing.T) {
	t.Parallel()
	i := start(t)
	body := `{"customer_id":"alice","stripe_customer_id":"cus_1","payment_method_id":"pm_1"}`
	for _, c := range []struct {
		contentType, encoding string
		status                int
	}{
		{"text/plain", "", 415}, {"", "", 415}, {"application/x-www-form-urlencoded", "", 415}, {"application/jsonp", "", 415},
		{"application/json; charset=latin1", "", 415}, {";", "", 415}, {"application/x-ndjson", "", 415},
		{"application/json", "gzip", 415}, {"application/json", "br", 415}, {"application/json", "identity, gzip", 415},
		{"application/json|text/plain", "", 415}, {"application/json|application/json", "", 415}, {"application/json", "identity|gzip", 415}, {"application/json", "|gzip", 415},
		{"application/json; charset=UTF-8", "identity", 200},
	} {
		r := i.request(http.MethodPost, "/v1/commands/register-customer", body)
		r.Header["Content-Type"] = strings.Split(c.contentType, "|") // a header each
		if c.encoding != "" {
			r.Header["Content-Encoding"] = strings.Split(c.encoding, "|")
		}
		a := i.do(r)
		if a.status != c.status {
			t.Errorf("%q with encoding %q got %d, want %d", c.contentType, c.encoding, a.status, c.status)
		}
		if c.status != 200 {
			a.problem(t)
		}
	}
}

// What net/http cannot read comes to no handler, and is answered like the rest.
func TestUnreadableRequests(t *testing.T) {
	t.Parallel()
	i := start(t)
	const command = "POST /v1/commands/register-customer HTTP/1.1\r\n"
	for text, status := range map[string]int{
		"GET /healthz\r\n\r\n": 400, "GET /healthz HTTP/1.1\r\n\r\n": 400, "GET /healthz HTTP/1.1\r\nHost: x\r\nX y: z\r\n\r\n": 400,
		command + "Host: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n": 400, command + "Host: x\r\nContent-Length: -5\r\n\r\n": 400,
		"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 60<<10) + "\r\n\r\n": 431,
		"GET /healthz?x=" + strings.Repeat("x", 60<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n":     431,
		command + "Host: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n":                      501,
		"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n":                                           505,
		command + "Host: x\r\nContent-Length: 2\r\nExpect: 200-maybe\r\n\r\n{}":              417,
	} {
		conn := i.raw(t)
		fmt.Fprint(conn, text)
		a := readAnswer(t, conn)
		p := a.problem(t)
		if a.status != status || p.Status != status || p.RequestID == "" || p.RequestID != a.header.Get("X-Request-Id") || !strings.Contains(i.logs.String(), p.RequestID) {
			t.Errorf("%.60q got %d %s, want %d", text, a.status, a.body, status)
		}
	}
	i.register("alice") // others are served
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// C131: bodies that are large, whatever their header says.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	i := start(t)
	var squeezed bytes.Buffer
	z := gzip.NewWriter(&squeezed)
	if _, err := io.CopyN(z, zeros{}, 20<<20); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for name, c := range map[string]struct {
		body   io.Reader
		header string
		status int
	}{
		"declared":            {io.LimitReader(zeros{}, 100<<20), fmt.Sprintf("Content-Length: %d", 100<<20), 413},
		"chunked":             {io.LimitReader(zeros{}, 100<<20), "Transfer-Encoding: chunked", 413},
		"just too large":      {io.LimitReader(zeros{}, 1<<20+1), "Transfer-Encoding: chunked", 413},
		"as large as allowed": {io.LimitReader(zeros{}, 1<<20), "Transfer-Encoding: chunked", 400},
		"squeezed":            {&squeezed, "Transfer-Encoding: chunked\r\nContent-Encoding: gzip", 415},
	} {
		conn := i.raw(t)
		fmt.Fprintf(conn, "POST /v1/commands/register-customer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n%s\r\n\r\n", c.header)
		sent := make(chan struct{})
		go func() { // it is cut off when the answer is there
			defer close(sent)
			body := io.WriteCloser(nopCloser{conn})
			if strings.Contains(c.header, "chunked") {
				body = httputil.NewChunkedWriter(conn)
			}
			if _, err := io.Copy(body, c.body); err == nil && body.Close() == nil {
				io.WriteString(conn, "\r\n")
			}
		}()
		if a := readAnswer(t, conn); a.problem(t).Status != c.status {
			t.Errorf("%s got %s, want %d", name, a.body, c.status)
		}
		conn.Close()
		<-sent
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
		t.Errorf("%d MiB were allocated for bodies that were refused", grown>>20)
	}
	i.register("alice") // others are served
}

// raw sends bytes over a connection of its own.
func (i *instance) raw(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(i.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func readAnswer(t *testing.T, c net.Conn) answer {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !res.Close {
		t.Errorf("after %d the connection is kept", res.StatusCode)
	}
	return answer{res.StatusCode, res.Header, string(body)}
}

func TestSlowBodies(t *testing.T) {
	t.Parallel()
	i := start(t, limited(Limits{BodyTime: 300 * time.Millisecond}))
	slow := i.raw(t)
	fmt.Fprintf(slow, "POST /v1/commands/register-customer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{")
	drip := make(chan struct{})
	go func() {
		defer close(drip)
		for {
			if _, err := slow.Write([]byte(" ")); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	i.register("alice") // others are served meanwhile
	a := readAnswer(t, slow)
	if p := a.problem(t); p.Status != http.StatusRequestTimeout {
		t.Errorf("got %d %s", a.status, a.body)
	}
	slow.Close()
	<-drip

	cut := i.raw(t)
	fmt.Fprintf(cut, "POST /v1/commands/register-customer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"customer_id\":\"bob\"")
	cut.(*net.TCPConn).CloseWrite()
	if p := readAnswer(t, cut).problem(t); p.Code != "body_broken" {
		t.Errorf("a body that was cut off got %s", p.Code)
	}
	if n := i.events(); n != 1 {
		t.Errorf("there are %d facts", n)
	}
}

// The time limit of the body must not end the wait for an outcome.
func TestWaitOutlivesTheBodysLimit(t *testing.T) {
	t.Parallel()
	i := start(t, limited(Limits{BodyTime: 100 * time.Millisecond}))
	i.register("alice")
	a := i.do(i.request(http.MethodPost, "/v1/commands/charge-billing?wait=600ms", chargeBody("alice", "2026-11", 5000)))
	if a.status != http.StatusAccepted {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

func TestSlowAndLargeHeaders(t *testing.T) {
	t.Parallel()
	i := start(t, limited(Limits{Header: 200 * time.Millisecond}))
	silent := i.raw(t)
	fmt.Fprint(silent, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
	if n, err := silent.Read(make([]byte, 1)); err == nil && n > 0 {
		// An answer is fine as long as the connection ends.
		if _, err := io.Copy(io.Discard, silent); err != nil {
			t.Errorf("a silent connection was kept: %v", err)
		}
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("a silent connection was kept")
	}
	a := i.get("/", "X-Large", strings.Repeat("x", 64<<10))
	if a.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header got %d", a.status)
	}
}

func TestReadsTakeNoBody(t *testing.T) {
	t.Parallel()
	i := start(t)
	if p := i.do(i.request(http.MethodGet, "/v1/customers", `{}`)).problem(t); p.Code != "unexpected_body" {
		t.Errorf("got %s", p.Code)
	}
}
