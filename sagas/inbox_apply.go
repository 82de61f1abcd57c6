package sagas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Limits of the inbox, on the database's clock.
const (
	inboxBatch   = 64             // events of one transaction
	deferredWait = time.Hour      // between two tries at most
	deferredMost = 72 * time.Hour // then the event waits for the reconciler
)

// item is an event of the table on its way.
type item struct {
	News
	source   domain.Source
	attempts int
	age      time.Duration
	bill     bill // zero: not known
	state    string
	note     string
	wait     time.Duration // until the next try; negative: until somebody finds the bill
}

// Run applies what is stored until ctx ends. Any number of replicas may run.
func (in *Inbox) Run(ctx context.Context) error {
	backoff := 20 * time.Millisecond
	for ctx.Err() == nil {
		n, err := in.batch(ctx, "")
		switch {
		case err == nil:
			backoff = 20 * time.Millisecond
		case ctx.Err() != nil:
			return nil
		case eventstore.Transient(err):
			in.log.Warn("news cannot be applied yet; trying again", "error", err)
			pause(ctx, jitter(backoff))
			backoff = min(2*backoff, 2*time.Second)
			continue
		default: // one that cannot be applied must not keep the others back
			if err := in.oneByOne(ctx); err != nil && ctx.Err() == nil {
				in.log.Warn("news cannot be applied yet; trying again", "error", err)
				pause(ctx, jitter(backoff))
				backoff = min(2*backoff, 2*time.Second)
			}
			continue
		}
		if n > 0 {
			continue
		}
		timer := time.NewTimer(in.config.Poll)
		select {
		case <-in.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// oneByOne applies what is due an event at a time. What fails is kept, with
// the reason, and tried again later.
func (in *Inbox) oneByOne(ctx context.Context) error {
	rows, err := in.pool.Query(ctx, `SELECT event_id FROM webhook_inbox WHERE `+dueNews+` ORDER BY next_try_at LIMIT $1`, inboxBatch)
	if err != nil {
		return err
	}
	events, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, event := range events {
		_, err := in.batch(ctx, event)
		if err == nil {
			continue
		}
		if ctx.Err() != nil || eventstore.Transient(err) {
			return err
		}
		var kind string
		if err := in.pool.QueryRow(ctx, `UPDATE webhook_inbox SET state = 'failed', attempts = attempts + 1, note = $2,
			next_try_at = clock_timestamp() + least(power(2, least(attempts, 12)), 3600) * interval '1 second'
			WHERE event_id = $1 RETURNING type`, event, err.Error()).Scan(&kind); err != nil {
			return err
		}
		in.config.Count(kind, newsFailed)
		in.log.Error("news could not be applied; it is tried again", "event", event, "type", kind, "error", err)
	}
	return nil
}

// batch applies up to inboxBatch events that are due, or only one, in one
// transaction: facts, rows and inbox together.
func (in *Inbox) batch(ctx context.Context, only string) (n int, err error) {
	var items []*item
	var h *held
	poke := false
	err = pgx.BeginFunc(ctx, in.pool, func(tx pgx.Tx) error {
		if items, err = claimNews(ctx, tx, only); err != nil || len(items) == 0 {
			return err
		}
		if err := findBills(ctx, tx, items); err != nil {
			return err
		}
		var bills []bill
		for _, l := range items {
			if l.bill != (bill{}) && !slices.Contains(bills, l.bill) {
				bills = append(bills, l.bill)
			}
		}
		if h, err = hold(ctx, in.d, tx, bills); err != nil {
			return err
		}
		if poke, err = in.apply(ctx, h, items); err != nil {
			return err
		}
		return saveNews(ctx, tx, items)
	})
	if err != nil || len(items) == 0 {
		return 0, err
	}
	h.unit.Committed()
	for _, l := range items {
		in.config.Count(l.Type, l.state)
		in.log.Info("news", "event", l.EventID, "type", l.Type, "object", l.ObjectID, "customer", l.bill.customer, "period", l.bill.period.String(),
			"result", l.state, "note", l.note)
	}
	if poke {
		in.config.Resolve()
	}
	return len(items), nil
}

// errBroken wraps what keeps a customer's facts from being read.
var errBroken = errors.New("the customer's facts cannot be read")

// apply decides what each event does and does it. Poke: there is a row whose
// intent should be read now.
func (in *Inbox) apply(ctx context.Context, h *held, items []*item) (poke bool, err error) {
	var paid []success
	var payers []*item
	var requests []commands.Request
	var pokes []*record
	for _, l := range items {
		l.attempts++
		l.state = newsApplied
		if l.bill == (bill{}) {
			l.postpone()
			continue
		}
		if err := h.unit.Broken(l.bill.customer); err != nil {
			return false, fmt.Errorf("%w: %w", errBroken, err)
		}
		switch {
		case l.Charge != nil && l.Charge.Succeeded:
			paid, payers = append(paid, success{bill: l.bill, found: *l.Charge, source: l.source, evidence: l.EventID + " " + l.Type}), append(payers, l)
		case l.Charge != nil && l.undoes(h.bill(l.bill)):
			l.note = "the charge that paid the bill has failed: recorded; the bill stays paid"
			requests = append(requests, l.lateFailure(h.bill(l.bill)))
		case l.Charge != nil:
			if r := in.bad(h, l); r != nil {
				pokes = append(pokes, r)
			}
		default:
			requests = append(requests, l.requests()...)
		}
	}
	facts, err := h.record(ctx, in.meta, paid)
	if err != nil {
		return false, err
	}
	for i, l := range payers {
		switch {
		case len(facts[i]) > 0:
			l.note = facts[i][0].EventName()
		case !strings.HasPrefix(l.note, toldBefore):
			l.note = "nothing new"
		}
	}
	replies, err := h.unit.Dispatch(ctx, in.meta, requests...)
	if err != nil {
		return false, err
	}
	for i, reply := range replies {
		if reply.Refusal != nil {
			return false, fmt.Errorf("%s: %w", requests[i].Name(), reply.Refusal)
		}
	}
	var changed []*record
	for _, r := range pokes {
		if r.state == stateUnknown || r.state == stateAction { // a success in the same batch may have ended it
			r.lease, r.backoff = 0, 0
			changed = append(changed, r)
		}
	}
	return len(changed) > 0, saveRecords(ctx, h.tx, distinct(changed))
}

// undoes reports whether the news says that the very charge which paid the
// bill has failed after all, as bank debits do.
func (l *item) undoes(b domain.Bill) bool {
	failed := l.Charge.Status == "failed" || l.Type == "payment_intent.payment_failed"
	return failed && b.Status == domain.BillPaid && b.ChargeID != "" && l.Charge.ChargeID == b.ChargeID
}

// lateFailure records such news: a contradiction that a person must look at.
func (l *item) lateFailure(b domain.Bill) commands.Request {
	return commands.Of(commands.NewRecordChargeOutcome(l.bill.customer, l.bill.period, b.Attempt, b.Start, domain.Outcome{
		Class: domain.Declined, ChargeID: l.Charge.ChargeID, IntentID: l.Charge.IntentID, Source: l.source,
		Reason: "the charge failed after it had succeeded", Evidence: l.EventID + " " + l.Type,
	}))
}

// bad judges news of a failure. It returns the row of the attempt under way if
// the news may be about it: then the collector reads the intent, and what that
// shows is what counts.
func (in *Inbox) bad(h *held, l *item) *record {
	b, r := h.bill(l.bill), h.rows[l.bill]
	intent, charge := l.ids()
	switch {
	case b.Status == domain.BillPaid:
		l.note = "the bill is paid; nothing is undone"
	case r == nil || r.intentID != intent || intent == "":
		l.note = "not about the bill's intent"
	case r.state != stateUnknown && r.state != stateAction:
		l.note = "the bill is " + r.state + ": nothing to do"
	case l.Type != "payment_intent.canceled" && r.latestCharge != nil && *r.latestCharge == charge:
		l.note = "of an attempt that is over"
	default:
		l.note = "the intent is read now"
		return r
	}
	return nil
}

// postpone keeps news of which the bill is not known. It is looked at again for
// some days, and then waits until the reconciler knows more.
func (l *item) postpone() {
	l.state, l.note = newsDeferred, "no bill is known for it"
	if l.wait = -1; l.age < deferredMost {
		l.wait = deferredWait
		if l.attempts < 12 {
			l.wait = min(deferredWait, time.Second<<l.attempts)
		}
	}
}

// requests are the commands that news of a refund or a dispute leads to. Both
// go their ways by their states; what is older than what is known changes
// nothing.
func (l *item) requests() []commands.Request {
	if f := l.Dispute; f != nil {
		l.note = "the dispute is " + f.Status
		return []commands.Request{commands.Of(commands.NewRecordDispute(l.bill.customer, l.bill.period, domain.DisputeNews{
			DisputeID: f.ID, ChargeID: f.ChargeID, Status: f.Status, Reason: f.Reason, Money: f.Amount, Source: l.source,
		}))}
	}
	f := l.Refund
	state, known := refundStates[f.Status]
	if !known {
		l.note = "a state of refunds that this version does not know"
		return nil
	}
	l.note = "the refund is " + f.Status
	id, err := domain.ParseRefundID(f.RefundID)
	if err != nil {
		id = "" // made outside Billonce
	}
	return []commands.Request{commands.Of(commands.NewRecordRefundOutcome(l.bill.customer, l.bill.period, id, domain.RefundOutcome{
		State: state, StripeRefundID: f.ID, ChargeID: f.ChargeID, Money: f.Amount, Code: f.Reason, Source: l.source, Evidence: l.EventID + " " + l.Type,
	}))}
}

// refundStates are Stripe's words (https://docs.stripe.com/api/refunds/object).
var refundStates = map[string]domain.RefundState{
	"pending": domain.RefundStatePending, "requires_action": domain.RefundStatePending, "succeeded": domain.RefundStateSucceeded,
	"failed": domain.RefundStateFailed, "canceled": domain.RefundStateCancelled,
}
