package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// row is a line of the file as commands.
type row struct {
	number   int // of the line, from 1
	orders   [2]client.Order
	replayed [2]bool
}

// The commands of a row, in their order.
var steps = [2]string{"register-customer", "activate-subscription"}

// parse reads a line and checks it by the commands' own rules. The error names
// every field at fault.
func parse(number int, line []byte) (*row, error) {
	fields, err := readObject(line)
	if err != nil {
		return nil, err
	}
	r := &row{number: number}
	known := map[string]bool{}
	var faults []domain.FieldError
	for i, name := range steps {
		spec, err := commands.Lookup(name)
		if err != nil {
			return nil, err
		}
		body := map[string]json.RawMessage{}
		for _, field := range fieldsOf(spec) {
			known[field] = true
			if value, given := fields[field]; given {
				body[field] = value
			}
		}
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("not valid JSON: %w", err)
		}
		r.orders[i] = client.Order{Command: name, Body: raw}
		_, err = spec.Decode(commands.Input{Body: raw})
		if refusal, ok := errors.AsType[*domain.Error](err); ok {
			faults = append(faults, refusal.Fields...)
		} else if err != nil {
			return nil, err
		}
	}
	for name := range fields {
		if !known[name] {
			faults = append(faults, domain.FieldError{Field: name, Msg: "is not a field of an import in this version"})
		}
	}
	if len(faults) > 0 {
		return nil, refusal(faults)
	}
	return r, nil
}

// refusal names faults once each, in a fixed order.
func refusal(faults []domain.FieldError) error {
	texts := make([]string, len(faults))
	for i, f := range faults {
		texts[i] = f.Field + " " + f.Msg
	}
	slices.Sort(texts)
	return errors.New(strings.Join(slices.Compact(texts), "; "))
}

// readObject reads one flat JSON object, each field at most once.
func readObject(line []byte) (map[string]json.RawMessage, error) {
	notObject := errors.New("not a JSON object")
	if !utf8.Valid(line) {
		return nil, errors.New("not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(line))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, notObject
	}
	fields := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		name, _ := t.(string)
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return nil, notObject
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("%s occurs more than once", name)
		}
		fields[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, notObject
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	return fields, nil
}

// fieldsOf lists the fields of a command's body.
func fieldsOf(spec commands.Spec) []string {
	t := reflect.TypeOf(spec.Body)
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("json"), ",")
	}
	return names
}
