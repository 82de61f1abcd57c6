package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/vault"
)

// proxyTime bounds a call to the proxy's admin API.
const proxyTime = 10 * time.Second

// openProxy makes what speaks to the spend proxy about runs, if there is one:
// the client and the holder of the runs' keys.
func (a *App) openProxy(clock *sagas.Clock) {
	if a.settings.ProxyAdmin == nil {
		return
	}
	a.vault = vault.New(vault.Config{BaseURL: a.settings.ProxyAdmin, Token: a.settings.ProxyToken.Reveal(), Actor: "billingd", Timeout: proxyTime})
	a.keys = sagas.NewRunKeys(a.vault, a.pool, clock, a.settings.Environment)
}

// openRegistrar makes the worker that tells the proxy what runs are expected to
// take.
func (a *App) openRegistrar(clock *sagas.Clock, registry *prometheus.Registry) {
	if a.keys == nil {
		return
	}
	a.registrar = sagas.NewRegistrar(a.vault, a.keys, a.pool, clock, a.settings.Poll, a.collector.Environment().Ready, a.collector.Wake, a.log)
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "billonce", Name: "manifest_entries_total", Help: "Bills that this process has told the spend proxy of."},
			func() float64 { told, _ := a.registrar.Entries(); return float64(told) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "billonce", Name: "manifest_refused_total", Help: "Bills that the spend proxy did not take."},
			func() float64 { _, refused := a.registrar.Entries(); return float64(refused) }),
	)
}

// register says that the proxy may have to be told something.
func (a *App) register() {
	if a.registrar != nil {
		a.registrar.Wake()
	}
}

// runRegistrar runs the worker, if there is a proxy.
func (a *App) runRegistrar(ctx context.Context) error {
	if a.registrar == nil {
		<-ctx.Done()
		return nil
	}
	return a.registrar.Run(ctx)
}

// verdicts reads what the proxy decided about a bill's calls; nil where there is
// no proxy.
func (a *App) verdicts() func(context.Context, domain.CustomerID, domain.Period) ([]sagas.Verdict, error) {
	if a.vault == nil {
		return nil
	}
	return a.vault.Verdicts
}

// registerRunMetrics shows runs that wait, and how many this process has paused.
func registerRunMetrics(registry *prometheus.Registry, c *sagas.Collector, troubles func(context.Context) ([]sagas.RunTrouble, error)) {
	count := func(of func(sagas.RunTrouble) float64) func() float64 {
		return func() float64 {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			found, err := troubles(ctx)
			if err != nil {
				return 0
			}
			sum := 0.0
			for _, t := range found {
				sum += of(t)
			}
			return sum
		}
	}
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "billonce", Name: "runs_held_total", Help: "Runs that this process has paused because the spend proxy refused a bill."},
			func() float64 { return float64(c.Stats().Held) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "billonce", Name: "runs_paused", Help: "Runs that are paused until somebody resumes them."},
			count(func(t sagas.RunTrouble) float64 {
				if t.Paused {
					return 1
				}
				return 0
			})),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "billonce", Name: "run_bills_held", Help: "Bills that rest in runs which wait for somebody."},
			count(func(t sagas.RunTrouble) float64 {
				n := 0.0
				for _, h := range t.Held {
					n += float64(h.Bills)
				}
				return n
			})),
	)
}
