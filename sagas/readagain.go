package sagas

import (
	"context"
	"fmt"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
)

// A decline means declined as far as known. A confirm of the same intent may
// still have been travelling, so each decline is read again a day later, on
// business time, and a success that came late is recorded.
const (
	readAgainAfter = 24 * time.Hour
	readAgainRetry = time.Hour // if the read showed nothing
	readAgainMost  = 64
)

// readAgain reads declined intents as they fall due, until ctx ends.
func (c *Collector) readAgain(ctx context.Context) {
	for ctx.Err() == nil {
		n := 0
		if c.environment.Ready() == nil && c.look.Completed() {
			var err error
			if n, err = c.readDeclined(ctx); err != nil && ctx.Err() == nil {
				c.log.Warn("declines could not be read again; trying again", "error", err)
			}
		}
		if n < readAgainMost {
			pause(ctx, jitter(max(c.config.Poll, time.Second)))
		}
	}
}

// readDeclined reads what is due. Taking a row puts its next read off, so that
// replicas share the work and a death in the middle loses none.
func (c *Collector) readDeclined(ctx context.Context) (int, error) {
	now, err := c.clock.Now(ctx)
	if err != nil {
		return 0, err
	}
	rows, err := c.pool.Query(ctx, `
		UPDATE billing_records SET read_again_at = $2
		WHERE (customer_id, billing_period) IN (
			SELECT customer_id, billing_period FROM billing_records WHERE state = 'declined' AND read_again_at <= $1
			ORDER BY read_again_at LIMIT $3 FOR UPDATE SKIP LOCKED)
		RETURNING `+recordColumns, now, now.Add(readAgainRetry), readAgainMost)
	if err != nil {
		return 0, fmt.Errorf("read declines that are due: %w", err)
	}
	records, err := scanRecords(rows)
	if err != nil {
		return 0, fmt.Errorf("read declines that are due: %w", err)
	}
	for _, r := range records {
		if err := c.config.Allowance.Calls(ctx, 1); err != nil {
			return len(records), err
		}
		if err := c.readAgainOne(ctx, r); err != nil {
			return len(records), err
		}
	}
	return len(records), nil
}

func (c *Collector) readAgainOne(ctx context.Context, r *record) error {
	var f Finding
	if r.intentID != "" {
		f = c.gateway.Find(ctx, r.order())
	}
	switch {
	case f.State == IntentDecided && f.Outcome.Class == domain.Paid:
		return c.recordLate(ctx, r, f.Outcome)
	case f.State == IntentProcessing, f.State == IntentUnreachable:
		return nil // read again in an hour
	case f.State == IntentDecided && f.Outcome.Class == domain.NeedsReview, f.State == IntentMissing:
		c.log.Error("a declined bill's intent is not what it was", "customer", r.customer, "period", r.period, "intent", r.intentID, "evidence", f.Outcome.Evidence)
	}
	_, err := c.pool.Exec(ctx, `UPDATE billing_records SET read_again_at = NULL WHERE customer_id = $1 AND billing_period = $2 AND state = 'declined' AND attempt = $3`,
		string(r.customer), r.period.String(), r.attempt)
	if err != nil {
		return fmt.Errorf("note that a decline was read again: %w", err)
	}
	return nil
}

// recordLate records a success that came after the decline.
func (c *Collector) recordLate(ctx context.Context, r *record, o domain.Outcome) error {
	c.log.Warn("a bill that was declined is paid after all", "customer", r.customer, "period", r.period, "intent", o.IntentID, "charge", o.ChargeID)
	e := &entry{bill: r.bill(), attempt: r.attempt, fence: r.fence, epoch: r.epoch, state: r.state, always: true}
	e.request = func(_ domain.Customer, now *record) *commands.Request {
		req := commands.Of(commands.NewRecordChargeOutcome(r.customer, r.period, now.attempt, now.start, o))
		return &req
	}
	e.change = func(now *record, b domain.Bill) { settle(now, b, o) }
	_, _, err := c.book.write(ctx, e)
	return err
}
