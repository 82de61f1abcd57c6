package main

import (
	"os"
	"testing"
)

// asService makes a test binary be billingd itself, so that a test can send
// signals to a real one.
const asService = "BILLINGD_OF_A_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		main()
		return
	}
	code := m.Run()
	removeBuilt()
	os.Exit(code)
}
