package stripegateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/billonce/billonce/domain"
)

// Config is what a Gateway needs. It prints without its key.
type Config struct {
	// API is the road of bills that have none committed yet; a bill that has one
	// stays on it. Empty is PaymentIntents.
	API API
	// BaseURL is where Stripe's API is spoken, usually the spend proxy. A path
	// prefix is kept, a trailing slash or /v1 is cut. Plain http is accepted
	// only where it does not cross a public network: loopback and private
	// addresses, localhost, and names that cannot be public (without a dot, as
	// containers have, or ending in .localhost, .local or .internal).
	BaseURL string
	// Key is the vault key, or a Stripe secret or restricted key. A live
	// Stripe key goes over http to loopback only.
	Key string
	// RefundKey is the key that refunds are asked for with. Empty is Key.
	RefundKey string
	// Runs gives the keys that a run's money is taken with: creates, confirms and
	// legacy charges of its bills. Nil: Key. Everything else goes by Key.
	Runs RunKeys
	// Timeout bounds each call from its first step to the last byte of its
	// answer, at least a millisecond. Zero is 30 seconds.
	Timeout time.Duration
	// Rate is how many calls a second may be made, EndpointRate how many to each
	// endpoint. Zero is no limit. A call waits for its turn within its time-out,
	// for a quarter of it at most; then it is not made.
	Rate, EndpointRate float64
	// Log receives a line a call at debug level. It is required.
	Log *slog.Logger
	// MaxConns is how many idle connections are kept: at least the number of
	// calls in flight, or each burst dials again. Zero is 64.
	MaxConns int
}

// RunKeys gives the vault keys of runs. An error that is
// [sagas.ErrVaultRefused] says that there is none for good; after any other, the
// bill is tried again.
type RunKeys interface {
	// Secret is a secret of the run's key.
	Secret(ctx context.Context, p domain.Period) (string, error)
	// Renew is another one, since refused is not accepted any more.
	Renew(ctx context.Context, p domain.Period, refused string) (string, error)
}

// API names a way of taking money at Stripe.
type API string

// The ways. With legacy Charges the customers' payment methods must be what a
// charge accepts as its source, such as card_….
const (
	PaymentIntents API = "payment_intents"
	Charges        API = "charges"
)

const (
	defaultTimeout  = 30 * time.Second
	defaultMaxConns = 64
)

// methodTypes is sent with every create. It belongs to what the create's key
// was first sent with: another value here would meet Stripe's idempotency_error
// for each bill whose create is under way, so it may only change with the key.
var methodTypes = []string{"card"}

// String names the gateway's address and never its key.
func (c Config) String() string { return "stripegateway " + publicAddress(c.BaseURL) }

// GoString is String, so that %#v keeps the key to itself too.
func (c Config) GoString() string { return c.String() }

// LogValue is String for slog.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

func publicAddress(raw string) string {
	base, err := url.Parse(raw)
	if err != nil {
		return "(unreadable address)"
	}
	return base.Scheme + "://" + base.Host + base.Path
}

// withDefaults fills the zero values in and checks everything at once; the
// error lists every fault.
func (c Config) withDefaults() (Config, *url.URL, error) {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.MaxConns == 0 {
		c.MaxConns = defaultMaxConns
	}

	if c.API == "" {
		c.API = PaymentIntents
	}

	base, faults := baseURL(c.BaseURL)
	if c.API != PaymentIntents && c.API != Charges {
		faults = append(faults, wrong("API", "must be payment_intents or charges"))
	}
	switch {
	case c.Key == "":
		faults = append(faults, wrong("Key", "is required"))
	case !isHeaderToken(c.Key):
		faults = append(faults, wrong("Key", "must be printable ASCII without spaces, at most 255 characters"))
	case liveKey.MatchString(c.Key) && base != nil && base.Scheme == "http" && !isLoopback(base.Hostname()):
		faults = append(faults, wrong("Key", "a live Stripe key must not travel over http"))
	}
	if c.RefundKey == "" {
		c.RefundKey = c.Key
	}
	switch {
	case !isHeaderToken(c.RefundKey):
		faults = append(faults, errors.New("RefundKey: must be printable ASCII without spaces, at most 255 characters"))
	case liveKey.MatchString(c.RefundKey) && c.RefundKey != c.Key && base != nil && base.Scheme == "http" && !isLoopback(base.Hostname()):
		faults = append(faults, errors.New("RefundKey: a live Stripe key must not travel over http"))
	}
	if c.Timeout < time.Millisecond {
		faults = append(faults, wrong("Timeout", fmt.Sprint(c.Timeout)+" is too short"))
	}
	if c.Log == nil {
		faults = append(faults, wrong("Log", "is required"))
	}
	if c.Rate < 0 || c.EndpointRate < 0 {
		faults = append(faults, wrong("Rate", "must not be negative"))
	}
	if c.MaxConns < 0 {
		faults = append(faults, wrong("MaxConns", fmt.Sprint(c.MaxConns)+" is negative"))
	}
	if err := errors.Join(faults...); err != nil {
		return c, nil, fmt.Errorf("configure stripe gateway: %w", err)
	}
	return c, base, nil
}

// wrong says what is wrong with a field.
func wrong(field, what string) error { return errors.New(field + ": " + what) }

var liveKey = regexp.MustCompile(`^[sr]k_live_`)

func isHeaderToken(s string) bool {
	for i := range len(s) {
		if s[i] <= 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return len(s) <= 255
}

// ParseBase reads the address of an API that money depends on, by the rules of
// [Config.BaseURL]. Faults never quote it: it may hold credentials.
func ParseBase(raw string) (*url.URL, error) {
	base, faults := baseURL(raw)
	return base, errors.Join(faults...)
}

// baseURL reads the address and lists what is wrong with it. Faults never
// quote it: it may hold credentials.
func baseURL(raw string) (*url.URL, []error) {
	if raw == "" {
		return nil, []error{wrong("BaseURL", "is required")}
	}
	base, err := url.Parse(raw)
	if err != nil || base.Hostname() == "" || (base.Scheme != "https" && base.Scheme != "http") {
		return nil, []error{wrong("BaseURL", "must be an absolute http or https URL")}
	}
	var faults []error
	if base.User != nil || base.RawQuery != "" || base.ForceQuery || base.Fragment != "" {
		faults = append(faults, wrong("BaseURL", "must have no user, query or fragment"))
	}
	if base.Scheme == "http" && !isPrivate(base.Hostname()) {
		faults = append(faults, wrong("BaseURL", "must be https unless the host is loopback or private"))
	}
	if base.EscapedPath() != base.Path || strings.Contains(base.Path, "//") {
		faults = append(faults, wrong("BaseURL", "its path must be plain"))
	}
	base.Path = strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/v1")
	base.Host = strings.TrimSuffix(strings.ToLower(base.Host), ":")
	return base, faults
}

func isLoopback(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	host = strings.ToLower(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

func isPrivate(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap()
		return addr.IsLoopback() || addr.IsPrivate() || addr.IsLinkLocalUnicast()
	}
	host = strings.ToLower(host)
	return isLoopback(host) || !strings.Contains(host, ".") ||
		strings.HasSuffix(host, ".local") || strings.HasSuffix(host, ".internal")
}
