package config

import (
	"io"
	"log/slog"
	"net/url"
	"time"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas/crashpoint"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// Config is a checked configuration. It may be printed and logged: its secrets
// hide themselves.
type Config struct {
	DatabaseURL settings.Secret // zero: an embedded PostgreSQL under DataDir
	DataDir     string          // where an embedded PostgreSQL keeps its data
	DBPool      int             // connections at most

	Listen   string // host:port; loopback where Tokens are open
	PortFile string // where to write the chosen address; empty: nowhere
	Tokens   access.Tokens
	Grace    time.Duration // for requests and charges under way when the service is stopped

	Environment        string            // written into the database by its first start
	StripeBase         string            // where Stripe's API is spoken: the proxy, usually
	StripeAPI          stripegateway.API // of bills that are not committed to a road yet
	StripeKey          settings.Secret   // the vault key of everything but a run's money
	RefundKey          settings.Secret   // the vault key of refunds; zero: StripeKey
	ProxyAdmin         *url.URL          // where the spend proxy's admin API is; nil: there is no proxy that knows of runs
	ProxyToken         settings.Secret   // the proxy's service token; zero exactly where ProxyAdmin is nil
	WebhookSecret      settings.Secret   // one, or two separated by a comma while it is rolled; zero: webhooks are off
	StripeTimeout      time.Duration     // of one call
	StripeRate         float64           // calls a second; 0: no limit
	StripeEndpointRate float64           // calls a second to each endpoint; 0: no limit
	Lease              time.Duration     // of a claimed bill; exceeds StripeTimeout
	Concurrency        int               // bills in flight
	LookSince          time.Time         // the first look reads what Stripe holds since then; zero: all

	ReconcileEvery time.Duration // between scheduled reconciliations; 0: only when asked for

	DunningDays domain.DunningDays // after the due day, on which a soft decline is tried again; none: never by itself

	Poll     time.Duration // bound of a lost wake-up
	ClockURL string        // business time of a Stripe stand-in; empty: the database's
	LogLevel slog.Level

	Crash crashpoint.Plan // where the selftest makes this process die; zero: nowhere
}

// Live tells whether what happens at Stripe is about real money. A vault key does
// not tell by itself; only a stand-in has a clock.
func (c Config) Live() (live, known bool) {
	key := c.StripeKey.Reveal()
	live = liveKey.MatchString(key)
	return live, live || testKey.MatchString(key) || c.ClockURL != ""
}

// Load reads the environment and args (without the program's name) and checks
// everything. What is wrong comes as a *settings.Error, all at once; help goes to
// stdout, with settings.ErrHelp.
func Load(args []string, stdout io.Writer) (Config, error) {
	var f flags
	var c check
	if err := c.Parse(&f, "billingd", "Bills every customer exactly once per billing period through Stripe.", args, stdout); err != nil {
		return Config{}, err
	}
	config := c.configure(f)
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return config, nil
}

// flags are the settings that may come by command line, as text, so that all
// that is wrong with them is found in one go.
type flags struct {
	Listen             string `help:"Address of the HTTP API." env:"BILLING_LISTEN" default:"127.0.0.1:8080" placeholder:"HOST:PORT"`
	PortFile           string `help:"File to write the address to, once the API listens on it." env:"BILLING_PORT_FILE" placeholder:"PATH"`
	ShutdownGrace      string `help:"Time for what is under way when the service is stopped." env:"BILLING_SHUTDOWN_GRACE" default:"30s" placeholder:"DURATION"`
	DataDir            string `help:"Directory of the embedded PostgreSQL, which runs where DATABASE_URL is not set." env:"BILLING_DATA_DIR" placeholder:"PATH"`
	DBPool             string `name:"db-pool" help:"Database connections at most." env:"BILLING_DB_POOL" default:"24" placeholder:"N"`
	Environment        string `help:"Name of this installation, such as production." env:"BILLING_ENVIRONMENT" default:"development" placeholder:"NAME"`
	StripeAPIBase      string `name:"stripe-api-base" help:"Where Stripe's API is spoken." env:"STRIPE_API_BASE" default:"https://api.stripe.com" placeholder:"URL"`
	StripeAPI          string `name:"stripe-api" help:"How money is taken: payment_intents, or charges (legacy)." env:"STRIPE_API" default:"payment_intents" placeholder:"API"`
	StripeTimeout      string `help:"Time limit of one call to Stripe." env:"BILLING_STRIPE_TIMEOUT" default:"30s" placeholder:"DURATION"`
	StripeRate         string `help:"Calls to Stripe a second; 0: no limit." env:"BILLING_STRIPE_RATE" default:"25" placeholder:"N"`
	StripeEndpointRate string `help:"Calls a second to each endpoint of Stripe; 0: no limit. Left out: as many as to all." env:"BILLING_STRIPE_ENDPOINT_RATE" placeholder:"N"`
	Lease              string `help:"How long a bill is claimed for; must exceed the time limit of a call." env:"BILLING_LEASE" default:"40s" placeholder:"DURATION"`
	Concurrency        string `help:"Bills in flight at once." env:"BILLING_CONCURRENCY" default:"32" placeholder:"N"`
	ProxyAdminURL      string `name:"proxy-admin-url" help:"Where the spend proxy's admin API is, for the vault keys of runs; needs BILLING_PROXY_TOKEN." env:"BILLING_PROXY_ADMIN_URL" placeholder:"URL"`
	LookSince          string `help:"How far back the first look at Stripe goes, such as 2026-01-01; not set: to the beginning." env:"BILLING_LOOK_SINCE" placeholder:"DATE"`
	Reconcile          string `name:"reconcile-every" help:"Time between scheduled reconciliations; 0: only when asked for." env:"BILLING_RECONCILE_EVERY" default:"24h" placeholder:"DURATION"`
	DunningDays        string `help:"Days after the due day on which a declined bill is tried again, or none." env:"BILLING_DUNNING_DAYS" default:"1,3,5,7" placeholder:"DAYS"`
	Poll               string `help:"How long a lost wake-up can delay anything." env:"BILLING_POLL" default:"1s" placeholder:"DURATION"`
	ClockURL           string `name:"clock-url" help:"Follow the clock of a Stripe stand-in; refused with a live key." env:"BILLING_CLOCK_URL" placeholder:"URL"`
	LogLevel           string `help:"debug, info, warn or error." env:"BILLING_LOG_LEVEL" default:"info" placeholder:"LEVEL"`
}
