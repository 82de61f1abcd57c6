package main_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// A replay that is killed with SIGKILL before its switch has changed nothing
// that anybody reads; called again it goes on where it was.
func TestReplayKilled(t *testing.T) {
	t.Parallel()
	log := projectiontest.New(t)
	env := []string{"DATABASE_URL=" + pgtest.DSN(t)}
	for i := range 600 {
		id := domain.CustomerID(fmt.Sprintf("cust_%d", i))
		log.Given(id,
			domain.CustomerRegistered{CustomerID: id, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
			domain.PaymentMethodChanged{CustomerID: id, PaymentMethodID: "pm_2"})
	}
	log.Project(projections.Customers)
	right := log.Rows(projections.Customers)
	if _, err := log.Pool.Exec(t.Context(), `UPDATE customers SET payment_method_id = 'pm_1' WHERE customer_id = 'cust_7'`); err != nil {
		t.Fatal(err)
	}
	wrong := log.Rows(projections.Customers)

	held, err := log.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback(t.Context())
	if _, err := held.Exec(t.Context(), `SELECT FROM processor_tokens WHERE processor = 'customers' FOR UPDATE`); err != nil { // the switch has to wait
		t.Fatal(err)
	}
	r := start(t, env, "replay", "customers")
	for end, folded := time.Now().Add(time.Minute), 0; folded == 0; time.Sleep(5 * time.Millisecond) {
		if err := log.Pool.QueryRow(t.Context(), `SELECT count(*) FROM rebuild_tokens WHERE side = 'rebuild' AND position > 0`).Scan(&folded); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("nothing is folded in a minute: %s%s", r.out.String(), r.errs.String())
		}
	}
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.end()
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rows := log.Rows(projections.Customers); rows != wrong {
		t.Error("a replay that was killed has changed the live rows")
	}
	for { // until the server has seen that the first one is dead
		code, out, errs := run(t, env, "replay", "customers")
		if strings.Contains(errs, "rebuild_under_way") || strings.Contains(errs, "is being rebuilt by somebody else") {
			continue
		}
		if code != 0 || !strings.Contains(out, "taken up: ") || !strings.Contains(out, " only_former=0 only_rebuilt=0 different=1 switched=yes") {
			t.Errorf("exit status %d\n%s%s", code, out, errs)
		}
		break
	}
	if rows := log.Rows(projections.Customers); rows != right {
		t.Error("the replay that went on has not made the rows right")
	}
}
