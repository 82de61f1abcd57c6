package tracking_test

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(10, 2)
	registry := prometheus.NewRegistry()
	p := poisoned("measured", func(e eventstore.Recorded) error {
		if e.SequenceKey == "c1" {
			return errors.New("bad")
		}
		return nil
	})
	r := h.run(tracking.Options{Registry: registry}, p)
	h.caughtUp("measured")
	h.exec(`UPDATE processor_tokens SET paused = true`)
	h.append("late", eventstore.Head{}, registered("late"))
	for name, want := range map[string]float64{
		"billonce_processor_events_total":          18,
		"billonce_processor_dead_letters_total":    2,
		"billonce_processor_parked_sequences":      1,
		"billonce_processor_lag_events":            1,
		"billonce_processor_replayed_events_total": 0,
	} {
		if got := metric(t, registry, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"billonce_processor_pages_total", "billonce_processor_failures_total", "billonce_commits_total", "billonce_processor_lag_seconds"} {
		if got := metric(t, registry, name); got <= 0 {
			t.Errorf("%s is %v", name, got)
		}
	}
	if got := metric(t, registry, "billonce_commits_total"); got != float64(r.Commits()) {
		t.Errorf("commits: %v and %v", got, r.Commits())
	}
	all, err := r.Status(t.Context())
	if err != nil || len(all) != 1 || all[0].EventsPerSecond <= 0 {
		t.Errorf("status: %+v, %v", all, err)
	}
}

// metric sums a metric over its labels.
func metric(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
