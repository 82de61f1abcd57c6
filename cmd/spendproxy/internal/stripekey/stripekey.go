// Package stripekey looks at the upstream key before it is used: what Stripe
// lets a key do is decided by its kind, and the proxy needs little of it.
//
// A restricted key (rk_) may do what was ticked for it in Stripe's dashboard
// and no more; a secret key (sk_) may pay out, transfer, and make further keys.
// The proxy's own rules hold in front of either, but whoever steals a secret
// key from this process's memory or environment has everything.
package stripekey

import (
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Check says in one sentence what is to be said against a key, without quoting
// it; nothing if there is nothing. Keys of Stripe's test mode reach no money,
// so a secret one passes.
func Check(key string) (warning string) {
	kind, rest, _ := strings.Cut(key, "_")
	switch {
	case kind == "rk", kind == "sk" && strings.HasPrefix(rest, "test_"):
		return ""
	case kind == "sk":
		return "the upstream key is a secret key (sk_), which may do everything in the Stripe account; a restricted one (rk_) with the permissions that the README lists would do"
	}
	return "the upstream key is neither a restricted key (rk_) nor a secret one (sk_) of Stripe"
}

// Watch logs what is to be said against a key, once, and keeps saying it in
// the metric spendproxy_upstream_key_unrestricted, which is 1 as long as the
// process runs with such a key and else 0.
func Watch(key string, log *slog.Logger, registry prometheus.Registerer) error {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spendproxy_upstream_key_unrestricted",
		Help: "1 if the upstream key may do more than the proxy needs: a secret key of Stripe's live mode where a restricted one would do.",
	})
	if warning := Check(key); warning != "" {
		gauge.Set(1)
		log.Warn(warning)
	}
	return registry.Register(gauge)
}
