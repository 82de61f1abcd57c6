package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/cmd/spendproxy/internal/policy"
)

// metrics are counted by what the house names, never by what a caller sends.
type metrics struct {
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inFlight prometheus.Gauge
	repeats  prometheus.Counter
	unbooked prometheus.Counter
	panics   prometheus.Counter
	fetched  *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spendproxy_calls_total",
			Help: "Calls by rule, verdict (ok, or the code of the refusal) and the vault key's mode; in open and report a refusal is counted and forwarded.",
		}, []string{"rule", "verdict", "mode"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spendproxy_call_seconds", Help: "Time from a call's arrival to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 80},
		}, []string{"kind"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "spendproxy_calls_in_flight", Help: "Calls being served."}),
		repeats:  prometheus.NewCounter(prometheus.CounterOpts{Name: "spendproxy_answers_repeated_total", Help: "Calls answered from the ledger, because they had succeeded before."}),
		unbooked: prometheus.NewCounter(prometheus.CounterOpts{Name: "spendproxy_results_unbooked_total", Help: "Results of forwarded calls that the ledger did not take at once; their reservations stay held."}),
		panics:   prometheus.NewCounter(prometheus.CounterOpts{Name: "spendproxy_panics_total", Help: "Calls whose handling panicked."}),
		fetched: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spendproxy_doubts_read_total", Help: "Reads of Stripe made to settle held reservations, by what came of them.",
		}, []string{"result"}),
	}
	registry.MustRegister(m.calls, m.seconds, m.inFlight, m.repeats, m.unbooked, m.panics, m.fetched)
	return m
}

// count counts a call that has been answered.
func (m *metrics) count(x *exchange, code policy.Code) {
	rule, mode, verdict, kind := string(x.call.Rule), string(x.key.Grant.Mode), string(code), "refused"
	if rule == "" {
		rule = "none"
	}
	if mode == "" {
		mode = "none"
	}
	switch {
	case code == "" && x.call.Moves():
		kind = "money"
	case code == "" && x.call.Key != "":
		kind = "write"
	case code == "":
		kind = "read"
	}
	if verdict == "" {
		verdict = "ok"
	}
	m.calls.WithLabelValues(rule, verdict, mode).Inc()
	m.seconds.WithLabelValues(kind).Observe(time.Since(x.start).Seconds())
}
