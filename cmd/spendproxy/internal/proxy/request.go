package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// Bounds of a request.
const (
	maxBody     = 64 << 10
	bodyTimeout = 5 * time.Second // from the first byte wanted to the last
)

// secretOf finds the vault key of the one Authorization header: as a bearer
// token, or as the user of Basic, which is how curl is used with Stripe.
func secretOf(headers []string) (string, policy.Verdict) {
	bad := policy.Refuse(http.StatusUnauthorized, policy.CodeVaultKey,
		"a vault key is needed: Authorization: Bearer vk_…, or as the user name of Basic")
	if len(headers) != 1 {
		return "", bad
	}
	r := http.Request{Header: http.Header{"Authorization": headers}}
	secret, password, basic := r.BasicAuth()
	if basic && password != "" {
		return "", bad
	}
	if !basic {
		scheme, rest, _ := strings.Cut(headers[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", bad
		}
		secret = rest
	}
	if !strings.HasPrefix(secret, "vk_") || len(secret) > 255 || !isToken(secret) {
		return "", bad
	}
	return secret, policy.Verdict{Allow: true}
}

func isToken(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// readRequest reads a request into the exchange's call. A body is read only
// once everything in front of it is as it should be.
func readRequest(x *exchange) policy.Verdict {
	r := x.r
	c, v := policy.ParseTarget(r.Method, r.RequestURI)
	if !v.Allow {
		x.call = policy.Call{Path: shownPath(r)}
		if v.Code == policy.CodeTarget {
			x.call.Method = shown(r.Method, 16)
		}
		return v
	}
	x.call = c
	if r.Header["Content-Encoding"] != nil {
		return policy.Refuse(http.StatusUnsupportedMediaType, policy.CodeRequest, "a body must not be compressed")
	}
	if c.Method == http.MethodGet {
		if r.ContentLength != 0 {
			return policy.Refuse(http.StatusBadRequest, policy.CodeRequest, "a GET has no body")
		}
		return v
	}
	if v := policy.ReadKey(&x.call, r.Header["Idempotency-Key"]); !v.Allow {
		return v
	}
	if len(r.Header["Content-Type"]) > 1 {
		return policy.Refuse(http.StatusUnsupportedMediaType, policy.CodeRequest, "a body has one type")
	}
	body, v := readBody(x)
	if !v.Allow {
		return v
	}
	return policy.ReadForm(&x.call, r.Header.Get("Content-Type"), body)
}

// readBody reads a body within its bounds of size and time.
func readBody(x *exchange) ([]byte, policy.Verdict) {
	tooLarge := policy.Refuse(http.StatusRequestEntityTooLarge, policy.CodeRequest, "a body may have %d bytes", maxBody)
	if x.r.ContentLength > maxBody {
		return nil, tooLarge
	}
	control := http.NewResponseController(x.w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(io.LimitReader(x.r.Body, maxBody+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, policy.Refuse(http.StatusRequestTimeout, policy.CodeRequest, "the body did not come within %s", bodyTimeout)
	case err != nil:
		return nil, policy.Refuse(http.StatusBadRequest, policy.CodeRequest, "the body cannot be read to its end")
	case len(body) > maxBody:
		return nil, tooLarge
	}
	_ = control.SetReadDeadline(time.Time{})
	return body, policy.Verdict{Allow: true}
}

// shownPath is what the audit shows of a path that was refused.
func shownPath(r *http.Request) string {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	return shown(path, 200)
}

// shown cuts text of a caller to what a log may hold.
func shown(s string, most int) string {
	return strings.Map(func(r rune) rune {
		if r < 0x21 || r > 0x7e {
			return '?'
		}
		return r
	}, s[:min(len(s), most)])
}
