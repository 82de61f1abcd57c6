package sagas

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/billonce/billonce/domain"
)

// Vault is the spend proxy as its clerk sees it: where run keys come from, and
// where the proxy is told what a run is expected to take. No method is called
// while a transaction is open; each returns within a time limit of its own, and
// none retries. Errors are [ErrVaultRefused], or say that nothing is known.
type Vault interface {
	// Issue gives the run's key and one more secret of it. The same run has the
	// same key, whoever asks and however often.
	Issue(ctx context.Context, o VaultOrder) (VaultKey, string, error)
	// Key is a key's use as it is now.
	Key(ctx context.Context, id string) (VaultKey, error)
	// Extend lets a key live until then.
	Extend(ctx context.Context, id string, until time.Time, reason string) error
	// Register tells the proxy of bills. Repeats are harmless. It reads entries to
	// their end, or fails.
	Register(ctx context.Context, id string, entries iter.Seq[VaultEntry]) (Registered, error)
	// Verdicts lists what the proxy decided about calls for a bill, oldest first.
	Verdicts(ctx context.Context, c domain.CustomerID, p domain.Period) ([]Verdict, error)
}

// ErrVaultRefused says that the proxy has understood and refuses for good: the
// run's key is revoked, or the token does not permit it. Asking again without
// anybody having done something does not help.
var ErrVaultRefused = errors.New("the spend proxy refuses")

// VaultOrder asks for a run's key.
type VaultOrder struct {
	Environment string
	Run         string // unique in the environment
	Label       string
	Expires     time.Time // business time
}

// VaultKey is a key as the proxy shows it, without its secret.
type VaultKey struct {
	ID      string
	Expires time.Time // business time
	Caps    []VaultCap
}

// VaultCap is a key's cap in one currency.
type VaultCap struct {
	Currency  domain.Currency
	CapMinor  int64
	LeftMinor int64
}

// VaultEntry is a bill that the proxy is to let pass.
type VaultEntry struct {
	CustomerID       domain.CustomerID
	Period           domain.Period
	Amount           domain.Money
	StripeCustomerID string
	Fixed            bool // it will not change any more
	Withdrawn        bool // it is not owed after all
}

// Registered is what became of entries.
type Registered struct {
	Refused      []RefusedEntry // the first of them
	RefusedCount int
}

// RefusedEntry is a bill that the proxy does not take.
type RefusedEntry struct {
	CustomerID domain.CustomerID
	Code       string
	Message    string
}

// Verdict is what the proxy wrote down about one call: before it, and after.
type Verdict struct {
	Call           string    `json:"call"`
	At             time.Time `json:"at"`
	Phase          string    `json:"phase"` // before or after
	VaultKey       string    `json:"vault_key"`
	Method         string    `json:"method"`
	Path           string    `json:"path"`
	Verdict        string    `json:"verdict"` // allow, refuse or would_refuse
	Code           string    `json:"code,omitempty"`
	Reason         string    `json:"reason,omitempty"`
	Object         string    `json:"object,omitempty"`
	AmountMinor    int64     `json:"amount_minor,omitempty"`
	Currency       string    `json:"currency,omitempty"`
	IdempotencyKey string    `json:"idempotency_key,omitempty"`
	Reservation    string    `json:"reservation,omitempty"`
	Status         int       `json:"status,omitempty"`
	RequestID      string    `json:"request_id,omitempty"`
	LatencyMS      float64   `json:"latency_ms,omitempty"`
}

// proxyCodes are the refusals of the spend proxy that no repeat gets past: its
// caps, its policy, a vault key that is no longer good. Stripe has none of them.
// Whoever sees one pauses the run.
var proxyCodes = map[string]bool{
	"spend_cap_exceeded": true, "charge_cap_exceeded": true, "charge_too_large": true, "currency_not_capped": true,
	"not_permitted": true, "parameter_refused": true, "path_refused": true,
	"no_such_bill": true, "bill_of_a_run": true, "bill_mismatch": true, "key_not_derived": true, "already_charged": true, "charge_unresolved": true,
	"vault_key_invalid": true,
}

// byProxy reports whether an outcome is a refusal of the spend proxy.
func byProxy(o domain.Outcome) bool { return o.Class == domain.Held && proxyCodes[o.Code] }
