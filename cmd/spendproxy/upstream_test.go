package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// upstream is a server that the test plays in Stripe's place. It keeps what
// arrived.
type upstream struct {
	*httptest.Server
	mu   sync.Mutex
	seen []arrived
}

// arrived is a request as it came.
type arrived struct {
	method, target, host, body string
	header                     http.Header
}

// newUpstream serves answer, or an empty object.
func newUpstream(t testing.TB, answer http.HandlerFunc) *upstream {
	u := new(upstream)
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		u.seen = append(u.seen, arrived{r.Method, r.RequestURI, r.Host, string(body), r.Header.Clone()})
		u.mu.Unlock()
		w.Header().Set("Request-Id", "req_upstream")
		if answer != nil {
			answer(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"nothing"}`)
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) arrivals() []arrived {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]arrived(nil), u.seen...)
}

// says answers with a status and a body.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const aCharge = `{"id":"ch_1","object":"charge","status":"succeeded","paid":true,"captured":true,"amount":1000,"amount_captured":1000,"currency":"usd","customer":"cus_free","metadata":{},"created":1700000000}`
