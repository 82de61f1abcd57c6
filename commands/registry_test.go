package commands_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// bodyField is a field of a public command's body.
type bodyField struct {
	name     string
	required bool
	number   bool
	example  string // as JSON; empty if the field has none
}

func fieldsOf(spec commands.Spec) (fields []bodyField) {
	typ := reflect.TypeOf(spec.Body)
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		field := bodyField{name: name, required: options != "omitempty", number: f.Type.Kind() != reflect.String, example: f.Tag.Get("example")}
		if field.example != "" && !field.number {
			field.example = string(must(json.Marshal(field.example)))
		}
		fields = append(fields, field)
	}
	return fields
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// bodyOf spells a body from the examples that OpenAPI shows, with changes: a
// field set to "-" is left out.
func bodyOf(spec commands.Spec, changes map[string]string) []byte {
	var members []string
	for _, f := range fieldsOf(spec) {
		value := f.example
		if changed, ok := changes[f.name]; ok {
			value = changed
		}
		if value != "" && value != "-" {
			members = append(members, fmt.Sprintf("%q:%s", f.name, value))
		}
	}
	return []byte("{" + strings.Join(members, ",") + "}")
}

func decode(spec commands.Spec, body []byte) (commands.Request, error) {
	return spec.Decode(commands.Input{Key: "k1", Body: body, Now: noon})
}

// names fails the test unless err is an invalid input that names exactly these
// fields, each with a reason.
func names(t *testing.T, what string, err error, fields ...string) {
	t.Helper()
	e, ok := errors.AsType[*domain.Error](err)
	if !ok || e.Kind != domain.Invalid || e.Code != "invalid_input" {
		t.Errorf("%s: %v, want an invalid input that names %q", what, err, fields)
		return
	}
	var named []string
	for _, f := range e.Fields {
		named = append(named, f.Field)
		if f.Msg == "" {
			t.Errorf("%s: %s is refused without a reason", what, f.Field)
		}
	}
	if !slices.Equal(named, fields) {
		t.Errorf("%s: names %q, want %q", what, named, fields)
	}
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	var listed []string
	for spec := range commands.All() {
		listed = append(listed, spec.Name)
		found, err := commands.Lookup(spec.Name)
		if err != nil || found.Name != spec.Name {
			t.Errorf("%s is listed and not found: %v", spec.Name, err)
		}
		if !regexp.MustCompile(`^[a-z]+(-[a-z]+)+$`).MatchString(spec.Name) || spec.Summary == "" {
			t.Errorf("%q, %q", spec.Name, spec.Summary)
		}
		if fields := fieldsOf(spec); len(fields) == 0 || fields[0].name != subject(spec) || !fields[0].required {
			t.Errorf("%s does not begin with whom it is about", spec.Name)
		}
	}
	want := []string{
		"register-customer", "import-history", "import-charge", "activate-subscription", "change-subscription-amount", "change-subscription-schedule", "change-payment-method",
		"pause-subscription", "resume-subscription", "cancel-subscription",
		"declare-billing-due", "charge-billing", "retry-charge", "stop-dunning", "reschedule-dunning", "release-billing", "settle-billing", "write-off-billing",
		"refund-charge", "accept-refund", "dismiss-refund-proposal", "pause-run", "resume-run",
	}
	if !slices.Equal(listed, want) {
		t.Errorf("listed are %q, want %q", listed, want)
	}
}

// What only an operator may send is listed here a second time, so that a command
// does not change hands unseen.
func TestScopes(t *testing.T) {
	t.Parallel()
	var operators []string
	for spec := range commands.All() {
		switch spec.Scope {
		case commands.Operate:
			operators = append(operators, spec.Name)
		case commands.Dispatch:
		default:
			t.Errorf("%s needs the scope %q", spec.Name, spec.Scope)
		}
	}
	want := []string{"stop-dunning", "reschedule-dunning", "release-billing", "settle-billing", "write-off-billing", "refund-charge", "accept-refund", "dismiss-refund-proposal", "pause-run", "resume-run"}
	if !slices.Equal(operators, want) {
		t.Errorf("operators alone send %q, want %q", operators, want)
	}
}

// subject is the field that says whom or what a command is about.
func subject(spec commands.Spec) string {
	if ofRun(spec) {
		return "billing_period"
	}
	return "customer_id"
}

func ofRun(spec commands.Spec) bool { return strings.HasSuffix(spec.Name, "-run") }

func TestLookup(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{
		"start-attempt": domain.ErrInternal, "commit-intent": domain.ErrInternal, "complete-closing": domain.ErrInternal, "suspect-settlement": domain.ErrInternal, "record-charge-outcome": domain.ErrInternal,
		"record-refund-outcome": domain.ErrInternal, "record-dispute": domain.ErrInternal, "propose-refund": domain.ErrInternal,
		"close-run": domain.ErrInternal,
		"":          domain.ErrUnknownCommand, "charge": domain.ErrUnknownCommand, "Charge-Billing": domain.ErrUnknownCommand, "charge-billing ": domain.ErrUnknownCommand,
	} {
		spec, err := commands.Lookup(name)
		if !errors.Is(err, want) || spec.Decode != nil {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
		if name != "" && !strings.Contains(err.Error(), name) {
			t.Errorf("%q is refused without its name: %v", name, err)
		}
	}
}

// What OpenAPI shows as an example is a body that works.
func TestExamplesAreAccepted(t *testing.T) {
	t.Parallel()
	for spec := range commands.All() {
		for what, body := range map[string][]byte{
			"all fields":      bodyOf(spec, nil),
			"required fields": bodyOf(spec, optional(spec, "-")),
			"spaced out":      []byte(" \n" + strings.ReplaceAll(string(bodyOf(spec, nil)), ",", " ,\n\t") + "\n "),
		} {
			req, err := decode(spec, body)
			if err != nil {
				t.Errorf("%s, %s %s: %v", spec.Name, what, body, err)
				continue
			}
			stream := domain.StreamID("customer/cust_123")
			if ofRun(spec) {
				stream = "run/2026-11"
			}
			if req.Name() != spec.Name || req.Stream() != stream || req.Key() == "" || len(req.Key()) > 255 {
				t.Errorf("%s became %s on %s under %q", spec.Name, req.Name(), req.Stream(), req.Key())
			}
		}
	}
}

func optional(spec commands.Spec, value string) map[string]string {
	changes := map[string]string{}
	for _, f := range fieldsOf(spec) {
		if !f.required {
			changes[f.name] = value
		}
	}
	return changes
}

// A body that is not one flat JSON object is refused as a whole.
func TestBodiesThatAreNone(t *testing.T) {
	t.Parallel()
	for spec := range commands.All() {
		good := string(bodyOf(spec, nil))
		for what, body := range map[string]string{
			"nothing":              "",
			"white space":          " \n\t ",
			"null":                 "null",
			"a list":               "[" + good + "]",
			"a string":             `"x"`,
			"a number":             "1",
			"half an object":       good[:len(good)-1],
			"a word":               "customer_id",
			"a comma too much":     good[:len(good)-1] + ",}",
			"a comment":            "/* c */" + good,
			"two objects":          good + good,
			"something after it":   good + " x",
			"a bracket after it":   good + "]",
			"a byte-order mark":    "\ufeff" + good,
			"a form":               "customer_id=cust_123",
			"invalid UTF-8":        strings.Replace(good, `":"`, "\":\"\xff", 1),
			"UTF-16":               "\xff\xfe{\x00}\x00",
			"a field without name": "{:1}",
			"single quotes":        strings.ReplaceAll(good, `"`, "'"),
		} {
			req, err := decode(spec, []byte(body))
			names(t, spec.Name+", "+what, err, "body")
			if !reflect.ValueOf(req).IsZero() {
				t.Errorf("%s, %s: refused, and still builds a command", spec.Name, what)
			}
		}
	}
}

// Each fault of a field is refused, and the refusal names the field.
func TestFieldsAreStrict(t *testing.T) {
	t.Parallel()
	for spec := range commands.All() {
		good := string(bodyOf(spec, nil))
		with := func(member string) []byte { return []byte(good[:len(good)-1] + "," + member + "}") }
		_, err := decode(spec, with(`"surprise":1`))
		names(t, spec.Name+" with an unknown field", err, "surprise")
		_, err = decode(spec, []byte(strings.Replace(good, subject(spec), strings.ToUpper(subject(spec)), 1)))
		names(t, spec.Name+" in another case", err, strings.ToUpper(subject(spec)), subject(spec))
		_, err = decode(spec, []byte(`{}`))
		var required []string
		for _, f := range fieldsOf(spec) {
			if f.required {
				required = append(required, f.name)
			}
		}
		names(t, spec.Name+" with nothing", err, required...)

		for _, f := range fieldsOf(spec) {
			about := spec.Name + ", " + f.name
			try := func(what, value string) {
				t.Helper()
				_, err := decode(spec, bodyOf(spec, map[string]string{f.name: value}))
				names(t, about+" "+what, err, f.name)
			}
			if f.required {
				try("left out", "-")
			}
			try("null", "null")
			try("a truth", "true")
			try("a list", "[]")
			try("an object", `{"a":{"b":[1]}}`)
			if f.number {
				try("a string", `"100"`)
				try("a fraction", "1.5")
				try("an exponent", "1e3")
				try("too large for 64 bits", "92233720368547758080")
			} else {
				try("a number", "1")
				try("empty", `""`)
			}
			if f.example != "" {
				_, err = decode(spec, with(fmt.Sprintf("%q:%s", f.name, f.example)))
				names(t, about+" twice", err, f.name)
			}
		}
	}
}

// All that is wrong is told at once.
func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	spec := must(commands.Lookup("activate-subscription"))
	_, err := decode(spec, []byte(`{"customer_id":"a:b","amount_minor":0,"currency":"USD","cadence":"weekly","anchor_day":32,"time_zone":"Mars","starts_on":"soon"}`))
	names(t, "values", err, "customer_id", "amount_minor", "currency", "cadence", "time_zone", "anchor_day", "starts_on")
	_, err = decode(spec, []byte(`{"customer_id":1,"amount_minor":"5","currency":null,"anchor_day":1,"time_zone":"UTC","starts_on":"2026-11-01","x":1}`))
	names(t, "shapes", err, "customer_id", "amount_minor", "currency", "x", "cadence")
}

func TestValuesOfFields(t *testing.T) {
	t.Parallel()
	long := func(n int, s string) string { return `"` + strings.Repeat(s, n) + `"` }
	for _, c := range []struct{ command, field, value string }{
		{"register-customer", "customer_id", `"a:2026-10"`}, {"register-customer", "customer_id", `"a/b"`}, {"register-customer", "customer_id", `" a"`},
		{"register-customer", "customer_id", long(65, "x")}, {"register-customer", "customer_id", long(10_000, "x")}, {"register-customer", "customer_id", `"a\u0000"`},
		{"register-customer", "stripe_customer_id", `"pm_1"`}, {"register-customer", "stripe_customer_id", `"cus_"`},
		{"register-customer", "payment_method_id", `"tok_visa"`}, {"change-payment-method", "payment_method_id", `"card"`},
		{"activate-subscription", "anchor_day", "0"}, {"activate-subscription", "anchor_day", "32"}, {"activate-subscription", "anchor_day", "-1"},
		{"activate-subscription", "cadence", `"Monthly"`}, {"activate-subscription", "time_zone", `"Local"`}, {"activate-subscription", "starts_on", `"2026-02-29"`},
		{"charge-billing", "amount_minor", "0"}, {"charge-billing", "amount_minor", "-1"}, {"charge-billing", "amount_minor", "49"}, {"charge-billing", "amount_minor", "100000000"},
		{"charge-billing", "amount_minor", "-9223372036854775808"}, {"charge-billing", "amount_minor", "-0"},
		{"charge-billing", "currency", `"us"`}, {"charge-billing", "currency", `"USD "`}, {"charge-billing", "currency", `"XXX"`}, {"charge-billing", "currency", `"uSd"`}, {"charge-billing", "currency", `"USD"`},
		{"charge-billing", "billing_period", `"2026-1"`}, {"charge-billing", "billing_period", `"２０２６-01"`}, {"declare-billing-due", "billing_period", `"Q1-2026"`},
		{"retry-charge", "attempt", "1"}, {"retry-charge", "attempt", "0"}, {"retry-charge", "attempt", "-2"}, {"retry-charge", "attempt", "1001"},
		{"change-subscription-amount", "amount_minor", "0"}, {"change-subscription-amount", "currency", `"USD"`}, {"change-subscription-amount", "effective_period", `"next"`},
		{"change-subscription-schedule", "anchor_day", "0"}, {"change-subscription-schedule", "anchor_day", "32"}, {"change-subscription-schedule", "time_zone", `"Local"`},
		{"change-subscription-schedule", "effective_period", `"2026-13"`},
		{"charge-billing", "billing_period", `"3000-01"`}, {"charge-billing", "billing_period", `"9999-12"`}, {"charge-billing", "billing_period", `"9999"`}, {"change-subscription-amount", "effective_period", `"9999-Q4"`},
		{"activate-subscription", "starts_on", `"3000-01-01"`}, {"activate-subscription", "starts_on", `"9999-12-31"`}, {"reschedule-dunning", "at", `"9999-12-31T23:59:59-23:00"`},
		{"cancel-subscription", "at", `"later"`}, {"cancel-subscription", "at", `"Now"`},
		{"cancel-subscription", "reason", long(501, "x")}, {"pause-subscription", "reason", long(501, "é")},
		{"settle-billing", "reference", long(501, "x")}, {"settle-billing", "reference", `"a\u0000b"`}, {"write-off-billing", "reason", `"\u001b[31m"`}, {"pause-subscription", "reason", `"\u0085"`},
	} {
		spec := must(commands.Lookup(c.command))
		_, err := decode(spec, bodyOf(spec, map[string]string{c.field: c.value}))
		names(t, c.command+" with "+c.field+" "+c.value[:min(40, len(c.value))], err, c.field)
	}
	for _, c := range []struct{ command, field, value string }{
		{"settle-billing", "reference", long(500, "é")}, {"settle-billing", "reference", `"two\nlines\tand a tab"`}, {"cancel-subscription", "at", `"now"`},
		{"charge-billing", "amount_minor", "99999999"}, {"charge-billing", "billing_period", `"2026-Q3"`}, {"charge-billing", "billing_period", `"2026"`}, {"retry-charge", "attempt", "1000"},
		{"charge-billing", "billing_period", `"2999-12"`}, {"activate-subscription", "starts_on", `"2999-12-31"`},
	} {
		spec := must(commands.Lookup(c.command))
		if _, err := decode(spec, bodyOf(spec, map[string]string{c.field: c.value})); err != nil {
			t.Errorf("%s with %s %.40s: %v", c.command, c.field, c.value, err)
		}
	}
}

// C070: amounts are integers of minor units. Every price of two decimals is refused,
// as a string and as a number, and none is rounded.
func TestDecimalPricesAreRefused(t *testing.T) {
	t.Parallel()
	spec := must(commands.Lookup("charge-billing"))
	for cents := 1; cents <= 10_000; cents++ {
		price := fmt.Sprintf("%d.%02d", cents/100, cents%100)
		for _, value := range []string{price, `"` + price + `"`} {
			if _, err := decode(spec, bodyOf(spec, map[string]string{"amount_minor": value})); !errors.Is(err, domain.ErrInvalidInput) {
				t.Fatalf("amount_minor %s: %v", value, err)
			}
		}
	}
	_, err := decode(spec, bodyOf(spec, map[string]string{"amount_minor": "19.99"}))
	names(t, "19.99", err, "amount_minor")
}

// Where several equal commands are legitimate the caller must say which one
// this is; where not, the caller's key is no part of the command's.
func TestIdempotencyKeyHeader(t *testing.T) {
	t.Parallel()
	keyed := map[string]bool{
		"change-subscription-amount": true, "change-subscription-schedule": true, "change-payment-method": true, "pause-subscription": true, "resume-subscription": true, "cancel-subscription": true,
		"stop-dunning": true, "reschedule-dunning": true, "release-billing": true, "settle-billing": true, "write-off-billing": true, "accept-refund": true, "dismiss-refund-proposal": true,
		"pause-run": true, "resume-run": true,
	}
	for spec := range commands.All() {
		if spec.NeedsKey != keyed[spec.Name] {
			t.Errorf("%s needs a key: %t, want %t", spec.Name, spec.NeedsKey, keyed[spec.Name])
		}
		if charges := spec.Name == "charge-billing" || spec.Name == "retry-charge"; spec.Charges != charges {
			t.Errorf("%s charges: %t", spec.Name, spec.Charges)
		}
		decoded := func(key domain.Key) (domain.Key, error) {
			req, err := spec.Decode(commands.Input{Key: key, Body: bodyOf(spec, nil), Now: noon})
			if err != nil {
				return "", err
			}
			return req.Key(), nil
		}
		none, err := decoded("")
		first, second := must(decoded("k1")), must(decoded("k2"))
		if keyed[spec.Name] {
			if !errors.Is(err, domain.ErrIdempotencyKeyNeeded) {
				t.Errorf("%s without a key: %v", spec.Name, err)
			}
			if first == second || first != must(decoded("k1")) {
				t.Errorf("%s: keys %s and %s", spec.Name, first, second)
			}
		} else if err != nil || none != first || first != second {
			t.Errorf("%s: without a key %s (%v), with one %s, with another %s", spec.Name, none, err, first, second)
		}
	}
}
