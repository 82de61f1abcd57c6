package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/cmd/internal/settings"
	"github.com/billonce/billonce/cmd/spendproxy/internal/admin"
)

// check gathers what is wrong with the settings.
type check struct{ settings.Check }

// configure checks every setting.
func (c *check) configure(f flags) Config {
	config := Config{
		Listen:          c.listen("SPENDPROXY_LISTEN", f.Listen),
		PortFile:        c.Optional("SPENDPROXY_PORT_FILE", f.PortFile),
		Key:             c.stripeKey(),
		Timeout:         c.Duration("SPENDPROXY_TIMEOUT", f.Timeout, 10*time.Millisecond, 10*time.Minute),
		Database:        c.database(),
		DBPool:          c.Integer("SPENDPROXY_DB_POOL", f.DBPool, 4, 1000),
		IdleConnections: c.Integer("SPENDPROXY_IDLE_CONNECTIONS", f.IdleConnections, 16, 1_000_000),
		LogLevel:        c.Level("SPENDPROXY_LOG_LEVEL", f.LogLevel),
		Grace:           c.Duration("SPENDPROXY_SHUTDOWN_GRACE", f.ShutdownGrace, time.Second, 30*time.Minute),
	}
	if c.Optional("SPENDPROXY_ADMIN_LISTEN", f.AdminListen) != "" {
		config.AdminListen = c.listen("SPENDPROXY_ADMIN_LISTEN", f.AdminListen)
	}
	if keep := c.Optional("SPENDPROXY_AUDIT_KEEP", f.AuditKeep); keep != "" {
		config.AuditKeep = c.keep("SPENDPROXY_AUDIT_KEEP", keep)
	}
	config.Upstream = c.upstream(f.Upstream, config.Key)
	config.ClockURL = c.clock(f.ClockURL, config.Key)
	tokens, err := admin.LoadTokens(os.LookupEnv)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			c.Faults = append(c.Faults, fmt.Errorf("%s", strings.TrimSpace(line)))
		}
	}
	config.Tokens = tokens
	return config
}

// secret is a setting that comes by environment alone and is needed.
func (c *check) secret(name, what string) string {
	value, set := os.LookupEnv(name)
	if !set {
		c.Bad(name, "is needed: %s", what)
		return ""
	}
	return c.Text(name, value)
}

func (c *check) listen(name, value string) string {
	if c.Text(name, value) == "" {
		return ""
	}
	_, port, err := net.SplitHostPort(value)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
		c.Bad(name, "must be host:port, such as 127.0.0.1:8081")
		return ""
	}
	return value
}

// keepLeast leaves time to look at what a call did.
const keepLeast = 24 * time.Hour

// keep is a duration, which may be given in whole days.
func (c *check) keep(name, value string) time.Duration {
	d, err := time.ParseDuration(value)
	if days, ok := strings.CutSuffix(value, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d < keepLeast {
		c.Bad(name, "must be a duration of a day at least, such as 2160h or 90d")
		return 0
	}
	return d
}

func (c *check) database() settings.Secret {
	const name = "SPENDPROXY_DATABASE_URL"
	dsn := c.secret(name, "the database of the proxy's books, in production one of its own")
	if dsn == "" {
		return settings.Secret{}
	}
	if _, err := pgxpool.ParseConfig(dsn); err != nil { // its own words may quote the password
		c.Bad(name, "must be a PostgreSQL URL such as postgres://user:password@host:5432/spendproxy")
	}
	return settings.NewSecret(dsn)
}

var (
	keyShape = regexp.MustCompile(`^(sk|rk)_[A-Za-z0-9_]{1,240}$`)
	liveKey  = regexp.MustCompile(`^[sr]k_live_`)
)

func (c *check) stripeKey() settings.Secret {
	const name = "SPENDPROXY_STRIPE_KEY"
	key := c.secret(name, "a restricted key of Stripe")
	if key != "" && !keyShape.MatchString(key) {
		c.Bad(name, "must begin with rk_ or sk_, and hold letters, digits and _ alone")
		return settings.Secret{}
	}
	return settings.NewSecret(key)
}

// upstream accepts an address that the key may be sent to.
func (c *check) upstream(value string, key settings.Secret) *url.URL {
	const name = "SPENDPROXY_UPSTREAM"
	if c.Text(name, value) == "" {
		return nil
	}
	base, err := url.Parse(value)
	if err != nil || base.Hostname() == "" || base.Scheme != "https" && base.Scheme != "http" {
		c.Bad(name, "must be an absolute http or https URL")
		return nil
	}
	if base.User != nil || base.RawQuery != "" || base.ForceQuery || base.Fragment != "" {
		c.Bad(name, "must have no user, query or fragment")
	}
	if base.EscapedPath() != base.Path || strings.Contains(base.Path, "//") {
		c.Bad(name, "its path must be plain")
	}
	if base.Scheme == "http" {
		switch {
		case !isPrivate(base.Hostname()):
			c.Bad(name, "must be https unless the host is loopback or private")
		case liveKey.MatchString(key.Reveal()) && !isLoopback(base.Hostname()):
			c.Bad(name, "must be https: a live Stripe key must not travel over http")
		}
	}
	return &url.URL{Scheme: base.Scheme, Host: strings.ToLower(base.Host), Path: strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/v1")}
}

func (c *check) clock(value string, key settings.Secret) string {
	const name = "SPENDPROXY_CLOCK_URL"
	if c.Optional(name, value) == "" {
		return ""
	}
	u, err := url.Parse(value)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		c.Bad(name, "must be an http or https URL without a user")
	}
	if liveKey.MatchString(key.Reveal()) {
		c.Bad(name, "must not be set with a live Stripe key: caps and expiries would go by a clock that anybody can move")
	}
	return value
}

func isLoopback(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	host = strings.ToLower(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// isPrivate tells whether a host cannot be reached over a public network: by its
// address, or by a name that is not public.
func isPrivate(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap()
		return addr.IsLoopback() || addr.IsPrivate() || addr.IsLinkLocalUnicast()
	}
	host = strings.ToLower(host)
	return isLoopback(host) || !strings.Contains(host, ".") || strings.HasSuffix(host, ".local") || strings.HasSuffix(host, ".internal")
}
