package api

import (
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/domain"
)

// router is a mux that remembers what was registered, so that the OpenAPI
// document can be checked against it.
type router struct {
	*http.ServeMux
	patterns []string
}

// HandleFunc registers a handler; huma calls it.
func (m *router) HandleFunc(pattern string, h func(http.ResponseWriter, *http.Request)) {
	m.patterns = append(m.patterns, pattern)
	m.ServeMux.HandleFunc(pattern, h)
}

// endpoint is a handler that reads its request and writes its answer itself.
// A returned error has not been answered yet.
type endpoint func(w http.ResponseWriter, r *http.Request) error

// handle registers an endpoint under the same rules as huma's own: scope,
// query parameters and body as the operation documents them.
func (s *Server) handle(op huma.Operation, h endpoint) {
	for _, part := range strings.Split(op.Path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			op.Parameters = append(op.Parameters, &huma.Param{Name: strings.TrimSuffix(name, "}"), In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
		}
	}
	if !op.Hidden {
		s.huma.OpenAPI().AddOperation(&op)
	}
	s.huma.Adapter().Handle(&op, s.huma.Middlewares().Handler(func(ctx huma.Context) {
		r, w := humago.Unwrap(ctx)
		if err := h(w, r); err != nil {
			fail(w, r, err)
		}
	}))
}

// route finds the endpoint of a request, or says that there is none. The mux
// itself would answer in its own words, and redirect what is not canonical: a
// command must not be redirected.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if s.tokens.Open() && !isLoopbackHost(r.Host) {
		// Without tokens, a page in a browser on this machine could come in under a
		// name of its own that resolves to loopback.
		fail(w, r, problem(http.StatusForbidden, "host_not_allowed", "without tokens the service answers to localhost only"))
		return
	}
	if p := r.URL.EscapedPath(); p != path.Clean(p) {
		fail(w, r, notFound())
		return
	}
	h, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	refusal := refused{header: http.Header{}}
	h.ServeHTTP(&refusal, r)
	if refusal.status != http.StatusMethodNotAllowed {
		fail(w, r, notFound())
		return
	}
	allow := refusal.header.Get("Allow")
	w.Header().Set("Allow", allow)
	fail(w, r, problem(http.StatusMethodNotAllowed, "method_not_allowed", "this address takes %s", allow))
}

func notFound() *Problem {
	return problem(http.StatusNotFound, "not_found", "there is nothing at this address; GET / lists what there is")
}

// refused keeps the status and headers of the mux's own answer.
type refused struct {
	header http.Header
	status int
}

func (w *refused) Header() http.Header         { return w.header }
func (w *refused) Write(b []byte) (int, error) { return len(b), nil }
func (w *refused) WriteHeader(status int)      { w.status = status }

// routeOf is the pattern that a request was routed by, without its method.
func routeOf(r *http.Request) string {
	_, route, ok := strings.Cut(r.Pattern, " ")
	if !ok {
		return "unmatched"
	}
	return route
}

func isLoopbackHost(host string) bool {
	u := url.URL{Host: host}
	name := strings.ToLower(u.Hostname())
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.Unmap().IsLoopback() || name == "localhost"
}

// bearer is the name of the security scheme in the OpenAPI document.
const bearer = "bearer"

// operation describes an operation that needs a scope.
func operation(id, method, path, tag, summary string, scope access.Scope) huma.Operation {
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Tags: []string{tag}, Summary: summary,
		Security: []map[string][]string{{bearer: {string(scope)}}},
	}
}

// public describes an operation that everybody may use.
func public(id, method, path, tag, summary string) huma.Operation {
	op := operation(id, method, path, tag, summary, "")
	op.Security = nil
	return op
}

// authorize lets a request through if its caller has the scopes that the
// operation documents.
func (s *Server) authorize(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	for _, requirement := range ctx.Operation().Security {
		caller, ok := s.tokens.Everybody()
		if !ok {
			if caller, ok = s.tokens.Holder(presented(r)); !ok {
				fail(w, r, problem(http.StatusUnauthorized, "unauthorized", "a known token is needed: Authorization: Bearer …"))
				return
			}
		}
		exchangeOf(r.Context()).caller = caller
		for _, scope := range requirement[bearer] {
			if err := s.permit(caller, access.Scope(scope)); err != nil {
				fail(w, r, err)
				return
			}
		}
	}
	next(ctx)
}

// permit says why a caller may not do what needs a scope; nil: they may.
func (s *Server) permit(caller access.Caller, scope access.Scope) error {
	switch {
	case caller.May(scope):
		return nil
	case s.tokens.Open():
		return problem(http.StatusForbidden, "forbidden", "the scope %s is off as long as no tokens are set", scope)
	}
	return problem(http.StatusForbidden, "forbidden", "the token lacks the scope %s", scope)
}

// presented is the token of a request; empty if there is none, or more than one.
func presented(r *http.Request) string {
	given := r.Header.Values("Authorization")
	if len(given) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	if !strings.EqualFold(scheme, bearer) {
		return ""
	}
	return token
}

// strict refuses what the operation does not document: query parameters that
// are unknown, repeated or blank, and a body where none is taken.
func strict(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	if ctx.Operation().RequestBody == nil && r.ContentLength != 0 {
		p := problem(http.StatusBadRequest, "unexpected_body", "this address takes no body")
		p.close = true
		fail(w, r, p)
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		fail(w, r, domain.InvalidField("query", "is not a well-formed query string"))
		return
	}
	known := map[string]bool{}
	for _, p := range ctx.Operation().Parameters {
		known[p.Name] = known[p.Name] || p.In == "query"
	}
	var faults []domain.FieldError
	for name, values := range query {
		switch {
		case !known[name]:
			faults = append(faults, domain.FieldError{Field: name, Msg: "is not a parameter of this address"})
		case len(values) > 1:
			faults = append(faults, domain.FieldError{Field: name, Msg: "occurs more than once"})
		case values[0] == "":
			faults = append(faults, domain.FieldError{Field: name, Msg: "must not be blank"})
		}
	}
	if len(faults) > 0 {
		slices.SortFunc(faults, func(a, b domain.FieldError) int { return strings.Compare(a.Field, b.Field) })
		fail(w, r, domain.InvalidFields(faults...))
		return
	}
	next(ctx)
}
