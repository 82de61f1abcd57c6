package sagas

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// holds are the runs that this process has paused because the spend proxy
// refused a bill of theirs, each with the turn in which it did.
type holds struct {
	mu    sync.Mutex
	turns map[domain.Period]int
	made  atomic.Int64
}

// first reports whether nobody here has paused the run in this turn.
func (h *holds) first(p domain.Period, turn int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held, ok := h.turns[p]; ok && held >= turn {
		return false
	}
	if h.turns == nil {
		h.turns = map[domain.Period]int{}
	}
	h.turns[p] = turn
	return true
}

// forget lets the next refusal pause the run.
func (h *holds) forget(p domain.Period, turn int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.turns[p] == turn {
		delete(h.turns, p)
	}
}

// list gives the runs and their turns, for a statement.
func (h *holds) list() (periods []string, turns []int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	periods, turns = []string{}, []int32{}
	for p, turn := range h.turns {
		periods, turns = append(periods, p.String()), append(turns, int32(turn))
	}
	return periods, turns
}

// figuresTime bounds the question for figures: the alarm does not wait longer.
const figuresTime = 2 * time.Second

// hold pauses the run of a bill that the spend proxy has refused. Whoever is
// first of all workers and replicas raises the alarm; for the others there is
// nothing to do.
func (c *Collector) hold(ctx context.Context, j *job, o domain.Outcome) {
	p := j.r.period
	if !c.holds.first(p, j.turn) {
		return
	}
	refused := domain.RunRefusal{Code: o.Code, Currency: j.r.amount.Currency, AskedMinor: j.r.amount.Minor}
	if c.config.Keys != nil {
		ask, cancel := context.WithTimeout(ctx, figuresTime)
		refused.VaultKey, refused.CapMinor, refused.LeftMinor = c.config.Keys.figures(ask, p, refused.Currency)
		cancel()
	}
	now, err := c.clock.Now(ctx)
	if err == nil {
		var receipt eventstore.Receipt
		reason := holdReason(refused, o)
		receipt, err = c.d.Dispatch(ctx, commands.Of(commands.NewHoldRun(p, j.turn, refused, reason, now)),
			commands.Context{Meta: eventstore.Meta{Actor: c.config.Actor, Correlation: "run/" + p.String()}})
		if err == nil && len(receipt.Events) > 0 && !receipt.Replayed {
			c.holds.made.Add(1)
			c.log.Error("a run is paused: the spend proxy refuses its bills; nothing is declined, and runs resume goes on once the cause is gone",
				"run", p, "code", refused.Code, "reason", reason, "vault_key", refused.VaultKey, "customer", j.r.customer)
		}
	}
	if err != nil {
		c.holds.forget(p, j.turn)
		c.log.Warn("a run could not be paused yet; the next refusal tries again", "run", p, "error", err)
	}
}

// holdIn holds a bill of a run that the proxy has paused, without a call: it
// would be refused like those before it. The row rests until the run is resumed.
func holdIn(r *record, b domain.Bill, run runState) commands.Request {
	o := domain.Outcome{Class: domain.Held, Code: run.code, Reason: "not sent: the run is paused: " + run.reason}
	r.state, r.start, r.lease, r.parked = stateHeld, b.Start+1, 0, true
	r.outcome, _ = json.Marshal(o)
	return commands.Of(commands.NewRecordChargeOutcome(r.customer, r.period, r.attempt, b.Start+1, o))
}

// holdReason says what stands in the way, with the figures that are known.
func holdReason(r domain.RunRefusal, o domain.Outcome) string {
	asked := domain.Money{Minor: r.AskedMinor, Currency: r.Currency}
	if r.CapMinor == nil {
		return fmt.Sprintf("%s: %s asked", o.Reason, asked)
	}
	return fmt.Sprintf("%s: %s asked, %s left of %s", o.Reason, asked,
		domain.Money{Minor: *r.LeftMinor, Currency: r.Currency}, domain.Money{Minor: *r.CapMinor, Currency: r.Currency})
}
