package admin

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
)

// call is a request that was let in and has a route.
type call struct {
	r     *http.Request
	w     http.ResponseWriter
	who   caller
	name  string // of the path
	query url.Values
}

// answer is what a call that worked is told.
type answer struct {
	status int
	body   any
}

func ok(body any) answer { return answer{http.StatusOK, body} }

// list is a page of keys, in the order of their ids.
func (s *server) list(c call) (answer, error) {
	limit, err := limitOf(c.query)
	if err != nil {
		return answer{}, err
	}
	f := ledger.KeyFilter{Run: c.query.Get("run"), Label: c.query.Get("label"), After: c.query.Get("after"), Limit: limit + 1}
	if f.Live, err = boolean(c.query, "live"); err != nil {
		return answer{}, err
	}
	if !c.who.admin && f.Run == "" {
		return answer{}, refused("not_permitted", "the service token lists keys of a run alone: name it by ?run=")
	}
	if err := noBody(c.r); err != nil {
		return answer{}, err
	}
	keys, err := s.ledger.Keys(c.r.Context(), f)
	if err != nil {
		return answer{}, fmt.Errorf("list vault keys: %w", err)
	}
	page := struct {
		Keys []keyView `json:"vault_keys"`
		Next string    `json:"next,omitempty"`
	}{Keys: []keyView{}}
	for i, k := range keys {
		if i == limit {
			page.Next = keys[i-1].ID
			break
		}
		page.Keys = append(page.Keys, viewKey(k, nil))
	}
	return ok(page), nil
}

// show is one key with its raises.
func (s *server) show(c call) (answer, error) {
	if err := noBody(c.r); err != nil {
		return answer{}, err
	}
	key, err := s.keyFor(c)
	if err != nil {
		return answer{}, err
	}
	return s.shown(c, key)
}

// shown answers with a key and its raises.
func (s *server) shown(c call, key ledger.VaultKey) (answer, error) {
	raises, err := s.ledger.Raises(c.r.Context(), key.ID)
	if err != nil {
		return answer{}, fmt.Errorf("read the raises of vault key %s: %w", key.ID, err)
	}
	return ok(viewKey(key, raises)), nil
}

// keyFor is the key that the path names, if the caller may see it.
func (s *server) keyFor(c call) (ledger.VaultKey, error) {
	key, err := s.ledger.Key(c.r.Context(), c.name)
	if err != nil {
		return key, fmt.Errorf("vault key %s: %w", c.name, err)
	}
	if !c.who.admin && !isRun(key) {
		return key, refused("not_permitted", "the service token reaches keys of runs alone")
	}
	return key, nil
}

// raise changes the cap of a currency, for good or until a time.
func (s *server) raise(c call) (answer, error) {
	o, err := readObject(c.w, c.r)
	if err != nil {
		return answer{}, err
	}
	r := ledger.Raise{Key: c.name, Currency: o.currency("currency"), Until: o.moment("until", false), Reason: o.prose("reason"), By: c.who.name}
	switch to, by := o.has("to_minor"), o.has("by_minor"); {
	case to == by:
		o.fault("to_minor", "or by_minor must be given, and not both")
	case to:
		minor := o.minor("to_minor", 0)
		r.To = &minor
	default:
		r.More = o.minor("by_minor", 1)
	}
	if err := o.done(); err != nil {
		return answer{}, err
	}
	key, err := s.ledger.Raise(c.r.Context(), r)
	if err != nil {
		return answer{}, fmt.Errorf("raise the cap of vault key %s: %w", c.name, err)
	}
	s.note(c, "a cap was changed", key.ID, slog.String("currency", string(r.Currency)), slog.String("reason", r.Reason))
	return s.shown(c, key)
}

// extend gives a key another end.
func (s *server) extend(c call) (answer, error) {
	o, err := readObject(c.w, c.r)
	if err != nil {
		return answer{}, err
	}
	until, reason := o.moment("expires_at", true), o.prose("reason")
	if err := o.done(); err != nil {
		return answer{}, err
	}
	if _, err := s.keyFor(c); err != nil {
		return answer{}, err
	}
	key, err := s.ledger.Extend(c.r.Context(), c.name, until, reason, c.who.name)
	if err != nil {
		return answer{}, fmt.Errorf("extend vault key %s: %w", c.name, err)
	}
	s.note(c, "a vault key was extended", key.ID, slog.Time("until", until), slog.String("reason", reason))
	return s.shown(c, key)
}

const (
	graceDefault = 10 * time.Minute
	graceMost    = 7 * 24 * time.Hour
)

// rotate gives a key a new secret; its older ones retire after the grace.
func (s *server) rotate(c call) (answer, error) {
	o, err := readObject(c.w, c.r)
	if err != nil {
		return answer{}, err
	}
	grace := graceDefault
	var given string
	if o.take("grace", "a duration such as 10m", &given) {
		if grace, err = time.ParseDuration(given); err != nil || grace < 0 || grace > graceMost {
			o.fault("grace", "must be a duration from 0s to %s, such as 10m", graceMost)
		}
	}
	if err := o.done(); err != nil {
		return answer{}, err
	}
	secret, err := s.ledger.Rotate(c.r.Context(), c.name, grace, c.who.name)
	if err != nil {
		return answer{}, fmt.Errorf("rotate vault key %s: %w", c.name, err)
	}
	s.note(c, "a vault key was rotated", c.name, slog.Duration("grace", grace))
	return ok(map[string]string{"secret": secret}), nil
}

// revoke ends a key: its next request is refused.
func (s *server) revoke(c call) (answer, error) {
	o, err := readObject(c.w, c.r)
	if err != nil {
		return answer{}, err
	}
	reason := o.prose("reason")
	if err := o.done(); err != nil {
		return answer{}, err
	}
	if err := s.ledger.Revoke(c.r.Context(), c.name, reason, c.who.name); err != nil {
		return answer{}, fmt.Errorf("revoke vault key %s: %w", c.name, err)
	}
	s.note(c, "a vault key was revoked", c.name, slog.String("reason", reason))
	key, err := s.keyFor(c)
	if err != nil {
		return answer{}, err
	}
	return s.shown(c, key)
}

// note logs who changed what.
func (s *server) note(c call, what, key string, attrs ...slog.Attr) {
	s.log.LogAttrs(c.r.Context(), slog.LevelInfo, what, append([]slog.Attr{slog.String("vault_key", key), slog.String("by", c.who.name)}, attrs...)...)
}
