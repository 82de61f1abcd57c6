package domain_test

import (
	"errors"
	"flag"
	"os"
	"slices"
	"testing"

	"github.com/billonce/billonce/domain"
)

// Property tests start from a fixed seed, so that a run can be repeated;
// -rapid.seed=0 draws another one each time.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.seed": "20261101", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	os.Exit(m.Run())
}

// refused fails the test unless err is an invalid input that names exactly
// these fields.
func refused(t *testing.T, err error, fields ...string) {
	t.Helper()
	e, ok := errors.AsType[*domain.Error](err)
	if !ok || e.Kind != domain.Invalid {
		t.Errorf("got %v, want an invalid input that names %q", err, fields)
		return
	}
	var named []string
	for _, f := range e.Fields {
		if f.Msg == "" {
			t.Errorf("%s is refused without a reason", f.Field)
		}
		named = append(named, f.Field)
	}
	if !slices.Equal(named, fields) {
		t.Errorf("%v names %q, want %q", err, named, fields)
	}
}
