package main

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/cmd/billingd/internal/api"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas"
)

// Ages of what is shown to whatever watches the service, which asks often.
const (
	troublesAge = 250 * time.Millisecond
	stuckAge    = time.Second
)

// seldom reads at most once in a while, and gives what it read last meanwhile.
func seldom[T any](age time.Duration, read func(context.Context) (T, error)) func(context.Context) (T, error) {
	var mu sync.Mutex
	var last T
	var at time.Time
	return func(ctx context.Context) (T, error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(at) < age {
			return last, nil
		}
		found, err := read(ctx)
		if err != nil {
			var none T
			return none, err
		}
		last, at = found, time.Now()
		return last, nil
	}
}

// troubles are the runs that wait for somebody.
func (a *App) troubles() func(context.Context) ([]sagas.RunTrouble, error) {
	return seldom(troublesAge, func(ctx context.Context) ([]sagas.RunTrouble, error) { return sagas.RunTroubles(ctx, a.pool) })
}

// stuck is what else waits: bills, refunds and letters.
func (a *App) stuck() func(context.Context) (api.Stuck, error) {
	return seldom(stuckAge, func(ctx context.Context) (s api.Stuck, err error) {
		if s.Waits, err = sagas.Waits(ctx, a.pool); err != nil {
			return s, err
		}
		s.Letters, err = tracking.CountLetters(ctx, a.pool)
		return s, err
	})
}

// waitMetrics shows how many bills and refunds wait, by state, and how many of
// them for a person. Nothing is shown while the database does not answer.
type waitMetrics struct {
	read                   func(context.Context) (api.Stuck, error)
	bills, refunds, oldest *prometheus.Desc
}

func newWaitMetrics(read func(context.Context) (api.Stuck, error)) waitMetrics {
	return waitMetrics{
		read:    read,
		bills:   prometheus.NewDesc("billonce_bills_waiting", "Bills that wait: for Stripe, a customer, the end of a pause or a person.", []string{"state"}, nil),
		refunds: prometheus.NewDesc("billonce_refunds_waiting", "Refunds that wait for Stripe or a person.", []string{"state"}, nil),
		oldest:  prometheus.NewDesc("billonce_stuck_since_seconds", "Unix time since when the first of the bills or refunds in a state waits for a person.", []string{"of", "state"}, nil),
	}
}

// waitStates are shown as zero where nothing waits, so that an alarm ends.
var waitStates = map[string][]string{
	"bills":   {"unknown", "held", "waiting", "needs_review", "action_required", "closing"},
	"refunds": {"unknown", "pending", "needs_review"},
}

// Describe implements prometheus.Collector.
func (m waitMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.bills
	to <- m.refunds
	to <- m.oldest
}

// Collect implements prometheus.Collector.
func (m waitMetrics) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s, err := m.read(ctx)
	if err != nil {
		return
	}
	counts := map[[2]string]int64{}
	for _, w := range s.Waits {
		counts[[2]string{w.Of, w.State}] = w.Count
		if w.Stuck > 0 {
			to <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, float64(w.Since.Unix()), w.Of, w.State)
		}
	}
	for of, desc := range map[string]*prometheus.Desc{"bills": m.bills, "refunds": m.refunds} {
		for _, state := range waitStates[of] {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(counts[[2]string{of, state}]), state)
		}
	}
}
