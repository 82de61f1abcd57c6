package stripegateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/billonce/billonce/domain"
)

// APIVersion is the version of Stripe's API that this package reads and
// writes. The pinned library sends it; the wire makes sure. Events come in the
// version of their endpoint, which may be another one: see [sagas.News].
const APIVersion = "2023-10-16"

// Bounds of what is sent and read, in bytes. A page of 100 objects with full
// metadata stays under maxPage.
const (
	maxRequest = 64 << 10
	maxAnswer  = 1 << 20
	maxPage    = 16 << 20
	maxHeader  = 64 << 10
)

// call is one request on its way: what it must look like on the wire, and what
// the wire saw. stripe-go keeps neither the status nor the headers of an
// answer that it cannot read, so they are noted here.
type call struct {
	method   string
	path     string     // below the base URL
	key      domain.Key // of a POST; a GET has none
	secret   string     // the vault or Stripe key that it goes by
	maxBytes int64

	begun      bool // the request came as far as the wire
	violation  string
	sent       *onceBody // of a POST that passed the checks
	status     int       // 0: no answer
	requestID  string
	replayed   bool
	shouldTry  string // Stripe-Should-Retry
	retryAfter int    // seconds
	bodyErr    error  // the answer could not be read to its end
}

type callInContext struct{}

func (c *call) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, callInContext{}, c)
}

// wire is the last thing a request passes. It lets through only what its call
// announced, and passes on a request of its own making that net/http cannot
// send twice.
type wire struct {
	next http.RoundTripper
	base *url.URL
}

func newTransport(timeout time.Duration, conns int) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one call a connection: what a drop takes along is one call
	return &http.Transport{
		Proxy:                  nil, // the environment does not reroute money
		Protocols:              protocols,
		DialContext:            (&net.Dialer{Timeout: min(timeout, 10*time.Second), KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    min(timeout, 10*time.Second),
		MaxIdleConns:           conns,
		MaxIdleConnsPerHost:    conns,
		IdleConnTimeout:        30 * time.Second, // before the other side's
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
	}
}

// RoundTrip sends the request once, if it is what its call announced.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	c, _ := r.Context().Value(callInContext{}).(*call)
	if c == nil {
		closeBody(r)
		return nil, errors.New("request without a call")
	}
	c.begun = true
	var body []byte
	if c.violation = w.check(c, r); c.violation == "" {
		body, c.violation = readBody(r)
	}
	closeBody(r)
	if c.violation != "" {
		return nil, errors.New("wire check: " + c.violation)
	}

	// Only the headers checked go out; the library's fingerprint of this
	// machine does not. Without GetBody and with a body, net/http never sends
	// a request again on another connection (https://go.dev/issue/19943), and
	// with a known length it is not chunked.
	out := r.WithContext(r.Context())
	out.Header = make(http.Header, len(passed))
	for _, name := range passed {
		if v := r.Header[name]; v != nil {
			out.Header[name] = v
		}
	}
	out.GetBody = nil
	out.Body, out.ContentLength = http.NoBody, 0
	if c.method == http.MethodPost {
		c.sent = &onceBody{r: bytes.NewReader(body)}
		out.Body, out.ContentLength = c.sent, int64(len(body))
	}

	answer, err := w.next.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	c.status = answer.StatusCode
	c.requestID = plain(answer.Header.Get("Request-Id"))
	c.replayed = answer.Header.Get("Idempotent-Replayed") == "true"
	c.shouldTry = answer.Header.Get("Stripe-Should-Retry")
	if n, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && n > 0 {
		c.retryAfter = min(n, 3600)
	}
	answer.Body = &boundedBody{ReadCloser: answer.Body, call: c, left: c.maxBytes}
	return answer, nil
}

// CloseIdleConnections closes what the transport below keeps open.
func (w *wire) CloseIdleConnections() {
	if t, ok := w.next.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// passed are the headers that leave the house.
var passed = []string{"Authorization", "Content-Type", "Idempotency-Key", "Stripe-Version", "User-Agent"}

// dropped are headers of the library that do not.
const dropped = "X-Stripe-Client-User-Agent"

// check holds a request against its call and says what is wrong, without
// repeating any value.
func (w *wire) check(c *call, r *http.Request) string {
	switch {
	case r.Method != c.method || (c.method != http.MethodPost && c.method != http.MethodGet):
		return "another method"
	case r.URL.Scheme != w.base.Scheme || r.URL.Host != w.base.Host || r.Host != w.base.Host || r.URL.User != nil:
		return "another host"
	case r.URL.EscapedPath() != w.base.Path+c.path:
		return "another path"
	case c.secret == "":
		return "no key to go by"
	case r.Method == http.MethodPost && r.URL.RawQuery != "":
		return "a query on a POST"
	}
	for name, values := range r.Header {
		var want string
		switch name {
		case "Authorization":
			want = "Bearer " + c.secret
		case "Stripe-Version":
			want = APIVersion
		case "Content-Type":
			want = "application/x-www-form-urlencoded"
		case "Idempotency-Key":
			want = string(c.key)
		case "User-Agent", dropped:
			continue
		default:
			return "an unexpected header"
		}
		if len(values) != 1 || values[0] != want || want == "" {
			return "another " + name
		}
	}
	switch key := r.Header["Idempotency-Key"]; {
	case c.method == http.MethodPost && (len(key) != 1 || len(key[0]) < 1 || len(key[0]) > 255):
		return "a POST without a key of 1 to 255 characters"
	case c.method == http.MethodGet && key != nil:
		return "a GET with a key"
	case r.Header["Authorization"] == nil || r.Header["Stripe-Version"] == nil:
		return "a header is missing"
	}
	return ""
}

// readBody takes the body of a POST out of the request.
func readBody(r *http.Request) (body []byte, violation string) {
	if r.Method != http.MethodPost {
		return nil, ""
	}
	if r.Body == nil {
		return nil, "a POST without a body"
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest+1))
	switch {
	case err != nil:
		return nil, "a body that cannot be read"
	case len(body) == 0:
		return nil, "a POST without a body" // net/http would feel free to repeat it
	case len(body) > maxRequest:
		return nil, "a body that is too large"
	}
	return body, ""
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// onceBody is a request's body that knows whether anyone has begun to read it.
// If nobody has, Stripe executes nothing of it, whatever the error says.
type onceBody struct {
	r     *bytes.Reader
	state atomic.Int32
}

const (
	untouched = iota
	beingRead
	sealed
)

func (b *onceBody) Read(p []byte) (int, error) {
	if !b.state.CompareAndSwap(untouched, beingRead) && b.state.Load() == sealed {
		return 0, errors.New("the call is over")
	}
	return b.r.Read(p)
}

func (b *onceBody) Close() error { return nil }

// seal keeps an untouched body from ever being read, and reports whether it
// was untouched: proof that the request was not sent.
func (b *onceBody) seal() bool {
	return b.state.CompareAndSwap(untouched, sealed) || b.state.Load() == sealed
}

// boundedBody ends an answer that is too long with an error, and notes any
// error for the call.
type boundedBody struct {
	io.ReadCloser
	call *call
	left int64
}

var errTooLong = errors.New("the answer is too long")

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		err = errTooLong
	}
	if err != nil && err != io.EOF {
		b.call.bodyErr = err
	}
	return n, err
}

// plain returns s if it is made like Stripe's ids, codes and parameter names;
// else nothing. Whatever reaches an outcome or a log has passed here.
func plain(s string) string {
	if len(s) > 255 {
		return ""
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.', c == '[', c == ']':
		default:
			return ""
		}
	}
	return s
}
