package sagas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// RefundsConfig sets the refund worker's limits.
type RefundsConfig struct {
	Concurrency int           // refunds in hand at once
	Timeout     time.Duration // of one call to Stripe
	Lease       time.Duration // how long a claim lasts; must exceed Timeout; it is renewed before a send
	Poll        time.Duration // how often rows are looked for when nobody says that there are some
	Actor       string        // recorded with every fact
	Allowance   *Allowance    // how much may be asked of Stripe; nil: no limit
	// Ready says why nothing may be asked of Stripe now, such as a database that
	// belongs to another environment; nil: it always may.
	Ready func() error
}

func (c RefundsConfig) validate() error {
	return errors.Join(leaseFaults(c.Concurrency, c.Timeout, c.Lease, c.Poll)...)
}

// Refunds is the one component that asks Stripe to give money back. It works
// from refund_records, as the [Collector] works from billing_records: a claim is
// one short transaction, no transaction is open during a call, and what came of
// it is written as fact and row together.
//
// Before every send Stripe's list of the charge's refunds is read to its end.
// A refund that carries the marker refund_id is the one that was asked for,
// whoever lost its answer: a crash, a cut line, or a database that was restored.
// Only if it is not there does anything leave:
//
//   - never sent, or the last send provably executed nothing: it is sent;
//   - a send is unresolved, and the first was less than 23 hours ago: it is sent
//     again under the same key, for which Stripe moves money once;
//   - later than that nothing is sent until 24 hours have passed since the last
//     send, on business time (and twice the time-out on the database's clock).
//     Stripe may have forgotten the key by then, but nothing can still be running
//     there, so a list without the refund proves that it was never executed. That
//     is recorded, and the refund is asked for again under its key as for the
//     first time.
//
// A no clears only its own request: while an earlier send is unresolved, a
// refusal decides nothing. A refund that the bank has not answered yet (pending)
// is read again until it has; that a bank sends a refund back weeks later
// (succeeded, then failed) comes by Stripe's news.
//
// # What if this is the last line that runs?
//
//	lights out …                             what is left                        what happens next
//	RefundRequested recorded, no row         the processor is behind             the row is inserted on redelivery
//	the claim is not committed               requested                           claimed by the next
//	row requested, no call made              requested                           any worker claims it
//	claimed, nothing sent                    sending, a lease running out        claimed again: not found, sent under the same key
//	sent, answer lost                        sending or unknown, first_sent_at   found by its marker; else the same key again
//	answer seen, outcome not recorded        sending, first_sent_at              found by its marker
//	unknown for longer than the window       unknown                             found; or absent after a quiet day, and sent again
//	paused past the lease, wakes up          the fence has moved on              its writes are refused; what Stripe shows is recorded
//	the bank sends it back later             succeeded                           news records failed; its room is free again
//	the log lost what Stripe has             asked for anew                      found by its marker, nothing is sent
//	outcome recorded, its worker is gone     the refund's state                  nothing: fact and row were one commit
//
// The first rows have named points, at which refund_crash_test.go kills a worker
// and starts another; the others have tests in refunds_test.go.
//
// # What is at Stripe under our name, and is not what was asked for
//
// A refund that carries the marker refund_id with another amount, or on another
// charge, is not taken for ours, and nothing more is sent under that name: it is
// recorded as it is, in the state needs_review, takes room by what it gave back,
// and is a finding of every reconciliation. An operator lets it stand
// (accept-refund, which gives it back into the care of this worker), or does
// nothing until Stripe says that it came to nothing.
type Refunds struct {
	config   RefundsConfig
	pool     *pgxpool.Pool
	d        *commands.Dispatcher
	refunder Refunder
	clock    *Clock
	log      *slog.Logger
	wake     chan struct{}
}

// NewRefunds makes a refund worker; Run starts it.
func NewRefunds(config RefundsConfig, d *commands.Dispatcher, refunder Refunder, clock *Clock, log *slog.Logger) (*Refunds, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("refunds: %w", err)
	}
	return &Refunds{config: config, pool: d.Log().Pool(), d: d, refunder: refunder, clock: clock, log: log, wake: make(chan struct{}, 1)}, nil
}

// Wake says that there may be rows to claim. It never blocks.
func (w *Refunds) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run gives back what was asked for until ctx ends. It then claims nothing
// more and lets the calls under way finish, for at most grace; what is left is
// found by its lease. It returns nil on an ordered stop.
func (w *Refunds) Run(ctx context.Context, grace time.Duration) error {
	work, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var hands sync.WaitGroup
	for range w.config.Concurrency {
		hands.Go(func() {
			for ctx.Err() == nil {
				if !w.next(ctx, work) {
					w.rest(ctx)
				}
			}
		})
	}
	<-ctx.Done()
	landed := make(chan struct{})
	go func() {
		hands.Wait()
		close(landed)
	}()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-landed:
	case <-timer.C:
		w.log.Warn("refunds are still under way after the grace time; they are found by their leases")
	}
	cut()
	<-landed
	return nil
}

// rest waits until somebody says that there are rows, or for a poll interval.
func (w *Refunds) rest(ctx context.Context) {
	timer := time.NewTimer(jitter(w.config.Poll))
	defer timer.Stop()
	select {
	case <-w.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// callsPerRefund is what a refund is reckoned with: the list is read, and one is made.
const callsPerRefund = 2

// refundJob is a claimed row on its way.
type refundJob struct {
	r        *refundRecord
	now      time.Time // business time of the claim
	deadline time.Time // the lease's end, on this machine's monotonic clock, reckoned from before it was taken
}

// next claims a row and takes it as far as it will go. It reports whether there
// was one.
func (w *Refunds) next(ctx, work context.Context) bool {
	if w.config.Ready != nil && w.config.Ready() != nil {
		return false // its owner says so aloud
	}
	j, found, err := w.claim(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.log.Warn("claim of a refund failed; trying again", "error", err)
		}
		return false
	}
	if j == nil {
		return found
	}
	switch err := w.give(work, j); {
	case err == nil:
	case errors.Is(err, errFenced):
		w.log.Warn("a write was refused: another claim has the refund", w.about(j)...)
	case work.Err() != nil:
		w.log.Info("stopped in the middle; the refund is found by its lease", w.about(j)...)
	default:
		w.log.Error("a refund failed; it is found by its lease", append(w.about(j), "error", err)...)
	}
	return true
}

func (w *Refunds) about(j *refundJob) []any {
	return []any{"customer", j.r.customer, "period", j.r.period, "refund", j.r.refundID, "key", j.r.order().Key(), "fence", j.r.fence}
}

// claim takes a row in one short transaction. Found reports that there was a
// row, even if the log had decided it already.
func (w *Refunds) claim(ctx context.Context) (j *refundJob, found bool, err error) {
	var customer, refundID string
	err = w.pool.QueryRow(ctx, `SELECT * FROM (SELECT customer_id, refund_id FROM refund_records WHERE `+refundClaimable+`
		ORDER BY coalesce(greatest(lease_until, next_try_at), '-infinity'::timestamptz) LIMIT 32) AS ready ORDER BY random() LIMIT 1`).Scan(&customer, &refundID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read a candidate: %w", err)
	}
	if err := w.config.Allowance.Calls(ctx, callsPerRefund); err != nil {
		return nil, false, err
	}
	now, err := w.clock.Now(ctx)
	if err != nil {
		return nil, false, err
	}
	name, began := refundName{domain.CustomerID(customer), refundID}, time.Now()
	err = w.within(ctx, refundClaim, name, refundClaimable, `FOR UPDATE SKIP LOCKED`, func(tx pgx.Tx, unit *commands.Unit, r *refundRecord) error {
		j = nil
		if r == nil {
			return nil // somebody else was faster
		}
		r.fence++
		r.lease, r.backoff = 0, 0
		known, ok := unit.Customer(r.customer).MoneyBack(r.period).Refund(r.refundID, "")
		switch broken := unit.Broken(r.customer); {
		case broken != nil || !ok:
			r.backoff = mostBackoff
			w.log.Error("a refund rests: its facts cannot be read", "customer", r.customer, "refund", r.refundID, "error", broken)
		case known.State != domain.RefundStateRequested && known.State != domain.RefundStateUnknown && known.State != domain.RefundStatePending:
			r.state, r.stripeID = string(known.State), known.StripeRefundID // heard of by another road
		default:
			r.state, r.lease = refundSending, w.config.Lease
			if r.stripeID == "" {
				r.stripeID = known.StripeRefundID
			}
			j = &refundJob{r: r, now: now, deadline: began.Add(w.config.Lease)}
		}
		return saveRefund(ctx, tx, r)
	})
	return j, err == nil, err
}

// The crash points around the commits of a refund.
var (
	refundClaim   = moment{"refund.claiming", "refund.claimed"}
	refundOutcome = moment{"refund.recording", "refund.recorded"}
)

// within runs f in a transaction that holds the customer's partition and the
// row; r is nil if the row does not meet where.
func (w *Refunds) within(ctx context.Context, commit moment, name refundName, where, lock string, f func(pgx.Tx, *commands.Unit, *refundRecord) error) error {
	var unit *commands.Unit
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		var rows []*refundRecord
		read := &pgx.Batch{}
		queueRefunds(read, []refundName{name}, where, lock)
		var err error
		unit, err = w.d.Begin(ctx, tx, []domain.StreamID{name.customer.Stream()}, read, func(answers pgx.BatchResults) (err error) {
			rows, err = scanRefunds(answers)
			return err
		})
		if err != nil {
			return err
		}
		var r *refundRecord
		if len(rows) > 0 {
			r = rows[0]
		}
		err = f(tx, unit, r)
		crashpoint.Reach(commit.before)
		return err
	})
	if err != nil {
		return err
	}
	crashpoint.Reach(commit.behind)
	unit.Committed()
	return nil
}

// give looks for the refund at Stripe, and asks for it if it is not there and
// may be asked for.
func (w *Refunds) give(ctx context.Context, j *refundJob) error {
	found := w.refunder.FindRefund(ctx, j.r.order())
	crashpoint.Reach("refund.found")
	if found.State == domain.RefundStateUnknown && found.StripeRefundID == "" && j.r.stripeID == "" && j.r.firstSent == nil {
		found.State, found.Reason = domain.RefundStateRequested, "the charge's refunds cannot be read, so nothing was sent: "+found.Reason
		return w.record(ctx, j, found)
	}
	if found.State != domain.RefundStateRequested || found.StripeRefundID != "" || j.r.stripeID != "" {
		return w.record(ctx, j, found) // it is there, or nobody knows
	}
	if first := j.r.firstSent; first != nil && j.now.Sub(*first) >= safeWindow {
		if !j.quiet(w.config.Timeout) {
			return w.record(ctx, j, domain.RefundOutcome{State: domain.RefundStateUnknown, Reason: "the key's window is over; Stripe may still execute it", Source: domain.SourceFind})
		}
		found.Reason = "Stripe's list does not hold it a day after the last send: it was never executed"
		return w.record(ctx, j, found)
	}
	unresolved := j.r.firstSent != nil
	if err := w.mark(ctx, j); err != nil {
		return err
	}
	if time.Until(j.deadline) < w.config.Timeout {
		return nil // no send starts that could outlive its lease; the row is claimed again
	}
	crashpoint.Reach("refund.sending")
	o := w.refunder.Refund(ctx, j.r.order())
	crashpoint.Reach("refund.answered")
	if unresolved && (o.State == domain.RefundStateRequested || o.State == domain.RefundStateRefused) {
		o.State, o.Reason = domain.RefundStateUnknown, "an earlier send is unresolved; this one: "+o.Reason
	}
	return w.record(ctx, j, o)
}

// quiet reports whether nothing that was sent can still be running at Stripe.
func (j *refundJob) quiet(timeout time.Duration) bool {
	return j.r.lastSent != nil && j.now.Sub(*j.r.lastSent) >= storedQuiet &&
		(j.r.lastSentWall == nil || j.r.wall.Sub(*j.r.lastSentWall) >= 2*timeout)
}

// mark notes in the row, before anything leaves, that a send may have left, and
// renews the lease.
func (w *Refunds) mark(ctx context.Context, j *refundJob) error {
	began := time.Now()
	tag, err := w.pool.Exec(ctx, `UPDATE refund_records SET first_sent_at = coalesce(first_sent_at, $4), last_sent_at = $4, last_sent_wall = clock_timestamp(),
			lease_until = clock_timestamp() + $5 * interval '1 microsecond', updated_at = clock_timestamp()
		WHERE customer_id = $1 AND refund_id = $2 AND fence = $3 AND state = 'sending'`,
		string(j.r.customer), j.r.refundID, j.r.fence, j.now, w.config.Lease.Microseconds())
	if err != nil {
		return fmt.Errorf("mark refund %s: %w", j.r.refundID, err)
	}
	if tag.RowsAffected() == 0 {
		return errFenced
	}
	j.deadline = began.Add(w.config.Lease)
	return nil
}

// record writes what is known now: the fact, and the row. It waits as long as
// the database takes: what a call brought is not dropped because the database
// is away for a while.
func (w *Refunds) record(ctx context.Context, j *refundJob, o domain.RefundOutcome) error {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := w.recordOnce(ctx, j, o)
		if err == nil || !eventstore.Transient(err) || ctx.Err() != nil {
			return err
		}
		w.log.Warn("the outcome of a refund cannot be written yet; trying again", append(w.about(j), "error", err)...)
		pause(ctx, jitter(wait))
	}
}

func (w *Refunds) recordOnce(ctx context.Context, j *refundJob, o domain.RefundOutcome) error {
	var fenced bool
	name := refundName{j.r.customer, j.r.refundID}
	err := w.within(ctx, refundOutcome, name, "true", `FOR UPDATE`, func(tx pgx.Tx, unit *commands.Unit, r *refundRecord) error {
		fenced = r == nil || r.fence != j.r.fence || r.state != refundSending
		if fenced && o.StripeRefundID == "" {
			return errFenced
		}
		req := commands.Of(commands.NewRecordRefundOutcome(j.r.customer, j.r.period, j.r.refundID, o))
		replies, err := unit.Dispatch(ctx, eventstore.Meta{Actor: w.config.Actor}, req)
		if err != nil {
			return err
		}
		if replies[0].Refusal != nil {
			return fmt.Errorf("%s: %w", req.Name(), replies[0].Refusal)
		}
		if fenced {
			return nil // the fact is written; the row is another worker's, or moves with the processor
		}
		known, _ := unit.Customer(j.r.customer).MoneyBack(j.r.period).Refund(j.r.refundID, o.StripeRefundID)
		r.settle(known, o)
		return saveRefund(ctx, tx, r)
	})
	if err == nil && fenced {
		return errFenced
	}
	return err
}
