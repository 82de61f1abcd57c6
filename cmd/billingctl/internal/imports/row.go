package imports

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/billonce/billonce/cmd/billingctl/internal/client"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// row is a row of the file as commands.
type row struct {
	number   int // of the line, from 1
	customer string
	orders   []client.Order
	replayed int // of the orders
	refused  bool

	through domain.Period // the last period of its history; zero: none
	starts  domain.Date
	cadence domain.Cadence
}

// The commands of a row, in their order: the history comes before the
// subscription, and is left out if there is none.
const (
	register = "register-customer"
	history  = "import-history"
	charge   = "import-charge"
	activate = "activate-subscription"
)

// charges is the field that lists a history's charges.
const charges = "charges"

// columns are the fields of a row, and whether each is a number.
var columns = func() map[string]bool {
	all := map[string]bool{charges: false}
	for _, name := range []string{register, history, activate} {
		spec, err := commands.Lookup(name)
		if err != nil {
			panic(err) // a command was renamed
		}
		maps.Copy(all, fieldsOf(spec))
	}
	return all
}()

// faults are what is wrong with the fields of a row.
type faults []domain.FieldError

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, domain.FieldError{Field: field, Msg: fmt.Sprintf(format, args...)})
}

// parse makes a row's commands and checks it by their own rules. The error
// names every field at fault.
func parse(number int, fields map[string]json.RawMessage) (*row, error) {
	r := &row{number: number}
	var wrong faults
	for name := range fields {
		if _, known := columns[name]; !known {
			wrong.add(name, "is not a field of an import")
		}
	}
	if err := r.order(register, fields, &wrong, ""); err != nil {
		return nil, err
	}
	if err := r.history(fields, &wrong); err != nil {
		return nil, err
	}
	if err := r.order(activate, fields, &wrong, ""); err != nil {
		return nil, err
	}
	r.customer, r.cadence = text(fields["customer_id"]), domain.Cadence(text(fields["cadence"]))
	r.starts, _ = domain.ParseDate("starts_on", text(fields["starts_on"]))
	if !r.through.IsZero() && r.cadence.Months() > 0 && !r.through.Fits(r.cadence) {
		wrong.add("billed_through", "must be a %s period", r.cadence)
	}
	if len(wrong) > 0 {
		return nil, refusal(wrong)
	}
	return r, nil
}

// order appends a command made of those fields that are its own. Faults are
// named with a prefix.
func (r *row) order(name string, fields map[string]json.RawMessage, wrong *faults, prefix string) error {
	spec, err := commands.Lookup(name)
	if err != nil {
		return err
	}
	body := map[string]json.RawMessage{}
	for field := range fieldsOf(spec) {
		if value, given := fields[field]; given {
			body[field] = value
		}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("not valid JSON: %w", err)
	}
	r.orders = append(r.orders, client.Order{Command: name, Body: raw})
	_, err = spec.Decode(commands.Input{Body: raw})
	if refusal, ok := errors.AsType[*domain.Error](err); ok {
		for _, f := range refusal.Fields {
			wrong.add(prefix+f.Field, "%s", f.Msg)
		}
		return nil
	}
	return err
}

// history appends the commands of what another system has billed.
func (r *row) history(fields map[string]json.RawMessage, wrong *faults) error {
	_, through := fields["billed_through"]
	listed, given := fields[charges]
	switch {
	case !through && given:
		wrong.add("billed_through", "is required with charges")
		return nil
	case !through:
		return nil
	}
	if err := r.order(history, fields, wrong, ""); err != nil {
		return err
	}
	r.through, _ = domain.ParsePeriod(text(fields["billed_through"]))
	if !given {
		return nil
	}
	var entries []json.RawMessage
	if json.Unmarshal(listed, &entries) != nil || entries == nil {
		wrong.add(charges, "must be an array of objects")
		return nil
	}
	var periods []domain.Period
	for n, raw := range entries {
		name := fmt.Sprintf("%s[%d]", charges, n)
		entry, err := readObject(raw)
		if err != nil {
			wrong.add(name, "must be an object: %v", err)
			continue
		}
		for field := range entry {
			if !slices.Contains(ofCharge, field) {
				wrong.add(name+"."+field, "is not a field of a charge")
			}
		}
		entry["customer_id"] = fields["customer_id"]
		if _, ok := entry["currency"]; !ok {
			entry["currency"] = fields["currency"]
		}
		if err := r.order(charge, present(entry), wrong, name+"."); err != nil {
			return err
		}
		p, err := domain.ParsePeriod(text(entry["billing_period"]))
		switch {
		case err != nil || r.through.IsZero():
		case !p.BeginsBy(r.through):
			wrong.add(name+".billing_period", "lies behind billed_through")
		case slices.ContainsFunc(periods, p.Overlaps):
			wrong.add(name+".billing_period", "overlaps another charge's")
		}
		periods = append(periods, p)
	}
	return nil
}

// ofCharge are the fields of a charge.
var ofCharge = []string{"billing_period", "charge_id", "amount_minor", "currency"}

// present is an object without the fields that have no value.
func present(fields map[string]json.RawMessage) map[string]json.RawMessage {
	maps.DeleteFunc(fields, func(_ string, value json.RawMessage) bool { return value == nil })
	return fields
}

// text is a JSON string's value; "" for anything else.
func text(raw json.RawMessage) (s string) {
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// digest tells rows apart that say different things.
func (r *row) digest() uint64 {
	h := fnv.New64a()
	for _, o := range r.orders {
		h.Write([]byte(o.Command))
		h.Write(o.Body)
	}
	return h.Sum64()
}

// refusal names faults once each, in a fixed order.
func refusal(faults faults) error {
	texts := make([]string, len(faults))
	for i, f := range faults {
		texts[i] = f.Field + " " + f.Msg
	}
	slices.Sort(texts)
	return errors.New(strings.Join(slices.Compact(texts), "; "))
}

// fieldsOf lists the fields of a command's body, and whether each is a number.
func fieldsOf(spec commands.Spec) map[string]bool {
	t := reflect.TypeOf(spec.Body)
	fields := make(map[string]bool, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields[name] = t.Field(i).Type.Kind() != reflect.String
	}
	return fields
}
