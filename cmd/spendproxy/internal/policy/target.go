package policy

import (
	"net/http"
	"net/url"
	"strings"
)

// operation is one thing that Stripe can be asked for.
type operation struct {
	rule   Rule
	list   bool
	params shapes
}

// place is where an operation hangs.
type place struct {
	method, resource string
	id               bool
	action           string
}

var operations = map[place]operation{
	{http.MethodPost, "payment_intents", false, ""}:       {IntentsCreate, false, intentShapes},
	{http.MethodPost, "payment_intents", true, "confirm"}: {IntentsConfirm, false, confirmShapes},
	{http.MethodPost, "payment_intents", true, "cancel"}:  {IntentsCancel, false, cancelShapes},
	{http.MethodGet, "payment_intents", false, ""}:        {IntentsRead, true, listShapes("customer")},
	{http.MethodGet, "payment_intents", true, ""}:         {IntentsRead, false, readShapes},
	{http.MethodPost, "charges", false, ""}:               {ChargesCreate, false, chargeShapes},
	{http.MethodGet, "charges", false, ""}:                {ChargesRead, true, listShapes("customer", "payment_intent", "transfer_group")},
	{http.MethodGet, "charges", true, ""}:                 {ChargesRead, false, readShapes},
	{http.MethodPost, "refunds", false, ""}:               {RefundsCreate, false, refundShapes},
	{http.MethodGet, "refunds", false, ""}:                {RefundsRead, true, listShapes("charge", "payment_intent")},
	{http.MethodGet, "refunds", true, ""}:                 {RefundsRead, false, readShapes},
	{http.MethodGet, "customers", false, ""}:              {CustomersRead, true, listShapes("email")},
	{http.MethodGet, "customers", true, ""}:               {CustomersRead, false, readShapes},
	{http.MethodGet, "customers", true, "payment_methods"}: {
		MethodsRead, true, listShapes("type")},
	{http.MethodGet, "payment_methods", false, ""}: {MethodsRead, true, listShapes("customer", "type")},
	{http.MethodGet, "payment_methods", true, ""}:  {MethodsRead, false, readShapes},
	{http.MethodGet, "account", false, ""}:         {AccountRead, false, readShapes},
	{http.MethodGet, "events", false, ""}:          {EventsRead, true, listShapes("type", "types", "delivery_success")},
	{http.MethodGet, "events", true, ""}:           {EventsRead, false, readShapes},
}

// prefixes are how the ids of a resource begin. An id that begins otherwise is
// an action (search) or somebody else's object.
var prefixes = map[string][]string{
	"payment_intents": {"pi_"},
	"charges":         {"ch_", "py_"},
	"refunds":         {"re_", "pyr_"},
	"customers":       {"cus_"},
	"payment_methods": {"pm_", "card_", "src_", "ba_"},
	"events":          {"evt_"},
}

const maxTarget = 8 << 10

// ParseTarget reads a request line's method and target as it came, before
// anything has cleaned it. Only the one spelling of a path on the list passes:
// no doubled slash, no dot segment, no escape, no parameter behind a semicolon,
// no trailing slash, no other case, no absolute form, no query on a POST.
func ParseTarget(method, target string) (Call, Verdict) {
	path, query, asked := strings.Cut(target, "?")
	switch {
	case method != http.MethodGet && method != http.MethodPost:
		return Call{}, refuseTarget("the method is not on the list")
	case len(target) > maxTarget || !canonical(path):
		return Call{}, refuseTarget("the path is not in its canonical form")
	}
	at := place{method: method}
	var id string
	at.resource, id, at.id = strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
	id, at.action, _ = strings.Cut(id, "/")
	op, known := operations[at]
	if !known || at.id && !isID(id, prefixes[at.resource]) {
		return Call{}, refuseTarget("the operation is not on the list")
	}
	c := Call{Method: method, Path: path, Rule: op.rule, List: op.list, Object: id}
	if method == http.MethodPost {
		if asked {
			return Call{}, Refuse(http.StatusBadRequest, CodeRequest, "a POST has its parameters in its body, not in a query")
		}
		return c, allowed("")
	}
	var v Verdict
	if c.Form, v = readPairs(query); !v.Allow {
		return Call{}, v
	}
	c.Query = encode(c.Form)
	return c, allowed("")
}

func refuseTarget(reason string) Verdict {
	return Refuse(http.StatusForbidden, CodeTarget, "%s", reason)
}

// canonical tells whether a path is made of plain segments.
func canonical(path string) bool {
	rest, ok := strings.CutPrefix(path, "/v1/")
	if !ok || rest == "" {
		return false
	}
	for segment := range strings.SplitSeq(rest, "/") {
		if !isPlain(segment) {
			return false
		}
	}
	return true
}

// isPlain tells whether s is made of the characters of Stripe's ids and paths.
func isPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		default:
			return false
		}
	}
	return s != "" && len(s) <= 200
}

// isID tells whether s is an id that begins with one of the prefixes.
func isID(s string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if len(s) > len(prefix) && strings.HasPrefix(s, prefix) && isPlain(s) {
			return true
		}
	}
	return false
}

// IntentID returns s if it can be an intent's id, else nothing.
func IntentID(s string) string { return idOf(s, "payment_intents") }

// ChargeID returns s if it can be a charge's id, else nothing.
func ChargeID(s string) string { return idOf(s, "charges") }

// RefundID returns s if it can be a refund's id, else nothing.
func RefundID(s string) string { return idOf(s, "refunds") }

func idOf(s, resource string) string {
	if isID(s, prefixes[resource]) {
		return s
	}
	return ""
}

// encode writes parameters in the one form in which they go on.
func encode(pairs []Pair) string {
	var b strings.Builder
	for i, p := range pairs {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(p.Name))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(p.Value))
	}
	return b.String()
}

// Listing is the call that lists with a query of the proxy's own making.
func Listing(path string, rule Rule, query []Pair) Call {
	return Call{Method: http.MethodGet, Path: path, Query: encode(query), Rule: rule, List: true, Form: query}
}
