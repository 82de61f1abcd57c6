package sim

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// pair is one decoded form field.
type pair struct{ name, value string }

// params are the decoded fields of a request, body and query together, sorted by
// name; of a repeated field the last one counts, and a[]=x&a[]=y is read as
// a[0]=x&a[1]=y.
type params []pair

// parseParams decodes form-encoded text.
func parseParams(query, body string) (params, *apiError) {
	p := make(params, 0, 16)
	for _, text := range [...]string{query, body} {
		for part := range strings.SplitSeq(text, "&") {
			if part == "" {
				continue
			}
			name, value, _ := strings.Cut(part, "=")
			name, err1 := unescape(name)
			value, err2 := unescape(value)
			if err1 != nil || err2 != nil || !utf8.ValidString(name) || !utf8.ValidString(value) {
				return nil, invalid("", "", "Invalid request (the form could not be decoded).")
			}
			if head, ok := strings.CutSuffix(name, "[]"); ok {
				name = head + "[" + strconv.Itoa(p.count(head)) + "]"
			}
			p = append(p, pair{name, value})
		}
	}
	slices.SortStableFunc(p, func(a, b pair) int { return cmp.Compare(a.name, b.name) })
	unique := p[:0]
	for i, field := range p {
		if i+1 < len(p) && p[i+1].name == field.name {
			continue
		}
		unique = append(unique, field)
	}
	return unique, nil
}

func unescape(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s, nil
	}
	return url.QueryUnescape(s)
}

// count tells how many elements of the list there are so far.
func (p params) count(list string) int {
	n := 0
	for _, field := range p {
		if len(field.name) > len(list) && field.name[len(list)] == '[' && field.name[:len(list)] == list {
			n++
		}
	}
	return n
}

func (p params) get(name string) string {
	for i := range p {
		if p[i].name == name {
			return p[i].value
		}
	}
	return ""
}

func (p params) has(name string) bool {
	for i := range p {
		if p[i].name == name {
			return true
		}
	}
	return false
}

// list returns the elements of a list parameter.
func (p params) list(name string) []string {
	var all []string
	for i := range p {
		if elementOf(p[i].name, name) != "" {
			all = append(all, p[i].value)
		}
	}
	return all
}

// elementOf returns what stands between the brackets if field is name[…].
func elementOf(field, name string) string {
	if len(field) > len(name)+2 && field[len(name)] == '[' && field[:len(name)] == name && field[len(field)-1] == ']' {
		return field[len(name)+1 : len(field)-1]
	}
	return ""
}

// flag reads a boolean parameter; absent is false. Validation has seen to it
// that nothing but true and false gets here.
func (p params) flag(name string) bool { return p.get(name) == "true" }

// integer reads an integer parameter that validation has let through.
func (p params) integer(name string) int64 {
	n, _ := parseInteger(p.get(name))
	return n
}

// fingerprint is the identity of a request under a key: method, path and every
// decoded parameter, whatever order they came in.
func (p params) fingerprint(method, path string) [sha256.Size]byte {
	buf := make([]byte, 0, 512)
	buf = append(buf, method...)
	buf = append(buf, ' ')
	buf = append(buf, path...)
	for _, field := range p {
		buf = binary.AppendUvarint(buf, uint64(len(field.name)))
		buf = append(buf, field.name...)
		buf = binary.AppendUvarint(buf, uint64(len(field.value)))
		buf = append(buf, field.value...)
	}
	return sha256.Sum256(buf)
}

// encode is the canonical form text, from which the same params parse.
func (p params) encode() string {
	var b strings.Builder
	for i, field := range p {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(field.name))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(field.value))
	}
	return b.String()
}

// shape says how a parameter is written.
type shape uint8

const (
	text      shape = iota + 1 // a value that may not be empty
	clearable                  // a value that may be empty, which unsets it
	boolean
	integer
	list // name[0], name[1], …
	hash // name[any key]; empty clears it
)

// shapes are the parameters that a route accepts. Members of nested objects
// stand under their full name: created[gte].
type shapes map[string]shape

// check refuses what the route does not know and what is written wrongly.
func (s shapes) check(p params) *apiError {
	for _, field := range p {
		if e := s.checkField(field); e != nil {
			return e
		}
	}
	return nil
}

func (s shapes) checkField(field pair) *apiError {
	kind, ok := s[field.name]
	if !ok {
		base, rest, nested := strings.Cut(field.name, "[")
		switch kind := s[base]; {
		case nested && kind == hash && strings.HasSuffix(rest, "]"):
			return nil
		case nested && kind == list && strings.HasSuffix(rest, "]"):
			if _, isIndex := parseInteger(strings.TrimSuffix(rest, "]")); isIndex {
				return nil
			}
			return invalid(base, "", "Invalid array")
		}
		return invalid(field.name, "parameter_unknown", "Received unknown parameter: "+field.name)
	}
	switch kind {
	case text, boolean, integer:
		if field.value == "" {
			return invalid(field.name, "parameter_invalid_empty", fmt.Sprintf(
				"You passed an empty string for '%s'. We assume empty values are an attempt to unset a parameter; however '%s' cannot be unset. You should remove '%s' from your request or supply a non-empty value.",
				field.name, field.name, field.name))
		}
	case list:
		return invalid(field.name, "", "Invalid array")
	case hash:
		if field.value != "" {
			return invalid(field.name, "", "Invalid object")
		}
	case clearable:
	}
	switch kind {
	case boolean:
		if field.value != "true" && field.value != "false" {
			return invalid(field.name, "", "Invalid boolean: "+field.value)
		}
	case integer:
		if _, ok := parseInteger(field.value); !ok {
			return invalid(field.name, "parameter_invalid_integer", "Invalid integer: "+field.value)
		}
	default: // any text will do
	}
	return nil
}

// require refuses a request without these parameters.
func (p params) require(names ...string) *apiError {
	for _, name := range names {
		if !p.has(name) {
			return invalid(name, "parameter_missing", "Missing required param: "+name+".")
		}
	}
	return nil
}

// oneOf refuses a value outside the list; absent is fine.
func (p params) oneOf(name string, allowed ...string) *apiError {
	if !p.has(name) || slices.Contains(allowed, p.get(name)) {
		return nil
	}
	return invalid(name, "", fmt.Sprintf("Invalid %s: must be one of %s", name, strings.Join(allowed, ", ")))
}

// Stripe's limits on metadata.
const (
	maxMetadataKeys  = 50
	maxMetadataKey   = 40
	maxMetadataValue = 500
)

// checkMetadata holds the metadata parameters against Stripe's limits.
func (p params) checkMetadata() *apiError {
	n := 0
	for _, field := range p {
		key := elementOf(field.name, "metadata")
		if key == "" {
			if strings.HasPrefix(field.name, "metadata[") {
				return invalid("metadata", "", "Metadata keys cannot be empty.")
			}
			continue
		}
		n++
		switch {
		case strings.ContainsAny(key, "[]"):
			return invalid("metadata", "", "Metadata keys cannot include square brackets.")
		case utf8.RuneCountInString(key) > maxMetadataKey:
			return invalid("metadata", "", fmt.Sprintf("Metadata keys must be under %d characters long. %.10s... is too long.", maxMetadataKey, key))
		case utf8.RuneCountInString(field.value) > maxMetadataValue:
			return invalid("metadata["+key+"]", "", fmt.Sprintf("Metadata values can have up to %d characters, but you passed in a value that is %d characters.", maxMetadataValue, utf8.RuneCountInString(field.value)))
		}
	}
	if n > maxMetadataKeys {
		return invalid("metadata", "", fmt.Sprintf("You can have up to %d metadata keys, but you passed in %d.", maxMetadataKeys, n))
	}
	return nil
}

// metadata applies the metadata parameters to what an object has: an empty
// value removes its key, an empty metadata parameter removes all.
func (p params) metadata(old metadata) metadata {
	touched := false
	for _, field := range p {
		if strings.HasPrefix(field.name, "metadata") {
			touched = true
			break
		}
	}
	if !touched {
		return old
	}
	all := make(map[string]string, 4)
	if !p.has("metadata") {
		all = old.asMap()
	}
	for _, field := range p {
		if key := elementOf(field.name, "metadata"); key != "" {
			if field.value == "" {
				delete(all, key)
			} else {
				all[key] = field.value
			}
		}
	}
	keys := make([]string, 0, len(all))
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	m := make(metadata, 0, 2*len(all))
	for _, key := range keys {
		m = append(m, key, all[key])
	}
	return m
}

// expansion is what a caller wants shown in full instead of as an id.
type expansion struct {
	latestCharge, customer, paymentMethod, paymentIntent, charge bool
	s                                                            *Sim
}

// expansion reads the expand parameter. Lists name their elements' fields with
// a leading "data.".
func (p params) expansion(s *Sim, prefix string, known ...string) (expansion, *apiError) {
	x := expansion{s: s}
	for _, name := range p.list("expand") {
		field, ok := strings.CutPrefix(name, prefix)
		if !ok || !slices.Contains(known, field) {
			return x, invalid("expand", "", fmt.Sprintf("This property cannot be expanded (%s).", name))
		}
		switch field {
		case "latest_charge":
			x.latestCharge = true
		case "customer":
			x.customer = true
		case "payment_method":
			x.paymentMethod = true
		case "payment_intent":
			x.paymentIntent = true
		case "charge":
			x.charge = true
		}
	}
	return x, nil
}
