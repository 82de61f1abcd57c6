package sagas_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/stripesim/sim"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pgtest"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/stripegateway"
	"github.com/billonce/billonce/sagas/vault"
)

// rig is a world: a database, a stand-in for Stripe, and as many services as a
// test wants, alive and dead.
type rig struct {
	t      testing.TB
	pool   *pgxpool.Pool
	stripe *sim.Server
	log    *slog.Logger
}

// timeouts of the tests: calls are answered in milliseconds unless a fault
// says otherwise.
const (
	testTimeout = 1500 * time.Millisecond
	testLease   = 2 * time.Second
)

var november = domain.PeriodOf(domain.Monthly, 2026, 11)

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return rigOn(t, pgtest.Pool(t))
}

func rigOn(t testing.TB, pool *pgxpool.Pool) *rig {
	t.Helper()
	stripe, err := sim.Start(sim.Options{Clock: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatalf("start the stand-in: %v", err)
	}
	t.Cleanup(func() { stripe.Close() })
	var out io.Writer = io.Discard
	if os.Getenv("TEST_LOG") != "" {
		out = t.Output()
	}
	return &rig{t: t, pool: pool, stripe: stripe, log: slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelInfo}))}
}

// service is one replica.
type service struct {
	*rig
	store     *eventstore.Store
	d         *commands.Dispatcher
	collector *sagas.Collector
	scanner   *sagas.DueScanner
	timers    *sagas.Timers
	runtime   *tracking.Runtime
	registrar *sagas.Registrar
	stop      func()
}

// options of a service.
type options struct {
	gateway     func(sagas.Gateway) sagas.Gateway // wraps the real one
	pool        *pgxpool.Pool
	timeout     time.Duration
	lease       time.Duration
	concurrency int
	noCollector bool

	noProcessors bool // it only takes commands

	environment string
	account     func(context.Context) (string, error)

	proxy *proxy // the spend proxy; nil: none

	dunning domain.DunningDays
}

// start brings a replica up. Stop, or the end of the test, takes it down in
// order; kill does not.
func (r *rig) start(o options) *service {
	r.t.Helper()
	if o.pool == nil {
		o.pool = r.pool
	}
	if o.timeout == 0 {
		o.timeout = testTimeout
	}
	if o.lease == 0 {
		o.lease = o.timeout + testLease - testTimeout
	}
	if o.concurrency == 0 {
		o.concurrency = 16
	}
	store := eventstore.New(o.pool, eventstore.NewCodec(domain.Events()), r.log)
	d := commands.NewDispatcher(store)
	clock := sagas.ControlClock(r.stripe.ControlURL + "/control/clock")
	config := stripegateway.Config{BaseURL: r.stripe.APIURL, Key: "sk_test_rig", Timeout: o.timeout, Log: r.log}
	var keys *sagas.RunKeys
	var client *vault.Client
	if o.proxy != nil {
		client = o.proxy.client()
		keys = sagas.NewRunKeys(client, o.pool, clock, "test")
		config.BaseURL, config.Key, config.Runs = o.proxy.URL, baseKey, keys
	}
	real, err := stripegateway.New(config)
	if err != nil {
		r.t.Fatalf("open the gateway: %v", err)
	}
	var gateway sagas.Gateway = real
	if o.gateway != nil {
		gateway = o.gateway(gateway)
	}
	collector, err := sagas.NewCollector(sagas.CollectorConfig{
		Concurrency: o.concurrency, Timeout: o.timeout, Lease: o.lease, Poll: 50 * time.Millisecond, Actor: "collector",
		Environment: o.environment, Account: o.account, Keys: keys,
	}, d, gateway, clock, r.log)
	if err != nil {
		r.t.Fatalf("make the collector: %v", err)
	}
	s := &service{
		rig: r, store: store, d: d, collector: collector,
		scanner: sagas.NewDueScanner(d, clock, 20*time.Millisecond, r.log),
		timers:  sagas.NewTimers(d, clock, o.dunning, 20*time.Millisecond, r.log),
		runtime: tracking.New(o.pool, store, tracking.Options{Log: r.log, Poll: 50 * time.Millisecond}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	if o.noProcessors {
		s.stop = sync.OnceFunc(func() {
			cancel()
			store.Close()
		})
		r.t.Cleanup(s.stop)
		return s
	}
	register := func() {}
	if o.proxy != nil {
		s.registrar = sagas.NewRegistrar(client, keys, o.pool, clock, 50*time.Millisecond, collector.Environment().Ready, collector.Wake, r.log)
		register = s.registrar.Wake
		parts.Go(func() { _ = s.registrar.Run(ctx) })
	}
	parts.Go(func() {
		if err := s.runtime.Run(ctx, sagas.Billing.Processor(d), sagas.Preflight(collector.Wake), sagas.Schedule(d), sagas.Manifest(register, collector.Wake)); err != nil {
			r.t.Errorf("processors: %v", err)
		}
	})
	parts.Go(func() { _ = s.scanner.Run(ctx) })
	parts.Go(func() { _ = s.timers.Run(ctx) })
	if !o.noCollector {
		parts.Go(func() {
			if err := collector.Run(ctx, 5*time.Second); err != nil {
				r.t.Errorf("collector: %v", err)
			}
		})
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		parts.Wait()
		store.Close()
	})
	r.t.Cleanup(s.stop)
	return s
}

func (s *service) send(req commands.Request) (eventstore.Receipt, error) {
	s.t.Helper()
	return s.d.Dispatch(s.t.Context(), req, commands.Context{Meta: eventstore.Meta{Actor: "test"}})
}

func (s *service) must(req commands.Request) eventstore.Receipt {
	s.t.Helper()
	receipt, err := s.send(req)
	if err != nil {
		s.t.Fatalf("%s: %v", req.Name(), err)
	}
	return receipt
}

func usd(minor int64) domain.Money { return domain.Money{Minor: minor, Currency: "usd"} }

// register makes customers known, each with a card.
func (s *service) register(method string, ids ...domain.CustomerID) {
	s.t.Helper()
	for _, id := range ids {
		s.must(commands.Of(commands.NewRegisterCustomer(id, "cus_"+strings.ReplaceAll(string(id), "-", ""), method)))
	}
}

// owe registers customers and asks for their November bills, 50.00 each.
func (s *service) owe(ids ...domain.CustomerID) {
	s.t.Helper()
	s.register("pm_card_visa", ids...)
	for _, id := range ids {
		s.charge(id, november)
	}
}

// november makes so many subscribers and lets their November be billed.
func (s *service) november(n int) []domain.CustomerID {
	s.t.Helper()
	ids := customers(n)
	s.register("pm_card_visa", ids...)
	for _, id := range ids {
		s.must(activate(id))
	}
	s.once(november, ids...)
	return ids
}

func (s *service) charge(id domain.CustomerID, p domain.Period) {
	s.t.Helper()
	s.must(commands.Of(commands.NewChargeBilling(id, p, usd(5000))))
}

func customers(n int) []domain.CustomerID {
	ids := make([]domain.CustomerID, n)
	for i := range ids {
		ids[i] = domain.CustomerID(fmt.Sprintf("cust-%03d", i))
	}
	return ids
}

// eventually waits for a condition; what is said in the failure is read then.
func (r *rig) eventually(what string, met func() bool) {
	r.t.Helper()
	r.within(90*time.Second, what, met)
}

func (r *rig) within(limit time.Duration, what string, met func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(limit)
	for !met() {
		if time.Now().After(deadline) {
			r.t.Fatalf("gave up waiting: %s\n%s", what, r.describe())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// describe shows where rows stand, for a failed test.
func (r *rig) describe() string {
	rows, err := r.pool.Query(context.Background(), `SELECT customer_id || ' ' || billing_period || ' ' || state || ' attempt ' || attempt || ' start ' || start || ' tries ' || tries || ' ' || coalesce(outcome->>'reason', '') FROM billing_records WHERE state <> 'succeeded' LIMIT 20`)
	if err != nil {
		return err.Error()
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var line string
		if rows.Scan(&line) == nil {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// state is the state of a bill's row, or "" if there is none.
func (r *rig) state(id domain.CustomerID, p domain.Period) (state string) {
	_ = r.pool.QueryRow(context.Background(), `SELECT state FROM billing_records WHERE customer_id = $1 AND billing_period = $2`, string(id), p.String()).Scan(&state)
	return state
}

func (r *rig) awaitState(id domain.CustomerID, p domain.Period, state string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s %s is %s", id, p, state), func() bool { return r.state(id, p) == state })
}

// count runs a query that counts.
func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// charged is how often the stand-in took money for a bill.
func (r *rig) charged(id domain.CustomerID, p domain.Period) (n int) {
	for _, m := range r.stripe.Ledger() {
		if m.Status == "succeeded" && m.Metadata["customer_id"] == string(id) && m.Metadata["billing_period"] == p.String() {
			n++
		}
	}
	return n
}

// once checks the outcome that every crash must have: one charge of the right
// amount at the stand-in, one billed fact that names it, a final row.
func (r *rig) once(p domain.Period, ids ...domain.CustomerID) {
	r.t.Helper()
	for _, id := range ids {
		r.awaitState(id, p, "succeeded")
	}
	ledger := map[string]string{}
	for _, m := range r.stripe.Ledger() {
		if m.Status != "succeeded" || m.Metadata["billing_period"] != p.String() {
			continue
		}
		id := m.Metadata["customer_id"]
		if ledger[id] != "" {
			r.t.Errorf("%s is charged twice for %s: %s and %s", id, p, ledger[id], m.Charge)
		}
		ledger[id] = m.Charge
		if m.Amount != 5000 || m.Currency != "usd" {
			r.t.Errorf("%s is charged %d %s", id, m.Amount, m.Currency)
		}
	}
	for _, id := range ids {
		var charge string
		n := 0
		rows, err := r.pool.Query(r.t.Context(), `SELECT payload->>'charge_id' FROM events WHERE stream_id = $1 AND event_type = 'customer.billed.v1' AND payload->>'billing_period' = $2`, string(id.Stream()), p.String())
		if err != nil {
			r.t.Fatal(err)
		}
		for rows.Next() {
			n++
			if err := rows.Scan(&charge); err != nil {
				r.t.Fatal(err)
			}
		}
		if rows.Close(); n != 1 || charge != ledger[string(id)] || charge == "" {
			r.t.Errorf("%s %s: %d billed facts, the last with charge %q; the ledger has %q", id, p, n, charge, ledger[string(id)])
		}
	}
}

func is(err, target error) bool { return errors.Is(err, target) }
