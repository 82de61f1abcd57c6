package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// BenchmarkMonth bills a month of b.N customers, everything included: service,
// stand-in, database, two calls to Stripe a bill. The clock runs from the
// moment the month falls due to the last charge.
func BenchmarkMonth(b *testing.B) {
	stripe, err := sim.Start(sim.Options{Clock: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC), RequestLog: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer stripe.Close()
	var app *App
	h := &house{t: b, dsn: pgtest.DSN(b), stripe: stripe}
	r := h.startApp(func(s *config.Config) {
		s.Concurrency, s.DBPool, s.Poll = 64, 24, time.Second
	}, func(a *App) { app = a })

	var lines strings.Builder
	for i := range b.N {
		fmt.Fprintf(&lines, `{"command":"register-customer","body":{"customer_id":"c%d","stripe_customer_id":"cus_%d","payment_method_id":"pm_card_visa"}}`+"\n", i, i)
		fmt.Fprintf(&lines, `{"command":"activate-subscription","body":{"customer_id":"c%d","amount_minor":5000,"currency":"usd","cadence":"monthly","anchor_day":1,"time_zone":"Europe/Berlin","starts_on":"2026-12-01"}}`+"\n", i)
	}
	res, err := http.Post(r.url+"/v1/commands:batch", "application/x-ndjson", strings.NewReader(lines.String()))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil { // the batch is dispatched as its answers are read
		b.Fatal(err)
	}
	res.Body.Close()
	count := func(sql string) (n int) {
		if err := app.pool.QueryRow(context.Background(), sql).Scan(&n); err != nil {
			b.Fatal(err)
		}
		return n
	}
	await(b, "the subscriptions are scheduled", func() bool { return count(`SELECT count(*) FROM subscription_schedule`) == b.N })
	money, delivery := app.collector.Stats().Commits, app.runtime.Commits()

	b.ResetTimer()
	stripe.SetClock(time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC))
	awaitFor(b, 5*time.Minute, "all are charged", func() bool { return app.collector.Stats().Settled == int64(b.N) })
	b.StopTimer()

	if n := len(stripe.Ledger()); n != b.N {
		b.Errorf("%d charges for %d customers", n, b.N)
	}
	n := float64(b.N)
	b.ReportMetric(n/b.Elapsed().Seconds(), "bills/s")
	b.ReportMetric(float64(app.collector.Stats().Commits-money)/n, "money-commits/bill")
	b.ReportMetric(float64(app.runtime.Commits()-delivery)/n, "delivery-commits/bill")
}
