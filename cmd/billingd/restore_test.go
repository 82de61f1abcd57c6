package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/cmd/billingd/internal/config"
)

const operatorToken = "operator-of-the-tests"

// operatorTokens is the setting that lets the operator in.
func operatorTokens() string {
	hash := sha256.Sum256([]byte(operatorToken))
	return "op:read+dispatch+operate:" + hex.EncodeToString(hash[:])
}

// operated gives a replica an operator.
func operated(t *testing.T) func(*config.Config) {
	t.Helper()
	tokens, err := access.Parse(operatorTokens())
	if err != nil {
		t.Fatal(err)
	}
	return func(s *config.Config) { s.Tokens = tokens }
}

// ask calls the service as the operator, and reads its answer into a document.
func (r *replica) ask(method, path, body string) (status int, text string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(r.t.Context()), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+operatorToken)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", fmt.Sprint("op-", time.Now().UnixNano()))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(raw)
}

// command dispatches until the service can take it: its database may be away.
func (r *replica) command(name, body string) (answer string) {
	r.t.Helper()
	var status int
	await(r.t, name+" is taken: "+body, func() bool {
		status, answer = r.ask(http.MethodPost, "/v1/commands/"+name, body)
		return status == http.StatusOK || status == http.StatusAccepted
	}, func() string { return fmt.Sprint(status, " ", answer) })
	return answer
}

// unready waits until the service says that it is not ready, for this reason.
func (r *replica) unready(reason string) {
	r.t.Helper()
	var text string
	awaitFor(r.t, time.Minute, "not ready: "+reason, func() bool {
		var status int
		status, text = r.ask(http.MethodGet, "/readyz", "")
		return status == http.StatusServiceUnavailable && strings.Contains(text, reason)
	}, func() string { return text })
}

func (r *replica) isReady() {
	r.t.Helper()
	var text string
	awaitFor(r.t, time.Minute, "ready", func() bool {
		var status int
		status, text = r.ask(http.MethodGet, "/readyz", "")
		return status == http.StatusOK
	}, func() string { return text })
}

// adopt adopts the database as soon as the look is complete.
func (r *replica) adopt() {
	r.t.Helper()
	var text string
	awaitFor(r.t, time.Minute, "adopted", func() bool {
		var status int
		status, text = r.ask(http.MethodPost, "/v1/environment/adopt", `{"reason":"restored for a test"}`)
		if status == http.StatusConflict && !strings.Contains(text, "look_not_complete") {
			r.t.Fatalf("adopt: %d %s", status, text)
		}
		return status == http.StatusOK
	}, func() string { return text })
}

// bill is where a bill stands.
func (r *replica) bill(id string) (status string) {
	_, text := r.ask(http.MethodGet, "/v1/customers/"+id+"/periods/2026-11", "")
	var story struct {
		Bill struct {
			Status string `json:"status"`
		} `json:"bill"`
		Status string `json:"status"`
	}
	if err := json.Unmarshal([]byte(text), &story); err != nil {
		return err.Error()
	}
	return story.Status + story.Bill.Status
}

// admin works on the server beside the databases of the test.
func (h *house) admin() (admin *pgx.Conn, database string) {
	h.t.Helper()
	u, err := url.Parse(h.dsn)
	if err != nil {
		h.t.Fatal(err)
	}
	database = strings.TrimPrefix(u.Path, "/")
	u.Path = "/postgres"
	admin, err = pgx.Connect(h.t.Context(), u.String())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { admin.Close(context.Background()) })
	return admin, database
}

func (h *house) sql(admin *pgx.Conn, statements ...string) {
	h.t.Helper()
	for _, statement := range statements {
		if _, err := admin.Exec(context.WithoutCancel(h.t.Context()), statement); err != nil {
			h.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// alone runs statements while nobody is connected to the database.
func (h *house) alone(admin *pgx.Conn, database string, statements ...string) {
	h.t.Helper()
	h.sql(admin, fmt.Sprintf(`ALTER DATABASE %q WITH ALLOW_CONNECTIONS false`, database))
	await(h.t, "nobody is connected", func() bool {
		var n int
		if err := admin.QueryRow(h.t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1`, database).Scan(&n); err != nil {
			h.t.Fatal(err)
		}
		return n == 0
	})
	h.sql(admin, statements...)
}

// copyTo copies the database, as a backup of this moment. The name must not
// begin like those of the tests' databases: what nobody holds of those is swept
// away.
func (h *house) copyTo(admin *pgx.Conn, database, name string) {
	h.t.Helper()
	h.alone(admin, database, fmt.Sprintf(`CREATE DATABASE %q TEMPLATE %q`, name, database),
		fmt.Sprintf(`ALTER DATABASE %q WITH ALLOW_CONNECTIONS true`, database), fmt.Sprintf(`ALTER DATABASE %q WITH ALLOW_CONNECTIONS true`, name))
	h.t.Cleanup(func() {
		_, _ = admin.Exec(context.Background(), fmt.Sprintf(`DROP DATABASE IF EXISTS %q WITH (FORCE)`, name))
	})
}

// count counts in the database.
func (h *house) count(query string, args ...any) (n int) {
	h.t.Helper()
	conn, err := pgx.Connect(h.t.Context(), h.dsn)
	if err != nil {
		return -1 // the database may be away
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(h.t.Context(), query, args...).Scan(&n); err != nil {
		return -1
	}
	return n
}

func registerBody(id, method string) string {
	return fmt.Sprintf(`{"customer_id":%q,"stripe_customer_id":"cus_%s","payment_method_id":%q}`, id, id, method)
}

// TestRestoredDatabase is the restore procedure, done: half a month is billed,
// a backup is taken, the rest is billed, and the backup is put in the place of
// the database while two services run on it. They notice, collect nothing,
// rebuild what Stripe has and the log has lost, and go on once an operator has
// adopted the database. Each bill is charged once.
func TestRestoredDatabase(t *testing.T) {
	h := newHouse(t)
	first, second := h.start(operated(t)), h.start(operated(t))
	before, after := []string{"b0", "b1", "b2"}, []string{"a0", "a1", "a2"}
	for _, id := range append(append([]string{"settled", "late"}, before...), after...) {
		method := "pm_card_visa"
		if id == "settled" {
			method = "pm_sim_declines_insufficient_funds"
		}
		first.command("register-customer", registerBody(id, method))
	}
	for _, id := range before {
		first.command("charge-billing?wait=30s", chargeBody(id))
	}
	first.command("charge-billing?wait=30s", chargeBody("settled"))
	await(t, "the first half is billed", func() bool { return len(h.stripe.Ledger()) == len(before)+1 })
	await(t, "one is declined", func() bool { return first.bill("settled") == "declined" })

	admin, database := h.admin()
	backup := "backup_of_" + database
	h.copyTo(admin, database, backup)

	for _, id := range after {
		second.command("charge-billing?wait=30s", chargeBody(id))
	}
	first.command("settle-billing", `{"customer_id":"settled","billing_period":"2026-11","reference":"wire 77"}`)
	await(t, "the second half is billed", func() bool {
		return h.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1'`) == len(before)+len(after)
	})
	await(t, "the settlement is through", func() bool { return h.count(`SELECT count(*) FROM events WHERE event_type = 'bill.settled.v1'`) == 1 })
	posts := h.posts()

	h.alone(admin, database, fmt.Sprintf(`ALTER DATABASE %q RENAME TO %q`, database, "lost_"+database), fmt.Sprintf(`ALTER DATABASE %q RENAME TO %q`, backup, database))
	t.Cleanup(func() {
		_, _ = admin.Exec(context.Background(), fmt.Sprintf(`DROP DATABASE IF EXISTS %q WITH (FORCE)`, "lost_"+database))
	})

	for _, r := range []*replica{first, second} {
		r.unready("billingctl adopt")
	}
	// What is asked for now waits.
	first.command("charge-billing", chargeBody("late"))
	for _, id := range after { // and nothing that Stripe has is asked for again
		var a answer
		await(t, id+" is known again", func() bool {
			_ = json.Unmarshal([]byte(first.command("charge-billing?wait=5s", chargeBody(id))), &a)
			return a.Bill.Status == "paid"
		}, func() string { return fmt.Sprintf("%+v", a) })
		if charges := h.charges(id); len(charges) != 1 || charges[0] != a.Bill.ChargeID {
			t.Errorf("%s: charges %v, the answer names %s", id, charges, a.Bill.ChargeID)
		}
	}
	if n := h.count(`SELECT count(*) FROM events WHERE event_type = 'customer.billed.v1' AND (payload->>'recovered')::bool`); n != len(after) {
		t.Errorf("%d facts are marked recovered, want %d", n, len(after))
	}
	await(t, "the bill that was settled waits to be settled again", func() bool {
		return h.count(`SELECT count(*) FROM events WHERE event_type = 'charge.waiting.v1' AND payload->>'reason' = 'settled before a restore?'`) == 1
	})
	if now := h.posts(); now != posts {
		t.Errorf("%d POSTs went to Stripe before the database was adopted", now-posts)
	}
	if status, text := first.ask(http.MethodPost, "/v1/environment/adopt", `{"reason":" "}`); status != http.StatusBadRequest {
		t.Errorf("an adoption without a reason: %d %s", status, text)
	}
	first.command("settle-billing", `{"customer_id":"settled","billing_period":"2026-11","reference":"wire 77"}`)
	first.adopt()
	if status, text := first.ask(http.MethodPost, "/v1/environment/adopt", `{"reason":"again"}`); status != http.StatusConflict || !strings.Contains(text, "nothing_to_adopt") {
		t.Errorf("a second adoption: %d %s", status, text)
	}
	first.command("charge-billing?wait=30s", chargeBody("late"))
	for _, r := range []*replica{first, second} {
		r.isReady()
	}
	for _, id := range append(append([]string{"late"}, before...), after...) {
		await(t, id+" is charged", func() bool { return len(h.charges(id)) > 0 })
		if charges := h.charges(id); len(charges) != 1 {
			t.Errorf("%s has the charges %v", id, charges)
		}
	}
	if charges := h.charges("settled"); len(charges) != 0 {
		t.Errorf("what was settled is charged: %v", charges)
	}
	third := h.start(operated(t)) // a start finds nothing wrong
	third.isReady()
}

func (h *house) posts() (n int) {
	for _, q := range h.stripe.Requests() {
		if q.Method == http.MethodPost {
			n++
		}
	}
	return n
}

// TestCopyCollectsNothing starts services on copies of a database: under
// another environment's name, and under the same one beside the original. Each
// collects nothing until it is adopted, and a restart does not change that.
func TestCopyCollectsNothing(t *testing.T) {
	for name, environment := range map[string]string{"another environment": "staging", "the same name": "test"} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			original := h.start(operated(t))
			original.command("register-customer", registerBody("acme", "pm_card_visa"))
			original.command("register-customer", registerBody("other", "pm_card_visa"))
			original.command("charge-billing?wait=30s", chargeBody("acme"))
			admin, database := h.admin()
			h.copyTo(admin, database, "copy_of_"+database)
			copied := &house{h.t, strings.Replace(h.dsn, database, "copy_of_"+database, 1), h.stripe}
			change := func(s *config.Config) {
				operated(t)(s)
				s.Environment = environment
			}
			requests := len(h.stripe.Requests())
			for range 2 {
				r := copied.start(change)
				r.unready("billingctl adopt")
				r.command("charge-billing", chargeBody("other"))
				if err := r.stop(); err != nil {
					t.Fatal(err)
				}
			}
			for _, q := range h.stripe.Requests()[requests:] {
				if q.Method == http.MethodPost || environment == "staging" && q.Path != "/v1/account" {
					t.Errorf("the copy called Stripe: %s %s", q.Method, q.Path)
				}
			}
			r := copied.start(change)
			r.unready("billingctl adopt")
			r.adopt()
			r.isReady()
			await(t, "the copy collects", func() bool { return len(h.charges("other")) == 1 })
			original.isReady() // it is none of its business
			if charges := h.charges("acme"); len(charges) != 1 {
				t.Errorf("charges %v", charges)
			}
		})
	}
}

// TestAdoptNeedsAnOperator: without the scope nothing is adopted.
func TestAdoptNeedsAnOperator(t *testing.T) {
	h := newHouse(t)
	r := h.start(nil)
	res, err := http.Post(r.url+"/v1/environment/adopt", "application/json", bytes.NewReader([]byte(`{"reason":"x"}`)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("status %d", res.StatusCode)
	}
}
