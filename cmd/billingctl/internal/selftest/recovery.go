package selftest

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// orphan is a bill that was claimed when a service died. Whether by that one is
// not known from outside; if it was by another, its claim goes on or ends under
// the same epoch, and the bill is no orphan.
type orphan struct {
	customer string
	epoch    int64 // of the process that has claimed it
	fence    int64 // of that claim
	since    time.Time
}

// bereaved writes down whose claims have not run out when a service has died.
// After a restore nothing is collected without an operator, so nothing is
// measured.
func (r *run) bereaved(ctx context.Context, at time.Time) error {
	if !r.adoptAt.IsZero() {
		return nil
	}
	return r.onDatabase(ctx, func(conn *pgx.Conn) error {
		found, err := conn.Query(ctx, `SELECT customer_id, epoch, fence FROM billing_records WHERE billing_period = $1 AND lease_until > clock_timestamp()`, period)
		if err != nil {
			return err
		}
		var o orphan
		_, err = pgx.ForEachRow(found, []any{&o.customer, &o.epoch, &o.fence}, func() error {
			o.since = at
			if !slices.ContainsFunc(r.orphans, func(known orphan) bool { return known.customer == o.customer && known.fence == o.fence }) {
				r.orphans = append(r.orphans, o)
			}
			return nil
		})
		return err
	})
}

// takenUp sees which orphans have found another service. The time in which the
// script has none running does not count; that in which one starts does.
func (r *run) takenUp(ctx context.Context) error {
	if len(r.orphans) == 0 || time.Now().Before(r.lookAt) {
		return nil
	}
	now := time.Now()
	r.lookAt = now.Add(look)
	if !slices.ContainsFunc(r.replicas, (*replica).alive) {
		for i := range r.orphans {
			r.orphans[i].since = now
		}
		return nil
	}
	type claim struct {
		epoch, fence int64
		over         bool
	}
	claims := map[string]claim{}
	err := r.onDatabase(ctx, func(conn *pgx.Conn) error {
		found, err := conn.Query(ctx, `SELECT customer_id, epoch, fence, lease_until IS NULL FROM billing_records WHERE billing_period = $1`, period)
		if err != nil {
			return err
		}
		var customer string
		var c claim
		_, err = pgx.ForEachRow(found, []any{&customer, &c.epoch, &c.fence, &c.over}, func() error {
			claims[customer] = c
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	r.orphans = slices.DeleteFunc(r.orphans, func(o orphan) bool {
		c := claims[o.customer]
		switch {
		case c.fence == o.fence:
			return c.over // by whoever had it, or by what was found at Stripe
		case c.epoch != o.epoch:
			r.tally.Orphans++
			r.tally.Slowest = max(r.tally.Slowest, now.Sub(o.since))
		}
		return true
	})
	return nil
}
