package commands

import (
	"strconv"
	"time"

	"github.com/billonce/billonce/domain"
)

// PauseRun stops the collection of a run's bills: a person's decision, or the
// consequence of a refusal by the spend proxy.
type PauseRun struct {
	key           domain.Key
	BillingPeriod domain.Period `json:"billing_period"`
	// Refused is set if the proxy refused a bill that was claimed in Turn.
	Refused *domain.RunRefusal `json:"-"`
	Turn    int                `json:"turn"`
	Reason  string             `json:"-"`
	At      time.Time          `json:"-"` // business time, UTC
}

// NewPauseRun builds the command; id is the caller's key.
func NewPauseRun(p domain.Period, reason string, at time.Time, id domain.Key) PauseRun {
	return PauseRun{key: domain.KeyOf("pause-run", p.String(), string(id)), BillingPeriod: p, Reason: reason, At: at.UTC()}
}

// NewHoldRun builds the command that follows from a refusal. Whoever meets one
// first, of all workers and replicas, pauses the run, once a turn: the others'
// commands have the same key, and a refusal of a bill that was claimed before
// the run was resumed changes nothing.
func NewHoldRun(p domain.Period, turn int, refused domain.RunRefusal, reason string, at time.Time) PauseRun {
	return PauseRun{domain.KeyOf("hold-run", p.String(), strconv.Itoa(turn)), p, &refused, turn, reason, at.UTC()}
}

func (PauseRun) Name() string              { return "pause-run" }
func (c PauseRun) Key() domain.Key         { return c.key }
func (c PauseRun) Stream() domain.StreamID { return c.BillingPeriod.RunStream() }

// Decide implements Command.
func (c PauseRun) Decide(r domain.Run) ([]domain.Event, error) {
	if _, paused := r.Paused(); paused || c.Refused != nil && c.Turn != r.Turn() {
		return nil, nil
	}
	return one(domain.RunPaused{BillingPeriod: c.BillingPeriod, At: c.At, Reason: c.Reason, Refusal: c.Refused}), nil
}

type pauseRunBody struct {
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	Reason        string `json:"reason" doc:"Why, for whoever reads the record later." maxLength:"500" example:"the cap is to be checked first"`
}

func (b pauseRunBody) build(in Input) (Request, error) {
	var v validation
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	reason := checkText(&v, "reason", b.Reason, true)
	return v.request(Of(NewPauseRun(period, reason, in.Now, in.Key)))
}
