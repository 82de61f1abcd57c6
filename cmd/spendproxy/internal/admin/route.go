package admin

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// scope is who may use a route.
type scope int

const (
	anyToken scope = iota
	adminOnly
)

// route is one operation of the API. A segment {} of its path is a name.
type route struct {
	method string
	path   string
	scope  scope
	params []string // of the query, of a GET
	serve  func(*server, call) (answer, error)
}

var routes = []route{
	{http.MethodPost, "vault-keys", anyToken, nil, (*server).issue},
	{http.MethodGet, "vault-keys", anyToken, []string{"run", "label", "live", "after", "limit"}, (*server).list},
	{http.MethodGet, "vault-keys/{}", anyToken, nil, (*server).show},
	{http.MethodPost, "vault-keys/{}/raises", adminOnly, nil, (*server).raise},
	{http.MethodPost, "vault-keys/{}/extend", anyToken, nil, (*server).extend},
	{http.MethodPost, "vault-keys/{}/rotate", adminOnly, nil, (*server).rotate},
	{http.MethodPost, "vault-keys/{}/revoke", adminOnly, nil, (*server).revoke},
	{http.MethodPut, "vault-keys/{}/manifest", anyToken, nil, (*server).manifest},
	{http.MethodGet, "audit", anyToken, []string{"customer", "period", "vault_key", "idempotency_key", "object", "refused", "after", "limit"}, (*server).audit},
	{http.MethodGet, "books", anyToken, []string{"run", "vault_key"}, (*server).books},
	{http.MethodPost, "reservations/{}/release", adminOnly, nil, (*server).release},
}

// matched is the route of a request, and what its target says.
type matched struct {
	route
	name  string
	query url.Values
}

// nameShape is of what stands in a path for itself; a reservation's subject
// may be a caller's key, and stands there escaped.
var nameShape = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// match finds the route of a request by its target as it came over the wire. A
// path has one spelling: nothing is cleaned, folded or redirected, and an
// escape counts in a subject alone.
func match(method, target string) (matched, error) {
	path, rawQuery, hasQuery := strings.Cut(target, "?")
	rest, ok := strings.CutPrefix(path, Prefix)
	if !ok {
		return matched{}, notFound()
	}
	var allow []string
	for _, r := range routes {
		name, ok := r.names(rest)
		if !ok {
			continue
		}
		if r.method != method {
			allow = append(allow, r.method)
			continue
		}
		query, err := r.parse(rawQuery, hasQuery)
		return matched{r, name, query}, err
	}
	if len(allow) > 0 {
		return matched{}, &problem{status: http.StatusMethodNotAllowed, code: "method_not_allowed", message: "this path takes " + strings.Join(allow, " and "), allow: strings.Join(allow, ", ")}
	}
	return matched{}, notFound()
}

// names reports whether the path is the route's, and which name it holds.
func (r route) names(path string) (name string, ok bool) {
	before, after, holds := strings.Cut(r.path, "{}")
	if !holds {
		return "", path == r.path
	}
	name, ok = strings.CutPrefix(path, before)
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, after)
	if !ok || strings.Contains(name, "/") {
		return "", false
	}
	if before == "reservations/" {
		name, err := url.PathUnescape(name)
		return name, err == nil && printable(name, 1, 300)
	}
	return name, nameShape.MatchString(name) && !isSecret(name)
}

// isSecret reports whether a secret stands where a key's id belongs. It goes no
// further, since ids are logged.
func isSecret(id string) bool { return strings.HasPrefix(id, "vk_") }

// parse reads the query strictly: known parameters, each once and not empty.
func (r route) parse(raw string, given bool) (url.Values, error) {
	if r.method != http.MethodGet && given {
		return nil, invalid("this path takes no query parameters")
	}
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, invalid("the query cannot be read")
	}
	for name, values := range query {
		switch {
		case !slices.Contains(r.params, name):
			return nil, invalid("%q is not a parameter of this path", name)
		case len(values) > 1:
			return nil, invalid("the parameter %s occurs more than once", name)
		case !printable(values[0], 1, 300):
			return nil, invalid("the parameter %s must be 1 to 300 printable characters", name)
		case name == "vault_key" && isSecret(values[0]):
			return nil, invalid("the parameter vault_key must be a vault key's id; this is a secret")
		}
	}
	return query, nil
}
