package sagas

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
)

// How long a run's key lives beyond the end of its period: until dunning is
// over, and a week more. A key that is needed later is extended by as much.
const (
	runDunning = 7 * 24 * time.Hour
	runGrace   = 7 * 24 * time.Hour
	runLatest  = 14 * time.Hour // the last zone in which a period ends, behind UTC
	runRenew   = 48 * time.Hour // a key that is needed is extended before less than this is left
)

// keyExpiry is when the key of p should expire, asked at now.
func keyExpiry(p domain.Period, now time.Time) time.Time {
	y, m := p.Next().Start()
	expiry := time.Date(y, time.Month(m), 1, 0, 0, 0, 0, time.UTC).Add(runLatest + runDunning + runGrace)
	if least := now.Add(runRenew); expiry.Before(least) {
		return now.Add(runDunning + runGrace)
	}
	return expiry
}

// RunKeys holds the secrets of runs' vault keys, in memory alone. A process that
// starts, or whose secret is not accepted any more, asks the proxy for another
// one of the same key.
type RunKeys struct {
	vault       Vault
	pool        *pgxpool.Pool
	clock       *Clock
	environment string

	mu   sync.Mutex
	runs map[domain.Period]*runKey
}

// runKey is a run's key; who holds mu asks for it, and the others wait.
type runKey struct {
	mu     sync.Mutex
	key    VaultKey
	secret string
}

// NewRunKeys makes an empty holder. A run's key is the proxy's for environment
// and period, so that installations which share a proxy share no keys.
func NewRunKeys(vault Vault, pool *pgxpool.Pool, clock *Clock, environment string) *RunKeys {
	return &RunKeys{vault: vault, pool: pool, clock: clock, environment: environment, runs: map[domain.Period]*runKey{}}
}

// String shows no secret, nor does GoString.
func (k *RunKeys) String() string { return "run keys of " + k.environment }

// GoString is String.
func (k *RunKeys) GoString() string { return k.String() }

// Secret is a secret of the run's key. The error is ErrVaultRefused if the
// proxy gives none for good.
func (k *RunKeys) Secret(ctx context.Context, p domain.Period) (string, error) {
	_, secret, err := k.get(ctx, p, "")
	return secret, err
}

// Renew is Secret after the proxy has refused one.
func (k *RunKeys) Renew(ctx context.Context, p domain.Period, refused string) (string, error) {
	_, secret, err := k.get(ctx, p, refused)
	return secret, err
}

func (k *RunKeys) get(ctx context.Context, p domain.Period, refused string) (VaultKey, string, error) {
	k.mu.Lock()
	r := k.runs[p]
	if r == nil {
		r = &runKey{}
		k.runs[p] = r
	}
	k.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.secret != "" && r.secret != refused {
		return r.key, r.secret, nil
	}
	r.secret = ""
	now, err := k.clock.Now(ctx)
	if err != nil {
		return VaultKey{}, "", err
	}
	key, secret, err := k.vault.Issue(ctx, VaultOrder{
		Environment: k.environment, Run: p.String(), Label: "run " + p.String(), Expires: keyExpiry(p, now),
	})
	if err != nil {
		return VaultKey{}, "", fmt.Errorf("issue the vault key of run %s: %w", p, err)
	}
	if _, err := k.pool.Exec(ctx, `INSERT INTO billing_runs AS r (billing_period, vault_key, expires_at) VALUES ($1, $2, $3)
		ON CONFLICT (billing_period) DO UPDATE SET vault_key = excluded.vault_key, expires_at = excluded.expires_at, updated_at = clock_timestamp()
		WHERE (r.vault_key, r.expires_at) IS DISTINCT FROM (excluded.vault_key, excluded.expires_at)`, p.String(), key.ID, key.Expires); err != nil {
		return VaultKey{}, "", fmt.Errorf("keep the vault key of run %s: %w", p, err)
	}
	r.key, r.secret = key, secret
	return key, secret, nil
}

// extend lets the key of p live as long as it is needed.
func (k *RunKeys) extend(ctx context.Context, p domain.Period) error {
	now, err := k.clock.Now(ctx)
	if err != nil {
		return err
	}
	key, _, err := k.get(ctx, p, "")
	if err != nil {
		return err
	}
	until := keyExpiry(p, now)
	if err := k.vault.Extend(ctx, key.ID, until, "bills of the run are still to be collected"); err != nil {
		return fmt.Errorf("extend the vault key of run %s: %w", p, err)
	}
	if _, err := k.pool.Exec(ctx, `UPDATE billing_runs SET expires_at = $2, updated_at = clock_timestamp() WHERE billing_period = $1`, p.String(), until); err != nil {
		return fmt.Errorf("keep the vault key of run %s: %w", p, err)
	}
	return nil
}

// figures are the run's key and what is left of its cap in a currency, as the
// proxy says now; limit and left are nil if it does not say.
func (k *RunKeys) figures(ctx context.Context, p domain.Period, c domain.Currency) (id string, limit, left *int64) {
	if err := k.pool.QueryRow(ctx, `SELECT vault_key FROM billing_runs WHERE billing_period = $1 AND vault_key IS NOT NULL`, p.String()).Scan(&id); err != nil {
		return "", nil, nil
	}
	key, err := k.vault.Key(ctx, id)
	if err != nil {
		return id, nil, nil
	}
	for _, of := range key.Caps {
		if of.Currency == c {
			return id, &of.CapMinor, &of.LeftMinor
		}
	}
	return id, nil, nil
}
