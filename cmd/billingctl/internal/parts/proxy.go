package parts

import (
	"context"
	"net/http"
	"net/url"
)

// Proxy is the admin API of a spend proxy.
type Proxy struct {
	Address string // http://host:port
	Token   string // its admin token
}

// VaultCap is the cap of a vault key in one currency, in minor units.
type VaultCap struct {
	Currency string `json:"currency"`
	Minor    int64  `json:"cap_minor"`
}

// ReadRules are the rules of a service's own vault key, beside the ones of its
// runs: it reads, and cancels what must not take money any more.
var ReadRules = []string{"account:read", "customers:read", "payment_methods:read", "intents:read", "intents:cancel", "charges:read", "refunds:read", "events:read"}

// Issue issues a vault key for rules, and returns its secret.
func (p Proxy) Issue(ctx context.Context, label string, rules []string, window string, caps []VaultCap) (secret string, err error) {
	var issued struct {
		Secret string `json:"secret"`
	}
	err = p.Call(ctx, http.MethodPost, "/admin/v1/vault-keys", map[string]any{
		"label": label, "environment": "demo", "rules": rules, "mode": "enforce", "window": window, "caps": caps,
	}, &issued)
	return issued.Secret, err
}

// ProxySum is what went through a proxy in one currency.
type ProxySum struct {
	Currency string `json:"currency"`
	Settled  int64  `json:"settled_minor"`
	Charges  int64  `json:"settled"`
	Held     int64  `json:"held_minor"`
}

// Books reads what went through under a run's key.
func (p Proxy) Books(ctx context.Context, run string) ([]ProxySum, error) {
	var answer struct {
		Currencies []ProxySum `json:"currencies"`
	}
	err := p.Call(ctx, http.MethodGet, "/admin/v1/books?run="+url.QueryEscape(run), nil, &answer)
	return answer.Currencies, err
}

// Call asks the admin API, as [StandIn.Call] asks the stand-in.
func (p Proxy) Call(ctx context.Context, method, path string, body, into any) error {
	return call(ctx, "spendproxy", method, p.Address, path, p.Token, body, into)
}
