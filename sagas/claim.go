package sagas

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/sagas/crashpoint"
)

// claimMost bounds the rows of one claim transaction.
const claimMost = 128

// task is what a claimed row is claimed for.
type task int

const (
	taskSend    task = iota // an attempt was started: create if need be, confirm
	taskResolve             // something may have been sent: find out first
	taskPoll                // the customer must act: see whether they did
	taskClose               // cancel the intent
)

// job is a claimed row on its way.
type job struct {
	r           *record
	task        task
	resolveOnly bool      // no confirm may be sent any more
	reviewed    bool      // of a closing: an operator decided it in view of what needed review
	turn        int       // of the bill's run when it was claimed
	deadline    time.Time // the lease's end, on this machine's monotonic clock, reckoned from before the claim
}

// claim takes up to n rows in one short transaction. More says that there were
// rows which others took first.
func (c *Collector) claim(ctx context.Context, n int) (jobs []*job, more bool, err error) {
	now, err := c.clock.Now(ctx)
	if err != nil {
		return nil, false, err
	}
	bills, err := c.candidates(ctx, c.config.Allowance.AtOnce(n), now)
	if err != nil || len(bills) == 0 {
		return nil, false, err
	}
	// Waiting for the rate limit comes before the claim: a lease must not run
	// out in a queue.
	if err := c.config.Allowance.Bills(ctx, min(len(bills), c.config.Concurrency)); err != nil {
		return nil, false, err
	}
	if now, err = c.clock.Now(ctx); err != nil {
		return nil, false, err
	}
	began := time.Now()
	var unit *commands.Unit
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		jobs, unit, err = c.claimIn(ctx, tx, bills, now)
		crashpoint.Reach("claim.committing")
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("claim: %w", err)
	}
	crashpoint.Reach("claim.committed")
	unit.Committed()
	c.claims.Add(1)
	for _, j := range jobs {
		j.deadline = began.Add(c.config.Lease)
	}
	return jobs, len(jobs) == 0, nil
}

// claimIn locks the candidates' partitions and rows, decides on fresh state
// what may be done with each, and writes facts and rows.
func (c *Collector) claimIn(ctx context.Context, tx pgx.Tx, bills []bill, now time.Time) ([]*job, *commands.Unit, error) {
	var records []*record
	var runs map[string]runState
	rows := &pgx.Batch{}
	queueRecords(rows, bills, claimed, true)
	queueRuns(rows, bills)
	remembered := c.environment.queue(rows)
	unit, err := c.d.Begin(ctx, tx, streamsOf(bills), rows, func(answers pgx.BatchResults) error {
		found, err := answers.Query()
		if err != nil {
			return fmt.Errorf("lock rows: %w", err)
		}
		if records, err = scanRecords(found); err != nil {
			return err
		}
		if runs, err = readRuns(answers); err != nil {
			return err
		}
		return c.environment.confirm(answers.QueryRow(), remembered)
	})
	if err != nil {
		return nil, nil, err
	}
	var (
		jobs     []*job
		starts   []commands.Request
		starters []*record
		begun    = map[*record]*job{}
	)
	start := func(r *record, req commands.Request, j *job) {
		starts, starters, begun[r] = append(starts, req), append(starters, r), j
	}
	records = slices.DeleteFunc(records, func(r *record) bool { // the run may have been paused since
		run := runs[r.period.String()]
		return run.paused && (r.state == stateReserved && run.code == "" || r.state == stateHeld)
	})
	for _, r := range records {
		customer := unit.Customer(r.customer)
		b, _ := customer.Bill(r.period)
		r.fence++
		r.epoch = c.epoch.Load()
		r.lease, r.backoff = c.config.Lease, 0
		if err := unit.Broken(r.customer); err != nil {
			r.lease, r.backoff = 0, mostBackoff
			c.log.Error("a bill rests: the customer's facts cannot be read", "customer", r.customer, "period", r.period, "error", err)
			continue
		}
		if b.IntentID != "" && (r.intentID == "" || b.IntentNo > r.intentNo) {
			r.intentID, r.intentNo, r.latestCharge = b.IntentID, b.IntentNo, nil
		}
		claim := customer.Claim(r.period, r.attempt)
		if r.state == stateAction && b.Status == domain.BillActionRequired {
			r.state = stateSending
			jobs = append(jobs, &job{r: r, task: taskPoll})
			continue
		}
		switch claim {
		case domain.ClaimSend, domain.ClaimResolve:
			r.state = stateSending
			maySent := r.intentID != "" && r.latestCharge != nil && (r.firstSent != nil || b.Unresolved)
			run := runs[r.period.String()]
			switch {
			case run.paused && !maySent && claim == domain.ClaimSend:
				start(r, startAttempt(r), nil)
				start(r, holdIn(r, b, run), nil)
			case claim == domain.ClaimResolve && r.intentID == "":
				// Nothing can have been confirmed, and nothing will be.
				r.state, r.lease = stateVoid, 0
				start(r, commands.Of(commands.CompleteClosing{CustomerID: r.customer, BillingPeriod: r.period}), nil)
			case b.Reviewed && b.Status == domain.BillRequested && maySent:
				// Released: what comes of it is another start's outcome.
				start(r, startAttempt(r), &job{r: r, task: taskResolve, resolveOnly: claim == domain.ClaimResolve})
			case claim == domain.ClaimResolve || maySent:
				jobs = append(jobs, &job{r: r, task: taskResolve, resolveOnly: claim == domain.ClaimResolve})
			default:
				r.firstSent = nil // no confirm of this attempt can have left: its key's window begins now
				r.sent(now)
				start(r, startAttempt(r), &job{r: r, task: taskSend})
			}
		case domain.ClaimWait:
			r.state, r.lease = stateWaiting, 0
			start(r, startAttempt(r), nil)
		case domain.ClaimVoid:
			r.state, r.lease = stateVoid, 0
			start(r, startAttempt(r), nil)
		case domain.ClaimClose:
			r.state = stateClosing
			jobs = append(jobs, &job{r: r, task: taskClose, reviewed: b.Reviewed && b.Closing != domain.ClosingVoid})
		case domain.ClaimNone:
			r.state, r.lease = stateOf(b.Status), 0
			if b.Attempt > r.attempt {
				r.state = stateDeclined // the log proves it: a later attempt was requested
			}
		}
	}
	for _, j := range jobs {
		j.turn = runs[j.r.period.String()].turn
	}
	replies, err := unit.Dispatch(ctx, c.book.meta, starts...)
	if err != nil {
		return nil, nil, err
	}
	for i, reply := range replies {
		r := starters[i]
		b, _ := reply.State.(domain.Customer).Bill(r.period)
		if r.state == stateHeld {
			r.start = b.Start
		}
		if j := begun[r]; j != nil {
			r.start, j.turn = b.Start, runs[r.period.String()].turn
			jobs = append(jobs, j)
		}
	}
	return jobs, unit, saveRecords(ctx, tx, records)
}

// sent notes in the row that a send may leave now.
func (r *record) sent(now time.Time) {
	if r.firstSent == nil {
		r.firstSent = &now
	}
	wall := r.wall
	r.lastSent, r.lastSentWall = &now, &wall
}

func startAttempt(r *record) commands.Request {
	return commands.Of(commands.StartAttempt{CustomerID: r.customer, BillingPeriod: r.period, Attempt: r.attempt})
}

func streamsOf(bills []bill) []domain.StreamID {
	streams := make([]domain.StreamID, len(bills))
	for i, b := range bills {
		streams[i] = b.customer.Stream()
	}
	return streams
}

var _ eventstore.Querier = pgx.Tx(nil)
