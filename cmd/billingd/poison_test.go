package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/eventstore/tracking"
)

// TestC050_OneBadEventDoesNotStopTheMonth: a hundred customers fall due, and the
// due of the third is not what this build can act on. The others are charged
// without help; the bad one is set aside with its reason, and health is degraded
// while the service stays ready. Corrected and handled again, all are charged,
// once each.
func TestC050_OneBadEventDoesNotStopTheMonth(t *testing.T) {
	const dues, third = 100, "c02"
	for name, spoil := range map[string]string{
		"malformed":           `UPDATE events SET payload = '{"customer_id": 3, "billing_period": true}' WHERE sequence_key = $1 AND event_type = 'billing.due.v1'`,
		"an unknown customer": `UPDATE events SET payload = replace(payload::text, $1, 'nobody')::json WHERE sequence_key = $1 AND event_type = 'billing.due.v1'`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.stripe.SetClock(time.Date(2026, 10, 20, 0, 0, 0, 0, time.UTC))
			var app *App
			r := h.startApp(nil, func(a *App) { app = a })
			ids := make([]string, dues)
			for i := range ids {
				ids[i] = fmt.Sprintf("c%02d", i)
			}
			r.subscribe(ids...)
			exec := func(sql string, args ...any) {
				t.Helper()
				if tag, err := app.pool.Exec(t.Context(), sql, args...); err != nil || tag.RowsAffected() != 1 {
					t.Fatalf("%s: %v, %v", sql, tag, err)
				}
			}
			var processors []string
			await(t, "subscriptions are in the schedule", func() bool {
				return h.count(`SELECT count(*) FROM subscription_schedule`) == dues
			})
			all, err := tracking.Status(t.Context(), app.pool)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range all {
				processors = append(processors, p.Processor)
				if err := tracking.Pause(t.Context(), app.pool, p.Processor, "ann", "to spoil a due first"); err != nil {
					t.Fatal(err)
				}
			}
			h.november()
			await(t, "everybody falls due", func() bool {
				return h.count(`SELECT count(*) FROM events WHERE event_type = 'billing.due.v1'`) == dues
			})
			exec(`CREATE TABLE as_it_was AS SELECT position, payload::text AS payload FROM events WHERE sequence_key = $1 AND event_type = 'billing.due.v1'`, third)
			exec(spoil, third)
			for _, p := range processors {
				if err := tracking.Resume(t.Context(), app.pool, p, "ann", "the due is spoiled"); err != nil {
					t.Fatal(err)
				}
			}

			awaitFor(t, 2*time.Minute, "all the others are charged", func() bool { n, _ := h.charged(); return n == dues-1 })
			await(t, "the bad due is set aside", func() bool { return r.processor("billing").Letters == 1 })
			letters, err := tracking.Letters(t.Context(), app.pool, tracking.LetterFilter{Processor: "billing"})
			if err != nil || len(letters) != 1 || letters[0].SequenceKey != third || letters[0].EventType != "billing.due.v1" || letters[0].Error == "" {
				t.Fatalf("letters %+v, %v", letters, err)
			}
			await(t, "the alarm's metric counts it", func() bool { return r.gauge("billonce_processor_dead_letters", "billing") == 1 })
			await(t, "health is degraded and names the letters", func() bool {
				health := r.read("/healthz")
				return strings.Contains(health, `"status":"degraded"`) && strings.Contains(health, "1 events of 1 customers wait in the dead letters of billing")
			}, func() string { return r.read("/healthz") })
			await(t, "the service is ready", func() bool { return r.get("/readyz", nil) == http.StatusOK }, func() string { return r.read("/readyz") })

			exec(`UPDATE events e SET payload = w.payload::json FROM as_it_was w WHERE e.position = w.position`)
			sequences, err := tracking.Sequences(t.Context(), app.pool, tracking.LetterFilter{})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range sequences {
				if _, err := app.runtime.Retry(t.Context(), s.Processor, s.SequenceKey, "ann"); err != nil {
					t.Errorf("retry: %v", err)
				}
			}
			awaitFor(t, time.Minute, "the last one is charged", func() bool { n, _ := h.charged(); return n == dues })
			await(t, "every processor is at the end", func() bool {
				all, err := tracking.Status(t.Context(), app.pool)
				for _, p := range all {
					if err != nil || !p.CaughtUp || p.Letters > 0 {
						return false
					}
				}
				return true
			})
			if n, doubled := h.charged(); n != dues || doubled {
				t.Errorf("%d entries in Stripe's ledger, doubled: %v", n, doubled)
			}
			if n := h.count(`SELECT count(*) FROM billing_records WHERE state = 'succeeded'`); n != dues {
				t.Errorf("%d rows succeeded", n)
			}
			await(t, "health is good again", func() bool { return strings.Contains(r.read("/healthz"), `"status":"ok"`) }, func() string { return r.read("/healthz") })
		})
	}
}
