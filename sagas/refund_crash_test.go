package sagas_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/crashpoint"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// What a refund worker in a process of its own is told.
const (
	workerDatabase = "SAGAS_TEST_DATABASE"
	workerStripe   = "SAGAS_TEST_STRIPE"
	workerClock    = "SAGAS_TEST_CLOCK"
)

// refundWorker gives money back until it is killed, armed by the environment.
func refundWorker() error {
	plan, err := crashpoint.Parse(os.Getenv(crashpoint.CrashVariable), "")
	if err != nil {
		return err
	}
	crashpoint.Arm(plan)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // whoever started it may have died
	defer cancel()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	pool, err := pgxpool.New(ctx, os.Getenv(workerDatabase))
	if err != nil {
		return err
	}
	defer pool.Close()
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), log)
	defer store.Close()
	gateway, err := stripegateway.New(stripegateway.Config{BaseURL: os.Getenv(workerStripe), Key: "sk_test_rig", Timeout: testTimeout, Log: log})
	if err != nil {
		return err
	}
	config := sagas.RefundsConfig{Concurrency: 1, Timeout: testTimeout, Lease: testLease, Poll: 50 * time.Millisecond, Actor: "refunds"}
	worker, err := sagas.NewRefunds(config, commands.NewDispatcher(store), gateway, sagas.ControlClock(os.Getenv(workerClock)), log)
	if err != nil {
		return err
	}
	go func() { _ = worker.Run(ctx, time.Second) }()
	return tracking.New(pool, store, tracking.Options{Log: log, Poll: 50 * time.Millisecond}).Run(ctx, sagas.RefundPreflight(worker.Wake))
}

// TestRefundKilled kills a worker, with everything it holds, at each point of a
// refund's way. Another one is started, and the money has gone back once.
func TestRefundKilled(t *testing.T) {
	for _, point := range crashpoint.Points {
		if !strings.HasPrefix(point.Name, "refund.") {
			continue
		}
		t.Run(point.Name, func(t *testing.T) {
			r := newRig(t)
			s := r.paidBill("acme")
			s.giveBack("acme", "r1", 2000)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Stderr = t.Output()
			cmd.Env = append(os.Environ(), crashpoint.CrashVariable+"="+point.Name, workerDatabase+"="+pgtest.DSN(t), workerStripe+"="+r.stripe.APIURL,
				workerClock+"="+r.stripe.ControlURL+"/control/clock")
			err = cmd.Run()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("it is not killed there: %v", err)
			}
			s.refunding()
			s.awaitRefund("acme", "r1", domain.RefundStateSucceeded)
			if back := r.back("acme"); back != 2000 || r.stripe.Counters().Mismatches != 0 {
				t.Errorf("%d went back, want 2000; %d mismatches", back, r.stripe.Counters().Mismatches)
			}
			if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'refund.recorded.v1' AND payload->>'state' = 'succeeded'`); n != 1 {
				t.Errorf("%d facts say that it succeeded", n)
			}
		})
	}
}
