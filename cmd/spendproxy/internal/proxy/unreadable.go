package proxy

import (
	"net/http"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// Unreadable is the answer, in Stripe's shape, to a request that net/http could
// not read. Nobody knows whose it is, or whether it was one: it is in no audit.
func Unreadable(status int) (http.Header, []byte) {
	reason := "the request is not well-formed HTTP"
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		reason = "the request line and the headers are too large"
	case http.StatusExpectationFailed:
		reason = "the only expectation that is met is 100-continue"
	case http.StatusNotImplemented:
		reason = "the only transfer encoding is chunked, alone and once"
	case http.StatusHTTPVersionNotSupported:
		reason = "requests are HTTP/1.1 or HTTP/1.0"
	}
	text := errorBody(policy.Refuse(status, policy.CodeRequest, "%s", reason))
	return http.Header{"Content-Type": {"application/json"}, "Request-Id": {requestID()}, "Stripe-Should-Retry": {"false"}}, text
}
