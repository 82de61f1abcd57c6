package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"
)

// checkContent refuses a body that is not what the address takes: another
// media type or character set, or a compressed one, whose size nobody knows.
func checkContent(r *http.Request, mediaType string) error {
	given, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset, ok := params["charset"]
	if err != nil || given != mediaType || ok && !strings.EqualFold(charset, "utf-8") {
		return refusedBody(http.StatusUnsupportedMediaType, "unsupported_media_type", "the body must be "+mediaType+" in UTF-8")
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return refusedBody(http.StatusUnsupportedMediaType, "unsupported_encoding", "the body must not be compressed")
	}
	return nil
}

// refusedBody is a problem after which the rest of the body is not read.
func refusedBody(status int, code, detail string) *Problem {
	p := problem(status, code, "%s", detail)
	p.close = true
	return p
}

// readBody reads a whole body, counting what really arrives, within the time
// that ServeHTTP has set.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > s.limits.Body {
		return nil, s.tooLarge()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.limits.Body))
	if err != nil {
		return nil, s.bodyProblem(err)
	}
	// The deadline must not outlive the body: it would cut the wait for an
	// outcome short.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // not every writer has one
	return body, nil
}

func (s *Server) bodyProblem(err error) *Problem {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return s.tooLarge()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return refusedBody(http.StatusRequestTimeout, "body_timeout", "the body did not arrive in time")
	}
	return refusedBody(http.StatusBadRequest, "body_broken", "the body ended before it was complete")
}

func (s *Server) tooLarge() *Problem {
	p := problem(http.StatusRequestEntityTooLarge, "body_too_large", "the body must not exceed %d bytes", s.limits.Body)
	p.close = true
	return p
}
