package domain_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/billonce/billonce/"

// floors says what each room may import of the others. The longest matching
// name counts; a room may always import its own sub-packages.
var floors = map[string][]string{
	"domain":                     {},
	"migrations":                 {},
	"eventstore":                 {"domain"},
	"eventstore/tracking":        {"domain", "eventstore"},
	"eventstore/pglocal":         {},
	"eventstore/pgtest":          {"eventstore/pglocal", "migrations"},
	"commands":                   {"domain", "eventstore"},
	"sagas":                      {"domain", "eventstore", "eventstore/tracking", "commands"},
	"sagas/stripegateway":        {"domain", "sagas"},
	"sagas/vault":                {"domain", "sagas"},
	"projections":                {"domain", "eventstore", "eventstore/tracking"},
	"projections/projectiontest": {"domain", "eventstore", "eventstore/pgtest", "eventstore/tracking", "projections", "commands"},
	"commands/commandstest":      {"domain", "commands"},
	"cmd/internal":               {},
	"cmd/stripesim":              {"domain", "cmd/internal"},
	"cmd/spendproxy":             {"domain", "cmd/internal"},
	"cmd/billingd":               {"cmd/internal", "domain", "eventstore", "eventstore/tracking", "eventstore/pglocal", "commands", "sagas", "sagas/stripegateway", "sagas/vault", "projections", "migrations"},
	"cmd/billingctl":             {"domain", "eventstore", "eventstore/tracking", "eventstore/pglocal", "commands", "projections", "migrations", "sagas", "sagas/stripegateway"},
}

// outside says which rooms may import a module, or a part of the standard library.
var outside = map[string][]string{
	"github.com/stripe/stripe-go/v76":    {"sagas/stripegateway"},
	"github.com/ThreeDotsLabs/watermill": {"eventstore", "eventstore/tracking"},
	"github.com/danielgtaylor/huma/v2":   {"cmd/billingd"},
	"github.com/alecthomas/kong":         {"cmd/internal", "cmd/billingctl", "cmd/stripesim"},
	"math/rand":                          {"sagas", "cmd/stripesim", "cmd/billingctl", "eventstore/tracking", "eventstore/pglocal", "eventstore/pgtest", "projections/projectiontest"},
	"crypto/rand":                        {"cmd/billingd", "cmd/billingctl", "cmd/spendproxy", "cmd/stripesim", "eventstore/tracking", "eventstore/pglocal", "eventstore/pgtest", "projections/projectiontest"},
}

// TestFloors reads the imports of every package of the module: a room looks
// down, never up or across.
func TestFloors(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		seen++
		name := strings.TrimPrefix(p.ImportPath, module)
		room, allowed := roomOf(name)
		if room == "" {
			t.Errorf("%s is in no room", name)
			continue
		}
		for _, path := range p.Imports {
			if inner, ok := strings.CutPrefix(path, module); ok {
				if target, _ := roomOf(inner); target != room && !slices.Contains(allowed, target) {
					t.Errorf("%s imports %s: %s may import %v", name, inner, room, allowed)
				}
				continue
			}
			if room == "domain" && strings.Contains(path, ".") {
				t.Errorf("domain imports %s; it has the standard library only", path)
			}
			for module, rooms := range outside {
				if (path == module || strings.HasPrefix(path, module+"/")) && !slices.Contains(rooms, room) {
					t.Errorf("%s imports %s, which belongs to %v", name, path, rooms)
				}
			}
		}
	}
	if seen < 15 {
		t.Errorf("go list named %d packages; the check has not seen the house", seen)
	}
}

func roomOf(name string) (room string, allowed []string) {
	for r, a := range floors {
		if (name == r || strings.HasPrefix(name, r+"/")) && len(r) > len(room) {
			room, allowed = r, a
		}
	}
	return room, allowed
}
