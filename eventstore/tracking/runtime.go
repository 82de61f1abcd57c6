package tracking

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/billonce/billonce/eventstore"
)

// Options are the settings of a Runtime. The zero value works.
type Options struct {
	Log *slog.Logger // nil: silent
	// Workers is how many pages of one processor this process handles at once
	// (default 2).
	Workers int
	// Connections is how many pages of all processors this process handles at
	// once, each on a connection of the pool (default: half of the pool).
	Connections int
	// Poll is the time between two scans (default 1 s): the bound of a wake-up
	// that got lost.
	Poll time.Duration
	// Drain is how long the pages under way may take once Run is told to stop
	// (default 20 s). After that their connections are cut.
	Drain time.Duration
	// Registry takes the metrics. Nil: they are counted and not shown.
	Registry prometheus.Registerer
	// Heard is called with the partitions that other processes say have grown,
	// and with all of them whenever that may have been missed. It must be quick.
	Heard func(partitions uint64)
	// Owner names this process in the tokens (default: host, process id and a
	// random part).
	Owner string
}

// Defaults of Options.
const (
	defaultWorkers = 2
	defaultPoll    = time.Second
	defaultDrain   = 20 * time.Second
)

// Runtime runs the processors of a process.
type Runtime struct {
	pool    *pgxpool.Pool
	store   *eventstore.Store
	codec   *eventstore.Codec
	log     *slog.Logger
	owner   string
	workers int
	busy    chan struct{} // a slot for each page under way
	alone   chan struct{} // taken by the one page under way that may be marked
	poll    time.Duration
	heard   func(partitions uint64)
	drain   time.Duration
	metrics *metrics
	commits atomic.Int64

	mu         sync.Mutex
	processors []*processor
	underway   bool // a Run is
}

// processor is a Processor at work in this process.
type processor struct {
	Processor
	unwanted []string
	ready    *readiness
	log      *slog.Logger
	metrics  *metrics

	mu       sync.Mutex
	marked   marking
	failures [eventstore.Partitions]int // in a row, for the back-off
	movement chan struct{}              // closed when a token moves
}

// New makes a runtime for the log in store, whose handlers work on pool.
func New(pool *pgxpool.Pool, store *eventstore.Store, o Options) *Runtime {
	fill(&o.Workers, defaultWorkers)
	fill(&o.Connections, max(1, int(pool.Config().MaxConns)/2))
	fill(&o.Poll, defaultPoll)
	fill(&o.Drain, defaultDrain)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Heard == nil {
		o.Heard = func(uint64) {}
	}
	if o.Owner == "" {
		host, _ := os.Hostname()
		o.Owner = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:6])
	}
	r := &Runtime{
		pool: pool, store: store, codec: store.Codec(), log: o.Log, owner: o.Owner,
		workers: o.Workers, busy: make(chan struct{}, o.Connections), alone: make(chan struct{}, 1), poll: o.Poll, heard: o.Heard, drain: o.Drain,
	}
	r.metrics = newMetrics(r, o.Registry)
	return r
}

// Run runs processors until ctx ends, and then until the pages under way have
// committed or been rolled back. It returns nil after such an ordered stop. It
// waits for a database that is away, and fails at once on a processor that is
// not well formed or a schema that is not there. One Run at a time.
func (r *Runtime) Run(ctx context.Context, processors ...Processor) error {
	if err := r.begin(processors); err != nil {
		return fmt.Errorf("run processors: %w", err)
	}
	defer r.end()
	if err := r.run(ctx); err != nil {
		return fmt.Errorf("run processors: %w", err)
	}
	return nil
}

func (r *Runtime) begin(processors []Processor) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.underway {
		return errors.New("they are running already")
	}
	if len(processors) == 0 {
		return errors.New("there are none")
	}
	running := make([]*processor, 0, len(processors))
	names := map[string]bool{}
	var wrong []error
	for _, p := range processors {
		p, err := p.complete(r.codec)
		if err == nil && names[p.Name] {
			err = fmt.Errorf("processor %q: there are two of this name", p.Name)
		}
		names[p.Name] = true
		wrong = append(wrong, err)
		running = append(running, &processor{
			Processor: p, unwanted: p.Skips(r.codec), ready: newReadiness(p.Pace, time.Now),
			log: r.log.With("processor", p.Name), metrics: r.metrics, movement: make(chan struct{}),
		})
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	r.processors, r.underway = running, true
	return nil
}

func (r *Runtime) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.underway = false
}

func (r *Runtime) run(ctx context.Context) error {
	for _, p := range r.running() {
		if err := r.ensureTokens(ctx, p); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	log := watermill.NewSlogLoggerWithLevelMapping(r.log, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: r.drain}, log)
	if err != nil {
		return err
	}
	db := openDB(r.pool)
	defer db.Close()
	var workers []*worker
	for _, p := range r.running() {
		workersOf := r.workers
		if p.Ordered {
			workersOf = 1
		}
		for n := range workersOf {
			w, err := newWorker(ctx, r, p, db, log)
			if err != nil {
				return err
			}
			w.attach(router, fmt.Sprintf("%s/%d", p.Name, n+1))
			workers = append(workers, w)
		}
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer stop()
	defer r.store.OnAppend(r.wake)()
	heard := make(chan uint64, 1)
	alive := make(chan struct{})
	helpers.Go(func() { r.scanner(ctx, heard) })
	helpers.Go(func() { r.listen(ctx, heard, sync.OnceFunc(func() { close(alive) })) })
	select { // whoever dies is to be seen dead; but a start is not held up for it
	case <-alive:
	case <-time.After(bootTime):
	case <-ctx.Done():
	}
	if err := r.mourn(ctx); err != nil {
		r.log.Warn("whether processes have died could not be read", "error", err)
	}

	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	select {
	case err := <-ended:
		if ctx.Err() == nil {
			return fmt.Errorf("the router ended by itself: %w", err)
		}
		r.rest()
		return err
	case <-ctx.Done():
	}
	err = r.drained(ended, workers)
	r.rest()
	return err
}

// bootTime is how long a start waits for the listener.
const bootTime = 2 * time.Second

// drained waits for the pages under way, at last by force.
func (r *Runtime) drained(ended <-chan error, workers []*worker) error {
	select {
	case err := <-ended:
		return err
	case <-time.After(r.drain):
	}
	r.log.Warn("pages are still under way; their connections are cut", "after", r.drain)
	for _, w := range workers {
		w.cut()
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(5 * time.Second):
		return errors.New("a handler did not return")
	}
}

// wake tells processors of partitions that have grown by what they want.
func (r *Runtime) wake(added eventstore.Growth) {
	for _, p := range r.running() {
		p.ready.wake(added.But(p.unwanted), false)
	}
}

func (r *Runtime) running() []*processor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.processors
}

// processor is the processor of that name, if it runs here.
func (r *Runtime) processor(name string) (*processor, bool) {
	for _, p := range r.running() {
		if p.Name == name {
			return p, true
		}
	}
	return nil, false
}

// announce tells of a page that has committed.
func (r *Runtime) announce(p *processor, page *Page) {
	if len(page.Appended) > 0 {
		r.store.Committed(page.Appended)
	}
	if p.AfterCommit != nil {
		p.AfterCommit(page)
	}
}

// fails counts another failure in a row of a partition.
func (p *processor) fails(partition int16) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures[partition]++
	return p.failures[partition]
}

func (p *processor) recovered(partition int16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures[partition] = 0
}

// moved tells whoever waits for a token of p that one has moved.
func (p *processor) moved() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.movement)
	p.movement = make(chan struct{})
}

func (p *processor) nextMove() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.movement
}

// pause waits, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// partitionsIn lists the partitions of a mask.
func partitionsIn(mask uint64) []int16 {
	list := []int16{}
	for p := range int16(eventstore.Partitions) {
		if mask&(1<<p) != 0 {
			list = append(list, p)
		}
	}
	return list
}
