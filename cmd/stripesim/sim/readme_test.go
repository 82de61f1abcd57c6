package sim

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// The README names every route, control call, fault, webhook fault, event and
// setting that the code has; the package documentation names every fault.
func TestReadmeIsComplete(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	names := func(what, name string) {
		t.Helper()
		if !strings.Contains(string(readme), "`"+name+"`") {
			t.Errorf("README.md does not name the %s %s", what, name)
		}
	}
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, r := range routes() {
		names("route", r.name)
	}
	for pattern := range s.controls() {
		names("control call", pattern)
	}
	for _, kind := range Kinds() {
		names("fault", string(kind))
		if base, _, _ := strings.Cut(string(kind), "_after_commit"); !strings.Contains(string(doc), base) {
			t.Errorf("doc.go does not name the fault %s", kind)
		}
	}
	for _, fault := range WebhookFaults() {
		names("webhook fault", string(fault))
		if !strings.Contains(string(doc), "//\t"+string(fault)+" ") {
			t.Errorf("doc.go does not name the webhook fault %s", fault)
		}
	}
	for _, kind := range EventTypes() {
		names("event", kind)
	}
	for _, setting := range settingNames() {
		names("setting", setting)
	}
}

// settingNames are the switches as control writes them.
func settingNames() (all []string) {
	for field := range reflect.TypeFor[wireSettings]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		all = append(all, name)
	}
	return all
}
