package tracking

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CommitsHelp is the help of billonce_commits_total, which other paths count
// as well: metrics of one name must share it.
const CommitsHelp = "Committed transactions, by the path that made them."

// metrics are what a runtime counts. The lag is read when it is asked for.
type metrics struct {
	runtime *Runtime

	commits  prometheus.Counter
	pages    *prometheus.CounterVec
	events   *prometheus.CounterVec
	replayed *prometheus.CounterVec
	failures *prometheus.CounterVec
	letters  *prometheus.CounterVec
	lost     *prometheus.CounterVec
	seconds  *prometheus.HistogramVec

	lagEvents, lagSeconds, waiting, letterCount, caughtUp, paused *prometheus.Desc
}

func newMetrics(r *Runtime, registry prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "billonce", Subsystem: "processor", Name: name, Help: help}, append([]string{"processor"}, labels...))
	}
	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("billonce_processor_"+name, help, []string{"processor"}, nil)
	}
	m := &metrics{
		runtime: r,
		commits: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "billonce", Name: "commits_total", Help: CommitsHelp,
			ConstLabels: prometheus.Labels{"path": "delivery"}}),
		pages:    counter("pages_total", "Pages that have committed."),
		events:   counter("events_total", "Events that were handled."),
		replayed: counter("replayed_events_total", "Events that were handled again, after a reset or a lost token."),
		failures: counter("failures_total", "Pages that were rolled back (transient, timeout, poison) or could not go on (unknown_event).", "class"),
		letters:  counter("dead_letters_total", "Events that were put aside (parked, behind).", "status"),
		lost:     counter("lost_tokens_total", "Tokens that had disappeared."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "billonce", Subsystem: "processor", Name: "page_seconds",
			Help: "Time from claim to commit of a page.", Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 10)}, []string{"processor"}),
		lagEvents:   gauge("lag_events", "Events after the processor's tokens."),
		lagSeconds:  gauge("lag_seconds", "Age of the oldest event after the processor's tokens."),
		waiting:     gauge("parked_sequences", "Sequences that an operator has to look at."),
		letterCount: gauge("dead_letters", "Events that wait in the parked sequences."),
		caughtUp:    gauge("caught_up", "1 if every event of the log has been handled, and nobody is just appending."),
		paused:      gauge("paused", "1 if an operator has paused the processor, or lets it run to a position only."),
	}
	if registry != nil {
		registry.MustRegister(m.commits, m.pages, m.events, m.replayed, m.failures, m.letters, m.lost, m.seconds, m)
	}
	return m
}

// Commits is how many transactions of pages this process has committed.
func (r *Runtime) Commits() int64 { return r.commits.Load() }

// page counts a page that has committed.
func (m *metrics) page(p *processor, u *unit) {
	m.runtime.commits.Add(1)
	m.commits.Inc()
	m.pages.WithLabelValues(p.Name).Inc()
	m.seconds.WithLabelValues(p.Name).Observe(time.Since(u.started).Seconds())
	for _, l := range u.letters {
		m.letters.WithLabelValues(p.Name, string(l.Status)).Inc()
	}
	if u.page == nil {
		return
	}
	replayed := 0
	for _, e := range u.page.Events {
		if u.page.Replay(e) {
			replayed++
		}
	}
	m.replayed.WithLabelValues(p.Name).Add(float64(replayed))
	m.events.WithLabelValues(p.Name).Add(float64(len(u.page.Events)))
}

// Describe implements prometheus.Collector for the gauges.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.lagEvents
	ch <- m.lagSeconds
	ch <- m.waiting
	ch <- m.letterCount
	ch <- m.caughtUp
	ch <- m.paused
}

// Collect implements prometheus.Collector. With the database away the gauges
// are left out.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	running := m.runtime.running()
	if len(running) == 0 {
		return
	}
	names := make([]string, len(running))
	for i, p := range running {
		names[i] = p.Name
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	all, err := Status(ctx, m.runtime.pool, names...)
	if err != nil {
		return
	}
	for _, s := range all {
		for desc, value := range map[*prometheus.Desc]float64{
			m.lagEvents: float64(s.BehindEvents), m.lagSeconds: s.BehindSeconds, m.waiting: float64(s.Parked), m.letterCount: float64(s.Letters), m.caughtUp: number(s.CaughtUp), m.paused: number(s.Paused || s.StopAt > 0),
		} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, s.Processor)
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var _ prometheus.Collector = (*metrics)(nil)
