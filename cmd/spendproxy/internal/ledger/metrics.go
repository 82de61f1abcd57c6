package ledger

import "github.com/prometheus/client_golang/prometheus"

// metrics counts what the ledger does. Without a registry it counts nothing.
type metrics struct {
	decisions *prometheus.CounterVec
	work      *prometheus.CounterVec
	groups    prometheus.Histogram
	alarms    prometheus.Counter
	dropped   prometheus.Counter
	pruned    prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	if r == nil {
		return nil
	}
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spendproxy_decisions_total", Help: "Decisions on POSTs: forward, answer, learn, or the code of a refusal; would_… for one that gave way to the key's mode.",
		}, []string{"decision"}),
		work: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spendproxy_ledger_work_total", Help: "Pieces of work on the books.",
		}, []string{"work", "result"}),
		groups: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "spendproxy_ledger_group_size", Help: "Pieces of work that shared a commit.", Buckets: prometheus.ExponentialBuckets(1, 2, 8),
		}),
		alarms: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spendproxy_ledger_alarms_total", Help: "Money that was taken and had not been reserved so. It should stay at 0.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spendproxy_audit_dropped_total", Help: "Rows of the audit about reads and early refusals that could not be written.",
		}),
		pruned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spendproxy_audit_pruned_total", Help: "Rows of the audit deleted because they were older than SPENDPROXY_AUDIT_KEEP.",
		}),
	}
	r.MustRegister(m.decisions, m.work, m.groups, m.alarms, m.dropped, m.pruned)
	return m
}

func (m *metrics) decided(d Decision) {
	if m == nil {
		return
	}
	what := "forward"
	switch {
	case d.Answer != nil:
		what = "answer"
	case d.Learn != "":
		what = "learn"
	case !d.Forward:
		what = string(d.Verdict.Code)
	case d.Verdict.Code != "":
		what = "would_" + string(d.Verdict.Code)
	}
	m.decisions.WithLabelValues(what).Inc()
}

func (m *metrics) done(what string, err error) {
	if m == nil {
		return
	}
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.work.WithLabelValues(what, result).Inc()
}

func (m *metrics) group(n int) {
	if m != nil {
		m.groups.Observe(float64(n))
	}
}

func (m *metrics) alarm() {
	if m != nil {
		m.alarms.Inc()
	}
}

func (m *metrics) drop(n int) {
	if m != nil {
		m.dropped.Add(float64(n))
	}
}

func (m *metrics) prune(n int64) {
	if m != nil {
		m.pruned.Add(float64(n))
	}
}
