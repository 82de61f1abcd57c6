package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

func TestCommandIsAnsweredWithItsReceipt(t *testing.T) {
	t.Parallel()
	i := start(t)
	first := i.register("alice")
	if first.Replayed || first.Version != 1 || len(first.Events) != 1 || first.Events[0].Type != "customer.registered.v1" ||
		first.Position.Position == 0 || first.Key != "register-customer/alice" || first.Stream != "customer/alice" {
		t.Errorf("the receipt is %+v", first)
	}
	again := i.register("alice")
	if !again.Replayed || again.Position != first.Position || again.Key != first.Key {
		t.Errorf("the same again got %+v, first %+v", again, first)
	}
	if n := i.events(); n != 1 {
		t.Errorf("there are %d facts, want 1", n)
	}
	var meta string
	if err := i.pool.QueryRow(t.Context(), `SELECT metadata ->> 'actor' FROM events`).Scan(&meta); err != nil || meta != "local" {
		t.Errorf("the actor is %q (%v), want local", meta, err)
	}
}

func TestRefusalsHaveTheirStatus(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	i.send("charge-billing", chargeBody("alice", "2026-01", 5000)).receipt(t)
	before := i.events()
	for _, c := range []struct {
		name, command, body string
		status              int
		code                string
	}{
		{"unknown command", "fire-customer", `{}`, 404, "unknown_command"},
		{"the service's own command", "record-charge-outcome", `{}`, 403, "internal_command"},
		{"unknown customer", "charge-billing", chargeBody("nobody", "2026-01", 5000), 404, "unknown_customer"},
		{"another amount", "charge-billing", chargeBody("alice", "2026-01", 6000), 409, "key_reused"},
		{"other data", "register-customer", `{"customer_id":"alice","stripe_customer_id":"cus_x","payment_method_id":"pm_x"}`, 409, "key_reused"},
		{"an overlapping period", "charge-billing", chargeBody("alice", "2026-Q1", 5000), 422, "period_overlaps"},
		{"a retry of what is under way", "retry-charge", `{"customer_id":"alice","billing_period":"2026-01","attempt":2}`, 422, "nothing_to_retry"},
		{"no key where one is needed", "pause-subscription", `{"customer_id":"alice"}`, 400, "idempotency_key_required"},
		{"an operator's command", "settle-billing", `{"customer_id":"alice","billing_period":"2026-01","reference":"r"}`, 403, "forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := i.send(c.command, c.body)
			if p := a.problem(t); a.status != c.status || p.Code != c.code {
				t.Errorf("got %d %s, want %d %s", a.status, p.Code, c.status, c.code)
			}
		})
	}
	if n := i.events(); n != before {
		t.Errorf("%d facts came of it", n-before)
	}
}

// What bad input gets: 400, the field's name, and nothing stored.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	before := i.events()
	charge := func(field, value string) string {
		fields := map[string]string{"customer_id": `"alice"`, "billing_period": `"2026-01"`, "amount_minor": `5000`, "currency": `"usd"`}
		if value == "" {
			delete(fields, field)
		} else {
			fields[field] = value
		}
		var parts []string
		for name, v := range fields {
			parts = append(parts, fmt.Sprintf("%q:%s", name, v))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	type bad struct{ field, body string }
	var cases []bad
	for _, v := range []string{`-1`, `0`, `1.5`, `1e3`, `"100"`, `null`, `true`, `"NaN"`, `""`, ``, `[5000]`, `{}`, `9223372036854775808`, `100000000`, `49`} {
		cases = append(cases, bad{"amount_minor", charge("amount_minor", v)})
	}
	for _, v := range []string{`"us"`, `"USD "`, `"XXX"`, `"uSd"`, `"USD"`, `""`, `null`, ``, `1`} {
		cases = append(cases, bad{"currency", charge("currency", v)})
	}
	for _, v := range []string{`"2026-1"`, `" 2026-01"`, `"2026-01 "`, `"2026-01-01"`, `"２０２６-01"`, `"2026-13"`, `"2026-00"`, `"0000-01"`, `"Q1-2026"`, `"2026-q1"`, `"2026-01Z"`, `""`, `null`, ``, `202601`} {
		cases = append(cases, bad{"billing_period", charge("billing_period", v)})
	}
	for _, v := range []string{`"al:ice"`, `" alice"`, `"-alice"`, `"älice"`, `"` + strings.Repeat("a", 65) + `"`, `""`, `null`, ``, `7`} {
		cases = append(cases, bad{"customer_id", charge("customer_id", v)})
	}
	for _, name := range []string{"ammount", "periode", "Currency", "amount_minor "} {
		cases = append(cases, bad{name, charge(name, `1`)})
	}
	cases = append(cases,
		bad{"currency", `{"customer_id":"alice","billing_period":"2026-01","amount_minor":5000,"currency":"usd","currency":"eur"}`},
		bad{"body", ``}, bad{"body", ` `}, bad{"body", `null`}, bad{"body", `[]`}, bad{"body", `"x"`}, bad{"body", `{`}, bad{"body", `{"customer_id":"alice"`},
		bad{"body", charge("x", `1`) + `{}`}, bad{"body", charge("customer_id", "\"al\xffce\"")}, bad{"body", "\xef\xbb\xbf{}"},
	)
	for n, c := range cases {
		t.Run(fmt.Sprintf("%d %s", n, c.field), func(t *testing.T) {
			a := i.send("charge-billing", c.body)
			if p := a.problem(t); a.status != 400 || p.Code != "invalid_input" || !p.names(c.field) {
				t.Errorf("%s\ngot %s", c.body, a.body)
			}
		})
	}
	if n := i.events(); n != before {
		t.Errorf("%d facts came of it", n-before)
	}
}

// C010: identical commands at once, over three replicas.
func TestParallelIdenticalCommands(t *testing.T) {
	t.Parallel()
	first := start(t)
	replicas := []*instance{first, startOn(t, first.pool), startOn(t, first.pool)}
	first.register("alice")
	answers := make([]answer, 50)
	var sending sync.WaitGroup
	for n := range answers {
		sending.Go(func() {
			answers[n] = replicas[n%3].send("charge-billing", chargeBody("alice", "2026-11", 5000), "Idempotency-Key", fmt.Sprint("request-", n), "X-Request-Id", fmt.Sprint("id-", n))
		})
	}
	sending.Wait()
	fresh := 0
	for n, a := range answers {
		r := a.receipt(t)
		if a.status != http.StatusAccepted || r.Bill == nil || r.Bill.Status != domain.BillRequested || r.Bill.Attempt != 1 || r.Version != 2 {
			t.Errorf("answer %d is %d %s", n, a.status, a.body)
		}
		if !r.Replayed {
			fresh++
		}
		if id := a.header.Get("X-Request-Id"); id != fmt.Sprint("id-", n) {
			t.Errorf("the request id %d came back as %q", n, id)
		}
	}
	if fresh != 1 || first.events() != 2 {
		t.Errorf("%d were decided, %d facts", fresh, first.events())
	}
	if r := replicas[1].send("charge-billing", chargeBody("alice", "2026-12", 5000)).receipt(t); r.Replayed || r.Version != 3 {
		t.Errorf("the next month got %+v", r)
	}
	var kept int
	if err := first.pool.QueryRow(t.Context(), `SELECT count(*) FROM request_keys`).Scan(&kept); err != nil || kept != 50 {
		t.Errorf("%d of 50 headers are remembered (%v)", kept, err)
	}
}

// C062: the caller hangs up while its command waits for the partition.
func TestCallerHangsUp(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	tx, err := i.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if err := eventstore.LockPartitions(t.Context(), tx, "customer/alice"); err != nil {
		t.Fatal(err)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	r := i.request(http.MethodPost, "/v1/commands/charge-billing", chargeBody("alice", "2026-11", 5000)).WithContext(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if res, err := client.Do(r); err == nil {
			res.Body.Close()
			t.Errorf("the command was answered: %d", res.StatusCode)
		}
	}()
	eventually(t, "the command waits for the partition", func() bool {
		var waiting bool
		err := tx.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&waiting)
		return err == nil && waiting
	})
	hangUp()
	<-gone
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the charge is recorded", func() bool { return i.events() == 2 })
	if r := i.send("charge-billing", chargeBody("alice", "2026-11", 5000)).receipt(t); !r.Replayed || i.events() != 2 {
		t.Errorf("the same again got %+v", r)
	}
}

// A command that cannot be decided in time says so, and may be sent again.
func TestDispatchHasATimeLimit(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	hasty := startOn(t, i.pool, limited(Limits{Dispatch: 400 * time.Millisecond}))
	tx, err := i.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if err := eventstore.LockPartitions(t.Context(), tx, "customer/alice"); err != nil {
		t.Fatal(err)
	}
	a := hasty.send("charge-billing", chargeBody("alice", "2026-11", 5000))
	if p := a.problem(t); a.status != 503 || p.Code != "outcome_unknown" && p.Code != "try_again" || a.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the same again is recorded", func() bool { return i.send("charge-billing", chargeBody("alice", "2026-11", 5000)).status == 202 })
	if n := i.events(); n != 2 {
		t.Errorf("there are %d facts, want 2", n)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
