// Package content tells whether a request's body is of the kind that its
// address takes, for every program that reads one whole.
package content

import (
	"mime"
	"net/http"
	"strings"
)

// Refused is why a body is not read, with 415: its code and what to do.
type Refused struct{ Code, Message string }

// Check refuses another media type or character set than mediaType in UTF-8, a
// type given twice, and a compressed body, whose size nobody knows.
func Check(h http.Header, mediaType string) (why Refused, ok bool) {
	types := h.Values("Content-Type")
	given, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	charset, named := params["charset"]
	if err != nil || len(types) > 1 || given != mediaType || named && !strings.EqualFold(charset, "utf-8") {
		return Refused{"unsupported_media_type", "the body must be " + mediaType + " in UTF-8"}, false
	}
	for _, encoding := range h.Values("Content-Encoding") {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return Refused{"unsupported_encoding", "the body must not be compressed"}, false
		}
	}
	return Refused{}, true
}
