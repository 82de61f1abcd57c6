package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// outcome plays the collector: it starts the attempt and records what came of it.
func outcome(t *testing.T, d *commands.Dispatcher, customer domain.CustomerID, period string, how func(domain.CustomerID, domain.Period) []domain.Event) {
	t.Helper()
	p, err := domain.ParsePeriod(period)
	if err != nil {
		t.Fatal(err)
	}
	log := d.Log()
	events, err := log.Load(t.Context(), log.Pool(), customer.Stream(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var added eventstore.Growth
	err = pgx.BeginFunc(t.Context(), log.Pool(), func(tx pgx.Tx) error {
		results, err := log.AppendTx(t.Context(), tx, eventstore.Batch{
			Stream: customer.Stream(), Head: events[len(events)-1].Head(), Command: "test", Events: how(customer, p),
		})
		if err == nil {
			err, added = results[0].Err, eventstore.Grown(results)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	log.Committed(added)
}

func paid(attempt int) func(domain.CustomerID, domain.Period) []domain.Event {
	return func(c domain.CustomerID, p domain.Period) []domain.Event {
		return []domain.Event{
			domain.ChargeAttemptStarted{CustomerID: c, BillingPeriod: p, Attempt: attempt, Start: 1},
			domain.CustomerBilled{CustomerID: c, BillingPeriod: p, Attempt: attempt, ChargeID: "ch_1", IntentID: "pi_1", Money: domain.Money{Minor: 5000, Currency: "usd"}},
		}
	}
}

func declined(attempt int) func(domain.CustomerID, domain.Period) []domain.Event {
	return func(c domain.CustomerID, p domain.Period) []domain.Event {
		return []domain.Event{
			domain.ChargeAttemptStarted{CustomerID: c, BillingPeriod: p, Attempt: attempt, Start: 1},
			domain.ChargeDeclined{CustomerID: c, BillingPeriod: p, Attempt: attempt, ChargeID: "ch_0", Code: "card_declined"},
		}
	}
}

func TestWaitForTheBill(t *testing.T) {
	t.Parallel()
	i := start(t)
	other := startOn(t, i.pool) // a replica whose commits ring no bell here
	i.register("alice")
	for _, c := range []struct {
		name   string
		period string
		by     *instance
		how    func(domain.CustomerID, domain.Period) []domain.Event
		status domain.BillStatus
		charge string
	}{
		{"paid here", "2026-01", i, paid(1), domain.BillPaid, "ch_1"},
		{"paid by another replica", "2026-02", other, paid(1), domain.BillPaid, "ch_1"},
		{"declined", "2026-03", i, declined(1), domain.BillDeclined, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := chargeBody("alice", c.period, 5000)
			a := i.send("charge-billing", body)
			if r := a.receipt(t); a.status != http.StatusAccepted || r.Bill.Status != domain.BillRequested {
				t.Fatalf("without wait got %d %s", a.status, a.body)
			}
			waited := make(chan answer, 1)
			go func() {
				waited <- i.do(i.request(http.MethodPost, "/v1/commands/charge-billing?wait=20s", body))
			}()
			begun := time.Now()
			outcome(t, c.by.dispatcher, "alice", c.period, c.how)
			a = <-waited
			if r := a.receipt(t); a.status != 200 || !r.Replayed || r.Bill.Status != c.status || r.Bill.ChargeID != c.charge || r.Bill.Attempt != 1 {
				t.Errorf("got %d %s", a.status, a.body)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			if a := i.send("charge-billing", body); a.status != 200 {
				t.Errorf("later the same got %d", a.status)
			}
		})
	}
	a := i.send("retry-charge", `{"customer_id":"alice","billing_period":"2026-03","attempt":2}`)
	if r := a.receipt(t); a.status != http.StatusAccepted || r.Bill.Attempt != 2 || r.Bill.Status != domain.BillRequested {
		t.Errorf("the retry got %d %s", a.status, a.body)
	}
}

func TestWaitEndsInTime(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.register("alice")
	begun := time.Now()
	a := i.do(i.request(http.MethodPost, "/v1/commands/charge-billing?wait=300ms", chargeBody("alice", "2026-11", 5000)))
	if r := a.receipt(t); a.status != http.StatusAccepted || r.Bill.Status != domain.BillRequested {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if took := time.Since(begun); took < 300*time.Millisecond {
		t.Errorf("it waited %s only", took)
	}
	for _, wait := range []string{"61s", "-1s", "10", "soon", "1h", ""} {
		a := i.do(i.request(http.MethodPost, "/v1/commands/charge-billing?wait="+wait, chargeBody("alice", "2026-11", 5000)))
		if p := a.problem(t); p.Status != 400 || !p.names("wait") {
			t.Errorf("wait=%s got %s", wait, a.body)
		}
	}
	a = i.do(i.request(http.MethodPost, "/v1/commands/register-customer?wait=1s", `{}`))
	if p := a.problem(t); p.Status != 400 || !p.names("wait") {
		t.Errorf("a command that charges nothing took wait: %s", a.body)
	}
}
