package verify_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/cmd/billingctl/internal/verify"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/projections/projectiontest"
	"github.com/billonce/billonce/sagas"
)

var (
	fifty    = domain.Money{Minor: 5000, Currency: "usd"}
	november = domain.PeriodOf(domain.Monthly, 2026, 11)
	december = domain.PeriodOf(domain.Monthly, 2026, 12)
)

// house is a log with everything that follows from it.
type house struct {
	*projectiontest.Log
	t          *testing.T
	d          *commands.Dispatcher
	processors []tracking.Processor
}

func newHouse(t *testing.T) *house {
	t.Helper()
	log := projectiontest.New(t)
	h := &house{Log: log, t: t, d: commands.NewDispatcher(log.Store)}
	idle := func() {}
	h.processors = []tracking.Processor{sagas.Billing.Processor(h.d), sagas.Preflight(idle), sagas.Schedule(h.d), sagas.RefundPreflight(idle)}
	for _, p := range projections.All() {
		h.processors = append(h.processors, p.Processor())
	}
	return h
}

// dispatch decides commands as the service does, under their keys.
func (h *house) dispatch(requests ...commands.Request) {
	h.t.Helper()
	for _, r := range requests {
		if r.Key() == "" { // as a claim does it
			h.claim(r)
			continue
		}
		with := commands.Context{Request: &eventstore.RequestKey{Actor: "tester", Key: "request of " + r.Key(), BodyDigest: []byte{1}}}
		if _, err := h.d.Dispatch(h.t.Context(), r, with); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *house) claim(r commands.Request) {
	h.t.Helper()
	err := pgx.BeginFunc(h.t.Context(), h.Pool, func(tx pgx.Tx) error {
		unit, err := h.d.Begin(h.t.Context(), tx, []domain.StreamID{r.Stream()}, nil, nil)
		if err != nil {
			return err
		}
		replies, err := unit.Dispatch(h.t.Context(), eventstore.Meta{Actor: "collector"}, r)
		if err == nil && replies[0].Refusal != nil {
			err = replies[0].Refusal
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.d.Forget()
}

// deliver runs the processors to the end of the log.
func (h *house) deliver() {
	h.t.Helper()
	ctx, stop := context.WithCancel(h.t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- tracking.New(h.Pool, h.Store, tracking.Options{Poll: 20 * time.Millisecond}).Run(ctx, h.processors...)
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		all, err := tracking.Status(h.t.Context(), h.Pool)
		if err != nil {
			h.t.Fatal(err)
		}
		there := len(all) == len(h.processors)
		for _, p := range all {
			there = there && (p.CaughtUp || p.Letters > 0 && p.BehindEvents == 0) // handled, or set aside
		}
		if there {
			break
		}
		if time.Now().After(end) {
			h.t.Fatalf("the processors do not come to the end of the log: %+v", all)
		}
	}
	stop()
	if err := <-ended; err != nil {
		h.t.Fatal(err)
	}
}

// month bills some customers: by subscription up to the request, which the saga
// makes; and by hand up to the payment, with a refund and a decline.
func (h *house) month() {
	h.t.Helper()
	for n := range 3 {
		h.subscribed(domain.CustomerID(fmt.Sprintf("sub_%d", n)))
		h.paid(domain.CustomerID(fmt.Sprintf("paid_%d", n)))
	}
	h.declined("declined")
	h.deliver()
}

// declined has a bill that was declined once, which is yet to be decided about.
func (h *house) declined(id domain.CustomerID) {
	h.t.Helper()
	h.dispatch(commands.Of(commands.NewRegisterCustomer(id, "cus_1", "pm_1")), commands.Of(commands.NewChargeBilling(id, november, fifty)),
		commands.Of(commands.StartAttempt{CustomerID: id, BillingPeriod: november, Attempt: 1}),
		commands.Of(commands.CommitIntent{CustomerID: id, BillingPeriod: november, IntentID: "pi_d"}),
		commands.Of(commands.NewRecordChargeOutcome(id, november, 1, 1, domain.Outcome{Class: domain.Declined, ChargeID: "ch_d", Code: "card_declined"})))
}

func (h *house) subscribed(id domain.CustomerID) {
	h.t.Helper()
	schedule := domain.Schedule{Cadence: domain.Monthly, AnchorDay: 1, TimeZone: "Europe/Berlin", StartsOn: domain.Date{Year: 2026, Month: 11, Day: 1}}
	h.dispatch(commands.Of(commands.NewRegisterCustomer(id, "cus_1", "pm_1")), commands.Of(commands.NewActivateSubscription(id, fifty, schedule)),
		commands.Of(commands.NewDeclareBillingDue(id, november)))
}

func (h *house) paid(id domain.CustomerID) {
	h.t.Helper()
	h.dispatch(commands.Of(commands.NewRegisterCustomer(id, "cus_1", "pm_1")), commands.Of(commands.NewChargeBilling(id, november, fifty)),
		commands.Of(commands.StartAttempt{CustomerID: id, BillingPeriod: november, Attempt: 1}),
		commands.Of(commands.CommitIntent{CustomerID: id, BillingPeriod: november, IntentID: "pi_" + string(id)}),
		commands.Of(commands.NewRecordChargeOutcome(id, november, 1, 1, domain.Outcome{Class: domain.Paid, ChargeID: "ch_" + string(id), IntentID: "pi_" + string(id), Money: fifty, Source: domain.SourceAnswer})),
		commands.Of(commands.NewRefundCharge(id, november, "r-1", 700, "")))
}

// verified is what a check finds, a line a difference.
func (h *house) verified() (verify.Report, []string) {
	h.t.Helper()
	var found []string
	report, err := verify.Database(h.t.Context(), h.Pool, verify.Options{Found: func(d verify.Difference) {
		if d.Remedy == "" {
			h.t.Errorf("%+v has no remedy", d)
		}
		found = append(found, d.Kind+": "+d.About+": "+d.Detail)
	}})
	if err != nil {
		h.t.Fatal(err)
	}
	if int(report.Differences) != len(found) {
		h.t.Errorf("%d differences are counted, %d told", report.Differences, len(found))
	}
	return report, found
}

func (h *house) exec(statements ...string) {
	h.t.Helper()
	for _, sql := range statements {
		if _, err := h.Pool.Exec(h.t.Context(), sql); err != nil {
			h.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// What processors have not read, or have set aside, is lag; what they have read
// must be right all the same.
func TestLagIsNoDifference(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.month()
	h.dispatch(commands.Of(commands.NewChargeBilling("paid_0", december, fifty)), commands.Of(commands.NewChargeBilling("declined", december, fifty)))
	report, found := h.verified()
	if len(found) > 0 || len(report.Lags) == 0 {
		t.Errorf("behind by two facts: %+v\n%s", report, strings.Join(found, "\n"))
	}
	for _, lag := range report.Lags {
		if lag.Processor == "bills" && lag.Events != 2 {
			t.Errorf("bills lags %+v", lag)
		}
	}
	h.exec(`UPDATE bills SET status = 'requested' WHERE customer_id = 'paid_0'`)
	if _, found := h.verified(); len(found) != 1 || !strings.HasPrefix(found[0], "read-model: bills paid_0 2026-11") {
		t.Errorf("wrong up to its token: %s", strings.Join(found, "\n"))
	}
	h.exec(`UPDATE bills SET status = 'paid' WHERE customer_id = 'paid_0'`)

	poison := projections.Bills.Processor()
	fold := poison.Handler
	poison.MaxAttempts, poison.Backoff = 1, func(int) time.Duration { return time.Millisecond }
	poison.Handler = tracking.HandlerFunc(func(ctx context.Context, page *tracking.Page) error {
		for _, e := range page.Events {
			if e.SequenceKey == "paid_0" {
				return fmt.Errorf("poison")
			}
		}
		return fold.Handle(ctx, page)
	})
	h.processors[5] = poison
	h.deliver()
	report, found = h.verified()
	if len(found) > 0 || len(report.Lags) != 1 || report.Lags[0] != (verify.Lag{Processor: "bills", Events: 1, Customers: 1}) {
		t.Errorf("with a customer set aside: %+v\n%s", report, strings.Join(found, "\n"))
	}
	letters, err := tracking.Letters(t.Context(), h.Pool, tracking.LetterFilter{Processor: "bills"})
	if err != nil || len(letters) != 1 {
		t.Fatalf("letters %+v, %v", letters, err)
	}
	if err := tracking.Skip(t.Context(), h.Pool, "bills", "paid_0", letters[0].Place.Position, "tester", "it is poison"); err != nil {
		t.Fatal(err)
	}
	report, found = h.verified()
	if len(found) > 0 || len(report.Lags) != 1 || report.Lags[0].Customers != 0 {
		t.Errorf("with a letter skipped: %+v\n%s", report, strings.Join(found, "\n"))
	}
}

// A check changes nothing, and meets a moment of its own however much is
// appended and folded meanwhile.
func TestVerifyWhileTheServiceRuns(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.month()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() {
		ended <- tracking.New(h.Pool, h.Store, tracking.Options{Poll: 20 * time.Millisecond}).Run(ctx, h.processors...)
	}()
	go func() {
		for n := 0; ctx.Err() == nil; n++ {
			id := domain.CustomerID(fmt.Sprintf("more_%d", n))
			for _, r := range []commands.Request{commands.Of(commands.NewRegisterCustomer(id, "cus_1", "pm_1")), commands.Of(commands.NewChargeBilling(id, november, fifty))} {
				if _, err := h.d.Dispatch(ctx, r, commands.Context{}); err != nil && ctx.Err() == nil {
					ended <- err
					return
				}
			}
		}
		ended <- nil
	}()
	for range 4 {
		if report, found := h.verified(); len(found) > 0 {
			t.Errorf("%+v\n%s", report, strings.Join(found, "\n"))
		}
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	// A session's temporary tables go a moment after its connection.
	for end, temporary := time.Now().Add(time.Minute), 1; temporary > 0; time.Sleep(10 * time.Millisecond) {
		if err := h.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relkind = 'r'`).Scan(&temporary); err != nil || time.Now().After(end) {
			t.Fatalf("%d temporary tables are left, %v", temporary, err)
		}
	}
}
