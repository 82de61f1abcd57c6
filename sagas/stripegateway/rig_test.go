package stripegateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiKey must never be seen in a log or an outcome.
const apiKey = "vk_" + secret + "_key"

// rig is a gateway in front of a server that the test plays. What the gateway
// logs is kept, at debug level, and held against the markers at the end.
type rig struct {
	*Gateway
	log *record
}

func newRig(t *testing.T, timeout time.Duration, stripe http.HandlerFunc) *rig {
	t.Helper()
	s := httptest.NewUnstartedServer(stripe)
	s.Config.ErrorLog = quietLog
	s.Start()
	t.Cleanup(s.Close)
	return rigAt(t, s.URL, timeout)
}

func rigAt(t *testing.T, url string, timeout time.Duration) *rig {
	t.Helper()
	r := &rig{log: new(record)}
	g, err := New(Config{
		BaseURL: url, Key: apiKey, Timeout: timeout, MaxConns: 8,
		Log: slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Gateway = g
	t.Cleanup(g.Close)
	t.Cleanup(func() { noSecret(t, "log", r.log.String()) })
	return r
}

// answers returns a handler that gives every request the same answer.
func answers(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Request-Id", "req_1")
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// drop closes the connection of a request without an answer.
func drop(t *testing.T, w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	_ = conn.Close()
}

// noSecret fails if anything that must stay inside is in what came out.
func noSecret(t *testing.T, what string, v any) {
	t.Helper()
	text, ok := v.(string)
	if !ok {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		text = string(b)
	}
	for _, marker := range []string{secret, "MARKER", "_secret", "vk_"} {
		if strings.Contains(text, marker) {
			t.Errorf("%s holds %q: %s", what, marker, text)
		}
	}
}

// record is a writer that several goroutines may use.
type record struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// closedPort is an address at which nobody listens, and nobody will while the
// test runs: the port is bound, so that no other test's server gets it.
func closedPort(t *testing.T) string {
	t.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
}

// quietLog swallows what a test server says about connections that tests break.
var quietLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)

// traceConn tells the local address of a request's connection.
type traceConn struct{ tell func(string) }

func (c *traceConn) in(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			if i.Reused {
				c.tell(i.Conn.LocalAddr().String())
			}
		},
	})
}

// contextThatEnds is a context that ends when a channel is closed, or when the
// returned function is called.
func contextThatEnds(t *testing.T, when <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		select {
		case <-when:
		case <-ctx.Done():
		}
		cancel()
	}()
	return ctx, cancel
}
