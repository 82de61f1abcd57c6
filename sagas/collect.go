package sagas

import (
	"context"
	"errors"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// Windows of an unknown outcome, on business time. Stripe may forget a key
// once it is 24 hours old (https://docs.stripe.com/api/idempotent_requests);
// the quiet period is the longest that a request may still be running there.
const (
	safeWindow  = 23 * time.Hour
	quietPeriod = 15 * time.Minute
	storedQuiet = 24 * time.Hour // after a 500, which may be rolled forward
)

// collect takes one claimed bill as far as it will go. No transaction is open
// while it calls Stripe; everything it learns is written through the book.
func (c *Collector) collect(ctx context.Context, j *job) {
	var err error
	switch j.task {
	case taskSend:
		err = c.send(ctx, j)
	case taskResolve:
		err = c.resolve(ctx, j)
	case taskPoll:
		err = c.poll(ctx, j)
	case taskClose:
		err = c.close(ctx, j)
	}
	switch {
	case err == nil:
	case errors.Is(err, errFenced):
		c.log.Warn("a write was refused: another claim has the bill", c.about(j)...)
	case ctx.Err() != nil:
		c.log.Info("stopped in the middle; the bill is found by its lease", c.about(j)...)
	default:
		c.log.Error("collecting failed; the bill is found by its lease", append(c.about(j), "error", err)...)
	}
}

func (c *Collector) about(j *job) []any {
	return []any{"customer", j.r.customer, "period", j.r.period, "attempt", j.r.attempt, "start", j.r.start,
		"key", domain.ChargeKey(j.r.customer, j.r.period, j.r.attempt), "fence", j.r.fence}
}

// send makes sure that the bill has a committed intent, and confirms it.
func (c *Collector) send(ctx context.Context, j *job) error {
	if j.r.intentID == "" {
		return c.create(ctx, j, "")
	}
	if j.r.latestCharge != nil {
		return c.confirm(ctx, j)
	}
	// An intent that former attempts have used. What its latest charge is now is
	// what a later read compares with; it is committed before the confirm.
	f := c.gateway.Find(ctx, j.r.order())
	switch f.State {
	case IntentDecided:
		// A decline seen here is a former attempt's. Anything else is news: paid, or
		// an intent that is not the one we froze, which must not be confirmed.
		if f.Outcome.Class != domain.Declined {
			return c.record(ctx, j, f.Outcome)
		}
	case IntentUnreachable:
		return c.record(ctx, j, notSent("the intent cannot be read, so its confirm was not sent", f.Outcome))
	case IntentMissing:
		return c.record(ctx, j, missing(j))
	case IntentProcessing:
		return c.record(ctx, j, unknown("processing", f.Outcome))
	case IntentCancelled:
		return c.create(ctx, j, j.r.intentID)
	case IntentUnchanged, IntentAction:
	}
	err := c.note(ctx, j, nil, func(r *record, _ domain.Bill) { r.latestCharge = &f.LatestCharge })
	if err != nil {
		return err
	}
	return c.confirm(ctx, j)
}

// create makes the bill's next intent, commits its id and confirms it.
// Replaces is the former intent, which Stripe has shown cancelled; empty: there
// was none. Until an id is committed no money can move.
func (c *Collector) create(ctx context.Context, j *job, replaces string) error {
	order := j.r.order()
	if replaces != "" {
		order.IntentNo, order.IntentID = order.IntentNo+1, ""
	}
	c.look.created()
	crashpoint.Reach("create.sending")
	sent := time.Now()
	p := c.gateway.Prepare(ctx, order)
	c.pace.took(time.Since(sent))
	crashpoint.Reach("create.answered")
	if p.IntentID == "" {
		return c.record(ctx, j, uncreated(p.Outcome))
	}
	if crashpoint.Broken(crashpoint.WriteOnce) {
		j.r.intentID, j.r.latestCharge = p.IntentID, &p.LatestCharge
		return c.confirm(ctx, j)
	}
	err := c.write(ctx, j, intentCommit, func(domain.Customer, *record) *commands.Request {
		req := commands.Of(commands.CommitIntent{CustomerID: j.r.customer, BillingPeriod: j.r.period, IntentID: p.IntentID, Replaces: replaces})
		return &req
	}, func(r *record, b domain.Bill) {
		if b.IntentID == p.IntentID {
			r.latestCharge = &p.LatestCharge
		}
		r.intentID, r.intentNo, r.createAgain = b.IntentID, b.IntentNo, 0
	})
	switch {
	case err != nil:
		return err
	case j.r.intentID != p.IntentID:
		// Another id was committed first, by the look: only that one may ever be
		// confirmed, and somebody may have confirmed it.
		return c.resolve(ctx, j)
	}
	return c.confirm(ctx, j)
}

// confirm sends the one request that takes money, if the lease leaves it time.
func (c *Collector) confirm(ctx context.Context, j *job) error {
	if time.Until(j.deadline) < c.config.Timeout {
		if err := c.note(ctx, j, nil, func(*record, domain.Bill) {}); err != nil {
			return err
		}
	}
	crashpoint.Reach("confirm.sending")
	sent := time.Now()
	o := c.gateway.Take(ctx, j.r.order())
	c.pace.took(time.Since(sent))
	crashpoint.Reach("confirm.answered")
	return c.record(ctx, j, o)
}

// resolve finds out what became of an attempt that may have been sent, and
// sends again only where that is safe.
func (c *Collector) resolve(ctx context.Context, j *job) error {
	f := c.gateway.Find(ctx, j.r.order())
	crashpoint.Reach("find.answered")
	switch f.State {
	case IntentDecided:
		return c.record(ctx, j, f.Outcome)
	case IntentUnreachable:
		return c.record(ctx, j, unknown("the intent cannot be read", f.Outcome))
	case IntentMissing:
		return c.record(ctx, j, missing(j))
	case IntentProcessing:
		return c.record(ctx, j, unknown("processing", f.Outcome))
	case IntentAction:
		return c.record(ctx, j, domain.Outcome{Class: domain.ActionRequired, IntentID: j.r.intentID, Reason: "the customer must authenticate"})
	case IntentCancelled:
		if j.resolveOnly {
			return c.finish(ctx, j)
		}
		if err := c.startAgain(ctx, j, 0); err != nil {
			return err
		}
		return c.create(ctx, j, j.r.intentID)
	case IntentUnchanged:
	}
	now, err := c.clock.Now(ctx)
	if err != nil {
		return err
	}
	quiet := j.r.quietSince(now, c.config.Timeout)
	switch {
	case j.resolveOnly && quiet:
		return c.cancel(ctx, j)
	case j.resolveOnly:
		return c.record(ctx, j, unknown("not executed so far; the subscription is cancelled, so it is not sent again", f.Outcome))
	case j.r.inSafeWindow(now):
		if err := c.startAgain(ctx, j, 0); err != nil {
			return err
		}
		return c.confirm(ctx, j)
	case quiet && !c.gateway.Mutex(j.r.order()):
		return c.record(ctx, j, pastWindow(j, f.Outcome))
	case quiet:
		if err := c.startAgain(ctx, j, 1); err != nil {
			return err
		}
		return c.confirm(ctx, j)
	}
	return c.record(ctx, j, unknown("not executed so far; the quiet period is not over", f.Outcome))
}

// inSafeWindow reports whether the same key is sure to be remembered, and to
// give something better than the stored answer to a 500. A row from which
// nothing was sent has an intent that the look adopted: its key may be used for
// the first time at any age.
func (r *record) inSafeWindow(now time.Time) bool {
	if r.firstSent == nil {
		return true
	}
	return now.Sub(*r.firstSent) < safeWindow && r.quietSeconds < int(storedQuiet.Seconds())
}

// quietSince reports whether nothing that was sent can still be running: on
// business time, and on the database's clock too, since business time may jump.
func (r *record) quietSince(now time.Time, timeout time.Duration) bool {
	quiet := max(quietPeriod, time.Duration(r.quietSeconds)*time.Second)
	switch {
	case r.lastSent == nil:
		return false
	case now.Sub(*r.lastSent) < quiet:
		return false
	}
	return r.lastSentWall == nil || r.wall.Sub(*r.lastSentWall) >= 2*timeout
}

// startAgain records another start of the attempt before anything is sent;
// again is added to the number in the confirm's key.
func (c *Collector) startAgain(ctx context.Context, j *job, again int) error {
	now, err := c.clock.Now(ctx)
	if err != nil {
		return err
	}
	return c.write(ctx, j, startCommit, func(_ domain.Customer, r *record) *commands.Request {
		req := startAttempt(r)
		return &req
	}, func(r *record, b domain.Bill) {
		r.start = b.Start
		r.again += again
		if again > 0 { // a key of its own: its window begins now
			r.quietSeconds, r.firstSent = 0, nil
		}
		if r.latestCharge == nil {
			r.latestCharge = new(string)
		}
		r.sent(now)
	})
}

// poll sees whether a customer has acted.
func (c *Collector) poll(ctx context.Context, j *job) error {
	f := c.gateway.Find(ctx, j.r.order())
	switch f.State {
	case IntentDecided:
		return c.record(ctx, j, f.Outcome)
	case IntentMissing:
		return c.record(ctx, j, missing(j))
	case IntentCancelled:
		return c.record(ctx, j, unknown("the intent was cancelled while the customer had to act", f.Outcome))
	case IntentAction, IntentUnchanged, IntentProcessing, IntentUnreachable:
	}
	return c.note(ctx, j, nil, func(r *record, b domain.Bill) {
		r.state, r.lease, r.backoff = stateOf(b.Status), 0, jitter(actionPoll)
	})
}

// close cancels the intent of a closing bill; the fact follows Stripe's answer.
func (c *Collector) close(ctx context.Context, j *job) error {
	if j.r.intentID == "" {
		return c.finish(ctx, j)
	}
	return c.cancel(ctx, j)
}

func (c *Collector) cancel(ctx context.Context, j *job) error {
	if crashpoint.Broken(crashpoint.CancelBeforeVoid) {
		return c.finish(ctx, j)
	}
	crashpoint.Reach("cancel.sending")
	f := cancelOrFind(ctx, c.gateway, j.r.order(), cancelClosing)
	crashpoint.Reach("cancel.answered")
	now, err := c.clock.Now(ctx)
	if err != nil {
		return err
	}
	running := j.reviewed && !c.gateway.Mutex(j.r.order()) && !j.r.quietSince(now, c.config.Timeout)
	switch f.State {
	case IntentCancelled:
		if !running { // a legacy charge that is not listed may still come
			return c.finish(ctx, j)
		}
	case IntentDecided:
		if f.Outcome.Class == domain.Paid {
			return c.record(ctx, j, f.Outcome)
		}
	case IntentMissing:
		if j.task == taskClose && j.reviewed {
			// An operator has seen that the account does not know it, and it can take no
			// money there.
			return c.finish(ctx, j)
		}
		return c.record(ctx, j, missing(j))
	case IntentUnchanged, IntentProcessing, IntentAction, IntentUnreachable:
	}
	return c.note(ctx, j, nil, func(r *record, b domain.Bill) {
		r.state, r.lease, r.backoff = stateOf(b.Status), 0, backoffAfter(r.tries)
		r.tries++
	})
}

// cancelOrFind cancels an intent. Its key does not hold the reason, so a lost
// cancel that is repeated with another one is refused as a mismatch; and a
// refusal while Stripe was processing comes back under the key for a day. The
// intent itself then tells what became of it.
func cancelOrFind(ctx context.Context, g Gateway, o Order, reason string) Finding {
	f := g.Cancel(ctx, o, reason)
	if f.State == IntentProcessing || f.State == IntentUnreachable && f.Outcome.Class == domain.NeedsReview {
		return g.Find(ctx, o)
	}
	return f
}

// finish ends a bill whose intent can take no money any more.
func (c *Collector) finish(ctx context.Context, j *job) error {
	c.settled.Add(1)
	return c.write(ctx, j, closeCommit, func(domain.Customer, *record) *commands.Request {
		req := commands.Of(commands.CompleteClosing{CustomerID: j.r.customer, BillingPeriod: j.r.period})
		return &req
	}, func(r *record, b domain.Bill) { settle(r, b, domain.Outcome{Reason: "closed"}) })
}

// record writes an outcome: the fact and the row, in one transaction. A success
// is recorded whatever has happened to the claim meanwhile.
func (c *Collector) record(ctx context.Context, j *job, o domain.Outcome) error {
	c.pace.note(o)
	e := c.entry(j)
	e.commit, e.always = outcomeCommit, o.Class == domain.Paid
	e.request = func(customer domain.Customer, r *record) *commands.Request {
		b, _ := customer.Bill(j.r.period)
		start := j.r.start
		if start == 0 {
			start = b.Start
		}
		if o.Class == domain.Unknown && b.Status == domain.BillUnknown && b.Attempt == j.r.attempt && b.Start == start {
			return nil // said before; the row rests a little longer
		}
		req := commands.Of(commands.NewRecordChargeOutcome(j.r.customer, j.r.period, j.r.attempt, start, o))
		return &req
	}
	e.change = func(r *record, b domain.Bill) {
		settle(r, b, o)
		if o.Code == codeCreate500 {
			r.createAgain++
		}
	}
	_, customer, err := c.book.write(ctx, e)
	if err != nil {
		return err
	}
	b, _ := customer.Bill(j.r.period)
	c.log.Info("outcome recorded", append(c.about(j), "class", o.Class, "status", b.Status, "intent", o.IntentID, "charge", o.ChargeID, "code", o.Code, "decline_code", o.DeclineCode, "reason", o.Reason)...)
	if b.Status == domain.BillNeedsReview {
		c.log.Error("a bill needs review: it goes no further by itself", append(c.about(j), "reason", o.Reason)...)
	}
	if b.Status.Final() || b.Status == domain.BillDeclined {
		c.settled.Add(1)
	}
	if byProxy(o) {
		c.hold(ctx, j, o)
	}
	return nil
}

// note writes something about the bill while the claim goes on; that renews
// the lease. It leaves the row as written in j.
func (c *Collector) note(ctx context.Context, j *job, request func(domain.Customer, *record) *commands.Request, change func(*record, domain.Bill)) error {
	return c.write(ctx, j, moment{}, request, change)
}

// write is note with crash points around its commit.
func (c *Collector) write(ctx context.Context, j *job, commit moment, request func(domain.Customer, *record) *commands.Request, change func(*record, domain.Bill)) error {
	began := time.Now()
	e := c.entry(j)
	e.commit, e.request = commit, request
	e.change = func(r *record, b domain.Bill) {
		r.lease, r.backoff = c.config.Lease, 0
		change(r, b)
	}
	r, _, err := c.book.write(ctx, e)
	if err != nil {
		return err
	}
	j.r, j.deadline = &r, began.Add(c.config.Lease)
	return nil
}

func (c *Collector) entry(j *job) *entry {
	return &entry{bill: j.r.bill(), attempt: j.r.attempt, fence: j.r.fence, epoch: j.r.epoch, state: j.r.state}
}
