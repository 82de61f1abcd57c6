package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/cmd/internal/portfile"
	"github.com/billonce/billonce/cmd/internal/unreadable"
	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
	"github.com/billonce/billonce/eventstore/tracking"
	"github.com/billonce/billonce/projections"
	"github.com/billonce/billonce/sagas"
)

// Deps is what the API serves. All of it is required but Ready, Webhooks, Reconciler,
// Scanner, Troubles, Stuck, Verdicts and Version.
type Deps struct {
	Dispatcher *commands.Dispatcher
	Reads      projections.Reads
	// Processors tells how the processors stand.
	Processors func(context.Context) ([]tracking.ProcessorStatus, error)
	// Running names the processors that this instance runs, and whose lag
	// decides whether it is ready. Empty: all that have ever run.
	Running []string
	// Clock is business time, for commands that say when.
	Clock func(context.Context) (time.Time, error)
	// Ready are the checks of readiness beside the API's own: that the database
	// can be written and that the processors are not behind.
	Ready []Check
	// Webhooks takes Stripe's deliveries; the zero value refuses them.
	Webhooks Webhooks
	// Reconciler compares the books; without it, that is not served.
	Reconciler *sagas.Reconciler
	// Scanner declares what is due when somebody starts a run by hand; without it,
	// that is not served.
	Scanner *sagas.DueScanner
	// Troubles lists the runs that wait for somebody: the service is alive and
	// degraded then. Nil: none are known of.
	Troubles func(context.Context) ([]sagas.RunTrouble, error)
	// Stuck counts what else waits for somebody. Nil: nothing is known of.
	Stuck func(context.Context) (Stuck, error)
	// Verdicts lists what the spend proxy decided about a bill's calls. Nil:
	// there is no proxy.
	Verdicts func(context.Context, domain.CustomerID, domain.Period) ([]sagas.Verdict, error)
	// Environment is the database's identity; without it, it is not served.
	Environment Environment
	Tokens      access.Tokens
	// Metrics takes the API's metrics and is what /metrics shows.
	Metrics *prometheus.Registry
	Log     *slog.Logger
	Version string
}

// Limits bound what a caller may take up. The zero value of each is its
// default.
type Limits struct {
	Body     int64         // bytes of a body, or of a line of a batch: 1 MiB
	BodyTime time.Duration // in which a body, or such a line, must arrive: 10 s
	Header   time.Duration // in which the request's header must arrive: 5 s
	Write    time.Duration // in which the caller must take what is written: 30 s
	Idle     time.Duration // between two requests of a connection: 2 min
	Dispatch time.Duration // of deciding and recording one command: 15 s
	Lag      time.Duration // of the processors of an instance that is ready: 1 min

	Readers   int64         // of the feed at a time: 100
	Heartbeat time.Duration // of a feed without news: 15 s
}

func (l Limits) withDefaults() Limits {
	fill := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	if l.Body == 0 {
		l.Body = 1 << 20
	}
	fill(&l.BodyTime, 10*time.Second)
	fill(&l.Header, 5*time.Second)
	fill(&l.Write, 30*time.Second)
	fill(&l.Idle, 2*time.Minute)
	fill(&l.Dispatch, 15*time.Second)
	fill(&l.Lag, time.Minute)
	if l.Readers == 0 {
		l.Readers = 100
	}
	fill(&l.Heartbeat, 15*time.Second)
	return l
}

// headerBytes bounds a request's header.
const headerBytes = 32 << 10

// Server is the HTTP API.
type Server struct {
	dispatcher *commands.Dispatcher
	gateway    *commands.Gateway
	store      *eventstore.Store
	reads      projections.Reads
	processors func(context.Context) ([]tracking.ProcessorStatus, error)
	running    []string
	clock      func(context.Context) (time.Time, error)
	ready      []Check
	troubles   func(context.Context) ([]sagas.RunTrouble, error)
	stuck      func(context.Context) (Stuck, error)
	verdicts   func(context.Context, domain.CustomerID, domain.Period) ([]sagas.Verdict, error)
	tokens     access.Tokens
	log        *slog.Logger
	limits     Limits

	mux      *router
	huma     huma.API
	metrics  *metrics
	bell     bell
	readers  atomic.Int64  // of the feed
	reading  chan struct{} // a slot for each page of the feed that is read
	draining chan struct{} // closed when the service is about to stop
	stop     func()
}

// New makes the API. It serves once [Server.Run] is called, or as an
// http.Handler. Close it when it is not run.
func New(d Deps, limits Limits) (*Server, error) {
	s := &Server{
		dispatcher: d.Dispatcher, store: d.Dispatcher.Log(), reads: d.Reads, processors: d.Processors, running: d.Running, clock: d.Clock,
		ready: d.Ready, troubles: d.Troubles, stuck: d.Stuck, verdicts: d.Verdicts, tokens: d.Tokens, log: d.Log, limits: limits.withDefaults(),
		mux: &router{ServeMux: http.NewServeMux()}, draining: make(chan struct{}), reading: make(chan struct{}, feedReads),
	}
	s.gateway = &commands.Gateway{
		Dispatcher: d.Dispatcher,
		Retry:      commands.Exponential{First: 20 * time.Millisecond, Ceiling: 500 * time.Millisecond, Most: 5},
		Wait:       sleep,
	}
	var err error
	if s.metrics, err = newMetrics(d.Metrics, &s.readers); err != nil {
		return nil, err
	}
	s.huma = newHuma(s.mux, d.Version)
	s.huma.UseMiddleware(s.authorize, strict)
	s.registerCommands()
	s.registerBatch()
	s.registerReads()
	s.registerDelivery()
	s.registerWebhooks(d.Webhooks)
	s.registerReconciliations(d.Reconciler)
	s.registerClosing(d.Reconciler)
	s.registerStarting(d.Scanner)
	s.registerEnvironment(d.Environment)
	s.registerService(d.Metrics)
	s.registerFeed()
	s.registerDocument()
	s.stop = s.store.OnAppend(func(added eventstore.Growth) { s.bell.ring(added.Partitions()) })
	return s, nil
}

// Heard tells those who wait of partitions that other processes say have grown.
func (s *Server) Heard(partitions uint64) { s.bell.ring(partitions) }

// Close ends what New has begun.
func (s *Server) Close() { s.stop() }

func (s *Server) isDraining() bool { return isClosed(s.draining) }

// untilDrained is ctx, but ended when the service is about to stop.
func (s *Server) untilDrained(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.draining:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Listen opens an address for [Server.Run] and, if portFile is not empty,
// writes it there as host:port once callers can connect: a parent that gave
// port 0 learns the port. A file left over from another process is removed
// first.
func Listen(address, portFile string) (net.Listener, error) {
	if portFile != "" {
		if err := os.Remove(portFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove the old port file: %w", err)
		}
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if portFile != "" {
		if err := portfile.Write(portFile, []byte(l.Addr().String()+"\n")); err != nil {
			l.Close()
			return nil, fmt.Errorf("write the port file: %w", err)
		}
	}
	return l, nil
}

// Run serves l until ctx ends. Then nothing new is begun: waits are answered
// with what there is, requests that still come are sent elsewhere, and what is
// under way has until grace to end. What has not ended by then is cut off: a
// command's facts are there or not, and its key tells. Run closes l.
func (s *Server) Run(ctx context.Context, l net.Listener, grace time.Duration) error {
	defer s.stop()
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: s.limits.Header,
		IdleTimeout:       s.limits.Idle,
		MaxHeaderBytes:    headerBytes,
		// What net/http has to say quotes callers: it is for a closer look only.
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(unreadable.Listener(l, s.unreadable)) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	close(s.draining)
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := server.Shutdown(shutdown); err != nil {
		s.log.Warn("requests were cut off at the end of the grace time", "grace", grace)
		return server.Close()
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
