package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/billonce/billonce/cmd/stripesim/sim"
)

// flags are the command line and the environment, as text: what is wrong with
// them is found out in one go.
type flags struct {
	Listen        string   `help:"Address of Stripe's API." env:"STRIPESIM_LISTEN" default:"127.0.0.1:12121"`
	ControlListen string   `help:"Address of the control API." env:"STRIPESIM_CONTROL_LISTEN" default:"127.0.0.1:12122"`
	Data          string   `help:"Journal file, or a directory for it. Empty: in memory." env:"STRIPESIM_DATA"`
	KeyRetention  string   `help:"How long an Idempotency-Key is kept at least." env:"STRIPESIM_KEY_RETENTION" default:"24h"`
	Prune         string   `help:"When a key is really forgotten: exact, late or random." env:"STRIPESIM_PRUNE" default:"exact"`
	SearchLag     string   `help:"How far search is behind, on the stand-in's clock." env:"STRIPESIM_SEARCH_LAG" default:"1m"`
	EndpointRate  string   `help:"Requests a second to each endpoint before 429; 0: no limit." env:"STRIPESIM_ENDPOINT_RATE" default:"0"`
	RateLimit     string   `help:"Requests a second before 429; 0: no limit." env:"STRIPESIM_RATE_LIMIT" default:"0"`
	Account       string   `help:"Account id." env:"STRIPESIM_ACCOUNT"`
	APIKeys       []string `name:"api-keys" help:"The valid API keys. Empty: every test-mode key." env:"STRIPESIM_API_KEYS"`
	Clock         string   `help:"Time the clock starts at, RFC 3339. Empty: now." env:"STRIPESIM_CLOCK"`
	WebhookURL    string   `name:"webhook-url" help:"Where events are delivered. Empty: nowhere." env:"STRIPESIM_WEBHOOK_URL"`
	PruneSeed     uint64   `help:"Seed of the prune mode random." env:"STRIPESIM_PRUNE_SEED" default:"0"`
	PortFile      string   `help:"File to write the chosen addresses to." env:"STRIPESIM_PORT_FILE"`
}

// config is a checked configuration.
type config struct {
	options       sim.Options
	listen        string
	controlListen string
	controlToken  string
	portFile      string
	controlIsOpen bool
}

// configure checks flags and environment and reports every fault.
func configure(f flags) (config, error) {
	var faults []error
	bad := func(name, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
	}
	c := config{listen: f.Listen, controlListen: f.ControlListen, portFile: f.PortFile}
	for name, address := range map[string]string{"STRIPESIM_LISTEN": f.Listen, "STRIPESIM_CONTROL_LISTEN": f.ControlListen} {
		if _, err := net.ResolveTCPAddr("tcp", address); err != nil || address == "" {
			bad(name, "%q is not host:port", address)
		}
	}
	c.options.Data = f.Data
	c.options.Account = f.Account
	if f.Account != "" && !strings.HasPrefix(f.Account, "acct_") {
		bad("STRIPESIM_ACCOUNT", "%q does not start with acct_", f.Account)
	}
	c.options.KeyRetention = positive(bad, "STRIPESIM_KEY_RETENTION", f.KeyRetention)
	if lag, err := time.ParseDuration(f.SearchLag); err != nil || lag < 0 {
		bad("STRIPESIM_SEARCH_LAG", "%q is not a duration such as 1m", f.SearchLag)
	} else if c.options.SearchLag = lag; lag == 0 {
		c.options.SearchLag = -1 // asked for outright, not left to the default
	}
	c.options.Prune = sim.Prune(f.Prune)
	if !slices.Contains([]sim.Prune{sim.PruneExact, sim.PruneLate, sim.PruneRandom}, c.options.Prune) {
		bad("STRIPESIM_PRUNE", "%q is not exact, late or random", f.Prune)
	}
	c.options.PruneSeed = f.PruneSeed
	perSecond := func(name, value string) float64 {
		rate, err := strconv.ParseFloat(value, 64)
		if err != nil || rate < 0 || rate != rate {
			bad(name, "%q is not a number of requests a second", value)
		}
		return rate
	}
	c.options.RateLimit = perSecond("STRIPESIM_RATE_LIMIT", f.RateLimit)
	c.options.EndpointRate = perSecond("STRIPESIM_ENDPOINT_RATE", f.EndpointRate)
	for _, key := range f.APIKeys {
		if key = strings.TrimSpace(key); !strings.HasPrefix(key, "sk_test_") && !strings.HasPrefix(key, "rk_test_") {
			bad("STRIPESIM_API_KEYS", "a key does not start with sk_test_ or rk_test_") // and is not printed: it may be a live one
			continue
		}
		c.options.APIKeys = append(c.options.APIKeys, key)
	}
	if f.Clock != "" {
		var err error
		if c.options.Clock, err = time.Parse(time.RFC3339, f.Clock); err != nil {
			bad("STRIPESIM_CLOCK", "%q is not a time such as 2026-11-01T00:00:00Z", f.Clock)
		}
	}
	token, set := os.LookupEnv("STRIPESIM_CONTROL_TOKEN")
	c.controlToken = token
	if set && strings.TrimSpace(token) == "" {
		bad("STRIPESIM_CONTROL_TOKEN", "is set but blank; unset it to leave control open on loopback")
	}
	if !set {
		c.controlIsOpen = true
		if a, err := net.ResolveTCPAddr("tcp", f.ControlListen); err == nil && a != nil && !a.IP.IsLoopback() {
			bad("STRIPESIM_CONTROL_TOKEN", "is needed, since control listens on %q, which is not loopback", f.ControlListen)
		}
	}
	c.options.WebhookURL, c.options.WebhookSecret = f.WebhookURL, os.Getenv("STRIPESIM_WEBHOOK_SECRET")
	if u, err := url.Parse(f.WebhookURL); f.WebhookURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		bad("STRIPESIM_WEBHOOK_URL", "%q is not a URL such as http://127.0.0.1:8080/webhooks/stripe", f.WebhookURL)
	}
	if blank := strings.Trim(c.options.WebhookSecret, " ,") == ""; blank != (f.WebhookURL == "") {
		bad("STRIPESIM_WEBHOOK_SECRET", "goes with STRIPESIM_WEBHOOK_URL: set both or none")
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return c, errors.Join(faults...)
}

func positive(bad func(string, string, ...any), name, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		bad(name, "%q is not a duration such as 24h", text)
	}
	return d
}
