package commands

import (
	"time"

	"github.com/billonce/billonce/domain"
)

// ResumeRun lets a run's bills be collected again. Those that were held are
// tried at once.
type ResumeRun struct {
	key           domain.Key
	BillingPeriod domain.Period `json:"billing_period"`
	Reason        string        `json:"-"`
	At            time.Time     `json:"-"` // business time, UTC
}

// NewResumeRun builds the command; id is the caller's key.
func NewResumeRun(p domain.Period, reason string, at time.Time, id domain.Key) ResumeRun {
	return ResumeRun{domain.KeyOf("resume-run", p.String(), string(id)), p, reason, at.UTC()}
}

func (ResumeRun) Name() string              { return "resume-run" }
func (c ResumeRun) Key() domain.Key         { return c.key }
func (c ResumeRun) Stream() domain.StreamID { return c.BillingPeriod.RunStream() }

// Decide implements Command.
func (c ResumeRun) Decide(r domain.Run) ([]domain.Event, error) {
	if _, paused := r.Paused(); !paused {
		return nil, nil
	}
	return one(domain.RunResumed{BillingPeriod: c.BillingPeriod, At: c.At, Reason: c.Reason}), nil
}

type resumeRunBody struct {
	BillingPeriod string `json:"billing_period" example:"2026-11"`
	Reason        string `json:"reason,omitempty" doc:"What was done about what stood in the way." maxLength:"500" example:"the cap was raised"`
}

func (b resumeRunBody) build(in Input) (Request, error) {
	var v validation
	period := checkPeriod(&v, "billing_period", b.BillingPeriod)
	reason := checkText(&v, "reason", b.Reason, false)
	return v.request(Of(NewResumeRun(period, reason, in.Now, in.Key)))
}
