package sagas_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
)

// TestC020_CommitAnswerLost loses the database's answer to the very COMMIT of
// the pre-flight row, of the claim, of the billed fact and of the moved token,
// thirty times each, the next while the service still recovers from the last:
// it does not know what became of it. No due is lost, and none is charged twice.
func TestC020_CommitAnswerLost(t *testing.T) {
	const runs = 30
	for name, texts := range map[string][]string{
		"pre-flight row": {"INSERT INTO billing_records"},
		"claim":          {"INSERT INTO events", "FOR UPDATE SKIP LOCKED"},
		"billed fact":    {"INSERT INTO events", "INSERT INTO command_keys", "UPDATE billing_records"},
		"token":          {"UPDATE processor_tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			proxy := pgtest.NewProxy(t, pgtest.DSN(t))
			pool, err := pgxpool.New(t.Context(), proxy.DSN())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			s := r.start(options{pool: pool})
			sender := r.start(options{noCollector: true, noProcessors: true}) // whoever asks is not the one whose link fails
			var ids []domain.CustomerID
			for run := range runs {
				id := domain.CustomerID(fmt.Sprint("c", run))
				ids = append(ids, id)
				sender.register("pm_card_visa", id)
				lost := proxy.DropServerToClientOnCommit(texts...)
				sender.must(activate(id))
				select {
				case <-lost:
				case <-time.After(time.Minute):
					t.Fatalf("run %d: no such commit was seen\n%s", run, r.describe())
				}
			}
			r.once(november, ids...)
			for _, kind := range []string{"billing.due.v1", "charge.requested.v1", "customer.billed.v1"} {
				if n := r.count(`SELECT count(*) FROM events WHERE event_type = $1`, kind); n != runs {
					t.Errorf("%d facts %s, want %d", n, kind, runs)
				}
			}
			if err := s.collector.Environment().Ready(); err != nil {
				r.eventually("the service is at home again", func() bool { return s.collector.Environment().Ready() == nil })
			}
		})
	}
}

// TestC020_CallerAsksAgain loses the answer to the commit of the caller's own
// command, thirty times. Whoever sends the very same again learns the truth, and
// the bill is charged once.
func TestC020_CallerAsksAgain(t *testing.T) {
	const runs = 30
	r := newRig(t)
	r.start(options{})
	proxy := pgtest.NewProxy(t, pgtest.DSN(t))
	pool, err := pgxpool.New(t.Context(), proxy.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	caller := r.start(options{pool: pool, noCollector: true, noProcessors: true})
	ids := customers(runs)
	for _, id := range ids {
		caller.register("pm_card_visa", id)
		lost := proxy.DropServerToClientOnCommit("INSERT INTO events")
		request := commands.Of(commands.NewChargeBilling(id, november, usd(5000)))
		receipt, err := caller.send(request)
		<-lost
		if err != nil && !eventstore.Transient(err) {
			t.Fatalf("%s: %v", id, err)
		}
		for again := 0; err != nil && again < 10; again++ {
			receipt, err = caller.send(request)
		}
		if err != nil || receipt.Key != domain.ChargeKey(id, november, 1) {
			t.Fatalf("%s, asked again: %+v, %v", id, receipt, err)
		}
	}
	r.once(november, ids...)
	if n := r.count(`SELECT count(*) FROM events WHERE event_type = 'charge.requested.v1'`); n != runs {
		t.Errorf("%d charges were requested, want %d", n, runs)
	}
}
