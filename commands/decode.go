package commands

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/billonce/billonce/domain"
)

// decode reads a flat JSON object into body, strictly: one object and nothing
// after it, valid UTF-8, each field at most once, no field that body does not
// have, no null and no empty string, each required field (no omitempty) present
// and of its type. The error is an invalid input that names every field at fault.
func decode(raw []byte, body any) error { return DecodeBody(raw, body) }

// DecodeBody is how the body of every command is read, for whatever else takes
// a body.
func DecodeBody(raw []byte, body any) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return malformed("the body is empty; a JSON object is expected")
	}
	if !utf8.Valid(raw) {
		return malformed("the body is not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return malformed("the body is not a JSON object")
	}
	var v validation
	target := reflect.ValueOf(body).Elem()
	known := fieldsOf(target.Type())
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return malformed("the body is not valid JSON")
		}
		name, _ := t.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return malformed("the body is not valid JSON")
		}
		f, ok := known[name]
		switch {
		case !ok:
			v.add(name, "is not a field of this command")
		case seen[name]:
			v.add(name, "occurs more than once")
		case bytes.Equal(value, []byte("null")):
			v.add(name, "must not be null")
		default:
			switch field := target.Field(f.index); {
			case json.Unmarshal(value, field.Addr().Interface()) != nil:
				v.add(name, "must be "+f.kind)
			case field.Kind() == reflect.String && field.IsZero():
				v.add(name, "must not be empty") // nor does it stand for a default
			}
		}
		seen[name] = true
	}
	if _, err := d.Token(); err != nil {
		return malformed("the body is not valid JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return malformed("something follows the JSON object")
	}
	for i := range target.NumField() {
		name, f := fieldName(target.Type().Field(i)), known[fieldName(target.Type().Field(i))]
		if f.required && !seen[name] {
			v.add(name, "is required")
		}
	}
	if len(v.fields) > 0 {
		return domain.InvalidFields(v.fields...)
	}
	return nil
}

func malformed(msg string) error {
	e := *domain.ErrInvalidInput
	e.Msg, e.Fields = msg, []domain.FieldError{{Field: "body", Msg: msg}}
	return &e
}

type bodyField struct {
	index    int
	required bool
	kind     string
}

func fieldsOf(t reflect.Type) map[string]bodyField {
	fields := make(map[string]bodyField, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		kind := "a string"
		if f.Type.Kind() != reflect.String {
			kind = "an integer"
		}
		fields[fieldName(f)] = bodyField{i, !strings.Contains(f.Tag.Get("json"), "omitempty"), kind}
	}
	return fields
}

func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
