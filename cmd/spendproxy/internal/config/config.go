package config

import (
	"io"
	"log/slog"
	"net/url"
	"time"

	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/spendproxy/internal/admin"
)

// Config is a checked configuration. Its secrets hide themselves, the tokens
// excepted, which only the admin API is given.
type Config struct {
	Listen      string // host:port of the API for callers
	AdminListen string // of the admin API; empty: on Listen
	PortFile    string // where to write the chosen addresses; empty: nowhere

	Upstream *url.URL        // Stripe
	Key      settings.Secret // the real one
	Timeout  time.Duration

	Database settings.Secret
	DBPool   int // connections at most

	IdleConnections int // that wait with nothing asked, at most

	Tokens    admin.Tokens
	ClockURL  string // business time of a Stripe stand-in; empty: the database's
	LogLevel  slog.Level
	AuditKeep time.Duration // after which rows of the audit are deleted; 0: never
	Grace     time.Duration // for calls under way when the proxy is stopped
}

// flags are the settings that may come by command line, as text, so that all
// that is wrong with them is found in one go.
type flags struct {
	Listen          string `help:"Address of the API for callers with vault keys." env:"SPENDPROXY_LISTEN" default:"127.0.0.1:8081" placeholder:"HOST:PORT"`
	AdminListen     string `help:"Address of the admin API; not set: /admin/v1 of the former." env:"SPENDPROXY_ADMIN_LISTEN" placeholder:"HOST:PORT"`
	PortFile        string `help:"File to write the addresses to, once the proxy listens on them." env:"SPENDPROXY_PORT_FILE" placeholder:"PATH"`
	Upstream        string `help:"Where Stripe's API is." env:"SPENDPROXY_UPSTREAM" default:"https://api.stripe.com" placeholder:"URL"`
	Timeout         string `help:"Time limit of one call to Stripe; longer than the callers' own." env:"SPENDPROXY_TIMEOUT" default:"80s" placeholder:"DURATION"`
	DBPool          string `name:"db-pool" help:"Database connections at most." env:"SPENDPROXY_DB_POOL" default:"16" placeholder:"N"`
	IdleConnections string `help:"Connections with nothing asked at most; beyond it, whichever has waited longest is closed." env:"SPENDPROXY_IDLE_CONNECTIONS" default:"1000" placeholder:"N"`
	ClockURL        string `name:"clock-url" help:"Follow the clock of a Stripe stand-in; refused with a live key." env:"SPENDPROXY_CLOCK_URL" placeholder:"URL"`
	AuditKeep       string `help:"How long rows of the audit are kept, such as 2160h or 90d; not set: for ever." env:"SPENDPROXY_AUDIT_KEEP" placeholder:"DURATION"`
	LogLevel        string `help:"debug, info, warn or error." env:"SPENDPROXY_LOG_LEVEL" default:"info" placeholder:"LEVEL"`
	ShutdownGrace   string `help:"Time for calls under way when the proxy is stopped." env:"SPENDPROXY_SHUTDOWN_GRACE" default:"90s" placeholder:"DURATION"`
}

// Load reads the environment and args (without the program's name) and checks
// everything. What is wrong comes as a *settings.Error, all at once; help goes to
// stdout, with settings.ErrHelp.
func Load(args []string, stdout io.Writer) (Config, error) {
	var f flags
	var c check
	if err := c.Parse(&f, "spendproxy", "Stands between programs and Stripe with the real key, and lets each vault key spend what it may.", args, stdout); err != nil {
		return Config{}, err
	}
	config := c.configure(f)
	if err := c.Err(); err != nil {
		return Config{}, err
	}
	return config, nil
}
