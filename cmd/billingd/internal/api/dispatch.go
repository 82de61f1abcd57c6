package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// Receipt is the answer to a command.
type Receipt struct {
	eventstore.Receipt
	Bill *BillState `json:"bill,omitempty" doc:"Where the bill stands now; of commands that charge."`
}

// BillState is where a bill stands, read from the log.
type BillState struct {
	Status   domain.BillStatus `json:"status" enum:"due,requested,started,unknown,action_required,declined,rejected,held,needs_review,waiting,closing,paid,settled,written_off,void,uncollectible" example:"paid"`
	Attempt  int               `json:"attempt" example:"1"`
	IntentID string            `json:"intent_id" doc:"The PaymentIntent at Stripe; empty as long as there is none."`
	ChargeID string            `json:"charge_id" doc:"The charge that paid; empty as long as none did."`
}

// decided reports whether the attempt has come to an end, whatever becomes of
// the bill: paid, closed or provably failed.
func (b BillState) decided() bool {
	return b.Status.Final() || b.Status == domain.BillDeclined || b.Status == domain.BillRejected
}

// rests reports whether there is nothing to wait for: what comes next is up to
// the customer or to an operator.
func (b BillState) rests() bool {
	switch b.Status {
	case domain.BillActionRequired, domain.BillNeedsReview, domain.BillWaiting:
		return true
	}
	return b.decided()
}

// order is a command on its way.
type order struct {
	spec    commands.Spec
	request commands.Request
	header  *eventstore.RequestKey
	period  domain.Period // of the bill that is charged
	meta    eventstore.Meta
}

// prepare reads a command that its caller may send. The error is for the caller.
func (s *Server) prepare(spec commands.Spec, key domain.Key, body []byte, now time.Time, x *exchange) (order, error) {
	if err := s.permit(x.caller, access.Scope(spec.Scope)); err != nil {
		return order{}, err
	}
	request, err := spec.Decode(commands.Input{Key: key, Body: body, Now: now})
	if err != nil {
		return order{}, err
	}
	o := order{spec: spec, request: request, meta: eventstore.Meta{Actor: x.caller.Name, Correlation: x.id}}
	if key != "" {
		o.header = &eventstore.RequestKey{Actor: x.caller.Name, Key: key, BodyDigest: bodyDigest(spec.Name, body)}
	}
	if spec.Charges {
		var bill struct {
			Period domain.Period `json:"billing_period"`
		}
		if err := json.Unmarshal(body, &bill); err != nil {
			return order{}, err
		}
		o.period = bill.Period
	}
	return o, nil
}

// dispatch decides a command and says where its bill stands. A caller who
// hangs up does not stop it: what has begun is finished and recorded.
func (s *Server) dispatch(ctx context.Context, o order) (r Receipt, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.Dispatch)
	defer cancel()
	defer func() { s.metrics.dispatched(o.spec.Name, r.Receipt, err) }()
	pool := s.store.Pool()
	known := false
	if o.header != nil {
		if known, err = checkRequestKey(ctx, pool, o.header, o.spec.Name); err != nil {
			return Receipt{}, err
		}
	}
	r.Receipt, err = s.gateway.Send(ctx, o.request, commands.Context{Meta: o.meta, Request: o.header})
	if err != nil {
		return Receipt{}, err
	}
	if o.header != nil && r.Replayed && !known {
		if err := keepRequestKey(ctx, pool, o.header, o.spec.Name, r.Key); err != nil {
			return Receipt{}, err
		}
	}
	if o.spec.Charges {
		state, err := s.billState(ctx, o)
		if err != nil {
			return Receipt{}, err
		}
		r.Bill = &state
	}
	return r, nil
}

func (s *Server) billState(ctx context.Context, o order) (BillState, error) {
	customer, err := s.dispatcher.Customer(ctx, domain.CustomerID(o.request.Stream().SequenceKey()))
	if err != nil {
		return BillState{}, err
	}
	b, _ := customer.Bill(o.period)
	return BillState{Status: b.Status, Attempt: b.Attempt, IntentID: b.IntentID, ChargeID: b.ChargeID}, nil
}

// Between two looks at a bill that somebody waits for. The bell rings for what
// this process records; another one may be charging.
const (
	lookFirst = 50 * time.Millisecond
	lookLast  = time.Second
)

// awaitBill waits until the bill rests, for wait at most, or until the service
// stops. It returns where the bill stands then.
func (s *Server) awaitBill(ctx context.Context, o order, wait time.Duration) (BillState, error) {
	end := time.NewTimer(wait)
	defer end.Stop()
	partition := eventstore.PartitionOfStream(o.request.Stream())
	for pause := lookFirst; ; pause = min(2*pause, lookLast) {
		rung := s.bell.next(partition)
		state, err := s.billState(ctx, o)
		if err != nil || state.rests() {
			return state, err
		}
		look := time.NewTimer(pause)
		select {
		case <-rung:
			look.Stop()
		case <-look.C:
		case <-end.C:
			look.Stop()
			return s.billState(ctx, o)
		case <-s.draining:
			look.Stop()
			return state, nil
		case <-ctx.Done():
			look.Stop()
			return state, ctx.Err()
		}
	}
}

// note keeps what a command came to for the request's log line.
func (x *exchange) note(o order, r Receipt) {
	x.command, x.key = o.spec.Name, o.request.Key()
	if r.Stream != "" {
		x.attrs = append(x.attrs, slog.String("stream", string(r.Stream)), slog.String("position", r.Position.String()), slog.Bool("replayed", r.Replayed))
	}
}
