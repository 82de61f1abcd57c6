package sim

import (
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// authenticate is the first layer: who is asking?
func (s *Sim) authenticate(h http.Header) *apiError {
	key := ""
	if header := h.Get("Authorization"); header != "" {
		scheme, rest, _ := strings.Cut(header, " ")
		switch {
		case strings.EqualFold(scheme, "Bearer"):
			key = strings.TrimSpace(rest)
		case strings.EqualFold(scheme, "Basic"):
			plain, _ := base64.StdEncoding.DecodeString(rest)
			key, _, _ = strings.Cut(string(plain), ":")
		}
	}
	if key == "" {
		return &apiError{status: 401, kind: invalidRequest, message: "You did not provide an API key. You need to provide your API key in the Authorization header, using Bearer auth (e.g. 'Authorization: Bearer YOUR_SECRET_KEY')."}
	}
	known := false
	for _, k := range s.apiKeys {
		known = subtle.ConstantTimeCompare([]byte(k), []byte(key)) == 1 || known
	}
	if len(s.apiKeys) == 0 {
		known = slices.ContainsFunc([]string{"sk_test_", "rk_test_"}, func(prefix string) bool {
			return strings.HasPrefix(key, prefix) && len(key) > len(prefix)
		})
	}
	if !known {
		return &apiError{status: 401, kind: invalidRequest, message: "Invalid API Key provided: " + mask(key)}
	}
	if account := h.Get("Stripe-Account"); account != "" && account != s.account {
		return &apiError{status: 403, kind: invalidRequest, code: "account_invalid", message: fmt.Sprintf("The provided key '%s' does not have access to account '%s' (or that account does not exist). Application access may have been revoked.", mask(key), account)}
	}
	return nil
}

// mask shows what kind of key it was and no more.
func mask(key string) string {
	for _, prefix := range []string{"sk_test_", "rk_test_", "sk_live_", "rk_live_", "pk_test_", "pk_live_"} {
		if strings.HasPrefix(key, prefix) {
			return prefix + "********"
		}
	}
	return "********"
}
