package api

import (
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/billonce/billonce/domain"
)

// unreadable is the problem that a request is which net/http could not read, or
// not to the end of its header. It has come to no handler, so it is logged here.
func (s *Server) unreadable(status int) (http.Header, []byte) {
	var p *Problem
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		p = problem(status, "header_too_large", "the request line and header must not exceed %d bytes", headerBytes)
	case http.StatusExpectationFailed:
		p = problem(status, "expectation_failed", "the only expectation that is met is 100-continue")
	case http.StatusNotImplemented:
		p = problem(status, "unsupported_encoding", "the only transfer encoding is chunked, alone and once")
	case http.StatusHTTPVersionNotSupported:
		p = problem(status, "unsupported_version", "requests are HTTP/1.1 or HTTP/1.0")
	default:
		p = problem(status, domain.ErrInvalidInput.Code, "the request is not well-formed HTTP")
	}
	p.RequestID = newRequestID()
	s.log.Info("request", slog.String("method", "other"), slog.String("route", "unreadable"), slog.Int("status", status),
		slog.String("request_id", p.RequestID), slog.String("code", p.Code))
	body, _ := json.Marshal(p) // of strings and numbers alone
	return http.Header{
		"Content-Type": {problemType}, "Cache-Control": {"no-store"}, "X-Content-Type-Options": {"nosniff"}, "X-Request-Id": {p.RequestID},
	}, append(body, '\n')
}
