package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/billingd/internal/access"
	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/domain"
	"github.com/billonce/billonce/sagas/stripegateway"
)

// check gathers what is wrong with the settings.
type check struct{ settings.Check }

// configure checks every setting.
func (c *check) configure(f flags) Config {
	config := Config{
		DatabaseURL:    c.database(),
		DataDir:        c.Optional("BILLING_DATA_DIR", f.DataDir),
		DBPool:         c.Integer("BILLING_DB_POOL", f.DBPool, 4, 1000),
		PortFile:       c.Optional("BILLING_PORT_FILE", f.PortFile),
		Tokens:         c.tokens(),
		Grace:          c.Duration("BILLING_SHUTDOWN_GRACE", f.ShutdownGrace, time.Second, 10*time.Minute),
		Environment:    c.environment(f.Environment),
		StripeBase:     c.Text("STRIPE_API_BASE", f.StripeAPIBase),
		StripeAPI:      c.stripeAPI("STRIPE_API", f.StripeAPI),
		StripeKey:      c.stripeKey("STRIPE_API_KEY", true),
		RefundKey:      c.stripeKey("STRIPE_REFUND_KEY", false),
		ProxyToken:     c.Secret("BILLING_PROXY_TOKEN"),
		WebhookSecret:  c.webhookSecret(),
		StripeTimeout:  c.Duration("BILLING_STRIPE_TIMEOUT", f.StripeTimeout, 10*time.Millisecond, 10*time.Minute),
		StripeRate:     c.rate("BILLING_STRIPE_RATE", f.StripeRate),
		Lease:          c.Duration("BILLING_LEASE", f.Lease, 20*time.Millisecond, time.Hour),
		Concurrency:    c.Integer("BILLING_CONCURRENCY", f.Concurrency, 1, 1000),
		LookSince:      c.since("BILLING_LOOK_SINCE", f.LookSince),
		ReconcileEvery: c.reconcileEvery(f.Reconcile),
		DunningDays:    c.dunningDays(f.DunningDays),
		Poll:           c.Duration("BILLING_POLL", f.Poll, 10*time.Millisecond, time.Minute),
		LogLevel:       c.Level("BILLING_LOG_LEVEL", f.LogLevel),
	}
	config.StripeEndpointRate = config.StripeRate
	if c.Optional("BILLING_STRIPE_ENDPOINT_RATE", f.StripeEndpointRate) != "" {
		config.StripeEndpointRate = c.rate("BILLING_STRIPE_ENDPOINT_RATE", f.StripeEndpointRate)
	}
	config.Listen = c.listen("BILLING_LISTEN", f.Listen, config.Tokens.Open())
	config.ClockURL = c.clock("BILLING_CLOCK_URL", f.ClockURL, config.StripeKey)
	config.Crash = c.crash(config)
	if config.StripeTimeout > 0 && config.Lease > 0 && config.Lease <= config.StripeTimeout {
		c.Bad("BILLING_LEASE", "must exceed BILLING_STRIPE_TIMEOUT")
	}
	if config.DatabaseURL.IsZero() && config.DataDir == "" {
		config.DataDir = c.defaultDataDir()
	}
	config.ProxyAdmin = c.proxy(f.ProxyAdminURL, config)
	c.gateway(config)
	return config
}

func (c *check) rate(name, value string) float64 {
	if c.Text(name, value) == "" {
		return 0
	}
	r, err := strconv.ParseFloat(value, 64)
	if err != nil || r < 0 || math.IsNaN(r) || math.IsInf(r, 0) {
		c.Bad(name, "must be a number of calls a second, or 0 for no limit")
		return 0
	}
	return r
}

func (c *check) dunningDays(value string) domain.DunningDays {
	const name = "BILLING_DUNNING_DAYS"
	if c.Text(name, value) == "" {
		return nil
	}
	days, err := domain.ParseDunningDays(value)
	if err != nil {
		c.Bad(name, "%v", err)
	}
	return days
}

// since accepts a day (its beginning in UTC) or an RFC 3339 time.
func (c *check) since(name, value string) time.Time {
	if c.Optional(name, value) == "" {
		return time.Time{}
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, value); err == nil {
			return t.UTC()
		}
	}
	c.Bad(name, "must be a day such as 2026-01-01 or a time such as 2026-01-01T00:00:00Z")
	return time.Time{}
}

var environmentShape = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

func (c *check) environment(value string) string {
	const name = "BILLING_ENVIRONMENT"
	if c.Text(name, value) != "" && !environmentShape.MatchString(value) {
		c.Bad(name, "must be 1 to 32 of a-z 0-9 - and begin with a letter")
	}
	return value
}

func (c *check) database() settings.Secret {
	const name = "DATABASE_URL"
	s := c.Secret(name)
	if s.IsZero() {
		if _, set := os.LookupEnv(name); set {
			c.Faults[len(c.Faults)-1] = fmt.Errorf("%s: is set but blank; unset it to run on an embedded PostgreSQL", name)
		}
		return s
	}
	if _, err := pgxpool.ParseConfig(s.Reveal()); err != nil { // its own words may quote the password
		c.Bad(name, "must be a PostgreSQL URL such as postgres://user:password@host:5432/billing")
	}
	return s
}

func (c *check) tokens() access.Tokens {
	const name = "BILLING_TOKENS"
	list, set := os.LookupEnv(name)
	switch {
	case !set:
		return access.Tokens{}
	case strings.TrimSpace(list) == "":
		c.Bad(name, "is set but blank; unset it to serve loopback without tokens")
		return access.Tokens{}
	}
	tokens, err := access.Parse(list)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			c.Bad(name, "%s", strings.TrimSpace(line))
		}
	}
	return tokens
}

// listen checks an address. Without tokens it must be loopback: the API would
// be open to the network.
func (c *check) listen(name, value string, open bool) string {
	if c.Text(name, value) == "" {
		return ""
	}
	host, port, err := net.SplitHostPort(value)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
		c.Bad(name, "must be host:port, such as 127.0.0.1:8080")
		return ""
	}
	if _, tokensSet := os.LookupEnv("BILLING_TOKENS"); open && !tokensSet && !isLoopback(host) {
		c.Bad(name, "must be a loopback address as long as BILLING_TOKENS is not set")
	}
	return value
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() || host == "localhost"
}

var (
	keyShape = regexp.MustCompile(`^(sk|rk|vk)_[A-Za-z0-9_]+$`)
	liveKey  = regexp.MustCompile(`^[sr]k_live_`)
	testKey  = regexp.MustCompile(`^[sr]k_test_`)
)

func (c *check) stripeKey(name string, needed bool) settings.Secret {
	key, set := os.LookupEnv(name)
	switch {
	case !set && !needed:
	case !set:
		c.Bad(name, "is needed: the vault key, or a secret or restricted key of Stripe")
	case strings.TrimSpace(key) == "":
		c.Bad(name, "is set but blank")
	case !keyShape.MatchString(key):
		c.Bad(name, "must begin with vk_, sk_ or rk_, and hold letters, digits and _ alone")
	default:
		return settings.NewSecret(key)
	}
	return settings.Secret{}
}

// proxy checks what belongs to a spend proxy: both settings or neither, and no
// key of Stripe's beside them, which would be a way round it.
func (c *check) proxy(address string, config Config) *url.URL {
	const name, token = "BILLING_PROXY_ADMIN_URL", "BILLING_PROXY_TOKEN"
	_, tokenSet := os.LookupEnv(token)
	switch address = c.Optional(name, address); {
	case address == "" && !config.ProxyToken.IsZero():
		if _, set := os.LookupEnv(name); !set {
			c.Bad(name, "is needed where BILLING_PROXY_TOKEN is set")
		}
		return nil
	case address == "":
		return nil
	case !tokenSet:
		c.Bad(token, "is needed where BILLING_PROXY_ADMIN_URL is set")
	}
	base, err := stripegateway.ParseBase(address)
	if err != nil {
		for fault := range strings.Lines(err.Error()) {
			_, what, _ := strings.Cut(strings.TrimSpace(fault), ": ")
			c.Bad(name, "%s", what)
		}
		return nil
	}
	if t := config.ProxyToken.Reveal(); t != "" && (len(t) < 16 || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' })) {
		c.Bad(token, "must be the proxy's service token: 16 printable characters or more")
	}
	for setting, key := range map[string]settings.Secret{"STRIPE_API_KEY": config.StripeKey, "STRIPE_REFUND_KEY": config.RefundKey} {
		if !key.IsZero() && !strings.HasPrefix(key.Reveal(), "vk_") {
			c.Bad(setting, "must be a vault key where a spend proxy is set: with a key of Stripe's there is a way round it")
		}
	}
	return base
}

// webhookSecret accepts one secret, or two while one is rolled. Blank is none:
// then the endpoint is off, and nothing is ever verified against it.
func (c *check) webhookSecret() settings.Secret {
	const name = "STRIPE_WEBHOOK_SECRET"
	list := os.Getenv(name)
	if strings.TrimSpace(list) == "" {
		return settings.Secret{}
	}
	parts := strings.Split(list, ",")
	for i, part := range parts {
		if parts[i] = strings.TrimSpace(part); parts[i] == "" || len(parts) > 2 {
			c.Bad(name, "must be one secret, or two separated by a comma while it is rolled")
			return settings.Secret{}
		}
	}
	return settings.NewSecret(strings.Join(parts, ","))
}

// reconcileEvery accepts 0, and nothing so short that one runs after the other.
func (c *check) reconcileEvery(value string) time.Duration {
	const name = "BILLING_RECONCILE_EVERY"
	if value == "0" {
		return 0
	}
	return c.Duration(name, value, time.Minute, 31*24*time.Hour)
}

func (c *check) stripeAPI(name, value string) stripegateway.API {
	switch api := stripegateway.API(value); api {
	case stripegateway.PaymentIntents, stripegateway.Charges:
		return api
	}
	c.Bad(name, "must be payment_intents or charges")
	return ""
}

func (c *check) clock(name, value string, key settings.Secret) string {
	if c.Optional(name, value) == "" {
		return ""
	}
	u, err := url.Parse(value)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		c.Bad(name, "must be an http or https URL without a user")
	}
	if liveKey.MatchString(key.Reveal()) {
		c.Bad(name, "must not be set with a live Stripe key: bills would fall due by a clock that anybody can move")
	}
	return value
}

// gateway lets the gateway itself judge what it is given.
func (c *check) gateway(config Config) {
	if config.StripeBase == "" || config.StripeKey.IsZero() {
		return // said already
	}
	g, err := stripegateway.New(stripegateway.Config{
		API: config.StripeAPI, BaseURL: config.StripeBase, Key: config.StripeKey.Reveal(), RefundKey: config.RefundKey.Reveal(), Timeout: config.StripeTimeout, Log: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		g.Close()
		return
	}
	var faults interface{ Unwrap() []error }
	if !errors.As(err, &faults) {
		c.Bad("STRIPE_API_BASE", "cannot be used")
		return
	}
	for _, fault := range faults.Unwrap() {
		field, what, _ := strings.Cut(fault.Error(), ": ")
		name, known := map[string]string{"BaseURL": "STRIPE_API_BASE", "Key": "STRIPE_API_KEY", "RefundKey": "STRIPE_REFUND_KEY", "Timeout": "BILLING_STRIPE_TIMEOUT"}[field]
		if known {
			c.Bad(name, "%s", what)
		}
	}
}

// defaultDataDir is a directory of the user's own.
func (c *check) defaultDataDir() string {
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "billonce")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		c.Bad("BILLING_DATA_DIR", "is needed: neither DATABASE_URL nor a home directory is set")
		return ""
	}
	return filepath.Join(home, ".local", "share", "billonce")
}
