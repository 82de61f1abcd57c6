package clock_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/clock"
)

// server answers with what it is told to, and counts who asks.
type server struct {
	*httptest.Server
	answer atomic.Pointer[string]
	asked  atomic.Int32
}

func serve(t *testing.T, answer string) *server {
	s := new(server)
	s.answer.Store(&answer)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.asked.Add(1)
		_, _ = io.WriteString(w, *s.answer.Load())
	}))
	t.Cleanup(s.Close)
	return s
}

// It follows the stand-in's clock, asks once for a crowd, and notices a move.
func TestItFollows(t *testing.T) {
	t.Parallel()
	s := serve(t, `{"now":"2026-11-30T12:00:00Z","offset":"x"}`)
	c := clock.New(s.URL)
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var crowd sync.WaitGroup
	for range 50 {
		crowd.Go(func() {
			if now, err := c.Now(t.Context()); err != nil || now.Before(start) || now.After(start.Add(time.Minute)) {
				t.Errorf("%s %v", now, err)
			}
		})
	}
	crowd.Wait()
	if n := s.asked.Load(); n > 25 {
		t.Errorf("asked %d times for 50", n)
	}
	moved := `{"now":"2027-01-01T00:00:00Z"}`
	s.answer.Store(&moved)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		now, err := c.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if now.Year() == 2027 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the move is not noticed")
		}
	}
}

// A clock that cannot be read has no time: whoever needs one fails.
func TestItCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{``, `{}`, `{"now":"noon"}`, `{"now":"0001-01-01T00:00:00Z"}`, `<html>`} {
		if now, err := clock.New(serve(t, answer).URL).Now(t.Context()); err == nil {
			t.Errorf("%s: %s", answer, now)
		}
	}
	gone := serve(t, `{"now":"2026-11-30T12:00:00Z"}`)
	gone.Close()
	if now, err := clock.New(gone.URL).Now(t.Context()); err == nil {
		t.Errorf("nobody there: %s", now)
	}
}
