package sim

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

var searchShapes = shapes{"query": text, "limit": integer, "page": text, "expand": list}

// maxClauses is how many conditions one search may combine.
const maxClauses = 10

// searchable is what the search index holds of an object.
type searchable struct {
	words    map[string]string
	amount   int64
	created  int64
	metadata metadata
}

// clause is one condition of a query.
type clause struct {
	field  string // status, customer, …; or metadata
	key    string // of metadata
	op     string // : ~ > < >= <=
	value  string
	number int64
	not    bool
}

// query is clauses joined by AND or by OR.
type query struct {
	clauses []clause
	any     bool
}

// parseQuery reads Stripe's search language: clauses joined by AND (or a blank)
// or by OR, never both, and no parentheses.
func parseQuery(text string) (query, *apiError) {
	bad := func(why string) (query, *apiError) {
		return query{}, invalid("query", "", "We were unable to parse your search query: "+why)
	}
	var q query
	ands, rest := 0, strings.TrimSpace(text)
	for rest != "" {
		c, after, ok := parseClause(rest)
		if !ok {
			return bad("near " + strconv.Quote(rest))
		}
		q.clauses = append(q.clauses, c)
		rest = strings.TrimSpace(after)
		switch upper := strings.ToUpper(rest); {
		case rest == "":
		case strings.HasPrefix(upper, "AND "):
			ands, rest = ands+1, strings.TrimSpace(rest[4:])
		case strings.HasPrefix(upper, "OR "):
			q.any, rest = true, strings.TrimSpace(rest[3:])
		default:
			ands++
		}
	}
	switch {
	case len(q.clauses) == 0:
		return bad("it is empty")
	case len(q.clauses) > maxClauses:
		return bad(fmt.Sprintf("it has more than %d clauses", maxClauses))
	case q.any && ands > 0:
		return bad("AND and OR cannot be combined")
	}
	return q, nil
}

func parseClause(s string) (c clause, rest string, ok bool) {
	if s[0] == '-' {
		c.not, s = true, s[1:]
	}
	end := strings.IndexAny(s, ":~<>[ ")
	if end <= 0 {
		return c, "", false
	}
	c.field, s = s[:end], s[end:]
	if s[0] == '[' {
		key, after, ok := quoted(s[1:])
		if !ok || c.field != "metadata" || !strings.HasPrefix(after, "]") {
			return c, "", false
		}
		c.key, s = key, after[1:]
	}
	for _, op := range []string{">=", "<=", ":", "~", ">", "<"} {
		if after, ok := strings.CutPrefix(s, op); ok {
			c.op, s = op, after
			break
		}
	}
	if c.op == "" || s == "" {
		return c, "", false
	}
	if value, after, ok := quoted(s); ok {
		c.value, rest = value, after
	} else if s[0] == '\'' || s[0] == '"' {
		return c, "", false
	} else {
		end := strings.IndexByte(s, ' ')
		if end < 0 {
			end = len(s)
		}
		c.value, rest = s[:end], s[end:]
	}
	numeric := c.field == "amount" || c.field == "created"
	if numeric {
		c.number, ok = parseInteger(c.value)
		return c, rest, ok && c.op != "~"
	}
	switch c.field {
	case "metadata":
		return c, rest, c.key != "" && (c.op == ":" || c.op == "~")
	case "status", "customer", "currency", "payment_intent":
		return c, rest, c.op == ":"
	}
	return c, "", false
}

// quoted reads a string in single or double quotes; a backslash escapes.
func quoted(s string) (value, rest string, ok bool) {
	if s == "" || s[0] != '\'' && s[0] != '"' {
		return "", "", false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			if i++; i < len(s) {
				b.WriteByte(s[i])
			}
		case s[0]:
			return b.String(), s[i+1:], true
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", false
}

func (q query) matches(s searchable) bool {
	for _, c := range q.clauses {
		if c.matches(s) == q.any {
			return q.any
		}
	}
	return !q.any
}

func (c clause) matches(s searchable) bool { return c.holds(s) != c.not }

func (c clause) holds(s searchable) bool {
	switch c.field {
	case "amount", "created":
		n := s.amount
		if c.field == "created" {
			n = s.created
		}
		switch c.op {
		case ">":
			return n > c.number
		case "<":
			return n < c.number
		case ">=":
			return n >= c.number
		case "<=":
			return n <= c.number
		}
		return n == c.number
	}
	value, ok := s.words[c.field]
	if c.field == "metadata" {
		value, ok = s.metadata.get(c.key)
	}
	if c.op == "~" {
		return ok && strings.Contains(strings.ToLower(value), strings.ToLower(c.value))
	}
	return ok && strings.EqualFold(value, c.value)
}

func checkSearch(c *call, expandable ...string) *apiError {
	if e := c.params.require("query"); e != nil {
		return e
	}
	if e := checkLimit(c.params); e != nil {
		return e
	}
	if _, e := parseQuery(c.params.get("query")); e != nil {
		return e
	}
	if id := c.params.get("page"); id != "" {
		if _, err := base64.RawURLEncoding.DecodeString(id); err != nil {
			return invalid("page", "", "Invalid page.")
		}
	}
	_, e := c.params.expansion(c.s, "data.", expandable...)
	return e
}

// searching answers a search. The index shows each object as it was when the
// lag began, so what is newer is not found and what has changed is found by its
// old fields; the answer shows it as it is now.
func searching[T entry](t *tx, objects *shelf[T], url string, indexed func(T, int64) (searchable, bool), render func(*out, T)) response {
	if !t.s.searches.AllowN(t.c.received, 1) {
		return rateLimited().response()
	}
	q, _ := parseQuery(t.c.params.get("query"))
	limit := 10
	if t.c.params.has("limit") {
		limit = int(t.c.params.integer("limit"))
	}
	last, _ := base64.RawURLEncoding.DecodeString(t.c.params.get("page"))
	horizon := t.s.horizon(t.now.UnixNano())
	var found []T
	more, skipping := false, len(last) > 0
	for _, place := range slices.Backward(objects.order) {
		object := place.object
		if skipping {
			skipping = object.id() != string(last)
			continue
		}
		s, ok := indexed(object, horizon)
		if !ok || !q.matches(s) {
			continue
		}
		if len(found) == limit {
			more = true
			break
		}
		found = append(found, object)
	}
	o := make(out, 0, 256+1600*len(found))
	o.lit(`{"object":"search_result","data":[`)
	for i, object := range found {
		if i > 0 {
			o.lit(`,`)
		}
		render(&o, object)
	}
	o.lit(`],"has_more":`).boolean(more).lit(`,"next_page":`)
	if more {
		o.str(base64.RawURLEncoding.EncodeToString([]byte(found[len(found)-1].id())))
	} else {
		o.lit(`null`)
	}
	o.lit(`,"url":`).str(url).lit(`}`)
	return response{status: 200, body: o}
}

func searchIntents(t *tx) response {
	x, _ := t.c.params.expansion(t.s, "data.", intentExpansions...)
	return searching(t, t.s.intents, "/v1/payment_intents/search", func(p *intent, horizon int64) (searchable, bool) {
		for p != nil && p.Changed > horizon {
			p = p.former
		}
		if p == nil {
			return searchable{}, false
		}
		return searchable{
			words:  map[string]string{"status": p.Status, "customer": p.Customer, "currency": p.Currency},
			amount: p.Amount, created: p.Made, metadata: p.Metadata,
		}, true
	}, func(o *out, p *intent) { p.render(o, x) })
}

func searchCharges(t *tx) response {
	x, _ := t.c.params.expansion(t.s, "data.", chargeExpansions...)
	return searching(t, t.s.charges, "/v1/charges/search", func(c *charge, horizon int64) (searchable, bool) {
		for c != nil && c.Changed > horizon {
			c = c.former
		}
		if c == nil {
			return searchable{}, false
		}
		return searchable{
			words:  map[string]string{"status": c.Status, "customer": c.Customer, "currency": c.Currency, "payment_intent": c.Intent},
			amount: c.Amount, created: c.Made, metadata: c.Metadata,
		}, true
	}, func(o *out, c *charge) { c.render(o, x) })
}
