package sim

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
)

// out builds a JSON document by hand. Rendering is on the path of every
// request, and reflection costs several times as much.
type out []byte

func (o *out) lit(s string) *out { *o = append(*o, s...); return o }

// str appends a JSON string.
func (o *out) str(s string) *out {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c > 0x7e || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(s) // a string always marshals
			*o = append(*o, quoted...)
			return o
		}
	}
	*o = append(*o, '"')
	*o = append(*o, s...)
	*o = append(*o, '"')
	return o
}

// strOrNull appends a JSON string, or null for the empty one.
func (o *out) strOrNull(s string) *out {
	if s == "" {
		return o.lit("null")
	}
	return o.str(s)
}

func (o *out) num(n int64) *out { *o = strconv.AppendInt(*o, n, 10); return o }

// numOrNull appends a number, or null for zero.
func (o *out) numOrNull(n int64) *out {
	if n == 0 {
		return o.lit("null")
	}
	return o.num(n)
}

func (o *out) boolean(b bool) *out { *o = strconv.AppendBool(*o, b); return o }

// metadata is a caller's string map, flattened to key, value, key, value in
// order of the keys. It is never changed in place: objects share it.
type metadata []string

func (m metadata) get(key string) (string, bool) {
	for i := 0; i < len(m); i += 2 {
		if m[i] == key {
			return m[i+1], true
		}
	}
	return "", false
}

func (m metadata) asMap() map[string]string {
	all := make(map[string]string, len(m)/2)
	for i := 0; i < len(m); i += 2 {
		all[m[i]] = m[i+1]
	}
	return all
}

func (o *out) metadata(m metadata) *out {
	o.lit("{")
	for i := 0; i < len(m); i += 2 {
		if i > 0 {
			o.lit(",")
		}
		o.str(m[i]).lit(":").str(m[i+1])
	}
	return o.lit("}")
}

func (o *out) strings(all []string) *out {
	o.lit("[")
	for i, s := range all {
		if i > 0 {
			o.lit(",")
		}
		o.str(s)
	}
	return o.lit("]")
}

// newID returns prefix followed by n random letters and digits.
func newID(prefix string, n int) string {
	const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	b := make([]byte, len(prefix), len(prefix)+n)
	copy(b, prefix)
	for n > 0 {
		r := rand.Uint64()
		for range min(n, 10) {
			b = append(b, alphabet[r%62])
			r /= 62
		}
		n -= 10
	}
	return string(b)
}
