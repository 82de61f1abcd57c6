package commands

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/billonce/billonce/domain"
)

// validation gathers what is wrong with a body, so that a caller learns all of
// it at once.
type validation struct{ fields []domain.FieldError }

func (v *validation) add(field, msg string) {
	v.fields = append(v.fields, domain.FieldError{Field: field, Msg: msg})
}

// note takes the fields of an error that names fields.
func (v *validation) note(err error) {
	if e, ok := errors.AsType[*domain.Error](err); ok {
		v.fields = append(v.fields, e.Fields...)
	}
}

// request is r, unless something was wrong.
func (v *validation) request(r Request) (Request, error) {
	if len(v.fields) > 0 {
		return Request{}, domain.InvalidFields(v.fields...)
	}
	return r, nil
}

func check[T any](v *validation, s string, parse func(string) (T, error)) T {
	t, err := parse(s)
	v.note(err)
	return t
}

func checkMoney(v *validation, minor int64, currency string) domain.Money {
	m, err := domain.ParseMoney(minor, currency)
	v.note(err)
	return m
}

func checkStripeID(v *validation, field, prefix, s string) string {
	id, err := domain.ParseStripeID(field, prefix, s)
	v.note(err)
	return id
}

func checkPaymentMethodID(v *validation, field, s string) string {
	id, err := domain.ParsePaymentMethodID(field, s)
	v.note(err)
	return id
}

func checkPeriod(v *validation, field, s string) domain.Period {
	p, err := domain.ParsePeriod(s)
	switch {
	case err != nil:
		v.add(field, "must be a month (2026-11), a quarter (2026-Q3) or a year (2026), spelled exactly so")
	case !p.Nameable():
		v.add(field, tooLate)
	}
	return p
}

func checkDate(v *validation, field, s string) domain.Date {
	d, err := domain.ParseDate(field, s)
	v.note(err)
	if d.Year > domain.LastYear {
		v.add(field, tooLate)
	}
	return d
}

var tooLate = fmt.Sprintf("must not be after the year %d", domain.LastYear)

// textMost bounds free text in facts. Of the control characters it may hold
// line breaks and tabs alone: PostgreSQL stores no zero byte in a text, and an
// escape sequence has no place on an operator's screen.
const textMost = 500

func checkText(v *validation, field, s string, required bool) string {
	switch {
	case required && s == "":
		v.add(field, "is required")
	case utf8.RuneCountInString(s) > textMost:
		v.add(field, "must have at most 500 characters")
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }):
		v.add(field, "must not have control characters")
	}
	return s
}
