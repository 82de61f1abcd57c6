package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Settings are the switches that may change while the stand-in runs. The zero
// value of each means its default.
type Settings struct {
	KeyRetention time.Duration // how long a key is kept at least; 0: 24 h
	Prune        Prune         // when it is really forgotten; "": PruneExact
	SearchLag    time.Duration // how far search is behind, on the stand-in's clock; 0: 60 s, negative: not at all
	ConfirmLimit int           // attempts an intent allows; 0: 25
	LockWait     time.Duration // how long a request waits for a busy object before 429 lock_timeout, real time; 0: 2 s
	RateLimit    float64       // requests a second before 429 rate_limit, real time; 0: no limit
	EndpointRate float64       // requests a second to each endpoint before 429 rate_limit, real time; 0: no limit
	SearchRate   float64       // searches a second before 429; 0: 20, negative: no limit

	PruneSeed      uint64        // of PruneRandom: another seed, other lives
	ClockSkew      time.Duration // how far Stripe's own clock is ahead of the one that control shows; may be negative
	WebhookTimeout time.Duration // an endpoint's patience limit, real time; 0: 10 s
	WebhookRetry   time.Duration // wait after a delivery's first failure, on the stand-in's clock; later ones are multiples; 0: 5 min

	SearchOutage           bool // search does not see what changes while this is on
	RefundsPending         bool // a refund begins as pending, and control moves it on
	RefuseUnknownCustomers bool // a cus_ id nobody created is not a customer
	StoreValidationErrors  bool // harsher than documented: a key keeps a validation 400 too

	// Negative controls. With either on, this is a Stripe that does not do what
	// it promises, and a suite that looks for double charges has to fail.
	IgnoreKeys bool
	KeyPerPath bool
}

func (set *Settings) fill() {
	defaultTo(&set.KeyRetention, 24*time.Hour)
	defaultTo(&set.Prune, PruneExact)
	defaultTo(&set.SearchLag, time.Minute)
	defaultTo(&set.ConfirmLimit, 25)
	defaultTo(&set.LockWait, 2*time.Second)
	defaultTo(&set.SearchRate, 20)
	defaultTo(&set.WebhookTimeout, 10*time.Second)
	defaultTo(&set.WebhookRetry, 5*time.Minute)
	set.SearchLag = max(set.SearchLag, 0)
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (set *Settings) check() error {
	var faults []error
	if set.KeyRetention < 0 {
		faults = append(faults, errors.New("key retention must be above 0"))
	}
	if !slices.Contains([]Prune{PruneExact, PruneLate, PruneRandom}, set.Prune) {
		faults = append(faults, fmt.Errorf("prune mode %q is not exact, late or random", set.Prune))
	}
	if set.ConfirmLimit < 1 {
		faults = append(faults, errors.New("confirm limit must be at least 1"))
	}
	if set.LockWait < 0 || set.RateLimit < 0 || set.EndpointRate < 0 {
		faults = append(faults, errors.New("lock wait, rate limit and endpoint rate must not be negative"))
	}
	if set.WebhookTimeout < 0 || set.WebhookRetry < 0 {
		faults = append(faults, errors.New("webhook timeout and webhook retry must be above 0"))
	}
	return errors.Join(faults...)
}

// DefaultAccount is the account that all keys belong to unless Options say
// otherwise.
const DefaultAccount = "acct_1SimBillonce00"

// Options describe a stand-in. The zero value is one in memory, with Stripe's
// rules and no faults.
type Options struct {
	Settings

	Data       string       // journal file, or a directory for it; empty: in memory
	Account    string       // account id; empty: the journal's, else DefaultAccount
	APIKeys    []string     // the valid keys; empty: every test-mode key
	Clock      time.Time    // what the clock starts at, if not zero and the journal does not say otherwise
	RequestLog int          // requests remembered; 0: 250,000, negative: none
	Log        *slog.Logger // nil: silent

	WebhookURL    string // where events are delivered; empty: nowhere
	WebhookSecret string // signs deliveries; several, separated by commas, sign side by side
}

// Sim is a stand-in for one Stripe account in test mode. Its methods are safe
// for use by many goroutines.
type Sim struct {
	options Options
	account string
	apiKeys []string
	log     *slog.Logger
	clock   clock
	journal *journal // nil: in memory

	stopping chan struct{}
	bell     chan struct{}  // rung when the goroutine that posts webhooks should look
	posting  sync.WaitGroup // that goroutine, and attempts under way
	stopOnce sync.Once
	failed   chan struct{}
	failOnce sync.Once
	failure  error // why failed is closed

	mu        sync.Mutex // guards everything below
	world     int        // counts resets
	epoch     int64      // seconds: when the account was made
	settings  Settings
	limiter   *rate.Limiter // of all requests
	searches  *rate.Limiter
	blindFrom int64 // nanoseconds: when the search outage began
	intents   *shelf[*intent]
	charges   *shelf[*charge]
	refunds   *shelf[*refund]
	disputes  *shelf[*dispute]
	setups    *shelf[*setupIntent]
	events    *shelf[*event]
	hooks     hooks
	customers *shelf[*customer]
	methods   *shelf[*paymentMethod]
	overrides map[string]override
	keys      *keyStore
	locks     map[string]chan struct{}
	errands   errands
	forwards  map[string]*forward
	faults    []*script
	routes    map[place]*route
	counters  Counters
	requests  requestLog
}

// clock is the machine's clock plus an offset and, where Stripe's clock is to be
// off, a skew.
type clock struct{ offset, skew atomic.Int64 }

// now is Stripe's time, by which everything in the books goes.
func (c *clock) now() time.Time { return c.shown().Add(time.Duration(c.skew.Load())) }

// shown is the time that control shows, and that services may follow.
func (c *clock) shown() time.Time {
	return time.Now().Add(time.Duration(c.offset.Load())).Round(0).UTC()
}

// New makes a stand-in and, where Options.Data is set, brings back what its
// journal holds. It reports every fault in the options at once. Close it.
func New(o Options) (*Sim, error) {
	o.fill()
	secrets, err := parseEndpoint(o.WebhookURL, o.WebhookSecret)
	if err := errors.Join(o.check(), err); err != nil {
		return nil, fmt.Errorf("new stand-in: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	defaultTo(&o.RequestLog, 250_000)
	s := &Sim{
		options: o, account: o.Account, apiKeys: slices.Clone(o.APIKeys), log: o.Log,
		stopping: make(chan struct{}), failed: make(chan struct{}), bell: make(chan struct{}, 1),
	}
	if !o.Clock.IsZero() {
		s.clock.offset.Store(int64(time.Until(o.Clock)))
	}
	s.clear()
	if o.Data == "" {
		defaultTo(&s.account, DefaultAccount)
		s.open(o.WebhookURL, secrets)
		return s, nil
	}
	j, err := openJournal(o.Data, s.apply)
	if err != nil {
		return nil, err
	}
	s.journal = j
	defaultTo(&s.account, DefaultAccount)
	if j.position() == 0 {
		s.begin()
	}
	s.resume()
	s.open(o.WebhookURL, secrets)
	return s, nil
}

// open lets webhooks begin.
func (s *Sim) open(url string, secrets []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.useEndpoint(url, secrets)
	s.owe()
}

// clear makes an empty world.
func (s *Sim) clear() {
	s.routes, s.limiter = routes(), nil
	s.use(s.options.Settings)
	s.epoch = s.clock.now().Unix()
	s.clearBooks()
	s.faults, s.hooks.rules = nil, nil
	s.counters = Counters{Faults: make(map[Kind]int64)}
	s.requests = requestLog{limit: s.options.RequestLog}
}

// clearBooks forgets all objects and keys.
func (s *Sim) clearBooks() {
	s.world++
	s.intents, s.charges, s.refunds = newShelf[*intent](), newShelf[*charge](), newShelf[*refund]()
	s.disputes, s.events, s.setups = newShelf[*dispute](), newShelf[*event](), newShelf[*setupIntent]()
	s.hooks.log, s.hooks.waiting = nil, nil
	for _, r := range s.hooks.rules {
		r.held = nil
	}
	s.customers, s.methods = newShelf[*customer](), newShelf[*paymentMethod]()
	s.overrides = make(map[string]override)
	s.keys = newKeyStore()
	s.locks = make(map[string]chan struct{})
	s.errands = nil
	s.forwards = make(map[string]*forward)
}

// use puts settings into force.
func (s *Sim) use(set Settings) {
	if set.EndpointRate != s.settings.EndpointRate || s.limiter == nil {
		for _, r := range s.routes {
			r.limiter = limiterOf(set.EndpointRate)
		}
	}
	if set.RateLimit != s.settings.RateLimit || s.limiter == nil {
		s.limiter = limiterOf(set.RateLimit)
	}
	if set.SearchRate != s.settings.SearchRate || s.searches == nil {
		s.searches = limiterOf(set.SearchRate)
	}
	if set.SearchOutage && !s.settings.SearchOutage {
		s.blindFrom = s.clock.now().UnixNano()
	}
	if int64(set.ClockSkew) != s.clock.skew.Swap(int64(set.ClockSkew)) {
		s.wake()
	}
	s.settings = set
}

// horizon is the time up to which search has indexed, at a time.
func (s *Sim) horizon(now int64) int64 {
	h := now - int64(s.settings.SearchLag)
	if s.settings.SearchOutage {
		h = min(h, s.blindFrom)
	}
	return h
}

func limiterOf(perSecond float64) *rate.Limiter {
	if perSecond <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))
}

// fail puts the stand-in out of service: what it can no longer record it must not
// answer.
func (s *Sim) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		s.log.Error("the journal cannot be written; no request is answered any more", "error", err)
		close(s.failed)
	})
}

// Failed is closed when the journal can no longer be written; Err tells why.
// From then on no request is answered.
func (s *Sim) Failed() <-chan struct{} { return s.failed }

// Err is why Failed is closed, or nil.
func (s *Sim) Err() error {
	select {
	case <-s.failed:
		return s.failure
	default:
		return nil
	}
}

// Close ends delays and hangs and closes the journal. Requests still under way
// may or may not be answered.
func (s *Sim) Close() error {
	s.stop()
	s.mu.Lock() // whoever sets an endpoint now sees that it is too late
	client := s.hooks.client
	s.mu.Unlock()
	s.posting.Wait()
	if client != nil {
		client.CloseIdleConnections()
	}
	if s.journal == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.journal.close()
}

// ended tells whether the stand-in is being closed.
func (s *Sim) ended() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

func (s *Sim) stop() { s.stopOnce.Do(func() { close(s.stopping) }) }
