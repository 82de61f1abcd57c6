package sagas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/billonce/billonce/domain"
)

// Environment keeps a collector from taking money on a database that is not
// the one it believes it to be: a copy in another environment, a restored
// backup, a promoted standby that was behind.
//
// The first start writes into the database where it belongs (the installation's
// name and the Stripe account) and what it is (the server's system identifier
// and timeline, the database's own number). What does not match later, or a log
// that no longer holds the newest fact that this process has seen, pauses
// collection, for every process on that database, until an operator adopts it.
// A database that has gone back is looked at anew before that; see [Look].
//
// Every claim checks all of this in its own transaction, so nothing is claimed
// in the time between a restore and its discovery.
type Environment struct {
	name    string
	account func(context.Context) (string, error) // nil: not compared
	pool    *pgxpool.Pool
	log     *slog.Logger
	forget  func() // what this process remembers of the log

	asking sync.Mutex // one check at a time

	mu       sync.Mutex
	own      string // the account of our own key, once asked
	epoch    int64  // of the database as this process knows it; 0: it has not seen it
	newest   fact
	standing Standing
	changed  time.Time // when the standing was last said aloud
}

// fact is the newest fact of the log that a process has seen.
type fact struct {
	position int64
	id       string
}

// Standing is where a service and its database stand to each other.
type Standing struct {
	Fits   bool   `json:"fits"`             // the database is the one it is taken for
	Reason string `json:"reason,omitempty"` // why not
	// Elsewhere: the database belongs to another environment or Stripe account.
	// Nothing of Stripe is read for it but whose account our key is.
	Elsewhere bool `json:"elsewhere,omitempty"`

	Name             string     `json:"name"`
	StripeAccount    string     `json:"stripe_account"`
	SystemIdentifier string     `json:"system_identifier"`
	Timeline         int64      `json:"timeline"`
	AdoptedAt        *time.Time `json:"adopted_at,omitempty"`
	AdoptedBy        string     `json:"adopted_by,omitempty"`
	AdoptedReason    string     `json:"adopted_reason,omitempty"`

	epoch int64
}

// environmentEvery is how often a running service looks whether its database
// is still the same one. Claims look for themselves.
const environmentEvery = 5 * time.Second

// Refusals of an adoption.
var (
	ErrNothingToAdopt = &domain.Error{Kind: domain.Conflict, Code: "nothing_to_adopt", Msg: "the database is the one that the service takes it for; there is nothing to adopt"}
	ErrAccountUnknown = &domain.Error{Kind: domain.Refused, Code: "stripe_account_unknown", Msg: "the Stripe account cannot be read at the moment, so nothing is adopted for it"}
	ErrNotLookedAt    = &domain.Error{Kind: domain.Conflict, Code: "look_not_complete", Msg: "the look at what Stripe holds is not complete; adopt once it is"}
)

// errNotOurs ends a claim: the database is not the one it was taken for.
var errNotOurs = errors.New("the database is not the one that this process has been working on")

func newEnvironment(c CollectorConfig, pool *pgxpool.Pool, forget func(), log *slog.Logger) *Environment {
	return &Environment{name: c.Environment, account: c.Account, pool: pool, log: log, forget: forget,
		standing: Standing{Reason: "the database's identity has not been read yet"}}
}

// Ready says why nothing is collected, or nil.
func (e *Environment) Ready() error {
	if s := e.Standing(); !s.Fits {
		return errors.New(s.Reason)
	}
	return nil
}

// Standing is where things stood at the last check.
func (e *Environment) Standing() Standing {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.standing
}

// watch checks until ctx ends.
func (e *Environment) watch(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, environmentEvery)
		if _, err := e.check(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("the database's identity cannot be read", "error", err)
		}
	}
}

// check reads the database's identity, writes it on the first start, pauses
// collection where the database is another one, and says where things stand.
func (e *Environment) check(ctx context.Context) (Standing, error) {
	e.asking.Lock()
	defer e.asking.Unlock()
	s, err := e.stand(ctx)
	if err != nil {
		s = Standing{Reason: "the database's identity cannot be read"}
		if errors.Is(err, errNoAccount) {
			s.Reason = "the Stripe account cannot be read"
		}
	}
	if ctx.Err() != nil {
		return s, ctx.Err()
	}
	e.say(s)
	return s, err
}

var errNoAccount = errors.New("the Stripe account cannot be read")

func (e *Environment) stand(ctx context.Context) (Standing, error) {
	account, err := e.ownAccount(ctx)
	if err != nil {
		return Standing{}, fmt.Errorf("%w: %w", errNoAccount, err)
	}
	for {
		remembered := e.remembered()
		f, err := e.scan(e.pool.QueryRow(ctx, readEnvironment, remembered.position), remembered)
		if err != nil {
			return Standing{}, fmt.Errorf("read the database's identity: %w", err)
		}
		e.mu.Lock()
		epoch := e.epoch
		e.mu.Unlock()
		moved := f.moved(epoch)
		switch {
		case moved != "":
			err = e.pause(ctx, f, account, moved)
		case !f.written:
			err = e.write(ctx, f, account)
		case f.account == "" && account != "":
			_, err = e.pool.Exec(ctx, `UPDATE environment SET stripe_account = $1, updated_at = clock_timestamp() WHERE stripe_account = ''`, account)
		default:
			e.know(f)
			return f.standing(e.name, account), nil
		}
		if err != nil {
			return Standing{}, fmt.Errorf("write the database's identity: %w", err)
		}
		if moved != "" {
			e.mu.Lock()
			e.epoch, e.newest = 0, fact{} // it is another database now, and paused
			e.mu.Unlock()
		}
	}
}

// know takes over the database's epoch. A new one means that somebody found
// the database to be another one: nothing remembered of it holds.
func (e *Environment) know(f found) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epoch != f.epoch {
		e.epoch, e.newest = f.epoch, fact{}
		e.forget()
	}
	e.sees(f.newest)
}

func (f found) standing(name, account string) Standing {
	s := Standing{
		Fits: true, Name: f.name, StripeAccount: f.account, SystemIdentifier: f.wroteSystem, Timeline: f.wroteTime,
		AdoptedAt: f.adoptedAt, AdoptedBy: f.adoptedBy, AdoptedReason: f.adoptedWhy, epoch: f.epoch,
	}
	if elsewhere := f.elsewhere(name, account); elsewhere != "" {
		s.Fits, s.Elsewhere, s.Reason = false, true, elsewhere+"; nothing is collected until it is adopted (billingctl adopt)"
	} else if f.paused {
		s.Fits, s.Reason = false, f.reason+"; nothing is collected until it is adopted (billingctl adopt)"
	}
	return s
}

func (e *Environment) ownAccount(ctx context.Context) (string, error) {
	e.mu.Lock()
	own := e.own
	e.mu.Unlock()
	if own != "" || e.account == nil {
		return own, nil
	}
	own, err := e.account(ctx)
	if err != nil {
		return "", err
	}
	e.mu.Lock()
	e.own = own
	e.mu.Unlock()
	return own, nil
}

// write is the first start.
func (e *Environment) write(ctx context.Context, f found, account string) error {
	_, err := e.pool.Exec(ctx, `INSERT INTO environment (name, stripe_account, system_identifier, database_oid, timeline, epoch)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`, e.name, account, f.system, f.oid, f.timeline, drawEpoch())
	return err
}

// pause keeps every process from collecting on a database that has become
// another one. Of several that notice, one is first.
func (e *Environment) pause(ctx context.Context, f found, account, reason string) error {
	if !f.written {
		if err := e.write(ctx, f, account); err != nil {
			return err
		}
	}
	tag, err := e.pool.Exec(ctx, `
		UPDATE environment SET system_identifier = $1, database_oid = $2, timeline = CASE WHEN $3::bigint = 0 THEN timeline ELSE $3 END,
			epoch = $4, former_epoch = epoch, paused = true, reason = $5, updated_at = clock_timestamp()
		WHERE epoch = $6 OR $6 = 0`, f.system, f.oid, f.timeline, drawEpoch(), reason, f.epoch)
	if err == nil && tag.RowsAffected() > 0 {
		e.log.Error("COLLECTION IS PAUSED: this is not the database that it was", "reason", reason)
	}
	return err
}

// drawEpoch draws a number that no restore can bring back.
func drawEpoch() int64 { return rand.Int64N(1<<62) + 1 }

// doubt stops collection until the next check.
func (e *Environment) doubt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.standing.Fits, e.standing.Reason = false, "the database's identity is being checked"
}

// say keeps the standing, and repeats aloud every minute what is wrong.
func (e *Environment) say(s Standing) {
	e.mu.Lock()
	before := e.standing
	e.standing = s
	aloud := s.Reason != before.Reason || !s.Fits && time.Since(e.changed) > time.Minute
	if aloud {
		e.changed = time.Now()
	}
	e.mu.Unlock()
	switch {
	case !aloud:
	case !s.Fits:
		e.log.Error("nothing is collected", "reason", s.Reason, "environment", e.name)
	default:
		e.log.Info("the database is the one it is taken for", "environment", s.Name, "account", s.StripeAccount, "system_identifier", s.SystemIdentifier, "timeline", s.Timeline)
	}
}

// adopt makes the database ours as it is. Looked tells whether a look is
// complete for an epoch.
func (e *Environment) adopt(ctx context.Context, by, reason string, looked func(epoch int64) bool) (Standing, error) {
	s, err := e.check(ctx)
	switch {
	case errors.Is(err, errNoAccount):
		return s, ErrAccountUnknown
	case err != nil:
		return s, err
	case s.Fits:
		return s, ErrNothingToAdopt
	case !s.Elsewhere && !looked(s.epoch):
		return s, ErrNotLookedAt
	}
	e.mu.Lock()
	own := e.own
	e.mu.Unlock()
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		epoch := s.epoch
		if s.Elsewhere { // a look begins anew, and every process learns of it
			epoch = drawEpoch()
		}
		tag, err := tx.Exec(ctx, `
			UPDATE environment SET name = $1, stripe_account = CASE WHEN $2 = '' THEN stripe_account ELSE $2 END,
				former_epoch = CASE WHEN epoch = $3 THEN former_epoch ELSE epoch END, epoch = $3,
				paused = false, reason = '', adopted_at = clock_timestamp(), adopted_by = $4, adopted_reason = $5, updated_at = clock_timestamp()
			WHERE epoch = $6`, e.name, own, epoch, by, reason, s.epoch)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return ErrNotLookedAt // it became another one at this moment
		}
		if own != "" && own != s.StripeAccount { // how far another account's lists were read says nothing here
			_, err = tx.Exec(ctx, `DELETE FROM looks`)
		}
		return err
	})
	if _, refused := errors.AsType[*domain.Error](err); refused {
		return s, err
	}
	if err != nil {
		return s, fmt.Errorf("adopt the database: %w", err)
	}
	e.log.Warn("the database was adopted", "by", by, "reason", reason, "was", s.Reason)
	return e.check(ctx)
}
