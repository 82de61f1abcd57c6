package api

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// metrics are what the API counts. No label is a caller's own text.
type metrics struct {
	requests *prometheus.HistogramVec
	inFlight prometheus.Gauge
	commands *prometheus.CounterVec

	feedEvents, feedSlow prometheus.Counter
}

func newMetrics(registry prometheus.Registerer, readers *atomic.Int64) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "billonce_http_request_seconds",
			Help:    "How long requests took.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"method", "route", "status"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "billonce_http_requests_in_flight", Help: "Requests under way.",
		}),
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "billonce_http_commands_total", Help: "Commands that came by HTTP, by what became of them: recorded, replayed, a refusal's code, or failed.",
		}, []string{"command", "outcome"}),
		feedEvents: prometheus.NewCounter(prometheus.CounterOpts{Name: "billonce_feed_events_total", Help: "Events that readers of the feed were sent."}),
		feedSlow:   prometheus.NewCounter(prometheus.CounterOpts{Name: "billonce_feed_slow_readers_total", Help: "Readers of the feed that were cut off because they did not read."}),
	}
	feedReaders := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "billonce_feed_readers", Help: "Readers of the feed."},
		func() float64 { return float64(readers.Load()) })
	var faults []error
	for _, c := range []prometheus.Collector{m.requests, m.inFlight, m.commands, m.feedEvents, m.feedSlow, feedReaders} {
		faults = append(faults, registry.Register(c))
	}
	return m, errors.Join(faults...)
}

// dispatched counts a command.
func (m *metrics) dispatched(command string, r eventstore.Receipt, err error) {
	outcome := "recorded"
	if r.Replayed {
		outcome = "replayed"
	}
	if err != nil {
		outcome = "failed"
		if e, ok := errors.AsType[*domain.Error](err); ok {
			outcome = e.Code
		}
	}
	m.commands.WithLabelValues(command, outcome).Inc()
}
