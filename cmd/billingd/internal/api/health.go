package api

import (
	"context"
	"net/http"
	"time"
)

// Health is whether the process is alive, and whether all of its work goes on.
// Anybody may read it: it names runs and sums, and no customer.
type Health struct {
	Status   string     `json:"status" enum:"ok,degraded" example:"ok" doc:"degraded: alive, and something waits for an operator."`
	Degraded []Degraded `json:"degraded,omitempty" doc:"What waits, and why."`
}

// Degraded is a run that waits for an operator.
type Degraded struct {
	Run      string      `json:"run" example:"2026-11"`
	Reason   string      `json:"reason" doc:"In a sentence, with figures."`
	Code     string      `json:"code,omitempty" example:"spend_cap_exceeded" doc:"The spend proxy's, if that is why."`
	Currency string      `json:"currency,omitempty"`
	Asked    *int64      `json:"asked_minor,omitempty" doc:"What the first bill that was refused would have taken."`
	Left     *int64      `json:"left_minor,omitempty" doc:"What was left of the cap."`
	Cap      *int64      `json:"cap_minor,omitempty"`
	Held     []heldBills `json:"held" doc:"Bills that rest, per currency."`
}

type heldBills struct {
	Currency string `json:"currency"`
	Bills    int64  `json:"bills"`
	Minor    int64  `json:"amount_minor"`
}

// healthTime bounds the look at runs: a process is alive without its database.
const healthTime = time.Second

func (s *Server) registerHealth() {
	op := public("health", http.MethodGet, "/healthz", tagService, "See whether the process is alive, and whether anything waits for an operator")
	op.Description = "200 as long as the process is alive: degraded is nothing that a restart would mend."
	read(s, op, func(ctx context.Context, _ *struct{}) (Health, error) { return s.health(ctx), nil })
}

func (s *Server) health(ctx context.Context) Health {
	h := Health{Status: "ok"}
	if s.troubles == nil {
		return h
	}
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	found, err := s.troubles(ctx)
	if err != nil {
		return h // readiness tells of a database that is away
	}
	for _, t := range found {
		d := Degraded{Run: t.Period.String(), Reason: t.String(), Held: []heldBills{}}
		if r := t.Refusal; r != nil {
			d.Code, d.Currency, d.Asked, d.Left, d.Cap = r.Code, string(r.Currency), &r.AskedMinor, r.LeftMinor, r.CapMinor
		}
		for _, b := range t.Held {
			d.Held = append(d.Held, heldBills{string(b.Currency), b.Bills, b.Minor})
		}
		h.Status, h.Degraded = "degraded", append(h.Degraded, d)
	}
	return h
}
