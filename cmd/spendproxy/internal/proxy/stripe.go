package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// APIVersion is the version of Stripe's API that every call is made in.
const APIVersion = "2023-10-16"

// Bounds of an answer. A page of 100 objects with full metadata stays under
// maxPage.
const (
	maxAnswer = 1 << 20
	maxPage   = 16 << 20
	maxHeader = 64 << 10
)

// stripe is the way to the configured upstream, and to nowhere else.
type stripe struct {
	base    *url.URL
	key     string
	timeout time.Duration
	client  *http.Client
}

func newStripe(u Upstream) *stripe {
	return &stripe{
		base: u.Base, key: u.Key, timeout: u.Timeout,
		client: &http.Client{
			Transport:     newTransport(u.Timeout),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func newTransport(timeout time.Duration) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one call a connection: what a drop takes along is one call
	return &http.Transport{
		Proxy:                  nil, // the environment does not reroute money
		Protocols:              protocols,
		DialContext:            (&net.Dialer{Timeout: min(timeout, 10*time.Second), KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    min(timeout, 10*time.Second),
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    256,
		IdleConnTimeout:        30 * time.Second, // before the other side's
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
	}
}

// received is what came back for a call.
type received struct {
	fate        ledger.Fate
	timedOut    bool
	status      int
	header      http.Header
	contentType string
	requestID   string
	replayed    bool
	body        []byte // whole, if the fate is Answered
}

// verdict is what the caller is told about an answer that cannot be given on.
func (got received) verdict() policy.Verdict {
	switch {
	case got.fate == ledger.Unsent:
		return policy.Refuse(http.StatusBadGateway, policy.CodeUnsent, "Stripe could not be reached; nothing was executed")
	case got.timedOut:
		return policy.Refuse(http.StatusGatewayTimeout, policy.CodeUpstream, "Stripe did not answer in time; what became of the call is unknown, and repeating it with its Idempotency-Key is safe")
	case got.fate == ledger.Answered:
		return policy.Refuse(http.StatusBadGateway, policy.CodeUpstream, "the upstream answered with a redirect, which is not followed")
	}
	return policy.Refuse(http.StatusBadGateway, policy.CodeUpstream, "the answer was lost on the way; what became of the call is unknown, and repeating it with its Idempotency-Key is safe")
}

// send makes a call and reads its answer to the end. A POST is sent once: only
// if no byte of it was wanted, as when an idle connection turns out to be
// closed, is it tried on another one.
func (s *stripe) send(ctx context.Context, c policy.Call) received {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	got := s.try(ctx, c)
	for tries := 0; got.fate == ledger.Unsent && got.stale() && tries < 2 && ctx.Err() == nil; tries++ {
		got = s.try(ctx, c)
	}
	return got
}

// stale tells whether a call was not sent because its connection had ended; one
// that cannot be dialled is not dialled again.
func (got received) stale() bool {
	return got.header == nil && !got.timedOut && got.status == staleConnection
}

// staleConnection marks an unsent call that may be tried on another connection.
const staleConnection = -1

func (s *stripe) try(ctx context.Context, c policy.Call) received {
	r := (&http.Request{
		Method: c.Method,
		URL:    &url.URL{Scheme: s.base.Scheme, Host: s.base.Host, Path: s.base.Path + c.Path, RawQuery: c.Query},
		Host:   s.base.Host,
		Header: http.Header{
			"Authorization":  {"Bearer " + s.key},
			"Stripe-Version": {APIVersion},
			"User-Agent":     {"Billonce-spendproxy"},
		},
	}).WithContext(ctx)
	var once *onceBody
	if c.Method == http.MethodPost {
		// With a body and without GetBody net/http never sends a request a second
		// time by itself (https://go.dev/issue/19943).
		form := c.Encoded()
		once = &onceBody{r: bytes.NewReader(form)}
		r.Body, r.ContentLength = once, int64(len(form))
		r.Header["Idempotency-Key"] = []string{c.Key}
		r.Header["Content-Type"] = []string{"application/x-www-form-urlencoded"}
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return failed(err, once)
	}
	defer answer.Body.Close()
	most := int64(maxAnswer)
	if c.List {
		most = maxPage
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, most+1))
	got := received{
		fate: ledger.Answered, status: answer.StatusCode, header: answer.Header, body: body, contentType: answer.Header.Get("Content-Type"),
		requestID: plain(answer.Header.Get("Request-Id")), replayed: answer.Header.Get("Idempotent-Replayed") == "true",
	}
	if got.status >= http.StatusBadRequest {
		got.body = bytes.ReplaceAll(body, []byte(s.key), []byte("(the proxy's key)")) // Stripe masks it, others may not
	}
	if err != nil || int64(len(body)) > most || answer.Header.Get("Content-Encoding") != "" {
		got.fate, got.body, got.timedOut = ledger.Lost, nil, isTimeout(err)
	}
	return got
}

// failed is the fate of a call without an answer. A GET moves nothing, so that
// its fate says no more than that there is none.
func failed(err error, once *onceBody) received {
	got := received{fate: ledger.Lost, timedOut: isTimeout(err)}
	var dial *net.OpError
	dialled := !(errors.As(err, &dial) && dial.Op == "dial")
	switch {
	case once == nil && !dialled, once != nil && once.seal():
		got.fate = ledger.Unsent
		if dialled && !got.timedOut {
			got.status = staleConnection
		}
	}
	return got
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
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

// Read reads the body, unless it is sealed.
func (b *onceBody) Read(p []byte) (int, error) {
	if !b.state.CompareAndSwap(untouched, beingRead) && b.state.Load() == sealed {
		return 0, errors.New("the call is over")
	}
	return b.r.Read(p)
}

// Close does nothing: what is read is memory.
func (b *onceBody) Close() error { return nil }

// seal keeps an untouched body from ever being read, and reports whether it
// was untouched: proof that the request was not sent.
func (b *onceBody) seal() bool {
	return b.state.CompareAndSwap(untouched, sealed) || b.state.Load() == sealed
}

// plain returns s if it is made like Stripe's ids; else nothing.
func plain(s string) string {
	if len(s) > 100 || !isToken(s) {
		return ""
	}
	return s
}
