package sagas_test

import (
	"os"
	"testing"
)

// TestMain lets the test binary be what must die, or be counted, apart from the
// tests: a refund worker, or the stand-in of a benchmark.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(workerDatabase) != "":
		if err := refundWorker(); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(2)
		}
	case os.Getenv(asStripe) != "":
		beStripe(os.Getenv(asStripe))
	default:
		os.Exit(m.Run())
	}
}
