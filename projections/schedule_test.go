package projections_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// Subscriptions and timers that fall due at the same moments come up once each
// in one order, paged in any size, either way; what never falls due does not.
func TestScheduleInPages(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	for _, sql := range []string{
		`INSERT INTO subscription_schedule (customer_id, partition, next_period, due_at, last_position)
			SELECT 'c' || i, 0, '2026-12', '2026-12-01Z'::timestamptz + i % 3 * interval '1 microsecond', i FROM generate_series(1, 100) AS i`,
		`INSERT INTO subscription_schedule (customer_id, partition, next_period, due_at, last_position) VALUES ('paused', 0, '2026-12', '9999-01-01Z', 1)`,
		`INSERT INTO scheduled_commands (key, token, command, customer_id, billing_period, attempt, due_at, causation, correlation)
			SELECT 'retry-charge/c' || i || '/2026-11/2', 'dunning/c' || i || '/2026-11', 'retry-charge', 'c' || i, '2026-11', 2,
				CASE WHEN i < 10 THEN '-infinity' ELSE '2026-12-01Z'::timestamptz END, '', '' FROM generate_series(1, 30) AS i`,
	} {
		if _, err := log.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	walk := func(q projections.ScheduledQuery) (all []projections.Scheduled) {
		t.Helper()
		for {
			page, err := log.Reads().Scheduled(t.Context(), q)
			if err != nil || len(page.Items) > q.Limit {
				t.Fatalf("%+v: %d items, %v", q, len(page.Items), err)
			}
			all = append(all, page.Items...)
			if q.Cursor = page.NextCursor; q.Cursor == "" {
				return all
			}
		}
	}
	spell := func(s projections.Scheduled) string { return fmt.Sprint(s.DueAt, s.Key, s.Token, s.Attempt) }
	want := keys(walk(projections.ScheduledQuery{Page: projections.Page{Limit: 500}}), spell)
	if distinct := slices.Compact(slices.Sorted(slices.Values(want))); len(want) != 130 || len(distinct) != 130 {
		t.Fatalf("%d items, %d of them distinct, want 130", len(want), len(distinct))
	}
	for _, size := range []int{1, 7, 60} {
		if got := keys(walk(projections.ScheduledQuery{Page: projections.Page{Limit: size}}), spell); !slices.Equal(got, want) {
			t.Errorf("by %d: %v\nwant %v", size, got, want)
		}
		got := keys(walk(projections.ScheduledQuery{Page: projections.Page{Limit: size, Order: projections.Descending}}), spell)
		slices.Reverse(got)
		if !slices.Equal(got, want) {
			t.Errorf("backwards by %d: %v\nwant %v", size, got, want)
		}
	}
	one := walk(projections.ScheduledQuery{Customer: "c7", Page: projections.Page{Limit: 10}})
	if len(one) != 2 || one[0].DueAt != nil || one[0].Token != "dunning/c7/2026-11" || one[1].Key != domain.KeyOf("declare-billing-due", "c7", "2026-12") {
		t.Errorf("of one customer: %+v", one)
	}
	if n := len(walk(projections.ScheduledQuery{Command: "retry-charge", Page: projections.Page{Limit: 10}})); n != 30 {
		t.Errorf("%d retries, want 30", n)
	}
}
