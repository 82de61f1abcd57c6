package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
)

// deliver runs processors until they are at the end of the log. The service
// does so all the time.
func deliver(t *testing.T, log *projectiontest.Log, processors ...tracking.Processor) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- tracking.New(log.Pool, log.Store, tracking.Options{Poll: 20 * time.Millisecond}).Run(ctx, processors...)
	}()
	for end := time.Now().Add(30 * time.Second); ; {
		all, err := tracking.Status(t.Context(), log.Pool)
		if err != nil {
			t.Fatal(err)
		}
		there := len(all) == len(processors)
		for _, p := range all {
			there = there && (p.CaughtUp || p.Letters > 0 && p.BehindEvents == 0) // handled, or set aside
		}
		if there {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the processors do not come to the end of the log: %+v", all)
		}
		pause(t.Context(), 10*time.Millisecond)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// aMonth records a billed month of n customers.
func aMonth(t *testing.T, log *projectiontest.Log, n int) {
	t.Helper()
	period, err := domain.ParsePeriod("2026-12")
	if err != nil {
		t.Fatal(err)
	}
	price := domain.Money{Minor: 4900, Currency: "usd"}
	for i := range n {
		id := domain.CustomerID(fmt.Sprintf("cust_%d", i))
		key := domain.ChargeKey(id, period, 1)
		log.Given(id,
			domain.CustomerRegistered{CustomerID: id, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
			domain.ChargeRequested{CustomerID: id, BillingPeriod: period, Attempt: 1, Key: key, Money: price, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
			domain.CustomerBilled{CustomerID: id, BillingPeriod: period, Attempt: 1, ChargeID: "ch_1", IntentID: "pi_1", Money: price, Source: "collector"},
		)
	}
}

// dump is everything in a read model's tables.
func dump(t *testing.T, log *projectiontest.Log, p projections.Projection) string {
	t.Helper()
	var all strings.Builder
	for _, table := range p.Tables {
		rows, err := log.Pool.Query(t.Context(), "SELECT t::text FROM "+pgx.Identifier{table}.Sanitize()+" AS t ORDER BY 1")
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(table + "\n" + strings.Join(lines, "\n") + "\n")
	}
	return all.String()
}

// A replay gives the rows that live delivery gave, also where they were
// spoiled, and whether or not the service runs.
func TestReplayEqualsLive(t *testing.T) {
	log := projectiontest.New(t)
	t.Setenv("DATABASE_URL", pgtest.DSN(t))
	aMonth(t, log, 300)
	december, err := domain.ParsePeriod("2026-12")
	if err != nil {
		t.Fatal(err)
	}
	log.Given("cust_0", domain.RefundRequested{CustomerID: "cust_0", BillingPeriod: december, RefundID: "r-1", ChargeID: "ch_1", Money: domain.Money{Minor: 900, Currency: "usd"}})
	var processors []tracking.Processor
	for _, p := range projections.All() {
		processors = append(processors, p.Processor())
	}
	deliver(t, log, processors...)
	for _, p := range projections.All() {
		live := dump(t, log, p)
		if _, err := log.Pool.Exec(t.Context(), "DELETE FROM "+pgx.Identifier{p.Tables[0]}.Sanitize()+" WHERE ctid = (SELECT ctid FROM "+pgx.Identifier{p.Tables[0]}.Sanitize()+" LIMIT 1)"); err != nil {
			t.Fatal(err)
		}
		if dump(t, log, p) == live {
			t.Fatalf("%s was not spoiled", p.Name)
		}
		ran := billingctl(t, "", "replay", p.Name)
		if ran.code != exitOK || !strings.Contains(ran.out, "\nreplay: projection="+p.Name+" events=901 seconds=") || !strings.HasSuffix(ran.out, " only_former=0 only_rebuilt=1 different=0 switched=yes\n") {
			t.Fatalf("replay %s: %+v", p.Name, ran)
		}
		if !strings.Contains(ran.err, "replaying "+p.Name+": 901 of 901 events") {
			t.Errorf("no progress is shown: %q", ran.err)
		}
		if replayed := dump(t, log, p); replayed != live {
			t.Errorf("%s after a replay:\n%s\nlive:\n%s", p.Name, short(replayed, 2000), short(live, 2000))
		}
	}
}

// Only read models are reset, only by those who say why, and it is on record.
func TestProcessors(t *testing.T) {
	log := projectiontest.New(t)
	t.Setenv("DATABASE_URL", pgtest.DSN(t))
	aMonth(t, log, 3)
	effectful := tracking.Processor{Name: "billing", Kind: tracking.Effectful, Start: tracking.Beginning,
		Handler: tracking.HandlerFunc(func(context.Context, *tracking.Page) error { return nil })}
	deliver(t, log, effectful, projections.Bills.Processor())

	for _, test := range []struct {
		line string
		code int
		want string
	}{
		{"processors reset billing --reason x", exitFailed, "effectful; it is reset only through a plan: billingctl saga plan billing"},
		{"processors reset nobody --reason x", exitUsage, "projection must be one of"},
		{"processors reset revenue --reason x", exitFailed, "unknown_processor"},
		{"replay revenue", exitFailed, "unknown_processor"},
		{"processors pause nobody --reason x", exitFailed, "unknown_processor"},
		{"processors pause bills --reason maintenance", exitOK, "bills is paused\n"},
		{"replay bills", exitFailed, "bills is paused; billingctl processors resume bills lets it go on"},
		{"processors resume bills --reason done", exitOK, "bills goes on\n"},
		{"dead-letters retry bills cust_1", exitFailed, "nothing_parked"},
		{"dead-letters retry nobody cust_1", exitFailed, "unknown_processor"},
		{"dead-letters skip bills cust_1 1-1 --reason x", exitFailed, "nothing_parked"},
		// Last: a retry runs the processor, which reads the log again.
		{"processors reset bills --reason wrong", exitOK, "bills is empty and reads the log again\n"},
	} {
		ran := billingctl(t, "", strings.Fields(test.line)...)
		if ran.code != test.code || !strings.Contains(ran.out+ran.err, test.want) {
			t.Errorf("billingctl %s: %+v, want %d and %q", test.line, ran, test.code, test.want)
		}
	}
	if bills := dump(t, log, projections.Bills); strings.Contains(bills, "cust_") {
		t.Errorf("the reset has left rows: %s", bills)
	}
	rows, err := log.Pool.Query(t.Context(), `SELECT action || ' ' || reason FROM processor_runs WHERE processor = 'bills' AND actor LIKE 'billingctl/%' ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	record, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if got := strings.Join(record, ", "); err != nil || got != "pause maintenance, resume done, reset wrong" {
		t.Errorf("on record is %q, %v", got, err)
	}
}

// What was parked is handled by a retry once the cause is gone, and a skip is
// for the first letter alone.
func TestDeadLetters(t *testing.T) {
	log := projectiontest.New(t)
	t.Setenv("DATABASE_URL", pgtest.DSN(t))
	aMonth(t, log, 3)
	poison := projections.Bills.Processor()
	fold := poison.Handler
	poison.MaxAttempts, poison.Backoff = 1, func(int) time.Duration { return time.Millisecond }
	poison.Handler = tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error {
		for _, e := range page.Events {
			if e.SequenceKey != "cust_0" {
				return errors.New("a fault that passes")
			}
		}
		return fold.Handle(ctx, page)
	})
	deliver(t, log, poison)
	letters, err := tracking.Letters(t.Context(), log.Pool, tracking.LetterFilter{SequenceKey: "cust_2"})
	if err != nil || len(letters) < 2 {
		t.Fatalf("%d letters, %v", len(letters), err)
	}
	last := letters[len(letters)-1].Place.String()
	if ran := billingctl(t, "", "dead-letters", "skip", "bills", "cust_2", last, "--reason", "x"); ran.code != exitFailed || !strings.Contains(ran.err, "not_first_letter") {
		t.Errorf("skipping the last letter first: %+v", ran)
	}
	if ran := billingctl(t, "", "dead-letters", "retry", "bills", "cust_1"); ran.code != exitOK || !strings.HasSuffix(ran.out, " letters were handled, 0 wait\n") {
		t.Errorf("retry cust_1: %+v", ran)
	}
	// More than one customer's are counted first, and nobody is there to agree.
	for _, test := range []struct {
		line, want string
		code       int
	}{
		{"dead-letters retry", "whose letters?", exitUsage},
		{"dead-letters retry bills cust_2 --all", "name a customer, or give --all", exitUsage},
		{"dead-letters retry --all", fmt.Sprintf("%d letters of 1 customers wait at 1 processors\nbillingctl: nothing was done: --yes handles them", len(letters)), exitUsage},
		{"dead-letters retry --error passing-by --yes", "0 letters of 0 customers wait at 0 processors\n", exitOK},
		{"dead-letters retry --type charge.declined.v1 --yes", "0 letters of 0 customers wait at 0 processors\n", exitOK},
		{"dead-letters retry --error passes --yes", fmt.Sprintf("%d letters were handled, 0 wait\n", len(letters)), exitOK},
	} {
		ran := billingctl(t, "", strings.Fields(test.line)...)
		if ran.code != test.code || !strings.Contains(ran.out+ran.err, test.want) {
			t.Errorf("billingctl %s: %+v, want %d and %q", test.line, ran, test.code, test.want)
		}
	}
	story, err := tracking.StoryOf(t.Context(), log.Pool, "bills", letters[0].Place.Position)
	if err != nil || len(story.History) != 2 || story.History[0].Outcome != "parked" || story.History[1].Outcome != "retried" || !strings.HasPrefix(story.History[1].Actor, "billingctl/") {
		t.Errorf("the history is %+v, %v", story.History, err)
	}
	if bills := dump(t, log, projections.Bills); strings.Count(bills, "cust_") != 3 {
		t.Errorf("after the retries: %s", bills)
	}
}

// A letter of any of the service's processors can be retried.
func TestEveryProcessorIsKnown(t *testing.T) {
	log := projectiontest.New(t)
	var names []string
	for _, p := range processorsOf(log.Store) {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "billing preflight schedule refund-preflight manifest customers bills charges refunds runs revenue" {
		t.Errorf("got %s", got)
	}
}

func TestMigrate(t *testing.T) {
	dsn := pgtest.Empty(t)
	t.Setenv("DATABASE_URL", dsn)
	for range 2 {
		if ran := billingctl(t, "", "migrate"); ran.code != exitOK {
			t.Fatalf("got %+v", ran)
		}
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var there bool
	if err := conn.QueryRow(t.Context(), `SELECT to_regclass('revenue') IS NOT NULL`).Scan(&there); err != nil || !there {
		t.Errorf("the schema is not there, %v", err)
	}
}

// A replay says what it would change, changes it, and takes it back; of one
// customer, if that is all that is asked for.
func TestReplayLooksSwitchesAndGoesBack(t *testing.T) {
	log := projectiontest.New(t)
	t.Setenv("DATABASE_URL", pgtest.DSN(t))
	aMonth(t, log, 40)
	deliver(t, log, projections.Bills.Processor())
	right := dump(t, log, projections.Bills)
	if _, err := log.Pool.Exec(t.Context(), `UPDATE bills SET status = 'requested' WHERE customer_id = 'cust_7'`); err != nil {
		t.Fatal(err)
	}
	wrong := dump(t, log, projections.Bills)
	last := log.Given("cust_7", domain.PaymentMethodChanged{CustomerID: "cust_7", PaymentMethodID: "pm_2"})
	deliver(t, log, projections.Bills.Processor())

	const line = " only_former=0 only_rebuilt=0 different=1 switched="
	for _, step := range []struct {
		line, want, holds string
		code              int
	}{
		{"replay bills --rollback", "no former rows of the read model are kept", wrong, exitFailed},
		{"replay bills --dry-run", "bills cust_7 2026-12\n    status: \"requested\" becomes \"paid\"\nreplay: projection=bills events=121 ", wrong, exitOK},
		{"replay bills --dry-run", line + "no\n", wrong, exitOK},
		{"replay bills --dry-run --customer cust_7", "1 of 64 partitions", wrong, exitOK},
		{fmt.Sprintf("replay bills --to %d", last[0].Position-1), line + "no\n", wrong, exitOK},
		{"replay bills --customer cust_8", " different=0 switched=yes\n", wrong, exitOK},
		{"replay bills --customer cust_7", line + "yes\n", right, exitOK},
		{"replay bills --rollback", line + "yes\n", wrong, exitOK},
		{"replay bills", "switched; billingctl replay bills --rollback takes it back\n", right, exitOK},
		{"replay bills --from " + last[0].Place.String(), "0 of 64 partitions", right, exitOK},
		{"replay bills -o json", `"switched": true`, right, exitOK},
		{"replay bills --rollback --dry-run", "it goes with --reason and --workers alone", right, exitUsage},
		{"replay bills --from yesterday", "--from must be a position such as 40213 or 17-40213", right, exitUsage},
		{"replay bills --workers 100", "--workers must be 1 to 16", right, exitUsage},
		{"replay bills --customer a/b", "customer_id", right, exitUsage},
	} {
		ran := billingctl(t, "", strings.Fields(step.line)...)
		if ran.code != step.code || !strings.Contains(ran.out+ran.err, step.want) {
			t.Errorf("billingctl %s: %+v, want %d and %q", step.line, ran, step.code, step.want)
		}
		if holds := dump(t, log, projections.Bills); holds != step.holds {
			t.Errorf("after %s:\n%s\nwant\n%s", step.line, short(holds, 1000), short(step.holds, 1000))
		}
	}
}
