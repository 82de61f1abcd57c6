package sim_test

import (
	"testing"

	"go.uber.org/goleak"
)

// A closed stand-in leaves nothing running.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
