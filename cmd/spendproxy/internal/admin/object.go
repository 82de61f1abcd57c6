package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/billonce/billonce/domain"
)

// object is a JSON object that is being read strictly: each field is taken by
// its name, once and as what it must be, and what nobody takes is a fault.
type object struct {
	values map[string]json.RawMessage
	faults []string
	now    func() (time.Time, error) // business time, from which durations count; nil: none can be given
	err    error                     // of the clock
}

// parseObject takes an object apart. A field that occurs twice, bytes that are
// not UTF-8 and whatever follows the object are refused. A field that is null
// counts as left out.
func parseObject(raw []byte) (*object, error) {
	bad := invalid("the body must be one JSON object")
	if !utf8.Valid(raw) {
		return nil, invalid("the body must be UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, bad
	}
	o := &object{values: map[string]json.RawMessage{}}
	var names []string
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		var value json.RawMessage
		if err != nil || !ok || d.Decode(&value) != nil {
			return nil, bad
		}
		if slices.Contains(names, name) {
			o.fault(name, "occurs more than once")
		}
		if names = append(names, name); !bytes.Equal(value, []byte("null")) {
			o.values[name] = value
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, bad
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid("something follows the JSON object")
	}
	return o, nil
}

// fault notes what is wrong with a field. The name may be the caller's.
func (o *object) fault(name, format string, args ...any) {
	o.faults = append(o.faults, fmt.Sprintf("%.60q ", name)+fmt.Sprintf(format, args...))
}

// take reads a field into a value of the kind that is named in words.
func (o *object) take(name, kind string, into any) (given bool) {
	raw, ok := o.values[name]
	delete(o.values, name)
	if ok && json.Unmarshal(raw, into) != nil {
		o.fault(name, "must be %s", kind)
		return false
	}
	return ok
}

func (o *object) has(name string) bool { _, ok := o.values[name]; return ok }

// need reads a field, or notes that it is missing.
func (o *object) need(name, kind string, into any) bool {
	if !o.has(name) {
		o.fault(name, "is required")
		return false
	}
	return o.take(name, kind, into)
}

// text is a field of printable characters; empty if it is left out.
func (o *object) text(name string, required bool, most int) string {
	var s string
	read := o.take
	if required {
		read = o.need
	}
	if read(name, "a string", &s) && !printable(s, 1, most) {
		o.fault(name, "must be 1 to %d printable ASCII characters without blanks at its ends", most)
	}
	return s
}

// prose is a sentence for whoever reads the record later: any language.
func (o *object) prose(name string) string {
	var s string
	if o.need(name, "a string", &s) && (strings.TrimSpace(s) == "" || utf8.RuneCountInString(s) > proseMost || strings.ContainsFunc(s, unprintable)) {
		o.fault(name, "must say why, in one line of 1 to %d characters", proseMost)
	}
	return strings.TrimSpace(s)
}

const proseMost = 500

func unprintable(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 }

// minor is a field of whole minor units, from least on; 0 if it is left out.
func (o *object) minor(name string, least int64) int64 {
	var n int64
	if o.take(name, "a whole number of minor units", &n) && n < least {
		o.fault(name, "must be %d at least", least)
	}
	return n
}

// moment is a field of RFC 3339, or how long from now on, such as 72h or 30d; the
// zero time if it is left out.
func (o *object) moment(name string, required bool) time.Time {
	var s string
	read := o.take
	if required {
		read = o.need
	}
	if !read(name, "a string", &s) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if d, ok := durationOf(s); ok && o.now != nil {
		if t, err = o.now(); err != nil {
			o.err = fmt.Errorf("read the clock: %w", err)
			return time.Time{}
		}
		t = t.Add(d)
	}
	if err != nil || t.Year() < 2000 || t.Year() > 9999 {
		o.fault(name, "must be a time such as 2026-12-31T23:59:59Z, or how long from now on, such as 72h or 30d")
		return time.Time{}
	}
	return t.UTC()
}

// durationMost is longer than any key lives, and short enough to count in days.
const durationMost = 100 * 366 * 24 * time.Hour

// durationOf reads a positive duration: of time.ParseDuration, or whole days.
func durationOf(s string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		d := time.Duration(n) * 24 * time.Hour
		return d, err == nil && d > 0 && d <= durationMost
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d > 0 && d <= durationMost
}

// currency is a field that names a known currency in lower case.
func (o *object) currency(name string) domain.Currency {
	var s string
	if !o.need(name, "a string", &s) {
		return ""
	}
	c, err := domain.ParseCurrency(s)
	o.accept(name, err)
	return c
}

// accept notes what a parser of the domain says against a field.
func (o *object) accept(name string, err error) {
	if e, ok := errors.AsType[*domain.Error](err); ok && len(e.Fields) > 0 {
		for _, f := range e.Fields {
			o.fault(f.Field, "%s", f.Msg)
		}
	} else if err != nil {
		o.fault(name, "%s", err)
	}
}

// done is the error of all faults, unknown fields among them.
func (o *object) done() error {
	if o.err != nil {
		return o.err
	}
	names := make([]string, 0, len(o.values))
	for name := range o.values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		o.fault(name, "is not a field that can be given here")
	}
	if len(o.faults) == 0 {
		return nil
	}
	shown := o.faults
	if len(shown) > 20 {
		shown = append(slices.Clone(shown[:20]), fmt.Sprintf("and %d more", len(o.faults)-20))
	}
	return invalid("%s", strings.Join(shown, "; "))
}

// sentence is a refusal of the domain in one line.
func sentence(e *domain.Error) string {
	if len(e.Fields) == 0 {
		return e.Msg
	}
	faults := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		faults[i] = f.Field + " " + f.Msg
	}
	return strings.Join(faults, "; ")
}
