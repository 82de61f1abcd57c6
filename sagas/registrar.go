package sagas

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
)

const (
	registerMost     = 20_000           // entries of one request: a second or two of the proxy's time
	registerNamed    = 100              // the proxy names no more refused entries than these
	registerLease    = 15 * time.Second // how long one replica has a run to itself; two at once do no harm, only work twice
	registerAgain    = 30 * time.Second // after a refusal that concerns the whole run
	extendMost       = 50               // keys of a look at what expires
	extensionsWanted = time.Minute      // between two such looks
)

// Registrar tells the spend proxy what runs are expected to take, before a bill
// of theirs is claimed. Replicas take runs in turn; what is told twice does no
// harm.
type Registrar struct {
	pool  *pgxpool.Pool
	vault Vault
	keys  *RunKeys
	clock *Clock
	log   *slog.Logger
	poll  time.Duration
	ready func() error // whether the database is the one it is taken for
	told  func()       // there may be bills to claim

	wake     chan struct{}
	rest     map[domain.Period]time.Time // runs of which the proxy would hear nothing, until then
	kept     map[domain.Period]time.Time // leases that could not be given back, and until when they run
	entries  atomic.Int64
	findings atomic.Int64
}

// NewRegistrar makes a registrar. It tells nothing as long as ready is not met:
// what a copy or a restored database expects would displace what is owed. told
// is called when entries were registered.
func NewRegistrar(vault Vault, keys *RunKeys, pool *pgxpool.Pool, clock *Clock, poll time.Duration, ready func() error, told func(), log *slog.Logger) *Registrar {
	return &Registrar{
		pool: pool, vault: vault, keys: keys, clock: clock, log: log, poll: poll, ready: ready, told: told,
		wake: make(chan struct{}, 1), rest: map[domain.Period]time.Time{}, kept: map[domain.Period]time.Time{},
	}
}

// Wake says that there may be entries to register. It never blocks.
func (r *Registrar) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Entries is how many entries this process has told the proxy of; refused, how
// many of them the proxy did not take.
func (r *Registrar) Entries() (told, refused int64) { return r.entries.Load(), r.findings.Load() }

// Run registers until ctx ends.
func (r *Registrar) Run(ctx context.Context) error {
	var extended time.Time
	for ctx.Err() == nil {
		more, err := r.Register(ctx)
		if err != nil && ctx.Err() == nil {
			r.log.Warn("the spend proxy could not be told what runs are expected to take; trying again", "error", err)
		}
		if time.Since(extended) > extensionsWanted && r.ready() == nil {
			extended = time.Now()
			if err := r.extend(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("keys of runs could not be extended; trying again", "error", err)
			}
		}
		if more && err == nil {
			continue
		}
		timer := time.NewTimer(jitter(r.poll))
		if err == nil {
			select {
			case <-r.wake:
			case <-timer.C:
			case <-ctx.Done():
			}
		} else { // the proxy is away: what wakes does not bring it back
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		timer.Stop()
	}
	return nil
}

// Register tells the proxy one batch of each run that has any, and says whether
// there may be more.
func (r *Registrar) Register(ctx context.Context) (more bool, err error) {
	if r.ready() != nil {
		return false, nil // the environment says aloud why
	}
	rows, err := r.pool.Query(ctx, `WITH RECURSIVE runs AS (
			(SELECT billing_period FROM run_manifest WHERE pending ORDER BY billing_period LIMIT 1)
			UNION ALL
			SELECT (SELECT m.billing_period FROM run_manifest m WHERE m.pending AND m.billing_period > runs.billing_period ORDER BY m.billing_period LIMIT 1)
			FROM runs WHERE runs.billing_period IS NOT NULL)
		SELECT billing_period FROM runs WHERE billing_period IS NOT NULL`)
	if err != nil {
		return false, fmt.Errorf("read runs to register: %w", err)
	}
	labels, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return false, fmt.Errorf("read runs to register: %w", err)
	}
	for p, until := range r.kept {
		if err := r.giveBack(ctx, p, until); err != nil {
			return false, err
		}
	}
	var failed []error
	for _, label := range labels {
		p, err := domain.ParsePeriod(label)
		if err != nil {
			return false, err
		}
		if time.Now().Before(r.rest[p]) {
			continue
		}
		again, err := r.run(ctx, p)
		more = more || again
		switch {
		case errors.Is(err, ErrVaultRefused):
			r.rest[p] = time.Now().Add(registerAgain)
			failed = append(failed, r.find(ctx, p, fmt.Sprintf("the proxy gives the run no key, or does not take its manifest: %v", err)))
		case err != nil:
			failed = append(failed, fmt.Errorf("run %s: %w", p, err))
		}
	}
	return more, errors.Join(failed...)
}

// run tells the proxy one batch of a run, unless another replica is at it.
func (r *Registrar) run(ctx context.Context, p domain.Period) (more bool, err error) {
	var until time.Time
	err = r.pool.QueryRow(ctx, `INSERT INTO billing_runs AS r (billing_period, registering_until) VALUES ($1, clock_timestamp() + $2 * interval '1 second')
		ON CONFLICT (billing_period) DO UPDATE SET registering_until = excluded.registering_until
		WHERE r.registering_until IS NULL OR r.registering_until < clock_timestamp()
		RETURNING registering_until`, p.String(), registerLease.Seconds()).Scan(&until)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("take the run: %w", err)
	}
	defer func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), registerLease)
		defer stop()
		if err := r.giveBack(ctx, p, until); err != nil {
			r.log.Warn("a run was not given back; it is as soon as the database answers, or when the lease is over", "run", p, "error", err)
		}
	}()
	// Bills that are over need no entry any more: a month that was collected
	// before there was a proxy, or one whose create has fixed the entry.
	if _, err := r.pool.Exec(ctx, passOverSQL, p.String()); err != nil {
		return false, fmt.Errorf("pass over bills that have ended: %w", err)
	}
	batch, err := r.pending(ctx, p)
	if err != nil || len(batch) == 0 {
		return false, err
	}
	key, _, err := r.keys.get(ctx, p, "")
	if err != nil {
		return false, err
	}
	if err := r.tell(ctx, p, key.ID, batch); err != nil {
		return false, err
	}
	r.told()
	return len(batch) == registerMost, nil
}

// giveBack ends a lease of this process, unless another replica has the run by
// now. A lease that the database does not take back is remembered: it would
// keep its own process waiting too.
func (r *Registrar) giveBack(ctx context.Context, p domain.Period, until time.Time) error {
	r.kept[p] = until
	_, err := r.pool.Exec(ctx, `UPDATE billing_runs SET registering_until = NULL WHERE billing_period = $1 AND registering_until = $2`, p.String(), until)
	if err != nil {
		return fmt.Errorf("give back run %s: %w", p, err)
	}
	delete(r.kept, p)
	return nil
}

// Both find each row by its key, whatever the planner knows of the tables.
const (
	passOverSQL = `UPDATE run_manifest m SET pending = false WHERE m.pending AND m.billing_period = $1 AND m.fixed
		AND (SELECT b.state FROM billing_records b WHERE b.customer_id = m.customer_id AND b.billing_period = m.billing_period) IN ('succeeded', 'void')`
	registeredSQL = `UPDATE run_manifest m SET pending = false, registered = u.code = '' AND NOT m.withdrawn, refused = nullif(u.code, '')
		FROM unnest($2::text[], $3::bigint[], $4::text[]) AS u(customer, version, code)
		CROSS JOIN LATERAL (SELECT ctid FROM run_manifest WHERE billing_period = $1 AND customer_id = u.customer AND version = u.version OFFSET 0) AS sent
		WHERE m.ctid = sent.ctid`
)

func (r *Registrar) pending(ctx context.Context, p domain.Period) ([]manifestEntry, error) {
	rows, err := r.pool.Query(ctx, `SELECT customer_id, amount_minor, currency, stripe_customer_id, fixed, withdrawn, version
		FROM run_manifest WHERE pending AND billing_period = $1 ORDER BY fixed AND registered, customer_id LIMIT $2`, p.String(), registerMost)
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	batch, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e manifestEntry, err error) {
		e.period = p
		err = row.Scan(&e.customer, &e.amount.Minor, &e.amount.Currency, &e.stripe, &e.fixed, &e.withdrawn, &e.version)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	return batch, nil
}

// tell registers a batch. Where the proxy refuses more entries than it names,
// the batch is told again in halves, until each is named.
func (r *Registrar) tell(ctx context.Context, p domain.Period, key string, batch []manifestEntry) error {
	answer, err := r.vault.Register(ctx, key, entriesOf(batch))
	if err != nil {
		return fmt.Errorf("register %d bills: %w", len(batch), err)
	}
	if answer.RefusedCount > len(answer.Refused) {
		if len(batch) <= registerNamed {
			return fmt.Errorf("register %d bills: the proxy refuses %d and names %d", len(batch), answer.RefusedCount, len(answer.Refused))
		}
		return errors.Join(r.tell(ctx, p, key, batch[:len(batch)/2]), r.tell(ctx, p, key, batch[len(batch)/2:]))
	}
	why := make(map[domain.CustomerID]RefusedEntry, len(answer.Refused))
	for _, e := range answer.Refused {
		why[e.CustomerID] = e
	}
	n := len(batch)
	customers, versions, codes := make([]string, n), make([]int64, n), make([]string, n)
	var wrong []RefusedEntry
	for i, e := range batch {
		customers[i], versions[i], codes[i] = string(e.customer), e.version, why[e.customer].Code
		if refused, ok := why[e.customer]; ok {
			wrong = append(wrong, refused)
		}
	}
	// What has changed meanwhile stays pending.
	if _, err := r.pool.Exec(ctx, registeredSQL, p.String(), customers, versions, codes); err != nil {
		return fmt.Errorf("keep what is registered: %w", err)
	}
	r.entries.Add(int64(n))
	r.findings.Add(int64(len(wrong)))
	return r.note(ctx, p, wrong)
}

// note keeps what the proxy does not take of a run where operators look, and
// says it once a batch.
func (r *Registrar) note(ctx context.Context, p domain.Period, wrong []RefusedEntry) error {
	if len(wrong) == 0 {
		_, err := r.pool.Exec(ctx, `UPDATE billing_runs SET finding = NULL WHERE billing_period = $1 AND finding IS NOT NULL
			AND NOT EXISTS (SELECT FROM run_manifest WHERE billing_period = $1 AND refused IS NOT NULL)`, p.String())
		return err
	}
	r.log.Warn("the proxy does not take bills of a run", "run", p, "bills", len(wrong), "first", wrong[0].CustomerID, "code", wrong[0].Code)
	return r.find(ctx, p, fmt.Sprintf("the proxy does not take %d bills of its manifest, which are not collected: %s", len(wrong), wrong[0].Code))
}

// find says that something stands in the way of a run, once.
func (r *Registrar) find(ctx context.Context, p domain.Period, what string) error {
	tag, err := r.pool.Exec(ctx, `UPDATE billing_runs SET finding = $2, updated_at = clock_timestamp() WHERE billing_period = $1 AND finding IS DISTINCT FROM $2`, p.String(), what)
	if err == nil && tag.RowsAffected() > 0 {
		r.log.Error("something of a run cannot be collected", "run", p, "finding", what)
	}
	return err
}

func entriesOf(batch []manifestEntry) iter.Seq[VaultEntry] {
	return func(yield func(VaultEntry) bool) {
		for e := range slices.Values(batch) {
			if !yield(VaultEntry{e.customer, e.period, e.amount, e.stripe, e.fixed, e.withdrawn}) {
				return
			}
		}
	}
}

// extend lets keys live on whose runs still have bills to collect.
func (r *Registrar) extend(ctx context.Context) error {
	now, err := r.clock.Now(ctx)
	if err != nil {
		return err
	}
	rows, err := r.pool.Query(ctx, `SELECT billing_period FROM billing_runs r WHERE vault_key IS NOT NULL AND expires_at < $1 AND (
			EXISTS (SELECT FROM billing_records b WHERE b.billing_period = r.billing_period AND b.state IN ('reserved', 'held'))
			OR EXISTS (SELECT FROM billing_records b WHERE b.billing_period = r.billing_period AND b.state IN ('sending', 'unknown', 'closing', 'action_required')))
		LIMIT $2`, now.Add(runRenew), extendMost)
	if err != nil {
		return fmt.Errorf("read keys that expire: %w", err)
	}
	labels, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read keys that expire: %w", err)
	}
	var failed []error
	for _, label := range labels {
		p, err := domain.ParsePeriod(label)
		if err == nil {
			err = r.keys.extend(ctx, p)
		}
		failed = append(failed, err)
	}
	r.told()
	return errors.Join(failed...)
}
