package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pglocal"
)

// sender is another program that takes commands and runs no processor: the
// service hears of what it records through the database alone.
func (h *house) sender() func(id string, period domain.Period) error {
	h.t.Helper()
	pool, err := pgxpool.New(h.t.Context(), h.dsn)
	if err != nil {
		h.t.Fatal(err)
	}
	store := eventstore.New(pool, eventstore.NewCodec(domain.Events()), slog.New(slog.DiscardHandler))
	h.t.Cleanup(func() {
		store.Close()
		pool.Close()
	})
	d := commands.NewDispatcher(store)
	return func(id string, period domain.Period) error {
		due := commands.Of(commands.NewDeclareBillingDue(domain.CustomerID(id), period))
		_, err := d.Dispatch(context.WithoutCancel(h.t.Context()), due, commands.Context{Meta: eventstore.Meta{Actor: "test"}})
		return err
	}
}

// succeeded is how many charges the stand-in has made.
func (h *house) succeeded() int {
	n, _ := h.charged()
	return n
}

var months = []domain.Period{domain.PeriodOf(domain.Monthly, 2026, 11), domain.PeriodOf(domain.Monthly, 2026, 12), domain.PeriodOf(domain.Monthly, 2027, 1), domain.PeriodOf(domain.Monthly, 2027, 2)}

// TestC006_OffsetsOfTheServiceAreLost deletes the tokens of everything that may
// lead to a call, after three months and when Stripe has forgotten the keys, and
// starts two services: they read the whole log again, and Stripe is sent nothing.
// Five dues later there are five more charges.
func TestC006_OffsetsOfTheServiceAreLost(t *testing.T) {
	h := newHouse(t)
	r := h.start(nil)
	ids := names(100)
	r.subscribe(ids...)
	for i, at := range []time.Time{time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC), time.Date(2026, 12, 1, 0, 0, 1, 0, time.UTC), time.Date(2027, 1, 1, 0, 0, 1, 0, time.UTC)} {
		h.stripe.SetClock(at)
		awaitFor(t, 90*time.Second, "a month is charged", func() bool { return h.succeeded() == (i+1)*len(ids) })
	}
	await(t, "all of it is recorded", func() bool {
		return h.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1'`) == 300 && r.processor("billing").CaughtUp
	})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	h.stripe.Advance(48 * time.Hour)
	sent, facts := posts(h), h.count(`SELECT count(*) FROM events`)
	if _, err := connect(t, h.dsn).Exec(t.Context(), `DELETE FROM processor_tokens WHERE processor IN ('billing', 'preflight', 'refund-preflight', 'schedule', 'manifest')`); err != nil {
		t.Fatal(err)
	}

	first, second := h.start(nil), h.start(nil)
	for _, name := range []string{"billing", "preflight", "schedule", "manifest"} {
		await(t, name+" is at the end of the log again", func() bool {
			p := first.processor(name)
			return p.CaughtUp && p.BehindEvents == 0 && h.count(`SELECT count(*) FROM processor_tokens WHERE processor = $1 AND position > 0`, name) > 0
		})
	}
	if told := strings.Count(first.read("/metrics")+second.read("/metrics"), `billonce_processor_lost_tokens_total{processor="billing"} 64`); told != 1 {
		t.Errorf("%d replicas tell of 64 lost tokens", told)
	}
	if n := h.count(`SELECT count(*) FROM processor_runs WHERE processor = 'billing' AND action = 'tokens lost'`); n != 1 {
		t.Errorf("the loss is on record %d times", n)
	}
	if now := posts(h); now != sent {
		t.Errorf("%d POSTs for bills of the past", now-sent)
	}
	if now := h.count(`SELECT count(*) FROM events`); now != facts {
		t.Errorf("%d new facts by reading old ones", now-facts)
	}

	send := h.sender()
	for _, id := range ids[:5] {
		if err := send(id, months[3]); err != nil {
			t.Fatal(err)
		}
	}
	awaitFor(t, 60*time.Second, "five more are charged", func() bool { return h.succeeded() == 305 })
	await(t, "and billed", func() bool {
		return h.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1'`) == 305
	})
	if n := h.count(`SELECT count(*) FROM (SELECT FROM events WHERE event_type = 'customer.billed.v1' GROUP BY stream_id, payload->>'billing_period' HAVING count(*) > 1) AS twice`); n != 0 {
		t.Errorf("%d bills are billed twice", n)
	}
}

// apart are customers of whom no two share a partition.
func apart(n int) (ids []string) {
	taken := map[int16]bool{}
	for i := 0; len(ids) < n; i++ {
		id := fmt.Sprint("c", i)
		if p := eventstore.PartitionOf(id); !taken[p] {
			taken[p] = true
			ids = append(ids, id)
		}
	}
	return ids
}

// TestC007_ALowerPositionCommitsLate holds up the commit of one customer's due,
// whose position is drawn, and lets nineteen others pass: these are charged, and
// nothing says that the saga is caught up past the one. It is charged when its
// commit is through.
func TestC007_ALowerPositionCommitsLate(t *testing.T) {
	h := newHouse(t)
	r := h.start(nil)
	ids := apart(20)
	r.subscribe(ids...)
	awaitFor(t, 60*time.Second, "November is charged", func() bool { return h.succeeded() == len(ids) })
	conn := connect(t, h.dsn)
	for _, sql := range []string{
		`SELECT pg_advisory_lock(7)`,
		`CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$`,
		// After the position is drawn: triggers fire in the order of their names.
		fmt.Sprintf(`CREATE TRIGGER zz_hold BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.sequence_key = '%s' AND NEW.event_type = 'billing.due.v1') EXECUTE FUNCTION hold()`, ids[0]),
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	late, others := h.sender(), h.sender()
	var under sync.WaitGroup
	under.Go(func() {
		if err := late(ids[0], months[1]); err != nil {
			t.Errorf("the late due: %v", err)
		}
	})
	await(t, "the due of one is under way", func() bool {
		return h.count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 7 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
	})
	for _, id := range ids[1:] {
		if err := others(id, months[1]); err != nil {
			t.Fatal(err)
		}
	}
	awaitFor(t, 60*time.Second, "the others are charged", func() bool { return h.succeeded() == 2*len(ids)-1 })
	partition := eventstore.PartitionOf(ids[0])
	for range 5 {
		if p := r.processor("billing"); p.CaughtUp || !p.Partitions[partition].Appending {
			t.Errorf("with a due under way billing says caught up %t, appending %t", p.CaughtUp, p.Partitions[partition].Appending)
		}
	}
	token := r.processor("billing").Partitions[partition].Token
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock(7)`); err != nil {
		t.Fatal(err)
	}
	under.Wait()
	if at := h.count(`SELECT position FROM events WHERE sequence_key = $1 AND event_type = 'billing.due.v1' AND payload->>'billing_period' = '2026-12'`, ids[0]); int64(at) <= token {
		t.Errorf("the token was at %d, past the due at %d that was to come", token, at)
	}
	awaitFor(t, 60*time.Second, "the one is charged", func() bool { return h.succeeded() == 2*len(ids) })
	await(t, "billing is caught up", func() bool { return r.processor("billing").CaughtUp })
	if late, other := h.count(`SELECT position FROM events WHERE sequence_key = $1 AND payload->>'billing_period' = '2026-12' AND event_type = 'billing.due.v1'`, ids[0]),
		h.count(`SELECT min(position) FROM events WHERE sequence_key <> $1 AND payload->>'billing_period' = '2026-12' AND event_type = 'billing.due.v1'`, ids[0]); late >= other {
		t.Errorf("the late due has position %d, the first of the others %d: nothing was out of order", late, other)
	}
}

// TestC112_SomebodyElsesLongTransaction keeps a writing transaction open on a
// table of somebody else, and in another database of the same server: dues are
// charged all the while.
func TestC112_SomebodyElsesLongTransaction(t *testing.T) {
	h := newHouse(t)
	r := h.start(nil)
	ids := names(20)
	r.subscribe(ids...)
	awaitFor(t, 60*time.Second, "November is charged", func() bool { return h.succeeded() == len(ids) })
	await(t, "the service is at rest", func() bool { return r.processor("billing").CaughtUp && r.processor("preflight").CaughtUp })

	other := *h
	at, err := url.Parse(h.dsn)
	if err != nil {
		t.Fatal(err)
	}
	at.Path = "/postgres"
	other.dsn = at.String()
	for _, dsn := range []string{h.dsn, other.dsn} {
		conn := connect(t, dsn)
		for _, sql := range []string{`BEGIN`, fmt.Sprintf(`CREATE TABLE of_somebody_else_%d (n int)`, time.Now().UnixNano()), `SELECT pg_current_xact_id()::text`} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	send := h.sender()
	for _, id := range ids {
		if err := send(id, months[1]); err != nil {
			t.Fatal(err)
		}
	}
	awaitFor(t, 60*time.Second, "all are charged while it lasts", func() bool { return h.succeeded() == 2*len(ids) })
	await(t, "and the processors say so", func() bool { return r.processor("billing").CaughtUp && r.processor("preflight").CaughtUp })
}

// TestC113_TheWakeUpCallIsLost ends every session that listens, and later the
// database: what another program records is charged each time, by the scan or by
// listeners that have come back.
func TestC113_TheWakeUpCallIsLost(t *testing.T) {
	h := newHouse(t)
	options := pglocal.Options{DataDir: t.TempDir(), Volatile: true}
	server, err := pglocal.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(server.Stop(context.Background()), pglocal.Remove(context.Background(), options.DataDir)); err != nil {
			t.Errorf("remove PostgreSQL: %v", err)
		}
	})
	if h.dsn, err = server.EnsureDatabase(t.Context(), "deaf"); err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(h.dsn)
	if err != nil {
		t.Fatal(err)
	}
	if options.Port, err = strconv.Atoi(at.Port()); err != nil {
		t.Fatal(err)
	}
	const poll = time.Second // as documented
	r := h.start(func(c *config.Config) { c.Poll = poll })
	ids := names(4)
	r.subscribe(ids...)
	awaitFor(t, 60*time.Second, "November is charged", func() bool { return h.succeeded() == len(ids) })
	const listening = `FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`
	charged := func(id string) {
		t.Helper()
		before, begun := h.succeeded(), time.Now()
		if err := h.sender()(id, months[1]); err != nil {
			t.Fatal(err)
		}
		awaitFor(t, poll+10*time.Second, id+" is charged", func() bool { return h.succeeded() == before+1 })
		t.Logf("%s was charged after %s", id, time.Since(begun).Round(time.Millisecond))
	}
	for _, id := range ids[:2] {
		await(t, "somebody listens", func() bool { return h.count(`SELECT count(*) `+listening) > 0 })
		if n := h.count(`SELECT count(pg_terminate_backend(pid)) ` + listening); n == 0 {
			t.Fatal("nobody was listening")
		}
		charged(id)
	}
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if server, err = pglocal.Start(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	if server.DSN("deaf") != h.dsn {
		t.Fatal("the server listens elsewhere than before: another program took its port")
	}
	charged(ids[2])
	await(t, "somebody listens again", func() bool { return h.count(`SELECT count(*) `+listening) > 0 })
	charged(ids[3])
}
