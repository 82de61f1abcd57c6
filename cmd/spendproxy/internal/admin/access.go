package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// The settings that hold the tokens.
const (
	AdminVariable   = "SPENDPROXY_ADMIN_TOKEN"
	ServiceVariable = "SPENDPROXY_SERVICE_TOKEN"
)

// tokenLeast is how long a token is at least, so that no word is one.
const tokenLeast = 16

// Tokens open the API. One that is empty opens nothing.
type Tokens struct {
	Admin   string // may do everything
	Service string // may do what a run needs
}

// LoadTokens reads the tokens from the environment ([os.LookupEnv]). One that
// is not set is off. The error names each setting at fault, and quotes none: a
// token that is set must have 16 characters at least and no blanks, and the two
// must differ.
func LoadTokens(lookup func(string) (string, bool)) (Tokens, error) {
	var t Tokens
	var faults []error
	for _, setting := range []struct {
		name string
		into *string
	}{{AdminVariable, &t.Admin}, {ServiceVariable, &t.Service}} {
		value, set := lookup(setting.name)
		if !set {
			continue
		}
		if fault := faultOf(value); fault != "" {
			faults = append(faults, fmt.Errorf("%s: %s", setting.name, fault))
			continue
		}
		*setting.into = value
	}
	if t.Admin != "" && t.Admin == t.Service {
		faults = append(faults, fmt.Errorf("%s: must not be the admin token, or the service could do everything", ServiceVariable))
	}
	if len(faults) > 0 {
		return Tokens{}, errors.Join(faults...)
	}
	return t, nil
}

func faultOf(token string) string {
	switch {
	case strings.TrimSpace(token) == "":
		return "is set but blank; unset it to switch this access off"
	case !printable(token, tokenLeast, 512) || strings.Contains(token, " "):
		return fmt.Sprintf("must be %d to 512 printable characters without blanks", tokenLeast)
	}
	return ""
}

// caller is who sent a request.
type caller struct {
	admin bool
	name  string // for the record
}

const actorHeader = "X-Actor"

// caller finds the holder of the one bearer token that h carries. The time it
// takes says nothing about the tokens.
func (t Tokens) caller(h http.Header) (caller, error) {
	admin, service := t.Admin, t.Service
	if faultOf(admin) != "" { // whoever made the value did not read it by LoadTokens
		admin = ""
	}
	if faultOf(service) != "" || service == admin {
		service = ""
	}
	if admin == "" && service == "" {
		return caller{}, refused("admin_off", "the admin API is off: neither "+AdminVariable+" nor "+ServiceVariable+" is set")
	}
	given := bearer(h)
	isAdmin, isService := same(given, admin), same(given, service)
	var c caller
	switch {
	case given == "":
		return c, unauthorised("a bearer token is needed")
	case isAdmin && admin != "":
		c = caller{admin: true, name: "admin"}
	case isService && service != "":
		c = caller{name: "service"}
	default:
		return c, unauthorised("the bearer token is not known")
	}
	return c.called(h)
}

// called takes the name that the caller goes by. Who holds the service token
// stays the service, whatever name it gives.
func (c caller) called(h http.Header) (caller, error) {
	switch given := h.Values(actorHeader); {
	case len(given) == 0:
	case len(given) > 1 || !printable(given[0], 1, 64):
		return caller{}, invalid(actorHeader + " must be 1 to 64 printable characters, once")
	case c.admin:
		c.name = given[0]
	default:
		c.name += "/" + given[0]
	}
	return c, nil
}

// bearer is the token of the one Authorization header; empty if there is none.
func bearer(h http.Header) string {
	given := h.Values("Authorization")
	if len(given) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return token
}

// same compares by hashes, so that not even the length shows.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// printable reports whether s is least to most printable ASCII characters
// without blanks at its ends.
func printable(s string, least, most int) bool {
	if len(s) < least || len(s) > most || strings.TrimSpace(s) != s {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}
