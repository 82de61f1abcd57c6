package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/migrations"
)

// formerSchema is the newest step of the release before, in the tests of an upgrade.
const formerSchema = 16

// former is a house whose database is one release behind, with a subscription in
// it that has fallen due.
func (h *house) former(customer string) *house {
	h.t.Helper()
	f := &house{h.t, pgtest.Empty(h.t), h.stripe}
	config, err := pgx.ParseConfig(f.dsn)
	if err != nil {
		h.t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	steps, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := steps.UpTo(h.t.Context(), formerSchema); err != nil {
		h.t.Fatal(err)
	}
	for version, fact := range []struct{ name, payload string }{
		{"customer.registered.v1", `{"customer_id":%[1]q,"stripe_customer_id":"cus_%[1]s","payment_method_id":"pm_card_visa"}`},
		{"subscription.activated.v1", `{"customer_id":%[1]q,"amount_minor":4900,"currency":"usd","cadence":"monthly","anchor_day":1,"time_zone":"UTC","starts_on":"2026-11-01"}`},
	} {
		if _, err := db.ExecContext(h.t.Context(), `INSERT INTO events (partition, stream_id, stream_version, event_type, sequence_key, payload) VALUES ($1, $2, $3, $4, $5, $6)`,
			eventstore.PartitionOf(customer), "customer/"+customer, version+1, fact.name, customer, fmt.Sprintf(fact.payload, customer)); err != nil {
			h.t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(h.t.Context(), `INSERT INTO processor_tokens (processor, partition) SELECT p, n FROM unnest(ARRAY['customers', 'bills']) AS p, generate_series(0, 63) AS n`); err != nil {
		h.t.Fatal(err)
	}
	return f
}

// openTogether opens five replicas at once, all of which succeed.
func (h *house) openTogether() (opened []*App) {
	h.t.Helper()
	const replicas = 5
	opened = make([]*App, replicas)
	errs := make([]error, replicas)
	var opening sync.WaitGroup
	for i := range opened {
		opening.Go(func() { opened[i], errs[i] = Open(h.t.Context(), h.settings(nil), slog.New(slog.DiscardHandler)) })
	}
	opening.Wait()
	for i, err := range errs {
		if err != nil {
			h.t.Fatalf("replica %d: %v", i, err)
		}
	}
	return opened
}

// locked keeps everybody else from a table until it is released.
func (h *house) locked(table string) (release func()) {
	h.t.Helper()
	tx, err := pgtest.Connect(h.t, h.dsn, 1).Begin(h.t.Context())
	if err == nil {
		_, err = tx.Exec(h.t.Context(), `LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.WithoutCancel(h.t.Context())) }
}

// C128: five replicas start at once on an empty database, or on one that is a
// release behind, ten times, twice while somebody has a table locked. Each step
// is applied once, all become ready, and what was due is charged once, by
// nobody before the schema is there.
func TestC128_AllReplicasStartOnAnOldSchema(t *testing.T) {
	h := newHouse(t)
	for round := range 10 {
		customer, behind := fmt.Sprint("due", round), round%2 == 1
		there := &house{t, pgtest.Empty(t), h.stripe}
		if behind {
			there = h.former(customer)
		}
		var apps []*App
		if behind && round >= 7 {
			release := there.locked("processor_tokens")
			var opening sync.WaitGroup
			opening.Go(func() { apps = there.openTogether() })
			await(t, "a replica waits for the lock", func() bool {
				return there.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'relation'`) > 0
			})
			if n := len(h.charges(customer)); n != 0 {
				t.Errorf("%s was charged before anybody was ready", customer)
			}
			release()
			opening.Wait()
		} else {
			apps = there.openTogether()
		}
		if t.Failed() {
			return
		}
		var replicas []*replica
		for _, app := range apps {
			replicas = append(replicas, there.run(app, nil))
		}
		for _, r := range replicas {
			r.isReady()
		}
		if n := there.count(`SELECT count(*) FROM goose_db_version WHERE version_id > 0`); n != steps(t) {
			t.Errorf("round %d: %d steps were applied, want %d", round, n, steps(t))
		}
		if n := there.count(`SELECT count(*) FROM (SELECT FROM goose_db_version GROUP BY version_id HAVING count(*) > 1) twice`); n != 0 {
			t.Errorf("round %d: %d steps were applied twice", round, n)
		}
		if behind {
			await(t, "the subscription is charged", func() bool {
				return there.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND sequence_key = $1`, customer) == 1
			})
		}
		var stopping sync.WaitGroup
		for _, r := range replicas {
			stopping.Go(func() {
				if err := r.stop(); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		stopping.Wait()
		if n := len(h.charges(customer)); behind && n != 1 {
			t.Errorf("%s was charged %d times", customer, n)
		}
	}
}

func steps(t *testing.T) int {
	t.Helper()
	files, err := migrations.FS.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// C128: a table that stays locked stops the start within the bound, by a message
// that says what to do, and nothing is half applied.
func TestC128_AStartDoesNotWaitForEverOnALock(t *testing.T) {
	h := newHouse(t)
	there := h.former("waiting")
	release := there.locked("processor_tokens")
	began := time.Now()
	app, err := Open(t.Context(), there.settings(nil), slog.New(slog.DiscardHandler))
	if err == nil {
		app.Close()
		t.Fatal("it started on an old schema")
	}
	for _, says := range []string{"another session keeps a table locked", "15s", "pg_stat_activity"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%q does not say %q", err, says)
		}
	}
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("it waited %s", took)
	}
	if n := len(h.charges("waiting")); n != 0 {
		t.Errorf("it charged %d times", n)
	}
	release()
	there.start(nil).isReady()
	await(t, "the subscription is charged", func() bool { return len(h.charges("waiting")) == 1 })
}
