package tracking

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/billonce/billonce/eventstore"
)

// What processor_runs calls the things that happen to a processor's tokens.
const (
	actionStart   = "start"
	actionLost    = "tokens lost"
	actionReset   = "reset"
	actionPause   = "pause"
	actionResume  = "resume"
	actionRunTo   = "run to"
	actionRetry   = "retry letters"
	actionSkip    = "skip letter"
	actionRebuild = "rebuild"
	actionReplay  = "replay"
)

// tokensLock is the class of the advisory lock under which a processor's
// tokens are made. It comes before the tokens themselves.
const tokensLock = 7311

// ensureTokens makes the tokens that p does not have, and waits for a database
// that is away. It fails when waiting would not help.
func (r *Runtime) ensureTokens(ctx context.Context, p *processor) error {
	for n := 1; ; n++ {
		err := r.makeTokens(ctx, p)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if !eventstore.Transient(err) {
			return fmt.Errorf("tokens of processor %q: %w", p.Name, err)
		}
		p.log.Warn("the database is away; waiting", "error", err)
		pause(ctx, backoff(n))
	}
}

// makeTokens tells a new processor, which begins where it says, from one that
// has run before and lost tokens. That one reads from the beginning: events up
// to the newest there is are replays. A pure one is emptied first.
func (r *Runtime) makeTokens(ctx context.Context, p *processor) error {
	var tokens int
	var known bool
	const state = `SELECT (SELECT count(*) FROM processor_tokens WHERE processor = $1),
		EXISTS (SELECT FROM processor_runs WHERE processor = $1 AND action = 'start')`
	if err := r.pool.QueryRow(ctx, state, p.Name).Scan(&tokens, &known); err != nil {
		return err
	}
	if tokens == eventstore.Partitions && known {
		return nil
	}
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, hashtext($2))`, tokensLock, p.Name); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, state, p.Name).Scan(&tokens, &known); err != nil {
			return err
		}
		switch {
		case tokens == eventstore.Partitions && known: // another replica was here first
			return nil
		case tokens == 0 && !known:
			return r.newTokens(ctx, tx, p)
		case tokens == eventstore.Partitions: // made by hand
			return record(ctx, tx, p.Name, actionStart, r.owner, nil, nil, "its tokens were there")
		}
		if err := r.lostTokens(ctx, tx, p, eventstore.Partitions-tokens); err != nil {
			return err
		}
		if !known {
			return record(ctx, tx, p.Name, actionStart, r.owner, nil, nil, "some of its tokens were there")
		}
		return nil
	})
}

func (r *Runtime) newTokens(ctx context.Context, tx pgx.Tx, p *processor) error {
	from := "0"
	if p.Start == Head {
		from = "coalesce(" + newestOf("p") + ", 0)"
	}
	if _, err := tx.Exec(ctx, `INSERT INTO processor_tokens (processor, partition, position, owner)
		SELECT $1, p, `+from+`, $2 FROM generate_series(0, 63) AS p`, p.Name, r.owner); err != nil {
		return err
	}
	p.log.Info("a new processor starts", "kind", p.Kind.String(), "from_head", p.Start == Head)
	return record(ctx, tx, p.Name, actionStart, r.owner, nil, nil, "new")
}

func (r *Runtime) lostTokens(ctx context.Context, tx pgx.Tx, p *processor, lost int) error {
	p.log.Error("tokens of a processor were lost; it reads from the beginning as a replay", "kind", p.Kind.String(), "lost", lost)
	p.metrics.lost.WithLabelValues(p.Name).Add(float64(lost))
	if p.Reset != nil {
		if err := lockTokens(ctx, tx, p.Name); err != nil {
			return err
		}
		if err := p.Reset(ctx, tx); err != nil {
			return fmt.Errorf("reset its tables: %w", err)
		}
		if err := rewind(ctx, tx, p.Name, 1, r.owner, "tokens were missing"); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `INSERT INTO processor_tokens (processor, partition, position, replay_until, paused, stop_at, owner)
		SELECT $1, p, 0, coalesce(`+newestOf("p")+`, 0), coalesce((SELECT bool_or(paused) FROM processor_tokens WHERE processor = $1), false),
			(SELECT max(stop_at) FROM processor_tokens WHERE processor = $1), $2
		FROM generate_series(0, 63) AS p ON CONFLICT DO NOTHING`, p.Name, r.owner); err != nil {
		return err
	}
	return record(ctx, tx, p.Name, actionLost, r.owner, nil, nil, fmt.Sprintf("%d tokens were missing", lost))
}

// lockTokens waits for the pages of a processor that are under way and keeps
// new ones from beginning until tx ends.
func lockTokens(ctx context.Context, tx pgx.Tx, processor string) error {
	_, err := tx.Exec(ctx, `SELECT FROM processor_tokens WHERE processor = $1 ORDER BY partition FOR UPDATE`, processor)
	return err
}

// rewind sends locked tokens back to before a position. Letters from there on
// are void: their events are read again.
func rewind(ctx context.Context, tx pgx.Tx, processor string, from int64, actor, why string) error {
	if _, err := tx.Exec(ctx, `UPDATE processor_tokens SET replay_until = greatest(replay_until, position), position = least(position, $2::bigint - 1),
		attempts = 0, failed_position = NULL, not_before = '-infinity', last_error = NULL, updated_at = clock_timestamp()
		WHERE processor = $1`, processor, from); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `DELETE FROM passed_events WHERE processor = $1 AND first_position >= $2`, processor, from); err != nil {
		return err
	}
	_, err := voided(ctx, tx, processor, "reset", actor, why, `position >= $5`, from)
	return err
}

// record adds a line to processor_runs.
func record(ctx context.Context, q eventstore.Querier, processor, action, actor string, from, to *int64, reason string) error {
	_, err := q.Exec(ctx, `INSERT INTO processor_runs (processor, action, actor, from_position, to_position, reason) VALUES ($1, $2, $3, $4, $5, $6)`,
		processor, action, actor, from, to, reason)
	return err
}
