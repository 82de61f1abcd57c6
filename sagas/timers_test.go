package sagas_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas"
)

// decline lets a first attempt of every customer's November have been declined.
func (s *service) decline(code string, ids ...domain.CustomerID) {
	s.t.Helper()
	const most = 500
	for len(ids) > 0 {
		now := ids[:min(most, len(ids))]
		ids = ids[len(now):]
		var streams []domain.StreamID
		var requests []commands.Request
		for _, id := range now {
			streams = append(streams, id.Stream())
			requests = append(requests,
				commands.Of(commands.NewRegisterCustomer(id, "cus_"+string(id), "pm_card_visa")),
				commands.Of(commands.NewChargeBilling(id, november, usd(5000))),
				commands.Of(commands.StartAttempt{CustomerID: id, BillingPeriod: november, Attempt: 1}),
				commands.Of(commands.NewRecordChargeOutcome(id, november, 1, 1, domain.Outcome{Class: domain.Declined, ChargeID: "ch_" + string(id), Code: "card_declined", DeclineCode: code})))
		}
		var unit *commands.Unit
		err := pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) (err error) {
			if unit, err = s.d.Begin(s.t.Context(), tx, streams, nil, nil); err != nil {
				return err
			}
			replies, err := unit.Dispatch(s.t.Context(), eventstore.Meta{Actor: "test"}, requests...)
			for _, reply := range replies {
				if reply.Refusal != nil {
					return reply.Refusal
				}
			}
			return err
		})
		if err != nil {
			s.t.Fatalf("decline: %v", err)
		}
		unit.Committed()
	}
}

// poorConfirm declines the customer's next confirm.
func poorConfirm(id domain.CustomerID) sim.Fault {
	return sim.Fault{Kind: "decline", Code: "insufficient_funds", Times: 1,
		Match: sim.Match{Method: "POST", Path: "/v1/payment_intents/*/confirm", Customer: "cus_" + string(id)}}
}

// Thousands of retries fall due at one instant. Three replicas drain them in
// batches, and each is sent once.
func TestThousandsOfTimersAtOneInstant(t *testing.T) {
	const bills = 2000
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	t.Cleanup(func() { cancel(); parts.Wait() })
	clock := sagas.ControlClock(r.stripe.ControlURL + "/control/clock")
	var first *service
	for range 3 {
		s := r.start(options{noProcessors: true})
		first = s
		runtime := tracking.New(r.pool, s.store, tracking.Options{Log: r.log, Poll: 50 * time.Millisecond})
		timers := sagas.NewTimers(s.d, clock, domain.DunningDays{1, 3}, 20*time.Millisecond, r.log)
		parts.Go(func() { _ = runtime.Run(ctx, sagas.Billing.Processor(s.d)) })
		parts.Go(func() { _ = timers.Run(ctx) })
	}
	first.decline("insufficient_funds", customers(bills)...)
	scheduled := func() int {
		return r.count(`SELECT count(*) FROM scheduled_commands WHERE command = 'retry-charge'`)
	}
	r.within(2*time.Minute, "all retries are scheduled", func() bool { return scheduled() == bills })
	if n := r.count(`SELECT count(DISTINCT due_at) FROM scheduled_commands`); n != 1 {
		t.Errorf("they are due at %d instants", n)
	}
	r.stripe.Advance(48 * time.Hour)
	r.within(2*time.Minute, "all retries are sent", func() bool { return scheduled() == 0 })
	if n, twice := r.factsOf("charge.requested.v1"), r.count(`SELECT count(*) FROM (SELECT FROM events WHERE event_type = 'charge.requested.v1'
		AND (payload->>'attempt')::int = 2 GROUP BY stream_id HAVING count(*) > 1) t`); n != 2*bills || twice != 0 {
		t.Errorf("%d attempts were requested, want %d; %d bills have two second ones", n, 2*bills, twice)
	}
	if n := r.factsOf("dunning.scheduled.v1"); n != bills {
		t.Errorf("%d decisions, want %d", n, bills)
	}
}

// A schedule that nobody is there for waits in the database: what fell due
// meanwhile is sent by whoever comes up (C013, a restart).
func TestTimersSurviveARestart(t *testing.T) {
	r := newRig(t)
	r.fault(poorConfirm("acme"))
	s := r.start(options{dunning: domain.DunningDays{1, 3}})
	s.owe("acme")
	r.eventually("a retry is scheduled", func() bool {
		return r.count(`SELECT count(*) FROM scheduled_commands WHERE command = 'retry-charge'`) == 1
	})
	s.stop()
	r.stripe.Advance(48 * time.Hour)
	r.start(options{dunning: domain.DunningDays{1, 3}})
	r.once(november, "acme")
	if n := r.facts("acme", "charge.requested.v1"); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
}

// Nothing is scheduled while it is not known whether money moved, and what ends
// a bill cancels what was scheduled (C046).
func TestWhatEndsABillCancelsItsTimer(t *testing.T) {
	for name, end := range map[string]commands.Request{
		"settled":     commands.Of(commands.NewSettleBilling("acme", november, "wire 77", "op-1")),
		"written off": commands.Of(commands.NewWriteOffBilling("acme", november, "gone", "op-1")),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.fault(poorConfirm("acme"))
			s := r.start(options{dunning: domain.DunningDays{1, 3}})
			s.owe("acme")
			timers := func() int { return r.count(`SELECT count(*) FROM scheduled_commands`) }
			r.eventually("a retry is scheduled", func() bool {
				return r.count(`SELECT count(*) FROM scheduled_commands WHERE command = 'retry-charge'`) == 1
			})
			s.must(end)
			r.awaitState("acme", november, "void")
			r.eventually("the timer is cancelled", func() bool { return timers() == 0 })
			posts := r.posts()
			r.stripe.Advance(30 * 24 * time.Hour)
			r.eventually("the clock is seen", func() bool { return s.caughtUp() })
			if n := r.facts("acme", "charge.requested.v1"); n != 1 || r.posts() != posts {
				t.Errorf("%d attempts, %d more calls", n, r.posts()-posts)
			}
		})
	}
}
