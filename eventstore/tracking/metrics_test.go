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
		"billonce_processor_dead_letters":          2,
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
	if got := metric(t, registry, "billonce_processor_caught_up"); got != 0 {
		t.Errorf("it is caught up, with an event to come and two set aside: %v", got)
	}
	h.exec(`UPDATE processor_tokens SET paused = false`)
	h.caughtUp("measured")
	if s := h.status("measured"); s.CaughtUp || s.BehindEvents != 0 || s.Letters != 2 {
		t.Errorf("with two events set aside: caught up %t, %d behind, %d letters", s.CaughtUp, s.BehindEvents, s.Letters)
	}
}

// The rate is of all replicas, partition by partition, and fades.
func TestRate(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.fill(10, 20)
	for range 2 {
		h.run(tracking.Options{}, inOrder("rated"))
	}
	h.caughtUp("rated")
	s := h.status("rated")
	if s.EventsPerSecond <= 5 || s.EventsPerSecond > 20 { // 200 over about ten seconds, seconds ago
		t.Errorf("%f events a second", s.EventsPerSecond)
	}
	owners, sum := map[string]bool{}, 0.0
	for _, p := range s.Partitions {
		if (p.EventsPerSecond > 0) != (p.Newest > 0) {
			t.Errorf("partition %d, newest %d: %f events a second", p.Partition, p.Newest, p.EventsPerSecond)
		}
		sum += p.EventsPerSecond
		owners[p.Owner] = true
	}
	if diff := sum - s.EventsPerSecond; diff > 0.001 || diff < -0.001 {
		t.Errorf("the partitions make %f, the whole is %f", sum, s.EventsPerSecond)
	}
	if owners[""] {
		t.Error("a token has no owner")
	}
	h.exec(`UPDATE processor_tokens SET rated_at = rated_at - interval '1 minute'`)
	if faded := h.status("rated").EventsPerSecond; faded > s.EventsPerSecond/100 {
		t.Errorf("a minute later it is %f", faded)
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
