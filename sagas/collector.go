package sagas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/commands"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/eventstore"
)

// CollectorConfig sets a collector's limits.
type CollectorConfig struct {
	Concurrency int           // bills in flight at once
	Timeout     time.Duration // of one call to Stripe
	Lease       time.Duration // how long a claim lasts; must exceed Timeout
	Poll        time.Duration // how often rows are looked for when nobody says that there are some
	Allowance   *Allowance    // how much may be asked of Stripe; nil: no limit
	LookSince   time.Time     // the first look reads what Stripe holds since then; zero: all
	Actor       string        // recorded with every fact

	Environment string                                // name of the installation
	Account     func(context.Context) (string, error) // the Stripe account of our key; nil: it is not compared

	// Keys are the vault keys of runs where a spend proxy knows what runs are
	// expected to take: a bill is claimed once the proxy has been told of it. Nil:
	// there is none.
	Keys *RunKeys
}

// validate lists everything that is wrong with a config.
func (c CollectorConfig) validate() error {
	return errors.Join(leaseFaults(c.Concurrency, c.Timeout, c.Lease, c.Poll)...)
}

// leaseFaults lists what is wrong with the settings of a worker that calls
// Stripe under a lease.
func leaseFaults(concurrency int, timeout, lease, poll time.Duration) (faults []error) {
	if concurrency < 1 {
		faults = append(faults, errors.New("concurrency must be at least 1"))
	}
	if timeout <= 0 || lease <= timeout {
		faults = append(faults, errors.New("the lease must exceed the Stripe time-out, which must be positive"))
	}
	if poll <= 0 {
		faults = append(faults, errors.New("the poll interval must be positive"))
	}
	return faults
}

// Collector is the one component that calls Stripe to take money. See the
// package documentation for the life of a bill and the crash table.
type Collector struct {
	config  CollectorConfig
	pool    *pgxpool.Pool
	d       *commands.Dispatcher
	gateway Gateway
	clock   *Clock
	log     *slog.Logger

	environment *Environment
	book        *book
	look        *Look
	wake        chan struct{}
	pace        pace
	holds       holds
	epoch       atomic.Int64 // of this process's claims: part of the fence

	claims   atomic.Int64 // transactions that claimed
	settled  atomic.Int64 // bills that were decided here
	inFlight atomic.Int64
}

// NewCollector makes a collector; Run starts it.
func NewCollector(config CollectorConfig, d *commands.Dispatcher, gateway Gateway, clock *Clock, log *slog.Logger) (*Collector, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("collector: %w", err)
	}
	c := &Collector{
		config: config, pool: d.Log().Pool(), d: d, gateway: gateway, clock: clock, log: log,
		wake: make(chan struct{}, 1),
		pace: pace{limit: float64(config.Concurrency), most: float64(config.Concurrency)},
	}
	c.environment = newEnvironment(config, c.pool, d.Forget, log)
	c.book = newBook(c.pool, d, log, eventstore.Meta{Actor: config.Actor})
	c.look = newLook(c)
	return c, nil
}

// Wake says that there may be rows to claim. It never blocks.
func (c *Collector) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Look is the collector's look at what Stripe holds.
func (c *Collector) Look() *Look { return c.look }

// Environment tells whether the database is the one it is taken for.
func (c *Collector) Environment() *Environment { return c.environment }

// Adopt confirms, for an operator, that this database is to be collected on
// from here: after a restore, once the look is complete; or in another
// environment. Refusals are [ErrNothingToAdopt], [ErrNotLookedAt] and
// [ErrAccountUnknown].
func (c *Collector) Adopt(ctx context.Context, by, reason string) (Standing, error) {
	defer c.Wake()
	return c.environment.adopt(ctx, by, reason, func(epoch int64) bool { return c.look.looked.Load() == epoch })
}

// Stats is what a collector has done since it started.
type Stats struct {
	Commits  int64 // transactions of the money path: claims, intent ids, outcomes
	Settled  int64 // bills decided
	InFlight int64
	Held     int64 // runs that this process paused because the spend proxy refused a bill
}

// Stats reads the counters.
func (c *Collector) Stats() Stats {
	return Stats{c.claims.Load() + c.book.commits.Load() + c.look.commits.Load(), c.settled.Load(), c.inFlight.Load(), c.holds.made.Load()}
}

// Run takes a look, then collects until ctx ends. It then claims nothing more,
// lets the calls under way finish and records what they brought, for at most
// grace; what is left is found by its lease. It returns nil on an ordered stop.
func (c *Collector) Run(ctx context.Context, grace time.Duration) error {
	// Work that has begun is finished although ctx has ended.
	work, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	bookDone := make(chan struct{})
	go func() {
		defer close(bookDone)
		c.book.run(work)
	}()
	var background sync.WaitGroup
	background.Go(func() { c.environment.watch(ctx) })
	background.Go(func() { c.look.follow(ctx) })
	background.Go(func() { c.readAgain(ctx) })

	var flights sync.WaitGroup
	free := make(chan struct{}, 1)
	var claimed time.Time // when the last claim began
	for c.untilOpen(ctx) {
		inFlight := int(c.inFlight.Load())
		if wait := c.pace.wait(inFlight, time.Since(claimed)); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-free:
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		room := c.pace.room() - inFlight
		claimed = time.Now()
		jobs, more, err := c.claim(ctx, min(room, claimMost))
		if errors.Is(err, errNotOurs) {
			c.environment.doubt()
			continue
		}
		if err != nil && ctx.Err() == nil {
			c.log.Warn("claim failed; trying again", "error", err)
			pause(ctx, jitter(c.config.Poll))
			continue
		}
		for _, j := range jobs {
			c.inFlight.Add(1)
			flights.Go(func() {
				c.collect(work, j)
				c.inFlight.Add(-1)
				select {
				case free <- struct{}{}:
				default:
				}
			})
		}
		if len(jobs) > 0 {
			continue
		}
		if more { // others were faster
			pause(ctx, jitter(5*time.Millisecond))
			continue
		}
		timer := time.NewTimer(c.config.Poll)
		select {
		case <-c.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}

	landed := make(chan struct{})
	go func() {
		flights.Wait()
		background.Wait()
		close(landed)
	}()
	select {
	case <-landed:
	case <-time.After(grace):
		c.log.Warn("calls are still under way after the grace time; their bills are found by their leases", "in_flight", c.inFlight.Load())
	}
	cut()
	<-landed
	<-bookDone
	return nil
}

// untilOpen waits until nothing stands against collecting: the database is the
// one it is taken for, and the look is complete. It reports false if ctx ended
// first.
func (c *Collector) untilOpen(ctx context.Context) bool {
	for wait := 200 * time.Millisecond; ctx.Err() == nil; {
		if s := c.environment.Standing(); s.Fits && c.look.completed.Load() == s.epoch {
			return true
		}
		err := c.openUp(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, errNotAdopted) || !errors.Is(err, errAway):
			pause(ctx, jitter(c.config.Poll))
		default:
			c.log.Warn("the look at what Stripe holds is not complete; nothing is created before it is", "error", err)
			why := err.Error()
			c.look.trouble.Store(&why)
			pause(ctx, jitter(wait))
			wait = min(2*wait, 30*time.Second)
		}
	}
	return false
}

// Why collection is not open.
var (
	errNotAdopted = errors.New("the database is not adopted")
	errAway       = errors.New("what Stripe holds was not read")
)

// openUp does what is missing until bills may be collected.
func (c *Collector) openUp(ctx context.Context) error {
	s, err := c.environment.check(ctx)
	if errors.Is(err, errNoAccount) {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	if err != nil {
		return err
	}
	if s.epoch != c.look.epoch {
		// Another database than before, or the first: claims of this process from
		// before count for nothing on it.
		c.epoch.Store(drawEpoch())
		c.look.begin(s.epoch)
	}
	switch {
	case s.Elsewhere:
		return errNotAdopted
	case !s.Fits:
		if err := c.look.ahead(ctx); err != nil {
			return fmt.Errorf("%w: %w", errAway, err)
		}
		return errNotAdopted
	}
	if err := c.look.complete(ctx); err != nil {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// jitter spreads d over half to all of itself.
func jitter(d time.Duration) time.Duration { return d/2 + time.Duration(rand.Int64N(int64(d/2)+1)) }

// pace adapts the number of calls in flight to what Stripe takes: halved when
// it says "too many", one more after every call that went through.
type pace struct {
	mu    sync.Mutex
	limit float64
	most  float64
	since time.Time
	call  time.Duration // about how long a call takes
}

// Bills whose slots are free share a claim: those of a quarter of all slots, or,
// where Stripe takes slowCall and more to answer, those that came free within
// claimGap. Slots would else stand idle there until a quarter of them is, and a
// slot that stands idle is what limits the rate.
const (
	slowCall = 80 * time.Millisecond
	claimGap = 20 * time.Millisecond
	slotWait = time.Second // a slot that comes free is told; this is for the worst
)

// wait is how long the next claim waits for more free slots, with so many calls
// in flight and the last claim so long ago; 0: no longer.
func (p *pace) wait(inFlight int, since time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := int(p.limit)
	room := limit - inFlight
	switch {
	case room < 1:
		return slotWait
	case room >= limit/4 || inFlight == 0:
		return 0
	case p.call < slowCall:
		return slotWait
	}
	return max(0, claimGap-since)
}

// took notes how long a call took.
func (p *pace) took(call time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.call += (call - p.call) / 16
}

func (p *pace) room() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(p.limit)
}

func (p *pace) note(o domain.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case o.Code == "rate_limit" || o.Code == "lock_timeout":
		if time.Since(p.since) > time.Second { // one storm is one event
			p.limit, p.since = max(1, p.limit/2), time.Now()
		}
	case o.Class == domain.Paid || o.Class == domain.Declined:
		p.limit = min(p.most, p.limit+1/p.limit)
	}
}
