package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas"
)

// Health is whether the process is alive, and whether all of its work goes on.
// Anybody may read it: it names runs and sums, and no customer.
type Health struct {
	Status   string     `json:"status" enum:"ok,degraded" example:"ok" doc:"degraded: alive, and something waits for an operator."`
	Degraded []Degraded `json:"degraded,omitempty" doc:"What waits, and why."`
}

// Degraded is something that waits for an operator.
type Degraded struct {
	What     string      `json:"what" enum:"run,bills,refunds,dead_letters" example:"run"`
	Next     string      `json:"next" example:"billingctl runs show 2026-11" doc:"What to look at first."`
	Count    int64       `json:"count,omitempty" example:"3" doc:"Of bills, refunds or events."`
	Since    *time.Time  `json:"since,omitempty" doc:"Since when the first of them waits."`
	State    string      `json:"state,omitempty" example:"needs_review" doc:"Of bills and refunds."`
	Run      string      `json:"run,omitempty" example:"2026-11"`
	Reason   string      `json:"reason" doc:"In a sentence, with figures."`
	Code     string      `json:"code,omitempty" example:"spend_cap_exceeded" doc:"The spend proxy's, if that is why."`
	Currency string      `json:"currency,omitempty"`
	Asked    *int64      `json:"asked_minor,omitempty" doc:"What the first bill that was refused would have taken."`
	Left     *int64      `json:"left_minor,omitempty" doc:"What was left of the cap."`
	Cap      *int64      `json:"cap_minor,omitempty"`
	Held     []heldBills `json:"held,omitempty" doc:"Bills that rest, per currency."`
}

type heldBills struct {
	Currency string `json:"currency"`
	Bills    int64  `json:"bills"`
	Minor    int64  `json:"amount_minor"`
}

// healthTime bounds the look at what waits: a process is alive without its database.
const healthTime = time.Second

func (s *Server) registerHealth() {
	op := public("health", http.MethodGet, "/healthz", tagService, "See whether the process is alive, and whether anything waits for an operator")
	op.Description = "200 as long as the process is alive: degraded is nothing that a restart would mend."
	read(s, op, func(ctx context.Context, _ *struct{}) (Health, error) { return s.health(ctx), nil })
}

func (s *Server) health(ctx context.Context) Health {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	h := Health{Status: "ok"}
	// What cannot be read is left out: readiness tells of a database that is away.
	if s.troubles != nil {
		if found, err := s.troubles(ctx); err == nil {
			for _, t := range found {
				h.Degraded = append(h.Degraded, degradedRun(t))
			}
		}
	}
	if s.stuck != nil {
		if found, err := s.stuck(ctx); err == nil {
			h.Degraded = append(h.Degraded, degradedBy(found)...)
		}
	}
	if len(h.Degraded) > 0 {
		h.Status = "degraded"
	}
	return h
}

// Stuck is work that waits, beside whole runs.
type Stuck struct {
	Waits   []sagas.Wait
	Letters []tracking.LetterCount
}

func degradedBy(s Stuck) (all []Degraded) {
	for _, w := range s.Waits {
		if w.Stuck > 0 {
			all = append(all, degradedWork(w))
		}
	}
	for _, l := range s.Letters {
		all = append(all, degradedLetters(l))
	}
	return all
}

func degradedRun(t sagas.RunTrouble) Degraded {
	d := Degraded{What: "run", Next: "billingctl runs show " + t.Period.String(), Run: t.Period.String(), Reason: t.String()}
	if r := t.Refusal; r != nil {
		d.Code, d.Currency, d.Asked, d.Left, d.Cap = r.Code, string(r.Currency), &r.AskedMinor, r.LeftMinor, r.CapMinor
	}
	for _, b := range t.Held {
		d.Held = append(d.Held, heldBills{string(b.Currency), b.Bills, b.Minor})
	}
	return d
}

func degradedWork(w sagas.Wait) Degraded {
	d := Degraded{What: w.Of, State: w.State, Count: w.Stuck, Since: &w.Since, Next: "GET /v1/charges?status=" + w.State}
	switch {
	case w.Of == "refunds":
		d.Reason, d.Next = "Stripe's refund is not what was asked for", "billingctl refunds list"
	case w.Reason != "":
		d.Reason = w.Reason
	default:
		d.Reason = "bills that wait for a person"
	}
	return d
}

func degradedLetters(l tracking.LetterCount) Degraded {
	return Degraded{What: "dead_letters", Count: int64(l.Letters), Next: "billingctl dead-letters list",
		Reason: fmt.Sprintf("%d events of %d customers wait in the dead letters of %s", l.Letters, l.Sequences, l.Processor)}
}
