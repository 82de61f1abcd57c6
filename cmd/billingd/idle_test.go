package main

import (
	"context"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/eventstore/pglocal"
)

// TestIdleBurnsNothing runs the service on an embedded PostgreSQL of its own,
// with nothing to do: it polls, and takes no transaction id.
func TestIdleBurnsNothing(t *testing.T) {
	stripe, err := sim.Start(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stripe.Close() })
	dir := t.TempDir()
	t.Cleanup(func() { // run by root, the cluster itself may lie elsewhere
		if err := pglocal.Remove(context.Background(), dir); err != nil {
			t.Errorf("remove the embedded PostgreSQL: %v", err)
		}
	})
	h := &house{t: t, stripe: stripe}
	var app *App
	r := h.startApp(func(s *config.Config) {
		s.DatabaseURL, s.DataDir, s.ClockURL = settings.Secret{}, dir, ""
		s.Poll = 50 * time.Millisecond
	}, func(a *App) { app = a })
	r.register("acme")
	if a, err := r.post(t.Context(), "/v1/commands/charge-billing?wait=30s", chargeBody("acme")); err != nil || a.Bill.Status != "paid" {
		t.Fatalf("charge: %+v, %v", a, err)
	}
	number := func(sql string) (n int64) {
		t.Helper()
		if err := app.pool.QueryRow(context.Background(), sql).Scan(&n); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return n
	}
	const (
		nextXID = `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`
		commits = `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`
	)
	// Whatever the charge has set in motion comes to rest first.
	var before int64
	await(t, "the service is at rest", func() bool {
		status, err := app.runtime.Status(t.Context())
		if err != nil {
			return false
		}
		for _, s := range status {
			if !s.CaughtUp {
				return false
			}
		}
		was := before
		before = number(nextXID)
		return was == before
	})
	polled := number(commits)
	await(t, "it has polled a hundred times", func() bool { return number(commits) > polled+100 })
	if burned := number(nextXID) - before; burned != 0 {
		t.Errorf("%d transaction ids were taken by a service with nothing to do", burned)
	}
}
