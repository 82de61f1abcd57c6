package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore/pgtest"
)

// TestC053_NoCallWithoutARow takes from the database, in the middle of a run,
// the ability to write: it becomes read-only, its disk is full, or the service
// loses the right to insert rows. No call to Stripe begins that has no row, the
// service says why it is not ready, and afterwards every bill is charged once,
// without an operator.
func TestC053_NoCallWithoutARow(t *testing.T) {
	const customers = 50
	for name, c := range map[string]struct {
		reason    string
		off, back []string
	}{
		"read-only": {"the database takes no writes",
			[]string{`ALTER DATABASE %[1]q SET default_transaction_read_only = on`,
				`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%[1]s' AND application_name = 'billingd'`},
			[]string{`ALTER DATABASE %[1]q RESET default_transaction_read_only`}},
		"disk full": {"the database's disk is full", []string{
			`CREATE FUNCTION disk_is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$`,
			`CREATE TRIGGER full_records BEFORE INSERT OR UPDATE ON billing_records FOR EACH STATEMENT EXECUTE FUNCTION disk_is_full()`,
			`CREATE TRIGGER full_events BEFORE INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION disk_is_full()`,
		}, []string{`DROP FUNCTION disk_is_full CASCADE`}},
		"no right to insert": {"the database's user lacks a right",
			[]string{`REVOKE INSERT ON billing_records FROM %[2]q`}, []string{`GRANT INSERT ON billing_records TO %[2]q`}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			admin, database := h.admin()
			user := h.plainUser(admin, database)
			r := h.start(nil)
			ids := make([]string, customers)
			for i := range ids {
				ids[i] = fmt.Sprint("c", i)
				r.register(ids[i])
			}
			for _, id := range ids[:customers/2] {
				r.begin(id)
			}
			await(t, "the run is under way", func() bool { return h.stripe.Counters().Confirms > 2 })
			change := func(statements []string) {
				for _, s := range statements {
					if strings.Contains(s, "%[") {
						s = fmt.Sprintf(s, database, user)
					}
					if strings.Contains(s, "ALTER DATABASE") {
						h.sql(admin, s)
						continue
					}
					h.inside(s)
				}
			}
			change(c.off)
			for _, id := range ids[customers/2:] { // refused, or taken and not gone on with
				_, _ = r.post(t.Context(), "/v1/commands/charge-billing", chargeBody(id))
			}
			var text string
			awaitFor(t, time.Minute, "not ready", func() bool {
				var status int
				status, text = r.ask(http.MethodGet, "/readyz", "")
				return status == http.StatusServiceUnavailable && strings.Contains(text, c.reason)
			}, func() string { return text })
			// What was in flight ends, as far as the stand-in is concerned.
			await(t, "no call is under way", func() bool {
				before := h.posts()
				time.Sleep(300 * time.Millisecond)
				return h.posts() == before
			})
			posts := h.posts()
			time.Sleep(time.Second) // ten polls
			if now := h.posts(); now != posts {
				t.Errorf("%d POSTs began while nothing could be written", now-posts)
			}
			change(c.back)
			for _, id := range ids {
				r.paid(id)
			}
			r.isReady()
			if n := h.count(`SELECT count(*) FROM dead_letters`); n != 0 {
				t.Errorf("%d dead letters: a fault of the database was taken for one of its customers", n)
			}
		})
	}
}

// plainUser lets the services of the test work as a user of their own, with the
// rights that they need and no more.
func (h *house) plainUser(admin *pgx.Conn, database string) string {
	h.t.Helper()
	at, err := url.Parse(h.dsn)
	if err != nil {
		h.t.Fatal(err)
	}
	user, own := "user_of_"+database, at.User
	h.sql(admin, fmt.Sprintf(`CREATE ROLE %q LOGIN PASSWORD 'plain'`, user))
	h.t.Cleanup(func() {
		at.User = own
		conn, err := pgx.Connect(context.Background(), at.String())
		if err != nil {
			h.t.Error(err)
			return
		}
		defer conn.Close(context.Background())
		for _, s := range []string{`DROP OWNED BY %q`, `DROP ROLE %q`} {
			if _, err := conn.Exec(context.Background(), fmt.Sprintf(s, user)); err != nil {
				h.t.Error(err)
			}
		}
	})
	h.inside(fmt.Sprintf(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO %q`, user),
		fmt.Sprintf(`GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO %q`, user))
	at.User = url.UserPassword(user, "plain")
	h.dsn = at.String()
	return user
}

// inside runs statements in the database of the test.
func (h *house) inside(statements ...string) {
	h.t.Helper()
	pool := pgtest.Pool(h.t)
	for _, statement := range statements {
		if _, err := pool.Exec(h.t.Context(), statement); err != nil {
			h.t.Fatalf("%s: %v", statement, err)
		}
	}
}
