package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// TestC118_AHolderVanishes: what one replica says to the database is silently
// lost, in the middle of a month, and no connection is reset. The server ends
// the transactions that it left open, the other replica goes on with what it had
// in its hands, and when it is heard again it takes part in the next month: every
// customer is charged once for each.
func TestC118_AHolderVanishes(t *testing.T) {
	h := newHouse(t)
	h.stripe.SetClock(time.Date(2026, 10, 20, 0, 0, 0, 0, time.UTC))
	line := pgtest.NewProxy(t, h.dsn)
	h.start(func(c *config.Config) { c.DatabaseURL, c.Concurrency = settings.NewSecret(line.DSN()), 4 })
	other := h.start(func(c *config.Config) { c.Concurrency = 4 })
	ids := make([]string, 40)
	for i := range ids {
		ids[i] = fmt.Sprint("c", i)
	}
	other.subscribe(ids...)
	h.november()
	await(t, "the month has begun", func() bool { n, _ := h.charged(); return n >= 4 })
	line.Pause()
	awaitFor(t, 90*time.Second, "the other replica has charged everybody", func() bool { n, _ := h.charged(); return n == len(ids) })
	line.Resume()
	h.stripe.SetClock(time.Date(2026, 12, 1, 0, 0, 1, 0, time.UTC))
	awaitFor(t, 90*time.Second, "the next month is charged", func() bool {
		return h.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`) == 2*len(ids)
	})
	for _, id := range ids {
		if charges := h.charges(id); len(charges) != 2 {
			t.Errorf("%s has the charges %v for two months", id, charges)
		}
	}
}
