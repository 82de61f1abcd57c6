package rebuild_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
	"github.com/billonce/billonce/projections/rebuild"
)

var (
	november = period("2026-11")
	december = period("2026-12")
	fifty    = domain.Money{Minor: 5000, Currency: "usd"}
	why      = rebuild.Options{Actor: "test", Reason: "a test"}
)

func period(s string) domain.Period {
	p, err := domain.ParsePeriod(s)
	if err != nil {
		panic(err)
	}
	return p
}

func customer(i int) domain.CustomerID { return domain.CustomerID(fmt.Sprintf("customer-%d", i)) }

func joins(id domain.CustomerID) []domain.Event {
	return []domain.Event{
		domain.CustomerRegistered{CustomerID: id, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
		domain.SubscriptionActivated{CustomerID: id, Money: fifty, Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "Europe/Berlin", StartsOn: domain.Date{Year: 2026, Month: 11, Day: 1}},
	}
}

func pays(id domain.CustomerID, p domain.Period) []domain.Event {
	return []domain.Event{
		domain.MonthlyBillingDue{CustomerID: id, BillingPeriod: p, DueAt: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC), Money: fifty},
		domain.ChargeRequested{CustomerID: id, BillingPeriod: p, Attempt: 1, Key: domain.ChargeKey(id, p, 1), Money: fifty, StripeCustomerID: "cus_1", PaymentMethodID: "pm_1"},
		domain.ChargeAttemptStarted{CustomerID: id, BillingPeriod: p, Attempt: 1, Start: 1},
		domain.CustomerBilled{CustomerID: id, BillingPeriod: p, Attempt: 1, ChargeID: "ch_1", IntentID: "pi_1", Money: fifty, Source: domain.SourceAnswer},
	}
}

// corrected is what may be put right about a customer and a paid bill.
func corrected(i int) []domain.Event {
	id := customer(i)
	switch i % 5 {
	case 0:
		return []domain.Event{
			domain.RefundRequested{CustomerID: id, BillingPeriod: november, RefundID: "r-1", ChargeID: "ch_1", Key: domain.RefundKey(id, november, "r-1"), Money: domain.Money{Minor: 2000, Currency: "usd"}},
			domain.RefundRecorded{CustomerID: id, BillingPeriod: november, RefundID: "r-1", RefundOutcome: domain.RefundOutcome{
				State: domain.RefundStateSucceeded, StripeRefundID: "re_1", ChargeID: "ch_1", Money: domain.Money{Minor: 2000, Currency: "usd"}, Source: domain.SourceAnswer}},
		}
	case 1:
		return []domain.Event{domain.SubscriptionAmountChanged{CustomerID: id, EffectivePeriod: december, AmountMinor: 7000}}
	case 2:
		return []domain.Event{domain.SubscriptionCancelled{CustomerID: id, At: time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC), Reason: "left", Mode: domain.CancelNow}}
	case 3:
		return []domain.Event{
			domain.MonthlyBillingDue{CustomerID: id, BillingPeriod: december, DueAt: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC), Money: fifty},
			domain.ChargeVoided{CustomerID: id, BillingPeriod: december, Reason: "a void"},
		}
	}
	return []domain.Event{domain.RefundProposed{CustomerID: id, BillingPeriod: november, ChargeID: "ch_2", Money: fifty, Reason: "a second success"}}
}

// aMonth is a log of n customers who paid, some of whom were put right, folded
// into every read model.
func aMonth(t testing.TB, n int) *projectiontest.Log {
	t.Helper()
	log := projectiontest.New(t)
	for i := range n {
		log.Given(customer(i), slices.Concat(joins(customer(i)), pays(customer(i), november), corrected(i))...)
	}
	follow(t, log, projections.All()...)()
	return log
}

// follow runs the projections' processors until they are at the end of the log
// and then to the end of the test or until stop is called.
func follow(t testing.TB, log *projectiontest.Log, ps ...projections.Projection) (stop func()) {
	t.Helper()
	var processors []tracking.Processor
	for _, p := range ps {
		processors = append(processors, p.Processor())
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- tracking.New(log.Pool, log.Store, tracking.Options{Poll: 20 * time.Millisecond}).Run(ctx, processors...)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("processors: %v", err)
		}
	})
	t.Cleanup(stop)
	for _, p := range ps {
		caughtUp(t, log, p)
	}
	return stop
}

// caughtUp waits until a processor has come to the end of the log.
func caughtUp(t testing.TB, log *projectiontest.Log, p projections.Projection) {
	t.Helper()
	eventually(t, p.Name+" is at the end of the log", func() bool {
		all, err := tracking.Status(t.Context(), log.Pool, p.Name)
		return err == nil && len(all) == 1 && all[0].BehindEvents == 0 && !slices.ContainsFunc(all[0].Partitions, func(p tracking.PartitionStatus) bool { return p.Missing })
	})
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in a minute: %s", what)
		}
	}
}

func exec(t testing.TB, log *projectiontest.Log, sql string, args ...any) {
	t.Helper()
	if _, err := log.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func ask[V any](t testing.TB, log *projectiontest.Log, sql string, args ...any) (v V) {
	t.Helper()
	if err := log.Pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func run(t testing.TB, log *projectiontest.Log, p projections.Projection, o rebuild.Options) rebuild.Report {
	t.Helper()
	report, err := rebuild.Run(t.Context(), log.Store, p, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// spoil changes the first table of a read model: one row goes, one comes, one
// becomes another.
func spoil(t testing.TB, log *projectiontest.Log, p projections.Projection) {
	t.Helper()
	name := p.Tables[0]
	column := map[string]string{"customers": "customer_id", "bills": "customer_id", "charges": "customer_id", "refunds": "customer_id", "run_totals": "currency", "revenue": "currency"}[name]
	other := map[bool]string{true: "bills = bills + 1", false: "currency = 'xxx'"}[column == "currency"]
	unique := ""
	if name == "charges" || name == "refunds" {
		unique = ", first_position = -1"
	}
	err := pgx.BeginFunc(t.Context(), log.Pool, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`CREATE TEMPORARY TABLE copied ON COMMIT DROP AS SELECT * FROM ` + name + ` LIMIT 1`,
			`DELETE FROM ` + name + ` WHERE ctid = (SELECT ctid FROM ` + name + ` ORDER BY ctid DESC LIMIT 1)`,
			`UPDATE copied SET ` + column + ` = 'nobody'` + unique,
			`INSERT INTO ` + name + ` SELECT * FROM copied`,
			`UPDATE ` + name + ` SET ` + other + ` WHERE ctid = (SELECT ctid FROM ` + name + ` ORDER BY ctid LIMIT 1)`,
		} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// C116: a rebuild keeps what was put right: refunds, voids, cancellations and
// changed amounts. And it mends what was spoiled, and says so.
func TestRebuildKeepsCorrections(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 60)
	export := func() string {
		var all []any
		for _, read := range []func() (any, error){
			func() (any, error) {
				return log.Reads().Bills(t.Context(), string(customer(0)), projections.Page{})
			},
			func() (any, error) {
				run, err := log.Reads().Run(t.Context(), "2026-11")
				run.Progress = projections.RunProgress{} // bills a second, of the moment
				return run, err
			},
			func() (any, error) { return log.Reads().Run(t.Context(), "2026-12") },
			func() (any, error) { return log.Reads().Customer(t.Context(), string(customer(2))) },
		} {
			v, err := read()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, v)
		}
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	reads := export()
	for _, p := range projections.All() {
		live := log.Rows(p)
		report := run(t, log, p, why)
		if sum := report.Rows(); sum.Rows() != 0 || !report.Switched || report.Events != 444 {
			t.Errorf("%s: a rebuild of what is right differs: %+v", p.Name, report)
		}
		spoil(t, log, p)
		report = run(t, log, p, why)
		if d := report.Diffs[0]; d.OnlyFormer != 1 || d.OnlyRebuilt != 1 || d.Different != 1 || len(d.Examples) != 3 {
			t.Errorf("%s: spoiled in three rows, it differs in %+v", p.Name, d)
		}
		if rebuilt := log.Rows(p); rebuilt != live {
			t.Errorf("%s: rebuilt\n%s\nlive\n%s", p.Name, rebuilt, live)
		}
	}
	if got := export(); got != reads {
		t.Errorf("reads after the rebuilds\n%s\nbefore\n%s", got, reads)
	}
}

// Readers see the former model or the rebuilt one, all of it, at every moment
// of a rebuild under which new events are delivered.
func TestReadersDuringARebuild(t *testing.T) {
	t.Parallel()
	const before = 150
	log := aMonth(t, before)
	follow(t, log, projections.Bills)
	exec(t, log, `UPDATE bills SET reference = 'former'`)
	spoiled := ask[int](t, log, `SELECT count(*) FROM bills`)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group sync.WaitGroup
	var formerSeen, rebuiltSeen atomic.Int64
	for range 3 {
		group.Go(func() {
			least := spoiled
			for ctx.Err() == nil {
				var bills, old int
				err := log.Pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE reference = 'former') FROM bills`).Scan(&bills, &old)
				switch {
				case ctx.Err() != nil:
				case err != nil:
					t.Errorf("a reader: %v", err)
				case bills < least, old != 0 && old != spoiled:
					t.Errorf("a reader saw %d bills, of them %d of the former model, after %d and %d", bills, old, least, spoiled)
				case old == 0:
					rebuiltSeen.Add(1)
				default:
					formerSeen.Add(1)
				}
				least = max(least, bills)
			}
		})
	}
	var joined int
	group.Go(func() {
		for i := before; ctx.Err() == nil && i < before+400; i++ {
			log.Given(customer(i), slices.Concat(joins(customer(i)), pays(customer(i), november))...)
			joined++
		}
	})
	o := why
	o.PageSize = 20
	report := run(t, log, projections.Bills, o)
	eventually(t, "a reader has seen the rebuilt model", func() bool { return rebuiltSeen.Load() > 0 })
	stop()
	group.Wait()
	if formerSeen.Load() == 0 {
		t.Error("no reader saw the former model")
	}
	if d := report.Diffs[0]; d.Different != int64(spoiled) || d.Rows() != d.Different {
		t.Errorf("the rebuild differs in %+v, want %d rows different", d, spoiled)
	}
	caughtUp(t, log, projections.Bills)
	if bills := ask[int](t, log, `SELECT count(*) FROM bills`); bills != spoiled+joined {
		t.Errorf("%d bills, want %d and %d that came during the rebuild", bills, spoiled, joined)
	}
	live := log.Rows(projections.Bills)
	if sum := run(t, log, projections.Bills, why).Rows(); sum.Rows() != 0 {
		t.Errorf("rebuilt once more it differs: %+v\n%s", sum, live)
	}
}

// A rebuild that dies anywhere is taken up where it was, and ends as one that
// did not.
func TestRebuildDiesAndGoesOn(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 200)
	const events = 1480
	executioner, err := pgx.ConnectConfig(t.Context(), log.Pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer executioner.Close(context.WithoutCancel(t.Context()))
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 17))
		p := projections.All()[random.IntN(len(projections.All()))]
		live := log.Rows(p)
		spoil(t, log, p)
		deaths, found := 0, int64(0)
		for {
			ctx, kill := context.WithCancel(t.Context())
			o := why
			o.PageSize, o.Workers = 1+random.IntN(60), 1+random.IntN(3)
			after, cut := found+1+random.Int64N(events/3), random.IntN(2) == 0
			o.Progress = func(folded, _ int64) {
				if folded < after || deaths > 3 {
					return
				}
				if !cut {
					kill()
					return
				}
				// Its connections go, all at once, as with the process.
				if _, err := executioner.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
					t.Error(err)
				}
			}
			report, err := rebuild.Run(ctx, log.Store, p, o)
			kill()
			if err == nil {
				if deaths > 0 && report.Found == 0 {
					t.Errorf("seed %d: nothing was found of %d rebuilds that died", seed, deaths)
				}
				if report.Events != events {
					t.Errorf("seed %d: %d events, want %d", seed, report.Events, events)
				}
				break
			}
			if errors.Is(err, rebuild.ErrUnderWay) {
				continue // the server has not noticed the death yet
			}
			deaths++
			found = report.Found
			if deaths > 40 {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if rebuilt := log.Rows(p); rebuilt != live {
			t.Errorf("seed %d: %s rebuilt\n%s\nlive\n%s", seed, p.Name, rebuilt, live)
		}
		if deaths == 0 {
			t.Errorf("seed %d: nobody died", seed)
		}
	}
}

// A dry run says what would change and changes nothing, not even a rebuild
// that was left unfinished or the former rows. So does one that ends early.
func TestDryRun(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 60)
	p := projections.Bills
	exec(t, log, `UPDATE bills SET currency = 'eur' WHERE customer_id = 'customer-7'`)
	run(t, log, p, why)
	spoil(t, log, p)
	live := log.Rows(p)
	kept := ask[string](t, log, `SELECT string_agg(b::text, ' ' ORDER BY b::text) FROM rebuild_former.bills b`)
	dry := why
	dry.Dry = true
	report := run(t, log, p, dry)
	if d := report.Diffs[0]; report.Switched || d.OnlyFormer != 1 || d.OnlyRebuilt != 1 || d.Different != 1 {
		t.Errorf("got %+v", report)
	}
	if !slices.ContainsFunc(report.Diffs[0].Examples, func(e rebuild.Example) bool {
		return slices.Contains(e.Says, `currency: "xxx" becomes "usd"`)
	}) {
		t.Errorf("the examples are %+v", report.Diffs[0].Examples)
	}
	half := ask[int64](t, log, `SELECT position FROM events WHERE event_type = 'customer.billed.v1' ORDER BY position OFFSET 29 LIMIT 1`)
	early := why
	early.To = half
	report = run(t, log, p, early)
	if report.Switched || report.Events != ask[int64](t, log, `SELECT count(*) FROM events WHERE position <= $1`, half) || report.Diffs[0].OnlyFormer < 30 {
		t.Errorf("as of %d: %+v", half, report)
	}
	if log.Rows(p) != live || kept != ask[string](t, log, `SELECT string_agg(b::text, ' ' ORDER BY b::text) FROM rebuild_former.bills b`) {
		t.Error("a dry run has changed rows")
	}
	if there := ask[bool](t, log, `SELECT to_regclass('rebuild_trial.bills') IS NOT NULL`); there {
		t.Error("a dry run has left its tables")
	}
}

// The former rows are switched back to with what was recorded since, and the
// other way again.
func TestRollback(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 60)
	p := projections.Bills
	if _, err := rebuild.Rollback(t.Context(), log.Store, p, why); !errors.Is(err, rebuild.ErrNoFormer) {
		t.Errorf("with nothing to go back to: %v", err)
	}
	follow(t, log, p)
	exec(t, log, `UPDATE bills SET reference = 'former' WHERE customer_id = 'customer-3'`)
	run(t, log, p, why)
	log.Given(customer(1000), slices.Concat(joins(customer(1000)), pays(customer(1000), november))...)
	caughtUp(t, log, p)
	rebuilt := log.Rows(p)

	report, err := rebuild.Rollback(t.Context(), log.Store, p, why)
	if err != nil || !report.Switched || report.Rows().Rows() != 2 || report.Rows().Different != 2 {
		t.Fatalf("got %+v, %v", report, err)
	}
	if n := ask[int](t, log, `SELECT count(*) FROM bills WHERE reference = 'former' AND customer_id = 'customer-3'`); n != 2 {
		t.Errorf("%d of the former rows are back, want 2", n)
	}
	if n := ask[int](t, log, `SELECT count(*) FROM bills WHERE customer_id = 'customer-1000' AND status = 'paid'`); n != 1 {
		t.Error("what was recorded since is not in the former rows")
	}
	if _, err := rebuild.Rollback(t.Context(), log.Store, p, why); err != nil || log.Rows(p) != rebuilt {
		t.Errorf("forth again: %v\n%s\nwant\n%s", err, log.Rows(p), rebuilt)
	}
	want := "rebuild a test 2, rollback a test 2, rollback a test 2"
	if got := ask[string](t, log, `SELECT string_agg(concat_ws(' ', action, reason, different), ', ' ORDER BY id) FROM rebuilds WHERE switched_at IS NOT NULL`); got != want {
		t.Errorf("on record is %q, want %q", got, want)
	}

	exec(t, log, `ALTER TABLE bills ADD COLUMN added text`)
	if _, err := rebuild.Rollback(t.Context(), log.Store, p, why); !errors.Is(err, rebuild.ErrReshaped) {
		t.Errorf("to rows of another shape: %v", err)
	}
}

// Two do not rebuild one read model at the same time; others may.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 120)
	o := why
	o.PageSize = 100
	var inside sync.Once
	o.Progress = func(int64, int64) {
		inside.Do(func() {
			if _, err := rebuild.Run(t.Context(), log.Store, projections.Bills, why); !errors.Is(err, rebuild.ErrUnderWay) {
				t.Errorf("a second one: %v", err)
			}
			if _, err := rebuild.Rollback(t.Context(), log.Store, projections.Bills, why); !errors.Is(err, rebuild.ErrUnderWay) {
				t.Errorf("a rollback meanwhile: %v", err)
			}
			if _, err := rebuild.Run(t.Context(), log.Store, projections.Charges, why); err != nil {
				t.Errorf("of another read model: %v", err)
			}
		})
	}
	run(t, log, projections.Bills, o)
}

// One that seemed dead and is not finds its tokens moved, and has no effect.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 120)
	live := log.Rows(projections.Revenue)
	o := why
	o.PageSize, o.Workers = 50, 1
	var once sync.Once
	o.Progress = func(int64, int64) {
		once.Do(func() {
			exec(t, log, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = 7312 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
			eventually(t, "the lock is free", func() bool {
				_, err := rebuild.Run(t.Context(), log.Store, projections.Revenue, why)
				return err == nil
			})
		})
	}
	if _, err := rebuild.Run(t.Context(), log.Store, projections.Revenue, o); err == nil {
		t.Error("the one that was taken over has finished, too")
	}
	if rows := log.Rows(projections.Revenue); rows != live {
		t.Errorf("got\n%s\nwant\n%s", rows, live)
	}
}

// A customer's partition is rebuilt, or those in which something happened
// lately; the rows of the others are not looked at.
func TestPartOfAReadModel(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 120)
	for _, p := range projections.All() {
		live := log.Rows(p)
		elsewhere := eventstore.PartitionOfStream(customer(1).Stream())
		exec(t, log, `UPDATE `+p.Tables[0]+` SET currency = 'xxx' WHERE partition = $1`, elsewhere)
		spoiled := log.Rows(p)
		o := why
		o.Customer = customer(0)
		if report := run(t, log, p, o); report.Partitions != 1 || report.Rows().Rows() != 0 || log.Rows(p) != spoiled {
			t.Errorf("%s: the rebuild for another customer: %+v", p.Name, report)
		}
		o.Customer = customer(1)
		if report := run(t, log, p, o); report.Partitions != 1 || log.Rows(p) != live {
			t.Errorf("%s: the rebuild for the customer: %+v", p.Name, report)
		}
	}
	last := log.Given(customer(5), pays(customer(5), december)...)
	follow(t, log, projections.Bills)
	live := log.Rows(projections.Bills)
	exec(t, log, `UPDATE bills SET currency = 'xxx' WHERE customer_id = $1`, string(customer(5)))
	o := why
	o.From = last[0].Position
	if report := run(t, log, projections.Bills, o); report.Partitions != 1 || report.Rows().Different != 2 || log.Rows(projections.Bills) != live {
		t.Errorf("from %d on: %+v", o.From, report)
	}
	o.From = last[len(last)-1].Position + 1
	if report := run(t, log, projections.Bills, o); report.Partitions != 0 || report.Switched {
		t.Errorf("from the end on: %+v", report)
	}
}

// C041: the last event of a replay, a due that is already billed, is a replay
// like the others: nothing is appended, dispatched or remembered because of it.
func TestNothingComesOfARebuild(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 20)
	log.Given(customer(0), pays(customer(0), december)...)
	log.Given(customer(0), domain.MonthlyBillingDue{CustomerID: customer(0), BillingPeriod: december, DueAt: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC), Money: fifty})
	follow(t, log, projections.All()...)()
	state := func() string {
		var all []string
		for _, table := range []string{"events", "command_keys", "request_keys", "billing_records", "refund_records", "processor_tokens"} {
			all = append(all, table, ask[string](t, log, `SELECT coalesce(string_agg(r::text, ' ' ORDER BY r::text), '') FROM `+table+` r`))
		}
		return strings.Join(all, "\n")
	}
	before := state()
	for range 3 {
		for _, p := range projections.All() {
			run(t, log, p, why)
		}
	}
	if after := state(); after != before {
		t.Errorf("after three replays\n%s\nbefore\n%s", after, before)
	}
}

// What is parked is in the rebuilt rows, so its letters are settled; and it is
// in the former rows too, should they come back. What was skipped stays out.
func TestLetters(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 0)
	p := projections.Bills
	for i := range 20 {
		log.Given(customer(i), slices.Concat(joins(customer(i)), pays(customer(i), november))...)
	}
	whole := log.Check(p)
	exec(t, log, `DELETE FROM bills`)
	exec(t, log, `DELETE FROM processor_tokens`)
	exec(t, log, `DELETE FROM processor_runs`)

	poison := p.Processor()
	fold := poison.Handler
	poison.MaxAttempts, poison.Backoff = 1, func(int) time.Duration { return time.Millisecond }
	poison.Handler = tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error {
		for _, e := range page.Events {
			if e.SequenceKey == string(customer(4)) {
				return errors.New("a fold that is wrong")
			}
		}
		return fold.Handle(ctx, page)
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- tracking.New(log.Pool, log.Store, tracking.Options{Poll: 20 * time.Millisecond}).Run(ctx, poison)
	}()
	caughtUp(t, log, p)
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	open := `SELECT count(*) FROM dead_letters WHERE status IN ('parked', 'behind')`
	if n := ask[int](t, log, open); n == 0 {
		t.Fatal("nothing is parked")
	}
	report := run(t, log, p, why)
	if report.Letters == 0 || report.Rows().OnlyRebuilt != 1 || ask[int](t, log, open) != 0 || log.Rows(p) != whole {
		t.Errorf("got %+v and %d open letters\n%s", report, ask[int](t, log, open), log.Rows(p))
	}
	if told := ask[string](t, log, `SELECT string_agg(DISTINCT outcome || ': ' || detail, '; ') FROM dead_letter_history WHERE actor = $1`, why.Actor); !strings.HasPrefix(told, "retried: void by a rebuild 1: ") || !strings.HasSuffix(told, why.Reason) {
		t.Errorf("the letters' history says %q", told)
	}
	if _, err := rebuild.Rollback(t.Context(), log.Store, p, why); err != nil || log.Rows(p) != whole {
		t.Errorf("after going back: %v\n%s", err, log.Rows(p))
	}

	billed := log.Given(customer(5), pays(customer(5), december)...)
	skipped := billed[len(billed)-1]
	exec(t, log, `INSERT INTO dead_letters (processor, position, partition, sequence_key, event_id, event_type, attempts, error, status, reason, resolved_at)
		VALUES ('bills', $1, $2, $3, $4, $5, 1, 'x', 'skipped', 'a decision', clock_timestamp())`, skipped.Position, skipped.Partition, skipped.SequenceKey, skipped.EventID, skipped.Type)
	exec(t, log, `UPDATE processor_tokens SET position = $1 WHERE processor = 'bills' AND partition = $2`, skipped.Position, skipped.Partition)
	run(t, log, p, why)
	if status := ask[string](t, log, `SELECT status FROM bills WHERE customer_id = $1 AND billing_period = '2026-12'`, string(customer(5))); status == "paid" {
		t.Error("a skipped event was folded")
	}
}

// A processor that is reset, or told to skip, while its read model is rebuilt
// ends the rebuild; the next one begins anew.
func TestDisturbed(t *testing.T) {
	t.Parallel()
	log := aMonth(t, 120)
	p := projections.Bills
	live := log.Rows(p)
	o := why
	o.PageSize = 100
	var once sync.Once
	o.Progress = func(int64, int64) {
		once.Do(func() {
			if err := tracking.Reset(t.Context(), log.Pool, p.Processor(), 0, "test", "a reset meanwhile"); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := rebuild.Run(t.Context(), log.Store, p, o); !errors.Is(err, rebuild.ErrDisturbed) {
		t.Errorf("got %v", err)
	}
	follow(t, log, p)
	if report := run(t, log, p, why); report.Found != 0 || log.Rows(p) != live {
		t.Errorf("the next one: %+v\n%s", report, log.Rows(p))
	}
	if _, err := rebuild.Run(t.Context(), log.Store, p, rebuild.Options{}); !errors.Is(err, tracking.ErrReasonNeeded) {
		t.Errorf("without a reason: %v", err)
	}
	exec(t, log, `DELETE FROM processor_tokens`)
	if _, err := rebuild.Run(t.Context(), log.Store, projections.Charges, why); !errors.Is(err, tracking.ErrUnknownProcessor) {
		t.Errorf("of a processor that never ran: %v", err)
	}
}
