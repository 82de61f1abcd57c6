package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/billonce/billonce/cmd/internal/portfile"
	"github.com/billonce/billonce/cmd/internal/unreadable"
	"github.com/billonce/billonce/cmd/spendproxy/internal/admin"
	"github.com/billonce/billonce/cmd/spendproxy/internal/clock"
	"github.com/billonce/billonce/cmd/spendproxy/internal/config"
	"github.com/billonce/billonce/cmd/spendproxy/internal/ledger"
	"github.com/billonce/billonce/cmd/spendproxy/internal/proxy"
	"github.com/billonce/billonce/cmd/spendproxy/internal/stripekey"
)

// App is the whole proxy as a value, so that a test can own one.
type App struct {
	settings config.Config
	log      *slog.Logger
	pool     *pgxpool.Pool
	ledger   *ledger.Ledger
	proxy    *proxy.Proxy
	metrics  http.Handler
	crowd    *crowd
	admin    http.Handler

	api, side net.Listener // side is the admin API's own; nil: it is on api
}

// Open brings up every part: database, ledger, front, listeners. Nothing runs
// yet. Close undoes it.
func Open(ctx context.Context, settings config.Config, log *slog.Logger) (_ *App, err error) {
	a := &App{settings: settings, log: log}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	a.crowd = newCrowd(settings.IdleConnections, registry)
	if err := stripekey.Watch(settings.Key.Reveal(), log, registry); err != nil {
		return nil, fmt.Errorf("watch the upstream key: %w", err)
	}
	if err := ledger.Migrate(ctx, settings.Database.Reveal()); err != nil {
		return nil, err
	}
	if err := a.openPool(ctx); err != nil {
		return nil, err
	}
	var now func(context.Context) (time.Time, error)
	if settings.ClockURL != "" {
		now = clock.New(settings.ClockURL).Now
	}
	a.ledger = ledger.New(a.pool, ledger.Options{Now: now, AuditKeep: settings.AuditKeep, Log: log, Registry: registry})
	a.proxy = proxy.New(a.ledger, proxy.Upstream{Base: settings.Upstream, Key: settings.Key.Reveal(), Timeout: settings.Timeout}, now, log, registry)
	a.admin = admin.New(a.ledger, settings.Tokens, log)
	if err := a.listen(); err != nil {
		return nil, err
	}
	if settings.Tokens.Admin == "" {
		log.Warn("SPENDPROXY_ADMIN_TOKEN is not set: the admin API is off for people")
	}
	log.Info("spendproxy is up", "address", "http://"+a.Address(), "admin", "http://"+a.AdminAddress(), "upstream", settings.Upstream.String(), "stripe_version", proxy.APIVersion)
	return a, nil
}

// openPool opens connections that a frozen or vanished replica cannot keep
// locks with for ever.
func (a *App) openPool(ctx context.Context) error {
	c, err := pgxpool.ParseConfig(a.settings.Database.Reveal())
	if err != nil {
		return errors.New("SPENDPROXY_DATABASE_URL cannot be read") // the parser's own words may quote the password
	}
	c.MaxConns = int32(a.settings.DBPool)
	c.MaxConnIdleTime = 5 * time.Minute
	for name, value := range map[string]string{
		"application_name":                    "spendproxy",
		"default_transaction_isolation":       "read committed",
		"idle_in_transaction_session_timeout": "15s",
		"tcp_keepalives_idle":                 "10",
		"tcp_keepalives_interval":             "5",
		"tcp_keepalives_count":                "3",
		// Statements over arrays look cheaper to plan anew each time than they are.
		"plan_cache_mode": "force_generic_plan",
		"jit":             "off",
	} {
		if _, set := c.ConnConfig.RuntimeParams[name]; !set {
			c.ConnConfig.RuntimeParams[name] = value
		}
	}
	a.pool, err = pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	return nil
}

// listen opens the listeners and writes the port file.
func (a *App) listen() (err error) {
	if a.api, err = net.Listen("tcp", a.settings.Listen); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if a.settings.AdminListen != "" {
		if a.side, err = net.Listen("tcp", a.settings.AdminListen); err != nil {
			return fmt.Errorf("listen for the admin API: %w", err)
		}
	}
	if a.settings.PortFile == "" {
		return nil
	}
	content, _ := json.Marshal(map[string]any{"api": "http://" + a.Address(), "admin": "http://" + a.AdminAddress(), "pid": os.Getpid()})
	return portfile.Write(a.settings.PortFile, append(content, '\n'))
}

// Address is where callers with vault keys are served, host:port.
func (a *App) Address() string { return a.api.Addr().String() }

// AdminAddress is where the admin API is served, host:port.
func (a *App) AdminAddress() string {
	if a.side == nil {
		return a.Address()
	}
	return a.side.Addr().String()
}

// Run serves until ctx ends or a part fails. Then it takes no more calls, and
// those under way finish within the grace time; what has no answer then stays
// held. It returns nil on an ordered stop.
func (a *App) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The ledger's writers stop last: calls under way are still booked.
	books, closeBooks := context.WithCancel(context.WithoutCancel(ctx))
	defer closeBooks()
	var writers, parts sync.WaitGroup
	writers.Go(func() {
		if err := a.ledger.Run(books); err != nil {
			stop(fmt.Errorf("ledger: %w", err))
		}
	})
	parts.Go(func() {
		if err := a.proxy.Run(ctx); err != nil {
			stop(fmt.Errorf("proxy: %w", err))
		}
	})
	var servers []*http.Server
	serve := func(l net.Listener, h http.Handler) {
		s := newServer(h, a.log)
		a.crowd.watch(s)
		servers = append(servers, s)
		parts.Go(func() {
			if err := s.Serve(unreadable.Listener(l, proxy.Unreadable)); !errors.Is(err, http.ErrServerClosed) {
				stop(fmt.Errorf("serve: %w", err))
			}
		})
	}
	if a.side == nil {
		serve(a.api, a.handler(a.proxy, a.admin))
	} else {
		serve(a.api, a.handler(a.proxy, nil))
		serve(a.side, a.handler(a.admin, a.admin))
	}
	<-ctx.Done()
	a.log.Info("spendproxy is stopping", "grace", a.settings.Grace)
	a.shutdown(context.WithoutCancel(ctx), servers)
	parts.Wait()
	closeBooks()
	writers.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (a *App) shutdown(ctx context.Context, servers []*http.Server) {
	ctx, cancel := context.WithTimeout(ctx, a.settings.Grace)
	defer cancel()
	var all sync.WaitGroup
	for _, s := range servers {
		all.Go(func() {
			if err := s.Shutdown(ctx); err != nil {
				a.log.Error("calls were still under way when the grace time ended; what they reserved stays held", "error", err)
				_ = s.Close()
			}
		})
	}
	all.Wait()
}

// Close closes what Open opened and removes the port file.
func (a *App) Close() {
	for _, l := range []net.Listener{a.api, a.side} {
		if l != nil {
			_ = l.Close()
		}
	}
	if a.settings.PortFile != "" && a.api != nil {
		_ = os.Remove(a.settings.PortFile)
	}
	if a.proxy != nil {
		a.proxy.Close()
	}
	if a.pool != nil {
		a.pool.Close()
	}
}
