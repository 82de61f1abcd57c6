package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/billonce/billonce/commands"
)

// dispatchCommand has a command of its own for each one of the registry, with
// a flag for each field.
type dispatchCommand struct {
	kong.Plugins

	JSON           string `name:"json" help:"Read the fields from a file of JSON instead; - is standard input." placeholder:"FILE"`
	IdempotencyKey string `help:"Remembered with the command: the same again is answered by the same receipt." placeholder:"KEY"`
	Wait           string `help:"How long to wait for the bill of a command that charges to be decided." placeholder:"DURATION"`

	Other words `cmd:"" hidden:"" default:"withargs" passthrough:""`
}

// words are what follows dispatch and is no command of the registry.
type words struct {
	Words []string `arg:"" optional:""`
}

// offer makes the commands of the registry known.
func (d *dispatchCommand) offer() error {
	for spec := range commands.All() {
		fields, err := fieldFlags(spec)
		if err != nil {
			return err
		}
		help := spec.Summary + "."
		if spec.NeedsKey {
			help += " Needs --idempotency-key."
		}
		if spec.Scope != commands.Dispatch {
			help += " Needs a token with the scope " + string(spec.Scope) + "."
		}
		d.Plugins = append(d.Plugins, reflect.New(reflect.StructOf([]reflect.StructField{{
			Name: "Command",
			Type: reflect.StructOf(fields),
			Tag:  tag("cmd", "", "name", spec.Name, "help", help),
		}})).Interface())
	}
	return nil
}

// fieldFlags are the fields of a command's body as flags.
func fieldFlags(spec commands.Spec) ([]reflect.StructField, error) {
	body := reflect.TypeOf(spec.Body)
	flags := make([]reflect.StructField, body.NumField())
	for i := range flags {
		f := body.Field(i)
		kind := reflect.TypeFor[string]()
		of := f.Type
		if of.Kind() == reflect.Pointer { // of what may be left out
			of = of.Elem()
		}
		switch of.Kind() {
		case reflect.String:
		case reflect.Int, reflect.Int64:
			kind = reflect.TypeFor[int64]()
		default:
			return nil, fmt.Errorf("field %s of %s cannot be typed as a flag", f.Name, spec.Name)
		}
		field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		doc := f.Tag.Get("doc")
		if values := f.Tag.Get("enum"); values != "" {
			doc = strings.TrimSpace(doc + " One of " + strings.ReplaceAll(values, ",", ", ") + ".")
		}
		example := f.Tag.Get("example")
		if example == "" {
			example = "VALUE"
		}
		flags[i] = reflect.StructField{
			Name: f.Name, Type: kind,
			Tag: tag("name", flagOf(field), "help", doc, "placeholder", example),
		}
	}
	return flags, nil
}

// flagOf spells a field as a flag, fieldOf a flag as a field.
func flagOf(field string) string { return strings.ReplaceAll(field, "_", "-") }
func fieldOf(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

func tag(pairs ...string) reflect.StructTag {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		b.WriteString(pairs[i] + ":" + strconv.Quote(pairs[i+1]) + " ")
	}
	return reflect.StructTag(b.String())
}

// Run dispatches the command that was named.
func (d *dispatchCommand) Run(s *shell, k *kong.Context) error {
	spec, err := commands.Lookup(k.Selected().Name)
	if err != nil {
		return d.unknown()
	}
	body, err := d.body(s, k)
	if err != nil {
		return err
	}
	if d.Wait != "" && !spec.Charges {
		return usage("--wait is for commands that charge; %s does not", spec.Name)
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	document, final, err := c.Command(s.ctx, spec.Name, d.IdempotencyKey, d.Wait, body)
	if err != nil {
		return fmt.Errorf("dispatch %s: %w", spec.Name, err)
	}
	return show(s, document, func(r receipt) error { return r.write(s, final) })
}

// unknown says why a command cannot be dispatched.
func (d *dispatchCommand) unknown() error {
	if len(d.Other.Words) == 0 {
		return usage("which command? billingctl dispatch --help lists them")
	}
	_, err := commands.Lookup(d.Other.Words[0])
	if err == nil {
		return usage("the command must come before its flags: billingctl dispatch %s --help", d.Other.Words[0])
	}
	return usageError{err}
}

// body is the command's body as JSON, out of flags or a file.
func (d *dispatchCommand) body(s *shell, k *kong.Context) ([]byte, error) {
	fields := map[string]any{}
	for _, f := range k.Selected().Flags {
		if f.Set {
			fields[fieldOf(f.Name)] = f.Target.Interface()
		}
	}
	if d.JSON == "" {
		return json.Marshal(fields)
	}
	if len(fields) > 0 {
		return nil, usage("give the fields as flags or by --json, not both")
	}
	read := func() ([]byte, error) { return os.ReadFile(d.JSON) }
	if d.JSON == "-" {
		read = func() ([]byte, error) { return io.ReadAll(s.In) }
	}
	body, err := read()
	if err != nil {
		return nil, usageError{fmt.Errorf("--json: %w", err)}
	}
	if !json.Valid(body) {
		return nil, usageError{errors.New("--json: not valid JSON")}
	}
	return body, nil
}

// receipt is the answer to a command.
type receipt struct {
	Key      string `json:"key"`
	Stream   string `json:"stream"`
	Version  int    `json:"version"`
	Position string `json:"position"`
	Replayed bool   `json:"replayed"`
	Events   []struct {
		Type     string `json:"type"`
		Position string `json:"position"`
	} `json:"events"`
	Bill *struct {
		Status   string `json:"status"`
		Attempt  int    `json:"attempt"`
		IntentID string `json:"intent_id"`
		ChargeID string `json:"charge_id"`
	} `json:"bill"`
}

func (r receipt) write(s *shell, final bool) error {
	outcome := "recorded"
	switch {
	case r.Replayed:
		outcome = "replayed: it had been recorded before"
	case len(r.Events) == 0:
		outcome = "recorded: there was nothing to do"
	}
	lines := [][2]string{{"outcome", outcome}, {"key", r.Key}, {"stream", fmt.Sprintf("%s, version %d", r.Stream, r.Version)}, {"position", r.Position}}
	for _, e := range r.Events {
		lines = append(lines, [2]string{"fact", e.Type + " at " + e.Position})
	}
	if b := r.Bill; b != nil {
		status := fmt.Sprintf("%s, attempt %d", b.Status, b.Attempt)
		if !final {
			status += "; not decided yet"
		}
		lines = append(lines, [2]string{"bill", status}, [2]string{"intent", b.IntentID}, [2]string{"charge", b.ChargeID})
	}
	for _, l := range lines {
		if l[1] == "" {
			continue
		}
		if err := s.printf("%-9s %s\n", l[0], l[1]); err != nil {
			return err
		}
	}
	return nil
}
