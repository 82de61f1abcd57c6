package config

import (
	"net/url"
	"os"

	"github.com/billonce/billonce/sagas/crashpoint"
)

// crash reads what the selftest arms, by environment alone. No process that can
// reach real money may be armed: a key that a proxy gave may lead to a live one.
func (c *check) crash(config Config) crashpoint.Plan {
	var plan crashpoint.Plan
	for _, name := range []string{crashpoint.CrashVariable, crashpoint.BreakVariable} {
		value, set := os.LookupEnv(name)
		if !set || c.Text(name, value) == "" {
			continue
		}
		if !testKey.MatchString(config.StripeKey.Reveal()) {
			c.Bad(name, "must not be set without a test key of Stripe: it makes this process die, or break a rule, on purpose")
			continue
		}
		if u, err := url.Parse(config.StripeBase); err != nil || !isLoopback(u.Hostname()) {
			c.Bad(name, "must not be set unless STRIPE_API_BASE is on this machine: it makes this process die, or break a rule, on purpose")
			continue
		}
		if _, err := parseCrash(name, value); err != nil {
			c.Bad(name, "must name crash points (name:nth:kill or name:nth:stop) or rules that exist, separated by commas")
		}
	}
	if len(c.Faults) > 0 {
		return plan
	}
	plan, _ = crashpoint.Parse(os.Getenv(crashpoint.CrashVariable), os.Getenv(crashpoint.BreakVariable)) // checked above, each
	return plan
}

func parseCrash(name, value string) (crashpoint.Plan, error) {
	if name == crashpoint.BreakVariable {
		return crashpoint.Parse("", value)
	}
	return crashpoint.Parse(value, "")
}
