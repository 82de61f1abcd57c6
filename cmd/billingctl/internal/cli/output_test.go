package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/projections/projectiontest"
)

// Whatever a command says on standard output under -o json is JSON, a document or
// a line each.
func TestEverythingIsJSON(t *testing.T) {
	log := projectiontest.New(t)
	t.Setenv("DATABASE_URL", pgtest.DSN(t))
	aMonth(t, log, 2)
	deliver(t, log, processorsOf(log.Store)...)
	file := filepath.Join(t.TempDir(), "log.ndjson")
	for line, want := range map[string]string{
		"migrate":                                `{"done":"the database has the schema of this version"}`,
		"verify":                                 `"differences":0}`,
		"events export " + file:                  `"sha256":"`,
		"replay bills":                           `"switched": true`,
		"processors pause bills --reason tests":  `{"done":"`,
		"processors resume bills --reason tests": `{"done":"`,
	} {
		ran := billingctl(t, "", append([]string{"-o", "json"}, strings.Fields(line)...)...)
		if ran.code != exitOK || !strings.Contains(ran.out, want) {
			t.Errorf("%s: %+v, want %s", line, ran, want)
			continue
		}
		decoder := json.NewDecoder(strings.NewReader(ran.out))
		for decoder.More() {
			if err := decoder.Decode(new(any)); err != nil {
				t.Errorf("%s: %v in %q", line, err, ran.out)
				break
			}
		}
	}
}
