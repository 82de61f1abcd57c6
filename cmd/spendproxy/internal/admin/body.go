package admin

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/billonce/billonce/cmd/internal/content"
)

const bodyMost = 1 << 20

// limits are how long a caller may take.
type limits struct {
	body     time.Duration // for all of a body that is one object
	line     time.Duration // for the next of a manifest to arrive
	manifest time.Duration // for all of it
	turn     time.Duration // that a manifest waits for others
}

var patience = limits{body: 10 * time.Second, line: 10 * time.Second, manifest: 10 * time.Minute, turn: 30 * time.Second}

// readObject reads the body of a request as one JSON object.
func (s *server) readObject(c call) (*object, error) {
	w, r := c.w, c.r
	if err := checkContent(r, "application/json"); err != nil {
		return nil, err
	}
	if r.ContentLength > bodyMost {
		return nil, tooLarge()
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.limits.body)) // not every writer has one
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyMost))
	if err != nil {
		return nil, bodyProblem(err)
	}
	_ = control.SetReadDeadline(time.Time{})
	o, err := parseObject(body)
	if err == nil {
		o.now = func() (time.Time, error) { return s.ledger.Clock(r.Context()) }
	}
	return o, err
}

// noBody refuses a body where none is looked at.
func noBody(r *http.Request) error {
	if r.ContentLength != 0 {
		return refusedBody(http.StatusBadRequest, "unexpected_body", "this path takes no body")
	}
	return nil
}

// checkContent refuses a body that is not what the path takes.
func checkContent(r *http.Request, mediaType string) error {
	if why, ok := content.Check(r.Header, mediaType); !ok {
		return refusedBody(http.StatusUnsupportedMediaType, why.Code, "%s", why.Message)
	}
	return nil
}

func bodyProblem(err error) *problem {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return refusedBody(http.StatusRequestTimeout, "body_timeout", "the body did not arrive in time")
	}
	return refusedBody(http.StatusBadRequest, "body_broken", "the body ended before it was complete")
}

func tooLarge() *problem {
	return refusedBody(http.StatusRequestEntityTooLarge, "body_too_large", "the body must not exceed %d bytes", bodyMost)
}
