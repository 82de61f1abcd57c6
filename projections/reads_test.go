package projections_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// What is shown never claims to be newer than it is, and waiting for one's own
// write either shows it or says that the time is up.
func TestAReadSaysAsOfWhichFact(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	ctx, reads := t.Context(), log.Reads()
	log.Given("acme", registered("acme"), due("acme", november))
	log.Project(projections.Bills, projections.Runs)
	before := must(reads.Bills(ctx, "acme", projections.Page{}))(t)

	requested := log.Given("acme", requested("acme", november, 1))[0]
	behind := must(reads.Bills(ctx, "acme", projections.Page{}))(t)
	want(t, "status while behind", behind.Items[0].Status, domain.BillDue)
	want(t, "as of while behind", behind.AsOf, before.AsOf)
	if behind.AsOf.Position.Position >= requested.Position {
		t.Errorf("an old row claims to be of %s, the request is at %s", behind.AsOf.Position, requested.Place)
	}
	want(t, "reached while behind", must(reads.Await(ctx, projections.Bills, requested.Place, 0))(t), false)
	want(t, "reached after a short wait", must(reads.Await(ctx, projections.Bills, requested.Place, 20*time.Millisecond))(t), false)

	waiting := make(chan error, 1)
	go func() {
		reached, err := reads.Await(ctx, projections.Bills, requested.Place, time.Minute)
		if err == nil && !reached {
			err = errors.New("not reached")
		}
		waiting <- err
	}()
	log.Project(projections.Bills)
	if err := <-waiting; err != nil {
		t.Fatalf("wait: %v", err)
	}
	now := must(reads.Bills(ctx, "acme", projections.Page{}))(t)
	want(t, "status", now.Items[0].Status, domain.BillRequested)
	want(t, "as of", now.AsOf.Position, requested.Place)

	run := must(reads.Run(ctx, "2026-11"))(t)
	want(t, "the run while behind", run.Statuses[0].Status, domain.BillDue)
	if run.AsOf.Position.Position >= requested.Position {
		t.Errorf("an old run claims to be of %s, the request is at %s", run.AsOf.Position, requested.Place)
	}
	want(t, "a place that is not there yet", must(reads.Await(ctx, projections.Bills, eventstore.Place{Partition: requested.Partition, Position: 1 << 40}, 0))(t), false)
}

// A token rests on the last fact that its projection wanted; facts of other
// kinds behind it are contained all the same.
func TestWhatAProjectionDoesNotWantIsContained(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	ctx, reads := t.Context(), log.Reads()
	log.Given("acme", registered("acme"))
	log.Project(projections.Customers)
	other := log.Given("acme", requested("acme", november, 1))[0]
	want(t, "reached", must(reads.Await(ctx, projections.Customers, other.Place, 0))(t), true)
	want(t, "as of", must(reads.Customer(ctx, "acme"))(t).AsOf.Position, other.Place)
	want(t, "as of, all", must(reads.Customers(ctx, projections.Page{}))(t).AsOf.Position, other.Place)
}

func TestAParkedFactIsNotContained(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	ctx, reads := t.Context(), log.Reads()
	parked := log.Given("acme", registered("acme"))[0]
	log.Given("zeta", registered("zeta"))
	log.Project(projections.Customers)
	if _, err := log.Pool.Exec(ctx, `INSERT INTO dead_letters (processor, position, partition, sequence_key, event_id, event_type, attempts, error)
		VALUES ('customers', $1, $2, 'acme', gen_random_uuid(), 'customer.registered.v1', 5, 'no')`, parked.Position, parked.Partition); err != nil {
		t.Fatal(err)
	}
	want(t, "reached", must(reads.Await(ctx, projections.Customers, parked.Place, 0))(t), false)
	want(t, "parked of acme", must(reads.Customer(ctx, "acme"))(t).AsOf.Parked, 1)
	want(t, "parked of zeta", must(reads.Customer(ctx, "zeta"))(t).AsOf.Parked, 0)
	want(t, "parked of all", must(reads.Customers(ctx, projections.Page{}))(t).AsOf.Parked, 1)
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	place := log.Given("acme", registered("acme"))[0].Place
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := log.Reads().Await(ctx, projections.Customers, place, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the wait ended with %v", err)
	}
}

// However many wait for what they wrote, most connections are for others.
func TestThoseWhoWaitLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	place := log.Given("acme", registered("acme"))[0].Place
	reads := log.Reads()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var waiting sync.WaitGroup
	for range 100 {
		waiting.Go(func() { _, _ = reads.Await(ctx, projections.Customers, place, time.Hour) })
	}
	most := int32(0)
	for ctx.Err() == nil {
		most = max(most, log.Pool.Stat().AcquiredConns())
		runtime.Gosched()
	}
	waiting.Wait()
	// One that is given back counts for a moment more.
	if all := log.Pool.Config().MaxConns; most < 1 || most > all*2/3 {
		t.Errorf("a hundred who wait took up to %d of %d connections", most, all)
	}
}

// Pages of different partitions are folded at the same time: neither waits
// for a row of the other, however their customers share periods and runs.
func TestPartitionsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	one, two := domain.CustomerID("one"), domain.CustomerID("two")
	facts := func(id domain.CustomerID) []eventstore.Recorded {
		return log.Given(id, registered(id), activated(id), due(id, november), requested(id, november, 1), started(id, november, 1, 1), billed(id, november, 1, "ch_"+string(id)))
	}
	pages := [][]eventstore.Recorded{facts(one), facts(two)}
	if pages[0][0].Partition == pages[1][0].Partition {
		t.Fatal("the customers share a partition")
	}
	ctx := t.Context()
	for _, p := range projections.All() {
		open, err := log.Pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, half := range [][2]int{{0, 4}, {4, 6}} {
			// One partition's page is folded and not committed; the other goes through.
			if err := p.Fold(ctx, open, pages[0][half[0]:half[1]]); err != nil {
				t.Fatal(err)
			}
			if err := pgx.BeginFunc(ctx, log.Pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '5s'`); err != nil {
					return err
				}
				return p.Fold(ctx, tx, pages[1][half[0]:half[1]])
			}); err != nil {
				t.Fatalf("%s: the other partition: %v", p.Name, err)
			}
		}
		if err := open.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		rows := log.Rows(p)
		log.Check(p)
		if again := log.Rows(p); again != rows {
			t.Errorf("%s: side by side the rows are\n%s\nand one after the other\n%s", p.Name, rows, again)
		}
	}
}

// A rebuild in a transaction leaves readers the former rows until it commits.
func TestAResetIsSeenWhenItCommits(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	log.Given("acme", registered("acme"))
	log.Project(projections.Customers)
	ctx := t.Context()
	tx, err := log.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := projections.Customers.Reset(ctx, tx); err != nil {
		t.Fatal(err)
	}
	want(t, "customers during the reset", len(must(log.Reads().Customers(ctx, projections.Page{}))(t).Items), 1)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	want(t, "customers after it", len(must(log.Reads().Customers(ctx, projections.Page{}))(t).Items), 0)
}

func TestAFactThatCannotBeReadStopsTheFold(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	page := log.Given("acme", registered("acme"))
	page[0].Event, page[0].Err = nil, &eventstore.UnknownEvent{Type: page[0].Type, SchemaVersion: 2}
	err := pgx.BeginFunc(t.Context(), log.Pool, func(tx pgx.Tx) error { return projections.Customers.Fold(t.Context(), tx, page) })
	if unknown, ok := errors.AsType[*eventstore.UnknownEvent](err); !ok || unknown.SchemaVersion != 2 {
		t.Errorf("the fold answers %v", err)
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	for _, p := range projections.All() {
		if found := must(projections.Named(p.Name))(t); found.Name != p.Name {
			t.Errorf("%s is named %s", p.Name, found.Name)
		}
	}
	_, err := projections.Named("bill")
	refused(t, err, domain.ErrInvalidInput, "projection")
}
