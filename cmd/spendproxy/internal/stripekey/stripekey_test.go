package stripekey_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/cmd/spendproxy/internal/stripekey"
)

// One warning at the start, and a metric that goes on saying it.
func TestUnrestrictedKey(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"rk_live_" + marker: "", "rk_test_" + marker: "", "sk_test_" + marker: "",
		"sk_live_" + marker: "a restricted one (rk_)", "sk_org_live_" + marker: "a restricted one (rk_)",
		"pk_live_" + marker: "neither", marker: "neither", "": "neither", "vk_" + marker: "neither", "SK_test_" + marker: "neither",
	} {
		var said bytes.Buffer
		registry := prometheus.NewRegistry()
		if err := stripekey.Watch(key, slog.New(slog.NewTextHandler(&said, nil)), registry); err != nil {
			t.Fatal(err)
		}
		lines := strings.Count(said.String(), "\n")
		if (lines == 1) != (want != "") || lines > 1 || !strings.Contains(said.String(), want) {
			t.Errorf("of %.8s… it says %q, want %q", key, said.String(), want)
		}
		if strings.Contains(said.String(), marker) {
			t.Errorf("of %.8s… the log holds the key", key)
		}
		families, err := registry.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "spendproxy_upstream_key_unrestricted" {
			t.Fatalf("the metrics are %v, %v", families, err)
		}
		if got := families[0].GetMetric()[0].GetGauge().GetValue(); (got == 1) != (want != "") {
			t.Errorf("of %.8s… the metric is %v", key, got)
		}
	}
}

const marker = "51MarkerMarkerMarker"
