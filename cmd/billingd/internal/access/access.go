// Package access says who may do what: named bearer tokens with scopes, known
// to the service only by their hashes.
//
// BILLING_TOKENS lists them, comma-separated, each as name:scope+scope:sha256:
//
//	ci:read+dispatch:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
//
// where the last part is the hash of the token in lower-case hex, as printed by
//
//	printf %s "$TOKEN" | sha256sum
//
// Without any token the service is open to whoever reaches it, and therefore
// listens on loopback only: reading and dispatching are free, operating is off.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Scope is a kind of thing that a caller may do. None contains another.
type Scope string

// The scopes.
const (
	Read     Scope = "read"     // see what is recorded
	Dispatch Scope = "dispatch" // send the commands of ordinary business
	Operate  Scope = "operate"  // decide for people: about money, bills that rest, and the service itself
)

var scopes = []Scope{Read, Dispatch, Operate}

// Caller is who sends a request. The zero Caller may do nothing.
type Caller struct {
	Name   string // recorded with every fact that the caller brings about
	scopes []Scope
}

// May reports whether the caller has a scope.
func (c Caller) May(s Scope) bool { return slices.Contains(c.scopes, s) }

// local is everybody, where no token is set.
var local = Caller{"local", []Scope{Read, Dispatch}}

// Tokens are the known tokens. The zero Tokens are none: see [Tokens.Open].
type Tokens struct{ known []token }

type token struct {
	caller Caller
	hash   [sha256.Size]byte
}

// Open reports whether no token is set, so that everybody is let in.
func (t Tokens) Open() bool { return len(t.known) == 0 }

// Everybody is the caller of a request without a token, where [Tokens.Open].
func (t Tokens) Everybody() (c Caller, ok bool) {
	if t.Open() {
		return local, true
	}
	return Caller{}, false
}

// Holder is the caller who presents a token. The time it takes says nothing
// about the tokens that are known. An empty one is never known.
func (t Tokens) Holder(presented string) (c Caller, ok bool) {
	hash := sha256.Sum256([]byte(presented))
	for _, k := range t.known {
		if subtle.ConstantTimeCompare(hash[:], k.hash[:]) == 1 {
			c, ok = k.caller, true
		}
	}
	return c, ok && presented != ""
}

var nameShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Parse reads a list of tokens. The error lists every fault, each by the
// entry's number, and quotes nothing: a token may be where its hash belongs.
func Parse(list string) (Tokens, error) {
	var t Tokens
	var faults []error
	for i, entry := range strings.Split(list, ",") {
		k, err := parseToken(entry)
		if err != nil {
			faults = append(faults, fmt.Errorf("entry %d: %w", i+1, err))
			continue
		}
		if slices.ContainsFunc(t.known, func(o token) bool { return o.caller.Name == k.caller.Name }) {
			faults = append(faults, fmt.Errorf("entry %d: an earlier entry has the same name", i+1))
		}
		if slices.ContainsFunc(t.known, func(o token) bool { return o.hash == k.hash }) {
			faults = append(faults, fmt.Errorf("entry %d: an earlier entry has the same token", i+1))
		}
		t.known = append(t.known, k)
	}
	if len(faults) > 0 {
		return Tokens{}, errors.Join(faults...)
	}
	return t, nil
}

func parseToken(entry string) (k token, err error) {
	parts := strings.Split(entry, ":")
	if len(parts) != 3 {
		return k, errors.New("must be name:scope+scope:sha256 in hex")
	}
	k.caller.Name = parts[0]
	switch {
	case !nameShape.MatchString(k.caller.Name):
		return k, errors.New("the name must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit")
	case k.caller.Name == local.Name:
		return k, fmt.Errorf("the name %s is kept for callers without a token", local.Name)
	}
	for _, name := range strings.Split(parts[1], "+") {
		s := Scope(name)
		switch {
		case !slices.Contains(scopes, s):
			return k, errors.New("the scopes are read, dispatch and operate, joined by +")
		case k.caller.May(s):
			return k, fmt.Errorf("the scope %s occurs twice", s)
		}
		k.caller.scopes = append(k.caller.scopes, s)
	}
	hash, err := hex.DecodeString(parts[2])
	if err != nil || len(hash) != sha256.Size || parts[2] != strings.ToLower(parts[2]) {
		return k, errors.New("the hash must be 64 lower-case hex digits: the SHA-256 of the token")
	}
	k.hash = [sha256.Size]byte(hash)
	for _, blank := range []string{"", "\n", " "} {
		if k.hash == sha256.Sum256([]byte(blank)) {
			return k, errors.New("the hash is that of a blank token")
		}
	}
	return k, nil
}
