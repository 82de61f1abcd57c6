package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/billonce/billonce/cmd/billingd/internal/api"
	"github.com/billonce/billonce/cmd/billingd/internal/config"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/pglocal"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/migrations"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/sagas"
	"github.com/billonce/billonce/sagas/stripegateway"
	"github.com/billonce/billonce/sagas/vault"
)

// App is the whole service as a value, so that a test can own one.
type App struct {
	settings  config.Config
	log       *slog.Logger
	server    *pglocal.Server // the embedded PostgreSQL; nil where there is none
	pool      *pgxpool.Pool
	store     *eventstore.Store
	runtime   *tracking.Runtime
	allowance *sagas.Allowance
	collector *sagas.Collector
	scanner   *sagas.DueScanner
	timers    *sagas.Timers
	inbox     *sagas.Inbox
	reconcile *sagas.Reconciler
	refunds   *sagas.Refunds
	vault     *vault.Client    // nil: no spend proxy that knows of runs
	keys      *sagas.RunKeys   // likewise
	registrar *sagas.Registrar // likewise
	api       *api.Server
	listener  net.Listener

	processors []tracking.Processor
	writes     writes
	connected  atomic.Pointer[func()] // called for every new connection to the database
}

// database is the embedded server's.
const database = "billonce"

// dueEvery is how often the schedule is looked at.
const dueEvery = 500 * time.Millisecond

// Open brings up every part, in the order of the floors: database, log,
// commands, sagas, projections, API. Nothing runs yet. Close undoes it.
func Open(ctx context.Context, settings config.Config, log *slog.Logger) (a *App, err error) {
	a = &App{settings: settings, log: log}
	defer func(opened *App) { // by then a failed return has made a nil
		if err != nil {
			opened.Close()
		}
	}(a)
	dsn, err := a.openDatabase(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.openPool(ctx, dsn); err != nil {
		return nil, err
	}
	// Whether there is anything to migrate is asked first: a start that finds
	// its schema needs no lock and no connections besides.
	if applied, err := migrations.Applied(ctx, a.pool); err != nil || !applied {
		if err := migrations.Up(ctx, dsn); err != nil {
			return nil, err
		}
		a.writes.forget() // it asked a new database for a table that came only now
	}
	if err := a.raisePositions(ctx, a.pool); err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	a.store = eventstore.New(a.pool, eventstore.Current(), log)
	dispatcher := commands.NewDispatcher(a.store)
	forget := dispatcher.Forget
	a.connected.Store(&forget)

	clock := sagas.DatabaseClock(a.pool)
	if settings.ClockURL != "" {
		clock = sagas.ControlClock(settings.ClockURL)
	}
	a.openProxy(clock)
	gateway, err := stripegateway.New(a.gatewayConfig())
	if err != nil {
		return nil, fmt.Errorf("open the Stripe gateway: %w", err)
	}
	a.allowance = sagas.NewAllowance(settings.StripeRate, settings.StripeEndpointRate)
	a.collector, err = sagas.NewCollector(sagas.CollectorConfig{
		Concurrency: settings.Concurrency, Timeout: settings.StripeTimeout, Lease: settings.Lease,
		Poll: settings.Poll, Allowance: a.allowance, LookSince: settings.LookSince, Actor: "collector",
		Environment: settings.Environment, Account: accountOf(gateway), Keys: a.keys,
	}, dispatcher, gateway, clock, log)
	if err != nil {
		return nil, err
	}
	a.openRegistrar(clock, registry)
	a.scanner = sagas.NewDueScanner(dispatcher, clock, min(dueEvery, settings.Poll), log)
	a.timers = sagas.NewTimers(dispatcher, clock, settings.DunningDays, min(dueEvery, settings.Poll), log)
	hooks, err := a.openNews(dispatcher, gateway, clock, registry)
	if err != nil {
		return nil, err
	}
	a.runtime = tracking.New(a.pool, a.store, tracking.Options{Log: log, Workers: 1, Poll: settings.Poll, Registry: registry,
		Heard: func(partitions uint64) { a.api.Heard(partitions) }})
	a.processors = []tracking.Processor{sagas.Billing.Processor(dispatcher), sagas.Preflight(a.collector.Wake), sagas.Schedule(dispatcher), sagas.RefundPreflight(a.refunds.Wake),
		sagas.Manifest(a.register, a.collector.Wake)}
	for _, p := range projections.All() {
		a.processors = append(a.processors, p.Processor())
	}
	running := make([]string, len(a.processors))
	for i, p := range a.processors {
		running[i] = p.Name
	}
	registerMetrics(registry, a.collector, a.store, &a.writes)
	troubles := a.troubles()
	registerRunMetrics(registry, a.collector, troubles)
	stuck := a.stuck()
	registry.MustRegister(newWaitMetrics(stuck))

	a.api, err = api.New(api.Deps{
		Dispatcher: dispatcher, Reads: projections.NewReads(a.store), Processors: a.runtime.Status, Running: running, Clock: clock.Now,
		Environment: api.Environment{Standing: a.collector.Environment().Standing, Adopt: a.collector.Adopt},
		Ready:       []api.Check{{Name: "environment", Run: func(context.Context) error { return a.collector.Environment().Ready() }}, {Name: "look", Run: func(context.Context) error { return a.looked() }}, {Name: "writes", Run: a.writes.check}},
		Webhooks:    hooks, Reconciler: a.reconcile, Scanner: a.scanner, Troubles: troubles, Stuck: stuck, Verdicts: a.verdicts(),
		Tokens: settings.Tokens, Metrics: registry, Log: log, Version: version(),
	}, api.Limits{})
	if err != nil {
		return nil, fmt.Errorf("make the API: %w", err)
	}
	a.listener, err = api.Listen(settings.Listen, settings.PortFile)
	if err != nil {
		return nil, err
	}
	if settings.Tokens.Open() {
		log.Warn("BILLING_TOKENS is not set: reading and dispatching are open on loopback, operating is off")
	}
	if settings.WebhookSecret.IsZero() {
		log.Warn("STRIPE_WEBHOOK_SECRET is not set: webhooks are off, and late news waits for the reconciler")
	}
	log.Info("billingd is up", "address", "http://"+a.listener.Addr().String(), "environment", settings.Environment, "version", version())
	return a, nil
}

// gatewayConfig is how Stripe is called: with a run's vault key for its money,
// where there is a spend proxy that knows of runs.
func (a *App) gatewayConfig() stripegateway.Config {
	s := a.settings
	c := stripegateway.Config{
		API: s.StripeAPI, BaseURL: s.StripeBase, Key: s.StripeKey.Reveal(), RefundKey: s.RefundKey.Reveal(), Timeout: s.StripeTimeout,
		Log: a.log, MaxConns: s.Concurrency + 4, Rate: s.StripeRate, EndpointRate: s.StripeEndpointRate,
	}
	if a.keys != nil {
		c.Runs = a.keys
	}
	return c
}

// mayCallStripe says why no money may be moved from this database now: it is
// not the one it is taken for, or Stripe may hold what the log does not know.
func (a *App) mayCallStripe() error {
	if err := a.collector.Environment().Ready(); err != nil {
		return err
	}
	return a.looked()
}

func (a *App) looked() error {
	look := a.collector.Look()
	if look.Completed() {
		return nil
	}
	err := errors.New("the look at what Stripe holds is not complete; nothing is collected before it is")
	if why := look.Trouble(); why != "" {
		return fmt.Errorf("%w: %s", err, why)
	}
	return err
}

// openDatabase gives the address of the database, starting one of our own
// where none is configured.
func (a *App) openDatabase(ctx context.Context) (dsn string, err error) {
	if !a.settings.DatabaseURL.IsZero() {
		return a.settings.DatabaseURL.Reveal(), nil
	}
	a.server, err = pglocal.Start(ctx, pglocal.Options{DataDir: a.settings.DataDir, Log: a.log})
	if err != nil {
		return "", err
	}
	return a.server.EnsureDatabase(ctx, database)
}

// openPool opens connections that a frozen or vanished replica cannot keep
// locks with for ever.
func (a *App) openPool(ctx context.Context, dsn string) error {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return errors.New("DATABASE_URL cannot be read") // the parser's own words may quote the password
	}
	config.MaxConns = int32(a.settings.DBPool)
	config.ConnConfig.Tracer = &a.writes
	config.MaxConnIdleTime = 5 * time.Minute
	// A new connection may lead to another database than the last one did: a
	// restored one, which knows less than this process remembers.
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		forget := a.connected.Load()
		if forget == nil {
			return nil
		}
		(*forget)()
		return a.raisePositions(ctx, conn)
	}
	// A session that was opened while the database took no writes would take none
	// for ever, though the database does again, or another server has its place.
	config.AfterRelease = func(conn *pgx.Conn) bool {
		said := conn.PgConn().ParameterStatus
		return said("default_transaction_read_only") != "on" && said("in_hot_standby") != "on"
	}
	session := eventstore.KeyedPlans()
	maps.Copy(session, map[string]string{
		"application_name":                    "billingd",
		"default_transaction_isolation":       "read committed",
		"idle_in_transaction_session_timeout": "15s",
		"tcp_keepalives_idle":                 "10",
		"tcp_keepalives_interval":             "5",
		"tcp_keepalives_count":                "3",
	})
	for name, value := range session {
		if _, set := config.ConnConfig.RuntimeParams[name]; !set {
			config.ConnConfig.RuntimeParams[name] = value
		}
	}
	a.pool, err = pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	return nil
}

// raisePositions keeps a database whose sequence has gone back from giving facts
// places that have been read.
func (a *App) raisePositions(ctx context.Context, q eventstore.Querier) error {
	passed, err := eventstore.RaisePositions(ctx, q)
	if passed > 0 {
		a.log.Error("the sequence of positions was behind the log: it was restored or promoted without it; it has been raised", "positions", passed)
	}
	return err
}

// Address is where the API listens, host:port.
func (a *App) Address() string { return a.listener.Addr().String() }

// Run keeps every part going until ctx ends or one of them fails; then all
// stop: the API and the collector finish what is under way within the grace
// time, the processors finish their pages. It returns nil on an ordered stop.
func (a *App) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	grace := a.settings.Grace
	var parts sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{
		"http":       func(ctx context.Context) error { return a.api.Run(ctx, a.listener, grace) },
		"processors": func(ctx context.Context) error { return a.runtime.Run(ctx, a.processors...) },
		"collector":  func(ctx context.Context) error { return a.collector.Run(ctx, grace*9/10) },
		"scheduler":  a.scanner.Run,
		"timers":     a.timers.Run,
		"inbox":      a.inbox.Run,
		"reconciler": a.reconcile.Run,
		"registrar":  a.runRegistrar,
		"refunds":    func(ctx context.Context) error { return a.refunds.Run(ctx, grace*9/10) },
	} {
		parts.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	parts.Wait()
	a.log.Info("billingd has stopped")
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Close gives back what Open took.
func (a *App) Close() {
	if a.api != nil {
		a.api.Close()
	}
	if a.listener != nil {
		a.listener.Close()
	}
	if a.vault != nil {
		a.vault.Close()
	}
	if a.store != nil {
		a.store.Close()
	}
	if a.pool != nil {
		a.pool.Close()
	}
	if a.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := a.server.Stop(ctx); err != nil {
			a.log.Warn("the embedded PostgreSQL did not stop in order", "error", err)
		}
	}
}

// accountOf is how the gateway tells whose account its key belongs to; nil if
// it cannot.
func accountOf(gateway any) func(context.Context) (string, error) {
	if g, ok := gateway.(interface {
		Account(context.Context) (string, error)
	}); ok {
		return g.Account
	}
	return nil
}

// registerMetrics shows what the collector and the log count.
func registerMetrics(registry *prometheus.Registry, c *sagas.Collector, s *eventstore.Store, w *writes) {
	commits := func(path string, read func() float64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "billonce", Name: "commits_total", Help: tracking.CommitsHelp, ConstLabels: prometheus.Labels{"path": path},
		}, read))
	}
	commits("money", func() float64 { return float64(c.Stats().Commits) })
	commits("append", func() float64 { return float64(s.Commits()) })
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "billonce", Name: "bills_decided_total", Help: "Bills that the collector of this process has decided."},
			func() float64 { return float64(c.Stats().Settled) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "billonce", Name: "database_round_trips_total", Help: "Statements and batches that this process has sent to the database."},
			func() float64 { return float64(w.trips.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "billonce", Name: "bills_in_flight", Help: "Bills that the collector of this process is working on."},
			func() float64 { return float64(c.Stats().InFlight) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "billonce", Name: "environment_fits", Help: "1 if the database is the one that it is taken for; 0: nothing is collected."},
			func() float64 {
				if c.Environment().Ready() != nil {
					return 0
				}
				return 1
			}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "billonce", Name: "look_seconds_total", Help: "How long the look at what Stripe holds has been reading and comparing."},
			func() float64 { return c.Look().Spent().Seconds() }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "billonce", Name: "adopted_total", Help: "Objects at Stripe that the log did not know of and that were adopted."},
			func() float64 { return float64(c.Look().Adopted()) }),
	)
}

// version is the build's version, as the Go tool recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
